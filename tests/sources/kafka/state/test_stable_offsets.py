"""Which last stable offsets are read and emitted."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.observations.kafka import LastStableOffset
from agent.sources.kafka.admin.protocol import DescribeOpenTransaction
from agent.sources.kafka.state.committed_offsets import Position
from agent.sources.kafka.state.stable_offsets import StableOffsets

_NOW = 10_000_000
_BY_LEADER = {1: [("t", 0)], 2: [("t", 1)]}
_ALL = dict(_BY_LEADER)


def _stable(offset: int, partition: int = 0) -> LastStableOffset:
    return LastStableOffset(at=_NOW, cluster="main", topic="t", partition=partition, offset=offset)


def _state(*known: LastStableOffset) -> StableOffsets:
    """Return a state in which all have been sampled at `_NOW`; both log ends are 100."""
    state = StableOffsets(known)
    for partition in (0, 1):
        state.apply_end(("t", partition), 100)
    assert state.select(_BY_LEADER, _NOW) == _ALL
    return state


def _stand_still(state: StableOffsets, offset: int = 50) -> None:
    state.apply_commits("g", {("t", 0): Position(offset, _NOW - 10_000)}, _NOW)


def test_all_are_sampled_once_a_minute() -> None:
    state = _state()
    assert state.select(_BY_LEADER, _NOW + 59_999) == {}
    assert state.select(_BY_LEADER, _NOW + 60_000) == _ALL


def test_a_group_behind_an_open_transaction_has_it_observed() -> None:
    """At once, at each poll while it stands still, and when it is over."""
    state = _state()
    _stand_still(state)
    assert state.select(_BY_LEADER, _NOW + 1) == {1: [("t", 0)]}
    for _ in range(3):
        assert state.apply([_stable(50)]) == [_stable(50)]
        assert state.select(_BY_LEADER, _NOW + 1) == {1: [("t", 0)]}
    state.apply_commits("g", {("t", 0): Position(100, _NOW)}, _NOW)
    assert state.apply([_stable(100)]) == [replace(_stable(100), held_back=False)]
    assert state.apply([_stable(100)]) == []


def test_groups_that_are_followed_in_the_log_are_looked_at_every_ten_seconds() -> None:
    state, asked = _state(), list[int]()

    def find_standing(since: int, ends: Mapping[tuple[str, int], int]) -> set[tuple[str, int]]:
        asked.append(since - _NOW)
        assert ends == {("t", 0): 100, ("t", 1): 100}
        return {("t", 0)}

    _stand_still(state)
    state.apply_followed(frozenset({"g"}), find_standing, _NOW)
    assert state.select(_BY_LEADER, _NOW + 1) == {1: [("t", 0)]}
    assert state.apply([_stable(50)]) == [_stable(50)]
    for second in (4, 9, 10):
        state.apply_followed(frozenset({"g"}), find_standing, _NOW + second * 1_000)
    assert asked == [-10_000, 0]
    state.apply_followed(frozenset(), find_standing, _NOW + 20_000)
    assert asked == [-10_000, 0]


def test_a_group_that_stands_still_for_another_reason_costs_a_read_a_minute() -> None:
    """Its partition has no open transaction, or ever new ones."""
    for offset in (100, 60):
        state = _state()
        state.apply([_stable(55)])
        _stand_still(state)
        state.apply([_stable(offset)])
        assert state.select(_BY_LEADER, _NOW + 1) == {}


def test_a_group_at_the_log_end_or_committing_is_not_waiting() -> None:
    state = _state()
    _stand_still(state, offset=100)
    assert state.select(_BY_LEADER, _NOW + 1) == {}
    state.apply_commits("g", {("t", 0): Position(50, _NOW - 9_000)}, _NOW)
    assert state.select(_BY_LEADER, _NOW + 1) == {}


def test_a_hanging_transaction_without_readers_is_observed_by_the_second_sample() -> None:
    state = _state()
    assert state.apply([_stable(40), _stable(99, partition=1)]) == []
    assert state.select(_BY_LEADER, _NOW + 60_000) == _ALL
    assert state.apply([_stable(40), _stable(100, partition=1)]) == [_stable(40)]
    assert state.select(_BY_LEADER, _NOW + 60_001) == {1: [("t", 0)]}


def test_a_transaction_is_described_once_a_minute_after_the_first() -> None:
    state = _state()
    _stand_still(state)
    state.apply([_stable(50)])
    state.apply([replace(_stable(50), at=_NOW + 59_000)])
    assert state.due_transactions({"t": {0: 1}}, _NOW + 59_999) == []
    assert state.due_transactions({"t": {0: 1}}, _NOW + 60_000) == [DescribeOpenTransaction("t", 0, 1, 50)]
    assert state.due_transactions({"t": {0: 1}}, _NOW + 119_999) == []
    assert state.due_transactions({"t": {0: 1}}, _NOW + 120_000) == [DescribeOpenTransaction("t", 0, 1, 50)]


def test_one_observed_before_the_start_is_followed_to_its_end() -> None:
    assert _state(_stable(40)).apply([_stable(100)]) == [replace(_stable(100), held_back=False)]


@given(
    earlier=st.lists(st.dictionaries(st.sampled_from([0, 1]), st.sampled_from([40, 50, 100]), min_size=1), max_size=4),
    has_waiting=st.booleans(),
    ends=st.sampled_from([[("t", 0)], [("t", 0), ("t", 1)], [("t", 1), ("t", 7)]]),
)
def test_being_at_the_log_ends_is_the_same_whether_said_or_listed(
    *, earlier: list[dict[int, int]], has_waiting: bool, ends: list[tuple[str, int]]
) -> None:
    listed, said = _state(_stable(40)), _state(_stable(40))
    for state in (listed, said):
        if has_waiting:
            _stand_still(state)
        for offsets in earlier:
            state.apply([_stable(offset, partition) for partition, offset in offsets.items()])
    facts = listed.apply([_stable(100, partition) for _, partition in ends])
    assert said.apply_ends("main", ends, _NOW) == facts
    for later in (_NOW + 1, _NOW + 60_000, _NOW + 60_001):
        assert said.select(_BY_LEADER, later) == listed.select(_BY_LEADER, later)
        assert said.apply([_stable(50)]) == listed.apply([_stable(50)])


def test_a_deleted_partition_or_group_is_forgotten() -> None:
    state = _state()
    _stand_still(state)
    state.apply([_stable(50)])
    state.forget_group("g")
    state.forget_partition(("t", 0))
    assert state.select(_BY_LEADER, _NOW + 1) == {}
    assert state.apply([_stable(50)]) == []
