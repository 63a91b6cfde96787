"""A reader's committed offsets against the log, as last observed, for the plot of an incident."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from agent.engine.engine import Engine
from agent.engine.history import History
from agent.model.findings import Finding, Incident
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets

_LEAD_MS = 300_000
"""How long before the event the plot begins."""

T = TypeVar("T", bound=Observation)
Series: TypeAlias = Sequence[tuple[int, int]]
"""Times in ms with the offset that held from then on, oldest first; the last time is when it was last seen to hold."""


class ReaderOffsets(NamedTuple):
    """Offsets of a group and of the log that it reads. at: when the event happened, ms."""

    group: str
    topic: str
    partition: int
    at: int
    committed: Series
    log_start: Series
    log_end: Series


def find_reader_offsets(incident: Incident, engine: Engine) -> ReaderOffsets | None:
    """Return the offsets of the worst finding about a reader; None if there is none, or they are no longer known."""
    readers = [finding for finding in incident.findings if {"group", "topic", "partition"} <= finding.subject.keys()]
    if not readers:
        return None
    worst = max(readers, key=_impact)
    place = worst.subject["cluster"], worst.subject["topic"], worst.subject["partition"]
    begin = worst.start - _LEAD_MS
    commits = engine.history(Commit, place[0], worst.subject["group"], *place[1:])
    log = engine.history(LogOffsets, *place)
    committed = _series(commits, begin, lambda commit: commit.offset)
    if not committed or committed[0][0] > worst.at:
        return None
    return ReaderOffsets(
        worst.subject["group"],
        place[1],
        place[2],
        worst.at,
        committed,
        _series(log, begin, lambda reading: reading.log_start),
        _series(log, begin, lambda reading: reading.log_end),
    )


def _impact(finding: Finding) -> tuple[int, int]:
    """Return how bad it is; of equals the earliest is the worst."""
    records = finding.records
    return records.reread + records.lost + records.skipped, -finding.at


def _series(history: History[T], begin: int, offset_of: Callable[[T], int | None]) -> Series:
    before = history.as_of(begin)
    changes: Iterable[T] = history.after(begin)
    points = [(max(fact.at, begin), offset_of(fact)) for fact in ([] if before is None else [before]) + list(changes)]
    known = [(at, offset) for at, offset in points if offset is not None]
    return [*known, (max(history.confirmed, known[-1][0]), known[-1][1])] if known else []
