"""Offset and time indexes as brokers write them are valid, and a wrong entry is found."""

import struct

import numpy as np
import pytest

from agent.kafka_log.faults import Fault
from agent.kafka_log.index import IndexCheck, LogSummary, find_time_index_faults

BASE = 1_000
# Batches of 10 offsets and 500 bytes each; the log is added in two parts.
LAST = BASE + 9 + 10 * np.arange(40)
POSITIONS = 500 * np.arange(40)
LOG = LogSummary(20_000, int(LAST[-1]), 9_000)


def offset_index(*entries: tuple[int, int], zeros: int = 0) -> bytes:
    """Encode entries of offset and position."""
    return b"".join(struct.pack(">ii", offset - BASE, position) for offset, position in entries) + bytes(zeros)


def time_index(*entries: tuple[int, int], zeros: int = 0) -> bytes:
    """Encode entries of timestamp and offset."""
    return b"".join(struct.pack(">qi", timestamp, offset - BASE) for timestamp, offset in entries) + bytes(zeros)


def check_index(raw: bytes, *, active: bool = False, log: LogSummary = LOG) -> list[Fault]:
    """Return the faults of an offset index."""
    check = IndexCheck(raw, BASE, active=active)
    check.add_batches(POSITIONS[:25], LAST[:25])
    check.add_batches(POSITIONS[25:], LAST[25:])
    return check.find_faults(log)


def test_index_of_first_offsets_is_valid() -> None:
    """As brokers up to 1.x write it (LogSegment.append: firstOffset)."""
    assert not check_index(offset_index((1_080, 4_000), (1_200, 10_000), (1_250, 12_500), (1_390, 19_500)))


def test_index_of_last_offsets_is_valid() -> None:
    """As brokers since 2.0 write it: the last of all that was appended at once, here of three batches."""
    assert not check_index(offset_index((1_109, 4_000), (1_229, 10_000), (1_279, 12_500), (1_399, 19_500)))


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ((1_200, 10_001), "no batch"),  # between two batches
        ((1_199, 10_000), "no batch"),  # the batch before holds that offset
        ((1_200, 30_000), "no batch"),  # after the log end offset
        ((1_400, 19_500), "no batch"),  # an offset that the log does not hold
        ((1_050, 10_000), "not above"),
        ((1_200, 2_000), "not above"),
    ],
)
def test_wrong_index_entry_is_found(entry: tuple[int, int], problem: str) -> None:
    (fault,) = check_index(offset_index((1_080, 4_000), entry))
    assert (fault.label, fault.position, fault.size) == ("index_wrong", 8, 8)
    assert fault.current == {"offset": entry[0], "position": entry[1]}
    assert problem in fault.detail


def test_active_index_may_be_preallocated_and_ahead_of_its_log() -> None:
    assert not check_index(offset_index((1_080, 4_000), (1_500, 30_000), zeros=8_000), active=True)
    (fault,) = check_index(offset_index((1_080, 4_000), zeros=8_000))
    assert (fault.position, fault.size) == (8, 8_000)
    (fault,) = check_index(offset_index((1_080, 4_000)) + b"\1\2\3")
    assert (fault.position, fault.size) == (8, 3)


def test_entries_outside_of_all_damaged_ranges_are_checked() -> None:
    """Ranges overlap: batches outside of the segment may be damaged themselves."""
    damaged = ((2_000, 9_000), (3_000, 3_500), (9_500, 10_000), (11_000, 11_000))
    checked = {position for position in (1_999, 2_000, 3_600, 8_999, 9_001, 9_500, 9_999, 10_001, 11_001)
               if check_index(offset_index((1_250, position)), log=LOG._replace(damaged=damaged))}  # fmt: skip
    assert checked == {1_999, 9_001, 10_001, 11_001}


def test_entries_for_a_damaged_range_are_not_checked() -> None:
    log = LOG._replace(damaged=((10_000, 10_500),), last_offset=1_300)
    assert not check_index(offset_index((1_200, 10_000), (1_390, 19_500)), log=log)
    assert check_index(offset_index((1_200, 10_000), (1_390, 19_501)), log=log)


@pytest.mark.parametrize("left", [(1_310, 15_100), (1_600, 29_000), (1_150, 7_500)])
def test_entries_left_by_truncation_are_ignored_if_active(left: tuple[int, int]) -> None:
    """Brokers truncate an index in memory only: old entries stay after the valid ones until they are overwritten."""
    valid = ((1_080, 4_000), (1_200, 10_000))
    assert not check_index(offset_index(*valid, left, (left[0] + 40, left[1] + 2_000), zeros=80), active=True)
    assert check_index(offset_index(*valid, left))
    (fault,) = check_index(offset_index((1_080, 4_100), *valid[1:]), active=True)
    assert fault.position == 0


@pytest.mark.parametrize("left", [(8_000, 1_500), (9_500, 1_390), (5_500, 1_100)])
def test_time_entries_left_by_truncation_are_ignored_if_active(left: tuple[int, int]) -> None:
    valid = ((5_000, 1_050), (6_000, 1_080))
    entries = time_index(*valid, left, (left[0] + 100, left[1] + 5), zeros=120)
    assert not find_time_index_faults(entries, BASE, LOG, active=True)
    assert find_time_index_faults(time_index(*valid, left), BASE, LOG, active=False)
    (fault,) = find_time_index_faults(time_index((5_000, 900), *valid[1:]), BASE, LOG, active=True)
    assert fault.position == 0


def test_empty_index_is_valid() -> None:
    assert not check_index(b"")
    assert not IndexCheck(b"", BASE, active=False).find_faults(LogSummary(0, BASE - 1, -1))
    assert IndexCheck(offset_index((1_080, 4_000)), BASE, active=False).find_faults(LogSummary(0, BASE - 1, -1))


def test_time_index_within_its_log_is_valid() -> None:
    valid = ((5_000, 1_050), (6_000, 1_050), (9_000, 1_399))
    assert not find_time_index_faults(time_index(*valid), BASE, LOG, active=False)
    assert not find_time_index_faults(time_index(*valid, zeros=120), BASE, LOG, active=True)
    assert find_time_index_faults(time_index(*valid, zeros=120), BASE, LOG, active=False)


@pytest.mark.parametrize("entry", [(5_000, 1_060), (6_000, 1_040), (6_000, 990), (6_000, 1_400), (9_001, 1_060)])
def test_wrong_time_index_entry_is_found(entry: tuple[int, int]) -> None:
    (fault,) = find_time_index_faults(time_index((5_000, 1_050), entry), BASE, LOG, active=False)
    assert (fault.label, fault.position) == ("index_wrong", 12)
    assert fault.current == {"timestamp": entry[0], "offset": entry[1]}
