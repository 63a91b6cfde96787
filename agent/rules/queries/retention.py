"""Queries about how long records that a group has not read are still kept."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from agent.engine.history import History
from agent.model.observations.kafka import Commit, LogOffsets, TopicSettings
from agent.rules.queries.unread import MARKER, end_of_markers, first_unread, written_at

MIN_AGE_MS = 600_000
"""Younger records are not about to be deleted, unless a reader deletes what it has read, as Kafka Streams does."""

_ADVANCES = 3
"""How many rises of the log start offset show its speed."""


class Margin(NamedTuple):
    """When the next record to read may be deleted, and for how long records are kept, ms.

    When that record was written days ago is estimated: readings of the log are thinned out by then.
    is_bound: whether it may be deleted earlier: the record was there when its log was first read.
    """

    deleted_from: float
    kept: float
    is_bound: bool = False


def find_margin(settings: TopicSettings | None, readings: list[LogOffsets], commit: Commit, at: int) -> Margin | None:
    """Return when the next record to read may be deleted, as known at that moment; None if that is not known.

    Also None if there is none, but perhaps transaction markers. settings: those of the topic, None if unknown.
    readings: of the log, the oldest first; those of a topic of that name that was deleted do not count. commit: the
    group's last.
    """
    known, offset = _since_decrease([reading for reading in readings if reading.at <= at]), commit.offset or 0
    unread = first_unread(known, offset + MARKER)
    if unread is None or known[-1].log_start > offset or at - unread[1] < MIN_AGE_MS:
        return None
    if known[-1].log_end <= end_of_markers(known, commit):
        return None
    margins: list[Margin] = []
    if settings is not None and settings.retention_ms > 0 and "delete" in settings.cleanup_policy:
        written = written_at(known, offset + MARKER)
        if written is not None:
            margins.append(Margin(written[0] + settings.retention_ms, settings.retention_ms, is_bound=written[1]))
    if settings is None or settings.retention_bytes > 0:
        margins += _by_speed(known, offset, at)
    return min(margins, default=None)


def is_age_known(readings: list[LogOffsets], offset: int, at: int) -> bool:
    """Return whether it is known when the record at the offset was written, or that it had not been by then.

    It is unknown of records that were there when the log was first read, as many are after a restart of the agent.
    """
    known = _since_decrease([reading for reading in readings if reading.at <= at])
    unread = first_unread(known, offset + MARKER)
    return bool(known) and (unread is None or unread[0] is not None)


def may_have_speed(settings: TopicSettings | None, log: History[LogOffsets]) -> bool:
    """Return whether `find_margin` may go by the speed at which the log start offset rises. Cheap."""
    if not log.changes or (settings is not None and settings.retention_bytes <= 0):
        return False
    return (log.older or log.changes)[0].log_start != log.changes[-1].log_start


def _since_decrease(readings: list[LogOffsets]) -> list[LogOffsets]:
    """Return the readings since the log start offset last decreased: within one log it only rises."""
    pairs = enumerate(pairwise(readings), 1)
    return readings[max((index for index, (old, new) in pairs if new.log_start < old.log_start), default=0) :]


def _by_speed(readings: list[LogOffsets], offset: int, at: int) -> Iterator[Margin]:
    """Yield when the log start offset reaches the offset at the speed at which it has risen, if it has."""
    rises = [after for before, after in pairwise(readings) if after.log_start > before.log_start]
    if len(rises) < _ADVANCES:
        return
    last = readings[-1]
    speed = (rises[-1].log_start - rises[0].log_start) / max(rises[-1].at - rises[0].at, 1)
    yield Margin(at + (offset - last.log_start) / speed, (last.log_end - last.log_start) / speed)
