"""Offset and time indexes as brokers write them are right, and one entry that leads astray is found."""

import struct

import numpy as np
import pytest

from agent.kafka_log import Fault
from agent.kafka_log.index import IndexCheck, LogEnd, time_index_faults

BASE = 1_000
# Batches of 10 offsets and 500 bytes each; the log is seen in two parts.
LAST = BASE + 9 + 10 * np.arange(40)
POSITIONS = 500 * np.arange(40)
END = LogEnd(20_000, int(LAST[-1]), 9_000)


def offset_index(*entries: tuple[int, int], zeros: int = 0) -> bytes:
    """Entries of offset and position."""
    return b"".join(struct.pack(">ii", offset - BASE, position) for offset, position in entries) + bytes(zeros)


def time_index(*entries: tuple[int, int], zeros: int = 0) -> bytes:
    """Entries of timestamp and offset."""
    return b"".join(struct.pack(">qi", timestamp, offset - BASE) for timestamp, offset in entries) + bytes(zeros)


def checked(raw: bytes, *, active: bool = False, log: LogEnd = END) -> list[Fault]:
    """The faults of an offset index."""
    check = IndexCheck(raw, BASE, active=active)
    check.see(POSITIONS[:25], LAST[:25])
    check.see(POSITIONS[25:], LAST[25:])
    return check.faults(log)


def test_an_index_of_first_offsets_is_right() -> None:
    """As brokers up to 1.x write it (LogSegment.append: firstOffset)."""
    assert not checked(offset_index((1_080, 4_000), (1_200, 10_000), (1_250, 12_500), (1_390, 19_500)))


def test_an_index_of_last_offsets_is_right() -> None:
    """As brokers from 2.0 on write it: the last of all that was appended at once, here of three batches."""
    assert not checked(offset_index((1_109, 4_000), (1_229, 10_000), (1_279, 12_500), (1_399, 19_500)))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ((1_200, 10_001), "no entry"),  # between two batches
        ((1_199, 10_000), "no entry"),  # the batch before holds that offset
        ((1_200, 30_000), "no entry"),  # behind the log's end
        ((1_400, 19_500), "no entry"),  # an offset that the log does not hold
        ((1_050, 10_000), "not above"),
        ((1_200, 2_000), "not above"),
    ],
)
def test_an_entry_that_leads_astray_is_found(entry: tuple[int, int], why: str) -> None:
    """Its number gives the byte; offset and position are told."""
    (fault,) = checked(offset_index((1_080, 4_000), entry))
    assert (fault.label, fault.position, fault.size) == ("index_wrong", 8, 8)
    assert fault.current == {"offset": entry[0], "position": entry[1]}
    assert why in fault.detail


def test_an_active_index_may_be_preallocated_and_ahead_of_the_log() -> None:
    """Zeros behind its entries, and entries for what a crash took from the log, are no faults while it is active."""
    assert not checked(offset_index((1_080, 4_000), (1_500, 30_000), zeros=8_000), active=True)
    (fault,) = checked(offset_index((1_080, 4_000), zeros=8_000))
    assert (fault.position, fault.size) == (8, 8_000)
    (fault,) = checked(offset_index((1_080, 4_000)) + b"\1\2\3")
    assert (fault.position, fault.size) == (8, 3)


def test_entries_for_what_could_not_be_read_are_not_judged() -> None:
    """An index that leads to a damaged batch is right."""
    log = END._replace(lost=((10_000, 10_500),), last_offset=1_300)
    assert not checked(offset_index((1_200, 10_000), (1_390, 19_500)), log=log)
    assert checked(offset_index((1_200, 10_000), (1_390, 19_501)), log=log)


@pytest.mark.parametrize("left", [(1_310, 15_100), (1_600, 29_000), (1_150, 7_500)])
def test_what_a_truncation_left_in_an_active_index_does_not_count(left: tuple[int, int]) -> None:
    """Brokers truncate an index in memory only: old entries stay behind those that count until they are overwritten."""
    now = ((1_080, 4_000), (1_200, 10_000))
    assert not checked(offset_index(*now, left, (left[0] + 40, left[1] + 2_000), zeros=80), active=True)
    assert checked(offset_index(*now, left))
    (fault,) = checked(offset_index((1_080, 4_100), *now[1:]), active=True)
    assert fault.position == 0


@pytest.mark.parametrize("left", [(8_000, 1_500), (9_500, 1_390), (5_500, 1_100)])
def test_what_a_truncation_left_in_an_active_time_index_does_not_count(left: tuple[int, int]) -> None:
    """As in an offset index."""
    now = ((5_000, 1_050), (6_000, 1_080))
    entries = time_index(*now, left, (left[0] + 100, left[1] + 5), zeros=120)
    assert not time_index_faults(entries, BASE, END, active=True)
    assert time_index_faults(time_index(*now, left), BASE, END, active=False)
    (fault,) = time_index_faults(time_index((5_000, 900), *now[1:]), BASE, END, active=True)
    assert fault.position == 0


def test_an_empty_index_is_right() -> None:
    """A short segment has none."""
    assert not checked(b"")
    assert not IndexCheck(b"", BASE, active=False).faults(LogEnd(0, BASE - 1, -1))
    assert IndexCheck(offset_index((1_080, 4_000)), BASE, active=False).faults(LogEnd(0, BASE - 1, -1))


def test_a_time_index_rises_and_stays_within_the_log() -> None:
    """Timestamps rise, offsets do not fall."""
    right = ((5_000, 1_050), (6_000, 1_050), (9_000, 1_399))
    assert not time_index_faults(time_index(*right), BASE, END, active=False)
    assert not time_index_faults(time_index(*right, zeros=120), BASE, END, active=True)
    assert time_index_faults(time_index(*right, zeros=120), BASE, END, active=False)


@pytest.mark.parametrize("entry", [(5_000, 1_060), (6_000, 1_040), (6_000, 990), (6_000, 1_400), (9_001, 1_060)])
def test_a_wrong_entry_of_a_time_index_is_found(entry: tuple[int, int]) -> None:
    """One that does not rise, or that the log does not hold."""
    (fault,) = time_index_faults(time_index((5_000, 1_050), entry), BASE, END, active=False)
    assert (fault.label, fault.position) == ("index_wrong", 12)
    assert fault.current == {"timestamp": entry[0], "offset": entry[1]}
