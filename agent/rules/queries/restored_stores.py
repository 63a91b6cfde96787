"""Queries about a Kafka Streams store whose values decreased: owners, restore, missing records, and the text about it.

A restore is supporting evidence, never an alarm: nothing is restored either if the checkpoint was up to date.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS
from agent.model.observations.kafka import Commit, LogOffsets
from agent.model.observations.logs import LogLine, whole_number
from agent.model.observations.streams import ChangelogDecreases, TaskRestore
from agent.model.text import count, place
from agent.model.times import clock
from agent.rules.queries.partitions import CLOCK_SLACK_MS
from agent.rules.queries.streams import (
    Assignment,
    Reassignment,
    TaskHistory,
    find_store_lines,
    may_be_from,
    thread,
)
from agent.rules.queries.subjects import task_restores

_REPARTITION = "-repartition"

_FIGURES = ("keys", "total", "committed", "counted", "missing")
"""What episodes have in common is added up; a key that decreases in several of them counts in each."""

_WORST = 5


def decrease_fields(decreases: ChangelogDecreases) -> dict[str, Any]:
    """Return the figures of the decrease for `current`."""
    return {
        "keys": decreases.keys,
        "total": decreases.total,
        "first_offset": decreases.first_offset,
        "worst": [msgspec.to_builtins(key) for key in decreases.worst],
    }


def add_episode(
    current: Mapping[str, Any], begun_at: int, decreases: ChangelogDecreases, missing: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a finding's `current` with the figures of an episode: those of its latest so far, or of one after it.

    begun_at: when the latest began. missing: see `find_missing_records`. `earlier` has the sums of the episodes before.
    """
    earlier = current.get("earlier", {})
    if decreases.began_at > begun_at:
        earlier = {"latest": decreases.began_at, "worst": current["worst"]}
        earlier |= {name: current[name] for name in _FIGURES if name in current}
    episode = {**decrease_fields(decreases), **missing}
    known = [name for name in _FIGURES if name in earlier or name in episode]
    figures = {name: earlier.get(name, 0) + episode.get(name, 0) for name in known}
    worst = sorted([*earlier.get("worst", ()), *episode["worst"]], key=lambda key: key["after"] - key["before"])
    added = {**episode, **current, **figures, "worst": worst[:_WORST]}
    return {**added, "earlier": earlier} if earlier else added


def task_subject(histories: Sequence[TaskHistory]) -> dict[str, str]:
    """Return the finding's subject key `task` if it can be only one."""
    tasks = {history.task for history in histories if history.task is not None}
    return {"task": tasks.pop()} if len(histories) == len(tasks) == 1 else {}


def owner_fields(assignment: Assignment, time: str, at: int) -> dict[str, Any]:
    """Return the owning thread, its host, and under `time` ("since" or "until") the moment `at`, ms."""
    return {"owner": thread(assignment.member), "host": assignment.member.host.removeprefix("/"), time: at}


def owner_change(
    move: Reassignment | None, histories: Sequence[TaskHistory], at: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the owners before and after for `previous` and `current`; without a move, only the owner at `at`."""
    tasks = [history.task for history in histories if history.task is not None]
    candidates = {"tasks": tasks} if len(tasks) > 1 else {}
    if move is not None:
        new = owner_fields(move.new, "since", move.new.begin.at)
        return owner_fields(move.old, "until", move.left.at), new | candidates
    known = [owned for history in histories for owned in history.assignments if owned.begin.at <= at]
    return {}, (owner_fields(known[-1], "since", known[-1].begin.at) if known else {}) | candidates


def find_restore(facts: Facts, decreases: ChangelogDecreases, move: Reassignment | None) -> dict[str, Any]:
    """Return what is known of the store's restore after the move, from the logs or else from the metrics.

    restored: records; restored_by: which log or endpoint reported it; spanned: offsets in the changelog at that time;
    no_checkpoint: the log that says that there was none.
    """
    if move is None:
        return {}
    restore: dict[str, Any] = {}
    line = _last_line(facts, decreases, move, "store_restored")
    records = None if line is None else whole_number(line.values.get("records"))
    reading = _last_reading(facts, decreases, move)
    if line is not None and records is not None:
        restore |= {"restored": records, "restored_by": _log_place(line)}
    elif reading is not None:
        stores = len(reading.stores)
        scope = f", its task's {stores} stores together" if stores > 1 and reading.restored_total else ""
        restore |= {"restored": reading.restored_total, "restored_by": f"metrics of {reading.endpoint}{scope}"}
    spanned = facts.history(LogOffsets, decreases.cluster, decreases.topic, decreases.partition).as_of(
        move.new.begin.at
    )
    if restore and spanned is not None:
        restore["spanned"] = spanned.log_end - spanned.log_start
    line = _last_line(facts, decreases, move, "store_without_checkpoint")
    if line is not None:
        restore["no_checkpoint"] = _log_place(line)
    return restore


def _last_line(facts: Facts, decreases: ChangelogDecreases, move: Reassignment, pattern: str) -> LogLine | None:
    """Return the last line that the new thread logged from the move to the first decrease."""
    begin, end = move.left.start - CLOCK_SLACK_MS, decreases.began_at + CLOCK_SLACK_MS
    lines: Iterable[LogLine] = find_store_lines(
        facts, decreases.cluster, (decreases.topic, decreases.partition), pattern
    )
    lines = [line for line in lines if begin <= line.at <= end and may_be_from(line, move.new.member)]
    return max(lines, key=lambda line: (line.at, line.log, line.text), default=None)


def _last_reading(facts: Facts, decreases: ChangelogDecreases, move: Reassignment) -> TaskRestore | None:
    """Return the last reading of the store's task on its new thread, where its total begins at 0."""
    begin = move.left.start if move.is_to_other_thread else move.new.begin.start
    owner = thread(move.new.member)
    readings = [
        reading
        for history in task_restores(facts, decreases.cluster, decreases.application)
        for reading in history.between(begin, decreases.began_at + LATENESS_MS)
        if reading.thread == owner
        and decreases.store in reading.stores
        and reading.task.endswith(f"_{decreases.partition}")
        and reading.restored_total is not None
    ]
    return max(readings, key=lambda reading: (reading.at, reading.endpoint), default=None)


def _log_place(line: LogLine) -> str:
    return f"{line.log}, {clock(line.at)} UTC"


def find_missing_records(facts: Facts, decreases: ChangelogDecreases, input_topic: str | None) -> dict[str, Any]:
    """Return how many input records are certainly missing from a plain count; empty if none are proven missing.

    Of a plain count, the sum of a partition's last values is the number of records counted. It rises with the committed
    offset, and by more if records were counted twice after a crash; what it lags behind was lost.

    missing: records; input: their topic; counted: how much the sum rose (negative: decreased); committed: how much the
    committed offset rose at least. input_topic: DeclaredStore.counts.

    Commits and sums are observed at different moments. Only commits count that were certainly made after the first
    decrease and before everything in the sum was written: that covers records processed but not yet counted, and the
    reverse. Offsets of a repartition topic may be transaction markers, so there only a sum that decreased is proof.
    """
    if input_topic is None or decreases.sum_before is None or decreases.sum_after is None or decreases.sum_at is None:
        return {}
    commits = facts.history(Commit, decreases.cluster, decreases.application, input_topic, decreases.partition)
    before, after = commits.as_of(decreases.began_at), commits.as_of(max(decreases.sum_at, decreases.began_at))
    if _offset(after) < _offset(before) or _offset(before) < 0:
        return {}  # unknown, or rewound: counts that start over are then correct
    begin, end = decreases.began_at + CLOCK_SLACK_MS, decreases.sum_at - CLOCK_SLACK_MS
    certain = [
        commit.offset for commit in commits.between(begin, end) if commit.start >= begin and commit.offset is not None
    ]
    committed = 0 if input_topic.endswith(_REPARTITION) or not certain else max(certain[-1] - certain[0], 0)
    counted = decreases.sum_after - decreases.sum_before
    if committed <= counted:
        return {}
    return {"input": input_topic, "committed": committed, "counted": counted, "missing": committed - counted}


def _offset(commit: Commit | None) -> int:
    return -1 if commit is None or commit.offset is None else commit.offset


def describe_decrease(
    subject: Mapping[str, Any], previous: Mapping[str, Any], current: Mapping[str, Any], began_at: int
) -> str:
    """Return the finding's detail: what decreased, after which move, what was restored and what is missing."""
    store = f"store {subject['store']} of {subject['application']}{' not restored' if previous else ''}"
    keys = f"{count(current['keys'], 'key')} of {place(subject)} decreased by {current['total']:,}"
    clauses = [
        f"{store}: {keys} since {clock(began_at)} UTC",
        _describe_owners(subject, previous, current),
        *_describe_restore(current),
    ]
    if "missing" in current:
        clauses.append(f"at least {count(current['missing'], 'record')} of {current['input']} missing")
    return "; ".join(clauses)


def _describe_owners(subject: Mapping[str, Any], previous: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    tasks = [subject["task"]] if "task" in subject else current.get("tasks", ())
    task = f"task {' or '.join(tasks)}" if tasks else f"partition {subject['partition']}"
    owner = current.get("owner")
    if owner is None:
        return f"owner of {task} unknown"
    if not previous:
        return f"{task} has been with {owner} since {clock(current['since'])}"
    if (previous["owner"], previous["host"]) == (owner, current["host"]):
        return f"{task} returned to {owner} after a rebalance"
    return f"{task} moved from {previous['owner']} to {owner}"


def _describe_restore(current: Mapping[str, Any]) -> Iterator[str]:
    if "restored" in current:
        spanned = current.get("spanned")
        yield f"restored {current['restored']:,} {'records' if spanned is None else f'of {spanned:,} offsets'}"
    if "no_checkpoint" in current:
        yield "no checkpoint found"
