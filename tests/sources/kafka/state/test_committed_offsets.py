"""What groups have committed is what a dict by group and partition would hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.observations.kafka import Commit
from agent.sources.kafka.admin.protocol import TopicPartition
from agent.sources.kafka.state.committed_offsets import CommittedOffsets, Position, positions

GROUPS = st.sampled_from(["a", "b", "c"])
PLACES = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 3))
COMMITS = st.builds(
    lambda group, place, offset, at: Commit(
        at=at, cluster="main", group=group, topic=place[0], partition=place[1], offset=offset
    ),
    GROUPS, PLACES, st.none() | st.integers(0, 3), st.integers(1, 9),
)  # fmt: skip
READ = st.dictionaries(PLACES, st.builds(Position, st.integers(0, 9), st.integers(0, 9)))
ACTIONS = st.one_of(st.lists(COMMITS), st.tuples(GROUPS, READ), GROUPS)


@given(st.lists(COMMITS), st.lists(ACTIONS))
def test_positions_are_those_of_a_dict(
    known: list[Commit], actions: list[list[Commit] | tuple[str, dict[TopicPartition, Position]] | str]
) -> None:
    committed = CommittedOffsets(known, lambda group: group != "c")
    expected: dict[str, dict[TopicPartition, Position]] = {"a": {}, "b": {}, "c": {}}
    for commit in known:
        if commit.offset is not None and commit.group != "c":
            expected[commit.group][commit.topic, commit.partition] = Position(commit.offset, commit.at)
    for action in actions:
        if isinstance(action, str):
            committed.forget(action)
            expected[action] = {}
        elif isinstance(action, tuple):
            group, read = action
            committed.replace(group, read, settled=True)
            expected[group] = dict(read)
            assert committed.is_settled(group)
        else:
            committed.apply(action)
            for commit in action:
                place, current = (commit.topic, commit.partition), expected[commit.group]
                if commit.offset is None:
                    current.pop(place, None)
                elif place not in current or current[place].offset != commit.offset:
                    current[place] = Position(commit.offset, commit.at)
        assert {group: committed.of(group) for group in expected} == expected
        assert [committed.has(group) for group in expected] == [bool(current) for current in expected.values()]
        assert committed.partitions == {place for current in expected.values() for place in current}


def test_a_position_is_unchanged_since_it_was_first_read() -> None:
    read = [
        Commit(at=9, cluster="main", group="g", topic="t", partition=number, offset=offset)
        for number, offset in enumerate([5, 7, None])
    ]
    before = {("t", 0): Position(5, 3), ("t", 1): Position(6, 3), ("t", 2): Position(1, 3)}
    assert positions(read, before, 9) == {("t", 0): Position(5, 3), ("t", 1): Position(7, 9)}


@pytest.mark.parametrize(("partitions", "groups"), [(0, 100), (1, 50_000), (20, 2_500), (200, 250), (2_000, 100)])
def test_more_groups_are_read_at_once_the_fewer_offsets_they_have(partitions: int, groups: int) -> None:
    committed = CommittedOffsets([], lambda _: True)
    for group in ("a", "b"):
        committed.replace(group, {("t", number): Position(1, 1) for number in range(partitions)}, settled=True)
    assert committed.groups_with(50_000) == groups
