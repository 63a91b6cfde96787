"""A segment's `.index` and `.timeindex` held against its log: entries must rise and lead to the records they name.

Layouts: org.apache.kafka.storage.internals.log.OffsetIndex and TimeIndex (3.9), kafka.log's before; neither has a
checksum. Reads no files: bytes and what the log holds come in.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.kafka_log import Fault, consequences

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class LogEnd(NamedTuple):
    """What a log holds, once it has been read. size: where its last entry ends; last_offset, timestamp: its largest.

    lost: the first byte and the end of every stretch that could not be read, or whose offsets are out of order: entries
    that lead there are not judged, for the damage is the log's.
    """

    size: int
    last_offset: int
    timestamp: int
    lost: tuple[tuple[int, int], ...] = ()


class IndexCheck:
    """An offset index, checked while its log is read.

    An entry says: offsets from this one on begin at this byte. Up to 1.x the offset is the first of what was appended
    there (of a legacy wrapper the last), from 2.0 on the last of all that was appended at once, which may be several
    batches (LogSegment.append). So an entry is right if an entry of the log begins at its byte, all that stands before
    has lower offsets, and the log holds the offset.

    An active index that was truncated with its log keeps the old entries behind those that count, as many as only the
    broker knows (AbstractIndex.truncateToEntries). So of an active one an entry that is wrong is told only where one
    that is right comes behind it.
    """

    def __init__(self, raw: bytes, base_offset: int, *, active: bool) -> None:
        self._active = active
        whole = np.frombuffer(raw[: len(raw) - len(raw) % _OFFSET_ENTRY.itemsize], dtype=_OFFSET_ENTRY)
        entries, self._wrong = _without_zeros(whole, len(raw), _OFFSET_ENTRY.itemsize, active=active)
        self._offsets: NDArray[np.int64] = entries["offset"].astype(np.int64) + base_offset
        self._positions: NDArray[np.int64] = entries["position"].astype(np.int64)
        falls = np.flatnonzero((np.diff(self._offsets) <= 0) | (np.diff(self._positions) <= 0))
        if len(falls):
            if not active:
                self._tell(int(falls[0]) + 1, "is not above the one before it")
            # What comes behind cannot be found by the byte; it is the same damage.
            self._offsets = self._offsets[: falls[0] + 1]
            self._positions = self._positions[: falls[0] + 1]
        self._misses = np.zeros(len(self._positions), dtype=bool)
        self._checked = 0
        self._last = -1

    def see(self, positions: NDArray[np.int64], last_offsets: NDArray[np.int64]) -> None:
        """Take in the next entries of the log: the bytes at which they begin, rising, and their last offsets."""
        if not len(positions):
            return
        end = int(np.searchsorted(self._positions, positions[-1], side="right"))
        mine = slice(self._checked, end)
        at = np.searchsorted(positions, self._positions[mine])
        before = np.where(at > 0, last_offsets[at - 1], self._last)
        self._misses[mine] = (positions[at] != self._positions[mine]) | (before >= self._offsets[mine])
        self._checked = max(self._checked, end)
        self._last = int(last_offsets[-1])

    def faults(self, log: LogEnd) -> list[Fault]:
        """What is wrong, once the whole log has been seen: the first wrong entry, and how many there are."""
        misses = self._misses
        # What leads behind the last entry is of no use to an active one, and after a crash an index may be ahead.
        misses[self._checked :] = (self._positions[self._checked :] < log.size) | (not self._active)
        for begin, end in log.lost:
            misses &= ~((self._positions >= begin) & (self._positions < end))
        if not log.lost:
            misses[: self._checked] |= self._offsets[: self._checked] > log.last_offset
        wrong = _told(misses, active=self._active)
        if len(wrong):
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            self._tell(int(wrong[0]), f"leads to no entry of the log from which that offset can be found{more}")
        return self._wrong

    def _tell(self, number: int, why: str) -> None:
        offset, position = int(self._offsets[number]), int(self._positions[number])
        self._wrong.append(
            Fault(
                "index_wrong",
                number * _OFFSET_ENTRY.itemsize,
                _OFFSET_ENTRY.itemsize,
                {},
                {"offset": offset, "position": position},
                -1,
                f"entry {number} (offset {offset} at byte {position}) {why}",
                consequences.INDEX,
            )
        )


def time_index_faults(raw: bytes, base_offset: int, log: LogEnd, *, active: bool) -> list[Fault]:
    """What is wrong with a time index, whose entries say: up to this offset no timestamp is larger than this one.

    Timestamps must rise and offsets not fall (TimeIndex.maybeAppend), and the log must hold both.
    """
    whole = np.frombuffer(raw[: len(raw) - len(raw) % _TIME_ENTRY.itemsize], dtype=_TIME_ENTRY)
    entries, faults = _without_zeros(whole, len(raw), _TIME_ENTRY.itemsize, active=active)
    timestamps = entries["timestamp"].astype(np.int64)
    offsets = entries["offset"].astype(np.int64) + base_offset
    wrong = np.zeros(len(entries), dtype=bool)
    wrong[1:] = (np.diff(timestamps) <= 0) | (np.diff(offsets) < 0)
    if active:  # what comes behind a fall was left by a truncation
        wrong[1:] = np.logical_or.accumulate(wrong[1:])
    wrong |= offsets < base_offset
    if not log.lost:
        wrong |= (offsets > log.last_offset) | (timestamps > log.timestamp)
    numbers = _told(wrong, active=active)
    if len(numbers):
        first = int(numbers[0])
        more = f", and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        faults.append(
            Fault(
                "index_wrong",
                first * _TIME_ENTRY.itemsize,
                _TIME_ENTRY.itemsize,
                {},
                {"offset": int(offsets[first]), "timestamp": int(timestamps[first])},
                -1,
                f"entry {first} (timestamp {timestamps[first]}, offset {offsets[first]}) does not rise, or the log does"
                f" not hold it{more}",
                consequences.TIME_INDEX,
            )
        )
    return faults


def _told(wrong: NDArray[np.bool_], *, active: bool) -> NDArray[np.intp]:
    """The numbers of the wrong entries; of an active index only those with a right one behind them."""
    numbers = np.flatnonzero(wrong)
    return numbers[numbers < np.flatnonzero(~wrong).max(initial=-1)] if active else numbers


def _without_zeros(
    entries: NDArray[np.void], size: int, entry_size: int, *, active: bool
) -> tuple[NDArray[np.void], list[Fault]]:
    """The entries before the zeros that an active index is preallocated with; in a sealed one these are wrong."""
    first, second = entries.dtype.names or ("", "")
    used = np.flatnonzero((entries[first] != 0) | (entries[second] != 0))
    count = int(used[-1]) + 1 if len(used) else 0
    faults = []
    if (count < len(entries) or size % entry_size) and not active:
        faults.append(
            Fault(
                "index_wrong",
                count * entry_size,
                size - count * entry_size,
                {},
                {"bytes": size - count * entry_size},
                -1,
                f"{size - count * entry_size} bytes behind the last of {count} entries, as a crash leaves them",
                consequences.INDEX if entry_size == _OFFSET_ENTRY.itemsize else consequences.TIME_INDEX,
            )
        )
    return entries[:count], faults
