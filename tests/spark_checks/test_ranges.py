"""The ranges in which two replicas differ, against a model that looks at every offset by itself."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark_checks.logs.ranges import Piece, resolve

A, B = 2005, 2011


def piece(broker: int, first: int, last: int, timestamp: int = 5, *, other_epoch: bool = False) -> Piece:
    """A dense piece in a file named after its broker."""
    return Piece(broker, first, last, last - first + 1, timestamp, f"{broker}.log", 0, other_epoch)


def test_ranges_that_touch_are_one_and_count_each_side_by_itself() -> None:
    """The shape of KAFKA-3919: the leader's new records, the follower's old ones, which reach further."""
    found = resolve([piece(A, 7101, 7400), piece(B, 7101, 7999, 9), piece(A, 7401, 7851)], 0, 9601)
    assert found is not None
    assert found.ranges == ((7101, 7999),)
    assert {broker: side.runs for broker, side in found.sides.items()} == {A: ((7101, 7851),), B: ((7101, 7999),)}
    assert (found.first, found.timestamp, found.lost(A), found.lost(B)) == (7101, 9, 751, 899)
    assert found.sides[B].start.file == "2011.log"


def test_what_lies_beyond_the_bounds_does_not_count() -> None:
    """Below the log start and from the high watermark on nothing is compared; a piece over a bound is cut there."""
    beyond = [piece(A, 0, 9), piece(B, 8, 12), piece(A, 95, 105), piece(B, 100, 110)]
    found = resolve(beyond, 10, 100)
    assert found is not None
    assert found.ranges == ((10, 12), (95, 99))
    assert (found.lost(A), found.lost(B)) == (5, 3)
    assert resolve([piece(A, 0, 9), piece(B, 100, 110)], 10, 100) is None


def test_a_replica_that_merely_lacks_records_loses_none() -> None:
    """It has no side; the other one loses what it holds alone."""
    found = resolve([piece(A, 5, 9)], 0, 10)
    assert found is not None
    assert (set(found.sides), found.lost(A), found.lost(B)) == ({A}, 5, 0)


def test_only_epochs_differ_when_they_do_in_every_piece() -> None:
    """The same bytes under another epoch are told apart from other records."""
    same = [piece(A, 1, 3, other_epoch=True), piece(B, 1, 3, other_epoch=True)]
    only, mixed = resolve(same, 0, 10), resolve([*same, piece(A, 4, 4)], 0, 10)
    assert only is not None
    assert mixed is not None
    assert (only.only_epochs, mixed.only_epochs) == (True, False)


_batches = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 6), st.integers(0, 2)).map(lambda of: (of[0], of[0] + of[1], of[2])),
    max_size=12,
    unique=True,
)


@given(_batches, _batches, st.integers(0, 25), st.integers(20, 60))
def test_ranges_and_losses_are_those_of_a_look_at_every_offset(
    a: list[tuple[int, int, int]], b: list[tuple[int, int, int]], lower: int, upper: int
) -> None:
    """Batches (first, last, contents) overlap and repeat as they like; a batch without a twin differs throughout."""
    alone = {A: set(a) - set(b), B: set(b) - set(a)}
    pieces = sorted((piece(broker, one[0], one[1]) for broker in alone for one in alone[broker]), key=lambda p: p.first)
    found = resolve(pieces, lower, upper)
    lost, differ = Counter[int](), {A: set[int](), B: set[int]()}
    for offset in range(lower, upper):
        views = {
            broker: {one for one in held if one[0] <= offset <= one[1]} for broker, held in ((A, set(a)), (B, set(b)))
        }
        for one, other in ((A, B), (B, A)):
            only = views[one] - views[other]
            lost[one] += len(only)
            differ[one] |= {offset} if only else set()
    if found is None:
        assert not differ[A] | differ[B]
        return
    assert found.first == min(differ[A] | differ[B])
    assert _offsets(found.ranges) == differ[A] | differ[B]
    for broker in (A, B):
        assert found.lost(broker) == lost[broker]
        assert _offsets(found.sides[broker].runs if broker in found.sides else ()) == differ[broker]


def _offsets(runs: tuple[tuple[int, int], ...]) -> set[int]:
    """The offsets of runs, which are in order and apart."""
    assert all(left[1] + 1 < right[0] for left, right in pairwise(runs))
    return {offset for first, last in runs for offset in range(first, last + 1)}
