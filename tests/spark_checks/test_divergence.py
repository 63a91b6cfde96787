"""Offset ranges in which two replicas differ, against a model that compares every single offset."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kafka_log.faults import Fault
from agent.kafka_log.log_directory import Partition, Segment
from agent.kafka_log.segments import LocatedFault
from spark_checks.log_segments import make_finding as make_fault_finding
from spark_checks.logs.divergence import ReplicaPair, UnmatchedBatch, make_finding, resolve
from spark_checks.logs.replicas import Replicas, WriteTimes

A, B = 2005, 2011


def batch(broker: int, first: int, last: int, timestamp: int = 5, *, other_epoch: bool = False) -> UnmatchedBatch:
    """Return a dense batch in a file named after its broker."""
    return UnmatchedBatch(broker, first, last, last - first + 1, timestamp, f"{broker}.log", 0, other_epoch)


def test_touching_ranges_join_and_sides_count_separately() -> None:
    found = resolve([batch(A, 7101, 7400), batch(B, 7101, 7999, 9), batch(A, 7401, 7851)], 0, 9601)
    assert found is not None
    assert found.ranges == ((7101, 7999),)
    assert {broker: side.ranges for broker, side in found.sides.items()} == {A: ((7101, 7851),), B: ((7101, 7999),)}
    assert (found.first, found.lost(A), found.lost(B)) == (7101, 751, 899)
    assert found.sides[B].start.file == "2011.log"


def test_offsets_outside_the_bounds_do_not_count() -> None:
    outside = [batch(A, 0, 9), batch(B, 8, 12), batch(A, 95, 105), batch(B, 100, 110)]
    found = resolve(outside, 10, 100)
    assert found is not None
    assert found.ranges == ((10, 12), (95, 99))
    assert (found.lost(A), found.lost(B)) == (5, 3)
    assert resolve([batch(A, 0, 9), batch(B, 100, 110)], 10, 100) is None


def test_replica_that_only_lacks_records_loses_none() -> None:
    found = resolve([batch(A, 5, 9)], 0, 10)
    assert found is not None
    assert (set(found.sides), found.lost(A), found.lost(B)) == ({A}, 5, 0)


def test_only_epochs_differ_if_they_do_in_every_batch() -> None:
    same = [batch(A, 1, 3, other_epoch=True), batch(B, 1, 3, other_epoch=True)]
    only, mixed = resolve(same, 0, 10), resolve([*same, batch(A, 4, 4)], 0, 10)
    assert only is not None
    assert mixed is not None
    assert (only.only_epochs, mixed.only_epochs) == (True, False)


HOUR, DAY = 3_600_000, 86_400_000
LAST_WRITE = 50_000 * DAY
RUN = LAST_WRITE + 4 * HOUR


def written(last_write: int = LAST_WRITE, run: int = RUN) -> WriteTimes:
    """Return write times of a segment of t[0] on both brokers."""
    segments = tuple(Segment(broker, "/d", "t", 0, f"{broker}.log", 0, None, 1, last_write) for broker in (A, B))
    return WriteTimes(Replicas((Partition(A, "/d", "t", 0, 10, 0, None, (), segments),), ()), run)


@pytest.mark.parametrize(
    ("timestamp", "dated"),
    [
        (LAST_WRITE - 90_000, LAST_WRITE - 90_000),
        (LAST_WRITE - 6 * DAY, LAST_WRITE - 6 * DAY),
        (-1, LAST_WRITE),
        (LAST_WRITE + 1, LAST_WRITE),
        (LAST_WRITE * 1_000, LAST_WRITE),  # in microseconds
        (LAST_WRITE - 800 * DAY, LAST_WRITE),  # of a record copied from elsewhere
    ],
)
def test_timestamp_of_a_record_counts_if_its_segment_can_have_been_written_then(timestamp: int, dated: int) -> None:
    assert written().date(A, f"{A}.index", timestamp) == dated
    fault = Fault("crc_mismatch", 9, 40, {}, {}, timestamp, "wrong", "")
    assert make_fault_finding("main", A, LocatedFault("t", 0, f"{A}.log", fault), written()).at == dated


def test_nothing_is_dated_after_the_run() -> None:
    """Clocks of brokers may be ahead, and an object store may not date its files."""
    for last_write in (RUN + HOUR, 0):
        assert {written(last_write).date(B, f"{B}.log", at) for at in (-1, RUN + 1)} == {RUN}


def test_divergence_is_dated_by_the_first_differing_records_that_were_written_last() -> None:
    before = LAST_WRITE - 2 * HOUR
    batches = [batch(A, 5, 9, before), batch(B, 5, 9, before + 700), batch(A, 10, 19, LAST_WRITE * 1_000)]
    pair = ReplicaPair("t", 0, A, B, 0, 20)
    for differing, dated in ((batches, before + 700), (batches[1:], LAST_WRITE)):
        divergence = resolve(differing, 0, 20)
        assert divergence is not None
        assert make_finding(pair, divergence, written(), "main").at == dated


_batches = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 6), st.integers(0, 2)).map(lambda of: (of[0], of[0] + of[1], of[2])),
    max_size=12,
    unique=True,
)


@given(_batches, _batches, st.integers(0, 25), st.integers(20, 60))
def test_ranges_and_losses_match_a_scan_of_every_offset(
    a: list[tuple[int, int, int]], b: list[tuple[int, int, int]], lower: int, upper: int
) -> None:
    alone = {A: set(a) - set(b), B: set(b) - set(a)}
    batches = sorted(
        (batch(broker, entry[0], entry[1]) for broker in alone for entry in alone[broker]), key=lambda p: p.first
    )
    found = resolve(batches, lower, upper)
    lost, differ = Counter[int](), {A: set[int](), B: set[int]()}
    for offset in range(lower, upper):
        views = {
            broker: {record for record in held if record[0] <= offset <= record[1]}
            for broker, held in ((A, set(a)), (B, set(b)))
        }
        for entry, other in ((A, B), (B, A)):
            only = views[entry] - views[other]
            lost[entry] += len(only)
            differ[entry] |= {offset} if only else set()
    if found is None:
        assert not differ[A] | differ[B]
        return
    assert found.first == min(differ[A] | differ[B])
    assert _offsets(found.ranges) == differ[A] | differ[B]
    for broker in (A, B):
        assert found.lost(broker) == lost[broker]
        assert _offsets(found.sides[broker].ranges if broker in found.sides else ()) == differ[broker]


def _offsets(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    """Return the offsets of ranges, which are in order and do not touch."""
    assert all(left[1] + 1 < right[0] for left, right in pairwise(ranges))
    return {offset for first, last in ranges for offset in range(first, last + 1)}
