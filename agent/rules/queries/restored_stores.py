"""What is known of a store's restore on the thread that its task had moved to: from the logs, else from metrics. Pure.

It is evidence, never an alarm: nothing is restored either where the checkpoint had it all.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agent.engine.facts import LATENESS_MS, Facts
from agent.model.observations import ChangelogDecreases, LogLine, LogOffsets, TaskRestore, clock, whole_number
from agent.rules.queries.partitions import CLOCK_SLACK_MS
from agent.rules.queries.streams import Move, may_be_of, store_lines, thread
from agent.rules.queries.subjects import task_restores


def restored(facts: Facts, falls: ChangelogDecreases, move: Move | None) -> dict[str, Any]:
    """How many records the store was restored from since the move (`restored`), who says so (`restored_by`), how many
    offsets its changelog spanned then (`spanned`), and which log tells that there was no checkpoint (`no_checkpoint`);
    of these, what is known.
    """
    if move is None:
        return {}
    found: dict[str, Any] = {}
    line = _last(store_lines(facts, falls.cluster, (falls.topic, falls.partition), "store_restored"), falls, move)
    records = None if line is None else whole_number(line.values.get("records"))
    reading = _reading(facts, falls, move)
    if line is not None and records is not None:
        found |= {"restored": records, "restored_by": _place(line)}
    elif reading is not None:
        stores = len(reading.stores)
        whole = f", its task's {stores} stores together" if stores > 1 and reading.restored_total else ""
        found |= {"restored": reading.restored_total, "restored_by": f"metrics of {reading.endpoint}{whole}"}
    spanned = facts.history(LogOffsets, falls.cluster, falls.topic, falls.partition).as_of(move.new.begin.at)
    if found and spanned is not None:
        found["spanned"] = spanned.log_end - spanned.log_start
    line = _last(
        store_lines(facts, falls.cluster, (falls.topic, falls.partition), "store_without_checkpoint"), falls, move
    )
    if line is not None:
        found["no_checkpoint"] = _place(line)
    return found


def restored_words(current: Mapping[str, Any]) -> str:
    """What `restored` has found, as the end of a sentence; empty where it has found nothing."""
    told = ""
    if "restored" in current:
        records = f"{current['restored']:,}"
        spanned = current.get("spanned")
        what = (
            f"{records} records"
            if spanned is None
            else f"{records} of the {spanned:,} offsets that its changelog spans"
        )
        told = f"; restored: {what} ({current['restored_by']})"
    if "no_checkpoint" in current:
        told += f"; no checkpoint was found ({current['no_checkpoint']})"
    return told


def _reading(facts: Facts, falls: ChangelogDecreases, move: Move) -> TaskRestore | None:
    """The last reading of the store's task on its new thread. A task comes to a thread with a total of 0."""
    begin = move.left.start if move.changed else move.new.begin.start
    owner = thread(move.new.member)
    readings = [
        one
        for history in task_restores(facts, falls.cluster, falls.application)
        for one in history.between(begin, falls.began_at + LATENESS_MS)
        if one.thread == owner
        and falls.store in one.stores
        and one.task.endswith(f"_{falls.partition}")
        and one.restored_total is not None
    ]
    return max(readings, key=lambda one: (one.at, one.endpoint), default=None)


def _last(lines: Iterable[LogLine], falls: ChangelogDecreases, move: Move) -> LogLine | None:
    """The last line of the new thread from the move to the first fall."""
    begin, end = move.left.start - CLOCK_SLACK_MS, falls.began_at + CLOCK_SLACK_MS
    own = [one for one in lines if begin <= one.at <= end and may_be_of(one, move.new.member)]
    return max(own, key=lambda one: (one.at, one.log, one.text), default=None)


def _place(line: LogLine) -> str:
    return f"{line.log}, {clock(line.at)} UTC"
