"""A segment's `.index` and `.timeindex` checked against its log: entries must increase and point to their records.

Layouts: org.apache.kafka.storage.internals.log.OffsetIndex and TimeIndex (3.9), kafka.log's before; neither has a
checksum. Reads no files: the index's bytes and the log's batches are arguments.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.kafka_log import faults
from agent.kafka_log.faults import Fault

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class LogSummary(NamedTuple):
    """What a log holds, once it has been read.

    size: where its last batch ends. last_offset, timestamp: its largest. damaged: the first byte and the end of every
    range that could not be read or whose offsets decrease: index entries that point there are not checked, because the
    log is at fault.
    """

    size: int
    last_offset: int
    timestamp: int
    damaged: tuple[tuple[int, int], ...] = ()


class IndexCheck:
    """An offset index, checked while its log is read.

    An entry means: offsets from this one on begin at this byte. Up to 1.x the offset is the first of what was appended
    there (of a legacy wrapper the last), since 2.0 the last of all that was appended at once, which may be several
    batches (LogSegment.append). So an entry is right if a batch begins at its byte, all batches before it have lower
    offsets, and the log holds the offset.

    An active index that was truncated with its log keeps old entries after the valid ones; only the broker knows how
    many are valid (AbstractIndex.truncateToEntries). So a wrong entry of an active index is reported only if a right
    one follows it.
    """

    def __init__(self, raw: bytes, base_offset: int, *, active: bool) -> None:
        self._active = active
        stored = np.frombuffer(raw[: len(raw) - len(raw) % _OFFSET_ENTRY.itemsize], dtype=_OFFSET_ENTRY)
        entries, self._faults = _strip_zeros(stored, len(raw), _OFFSET_ENTRY.itemsize, active=active)
        self._offsets: NDArray[np.int64] = entries["offset"].astype(np.int64) + base_offset
        self._positions: NDArray[np.int64] = entries["position"].astype(np.int64)
        decreases = np.flatnonzero((np.diff(self._offsets) <= 0) | (np.diff(self._positions) <= 0))
        if len(decreases):
            if not active:
                self._add_fault(int(decreases[0]) + 1, "is not above the one before it")
            # Entries after it cannot be found by their byte; they are part of the same damage.
            self._offsets = self._offsets[: decreases[0] + 1]
            self._positions = self._positions[: decreases[0] + 1]
        self._misses = np.zeros(len(self._positions), dtype=bool)
        self._checked = 0
        self._last_offset = -1

    def add_batches(self, positions: NDArray[np.int64], last_offsets: NDArray[np.int64]) -> None:
        """Check entries against the log's next batches: their first bytes, increasing, and their last offsets."""
        if not len(positions):
            return
        end = int(np.searchsorted(self._positions, positions[-1], side="right"))
        unchecked = slice(self._checked, end)
        at = np.searchsorted(positions, self._positions[unchecked])
        before = np.where(at > 0, last_offsets[at - 1], self._last_offset)
        self._misses[unchecked] = (positions[at] != self._positions[unchecked]) | (before >= self._offsets[unchecked])
        self._checked = max(self._checked, end)
        self._last_offset = int(last_offsets[-1])

    def find_faults(self, log: LogSummary) -> list[Fault]:
        """Return what is wrong once the whole log was added: the first wrong entry, and how many there are."""
        misses = self._misses
        # Entries beyond the last batch: an active index does not use them, and after a crash it may be ahead.
        misses[self._checked :] = (self._positions[self._checked :] < log.size) | (not self._active)
        misses &= ~_is_within(self._positions, log.damaged)
        if not log.damaged:
            misses[: self._checked] |= self._offsets[: self._checked] > log.last_offset
        wrong = _find_reportable(misses, active=self._active)
        if len(wrong):
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            self._add_fault(int(wrong[0]), f"points to no batch of the log in which that offset can be found{more}")
        return self._faults

    def _add_fault(self, number: int, problem: str) -> None:
        offset, position = int(self._offsets[number]), int(self._positions[number])
        self._faults.append(
            Fault(
                "index_wrong",
                number * _OFFSET_ENTRY.itemsize,
                _OFFSET_ENTRY.itemsize,
                {},
                {"offset": offset, "position": position},
                -1,
                f"entry {number} (offset {offset} at byte {position}) {problem}",
                faults.INDEX,
            )
        )


def find_time_index_faults(raw: bytes, base_offset: int, log: LogSummary, *, active: bool) -> list[Fault]:
    """Return what is wrong with a time index, whose entries mean: up to this offset no timestamp is above this one.

    Timestamps must increase and offsets not decrease (TimeIndex.maybeAppend), and the log must hold both.
    """
    stored = np.frombuffer(raw[: len(raw) - len(raw) % _TIME_ENTRY.itemsize], dtype=_TIME_ENTRY)
    entries, found = _strip_zeros(stored, len(raw), _TIME_ENTRY.itemsize, active=active)
    timestamps = entries["timestamp"].astype(np.int64)
    offsets = entries["offset"].astype(np.int64) + base_offset
    wrong = np.zeros(len(entries), dtype=bool)
    wrong[1:] = (np.diff(timestamps) <= 0) | (np.diff(offsets) < 0)
    if active:  # entries after a decrease were left by a truncation
        wrong[1:] = np.logical_or.accumulate(wrong[1:])
    wrong |= offsets < base_offset
    if not log.damaged:
        wrong |= (offsets > log.last_offset) | (timestamps > log.timestamp)
    numbers = _find_reportable(wrong, active=active)
    if len(numbers):
        first = int(numbers[0])
        more = f", and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        found.append(
            Fault(
                "index_wrong",
                first * _TIME_ENTRY.itemsize,
                _TIME_ENTRY.itemsize,
                {},
                {"offset": int(offsets[first]), "timestamp": int(timestamps[first])},
                -1,
                f"entry {first} (timestamp {timestamps[first]}, offset {offsets[first]}) is not above the one before"
                f" it, or the log does not hold it{more}",
                faults.TIME_INDEX,
            )
        )
    return found


def _is_within(positions: NDArray[np.int64], ranges: tuple[tuple[int, int], ...]) -> NDArray[np.bool_]:
    """Return which positions are in a range: where more ranges have begun than ended. Each may have thousands."""
    begins, ends = np.sort(np.array(ranges, dtype=np.int64).reshape(-1, 2), axis=0).T
    return np.searchsorted(begins, positions, side="right") > np.searchsorted(ends, positions, side="right")


def _find_reportable(wrong: NDArray[np.bool_], *, active: bool) -> NDArray[np.intp]:
    """Return the numbers of the wrong entries; of an active index only those that a right one follows."""
    numbers = np.flatnonzero(wrong)
    return numbers[numbers < np.flatnonzero(~wrong).max(initial=-1)] if active else numbers


def _strip_zeros(
    entries: NDArray[np.void], size: int, entry_size: int, *, active: bool
) -> tuple[NDArray[np.void], list[Fault]]:
    """Return the entries before the zeros an active index is preallocated with; in a sealed one zeros are a fault."""
    first, second = entries.dtype.names or ("", "")
    used = np.flatnonzero((entries[first] != 0) | (entries[second] != 0))
    count = int(used[-1]) + 1 if len(used) else 0
    found = []
    if (count < len(entries) or size % entry_size) and not active:
        found.append(
            Fault(
                "index_wrong",
                count * entry_size,
                size - count * entry_size,
                {},
                {"bytes": size - count * entry_size},
                -1,
                f"{size - count * entry_size} bytes after the last of {count} entries, as a crash leaves them",
                faults.INDEX if entry_size == _OFFSET_ENTRY.itemsize else faults.TIME_INDEX,
            )
        )
    return entries[:count], found
