"""What is said of values that went back: one finding for each stretch, with what stood around it in words. Pure."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.model.declared_stores import DeclaredStore
from agent.model.findings import Finding, Severity
from agent.model.observations import LogLine
from agent.model.text import count, day_of, instant, listed
from agent.rules.queries.partitions import CLOCK_SLACK_MS
from agent.sources.streams.changelog_values import key_text
from spark_checks.changelogs.dates import Written
from spark_checks.changelogs.falls import KeyFall, Stretch
from spark_checks.changelogs.rebalances import Move, Ownership

KIND = "changelog_restore"
RESTORED = "store_restored"
RESTORING = frozenset({RESTORED, "store_without_checkpoint"})
"""The patterns of log lines that tell how a store came to its task (agent/sources/logs/patterns.py)."""

_LINES = 3
_OFTEN = 3


class Around(NamedTuple):
    """What the journal tells of a stretch: when its first and last falls were written, who owned what, what logs say.

    told: whether there is a journal at all. lines: of the store and its partition, oldest first.
    """

    first: Written = Written(None, None)
    last: Written = Written(None, None)
    owners: Ownership = Ownership()
    lines: Sequence[LogLine] = ()
    told: bool = False


def finding(cluster: str, store: DeclaredStore, stretch: Stretch, around: Around, keys: Path | None) -> Finding:
    """A stretch as a finding. keys: the file that lists its keys, None where there is none."""
    at = when(stretch, around)
    worst = stretch.worst[0]
    return Finding(
        rule=KIND,
        kind=KIND,
        severity=Severity.CRITICAL,
        at=at,
        known_at=at,
        since=around.first.since,
        subject={
            "cluster": cluster,
            "group": store.application,
            "topic": store.changelog,
            "partition": stretch.partition,
        },
        labels=("values_fell", *(["restarted"] if stretch.restarted else [])),
        previous={"key": key_text(worst.key), "value": worst.before, "offset": worst.before_offset},
        current={
            "key": key_text(worst.key),
            "value": worst.after,
            "offset": worst.after_offset,
            "keys": stretch.keys,
            "restarted": stretch.restarted,
            "total": stretch.total,
            "first_offset": stretch.first_offset,
            "last_offset": stretch.last_offset,
            **({} if keys is None else {"listed_in": str(keys)}),
        },
        detail=" ".join([
            _fell(store, stretch, _time(stretch, around)),
            *_worst(store, stretch),
            *(_cause(store, stretch, around) if around.told else ()),
            *_rest(stretch, keys),
        ]),
    )  # fmt: skip


def when(stretch: Stretch, around: Around) -> int:
    """When the first value went back, at the latest (ms): by the journal, else by its record's timestamp.

    What the journal's last word is from before counts from then on.
    """
    since, at = around.first
    return stretch.first_at if at is None and since is None else at or since or 0


def change(stretch: Stretch, around: Around, bounds: Sequence[int]) -> tuple[int | None, tuple[str, str] | None]:
    """Where in the log the task's old owner was last seen; that owner and the new one. None where no move is known.

    bounds: offsets at which stretches of the partition begin.
    """
    moves, _ = around.owners.before(stretch.partition, when(stretch, around))
    if not moves:
        return None, None
    old, new = (listed(dict.fromkeys(names)) for names in zip(*((one.old, one.new) for one in moves), strict=True))
    return max((one for one in bounds if one <= stretch.first_offset), default=None), (old, new)


def _fell(store: DeclaredStore, stretch: Stretch, time: str) -> str:
    often = f" in {stretch.falls:,} falls" if stretch.falls > stretch.keys else ""
    return (
        f"{store.changelog}[{stretch.partition}]: {stretch.keys:,} of its "
        f"{count(max(stretch.standing, stretch.keys), 'key')} went back{often}, by {stretch.total:,} in all, "
        f"from offset {stretch.first_offset:,} on, {time}."
    )


def _time(stretch: Stretch, around: Around) -> str:
    """When they were written; of what the journal does not tell, the timestamps of their input."""
    day = day_of(when(stretch, around))
    if around.first == (None, None):
        return (
            f"in records with timestamps from {instant(stretch.first_at, day)} to {instant(stretch.last_at, day)} UTC"
        )
    since, at = around.first
    begin = "" if since is None else f" after {instant(since, day)}"
    known = "" if at is None else f" by {instant(at, day)}"
    last = around.last.at
    end = "" if last is None or last == at else f", the last by {instant(last, day)}"
    return f"written{begin}{' and' if begin and known else ''}{known} UTC{end}"


def _worst(store: DeclaredStore, stretch: Stretch) -> Iterator[str]:
    yield f"{'Worst' if stretch.keys > len(stretch.worst) else 'They are'}: {', '.join(map(_key, stretch.worst))}."
    if stretch.restarted:
        who = "All" if stretch.restarted == stretch.keys else f"{stretch.restarted:,}"
        yield f"{who} of them began again: at or below the key's first value."
    if stretch.falls > _OFTEN * stretch.keys:
        yield f"They go back again and again; is {store.store} really never to decrease?"


def _key(fall: KeyFall) -> str:
    return f"{key_text(fall.key)} {fall.before:,} -> {fall.after:,}"


def _cause(store: DeclaredStore, stretch: Stretch, around: Around) -> Iterator[str]:
    """The rebalance before it, the owners before and after, and what logs say of restoring."""
    at = when(stretch, around)
    day = day_of(at)
    moves, rebalance = around.owners.before(stretch.partition, at)
    if moves:
        yield f"Before that {listed(map(_moved, moves))}, {_between(moves[0].since, moves[0].at, day)}."
    if rebalance is not None and (not moves or rebalance.since > moves[0].at):
        stayed = "and its owner was the same before and after" if moves else "and no partition of it was seen to move"
        yield f"Then {store.application} rebalanced, {_between(rebalance.since, rebalance.at, day)}, {stayed}."
    if not moves and rebalance is None:
        yield f"The journal tells of no rebalance of {store.application} before that."
    begin = min([one.since for one in (*moves, rebalance) if one is not None], default=at)
    until = at if around.last.at is None else around.last.at
    lines = [one for one in around.lines if begin - CLOCK_SLACK_MS <= one.at <= until + CLOCK_SLACK_MS]
    for line in lines[-_LINES:]:
        yield _said(line, stretch.first_offset, day)


def _moved(move: Move) -> str:
    return f"{move.topic}[{move.partition}] had moved from {move.old} to {move.new}"


def _between(since: int, at: int, day: str) -> str:
    return f"by {instant(at, day)}" if since == at else f"between {instant(since, day)} and {instant(at, day)}"


def _said(line: LogLine, offset: int, day: str) -> str:
    log = f"{line.host}:{line.log}" if line.host else line.log
    if line.pattern == RESTORED:
        records = count(int(line.values.get("records", 0)), "record")
        said = f"{records} restored, where the changelog had come to offset {offset:,}"
    else:
        said = "no checkpoint found, the store to be restored from the changelog's beginning"
    return f"{log} says at {instant(line.at, day)}: {said}."


def _rest(stretch: Stretch, keys: Path | None) -> Iterator[str]:
    if stretch.unwritten:
        them = "key has" if stretch.unwritten == 1 else "keys have"
        yield f"{stretch.unwritten:,} more {them} not been written since and may go back when written."
    if keys is not None:
        yield f"Every key with its values and offsets: {keys}."
