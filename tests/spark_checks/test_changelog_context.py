"""Owners of tasks, from the states of a Streams application's group."""

from msgspec.structs import replace

from agent.model.observations.kafka import GroupState, Member
from spark_checks.changelogs.context import Reassignment, Rebalance, find_ownership, ownership_by_group


def state(at: int, name: str = "Stable", since: int | None = None, **held: str) -> GroupState:
    """Return a group state: which partitions of the topic `in` each thread has, as "02"."""
    members = tuple(
        Member(
            id=f"{thread}-id",
            client_id=f"{thread}-consumer",
            partitions=tuple(("in", int(number)) for number in places),
        )
        for thread, places in held.items()
    )
    return GroupState(at=at, since=since, cluster="main", group="app", state=name, members=members)


def test_tasks_move_to_another_instance_and_back() -> None:
    found = find_ownership([
        state(10, a="01"),
        state(20, "PreparingRebalance", since=18, a="", b=""),
        state(24, since=22, a="0", b="1"),
        state(600, a="0", b="1"),  # a heartbeat
        state(700, "PreparingRebalance", since=698, a=""),
        state(704, since=702, a="01"),
    ])  # fmt: skip
    assert found.reassignments == [Reassignment("in", 1, "a", "b", 18, 24), Reassignment("in", 1, "b", "a", 698, 704)]
    assert found.rebalances == [Rebalance(18, 24), Rebalance(698, 704)]
    assert found.before(1, 705) == ([Reassignment("in", 1, "b", "a", 698, 704)], Rebalance(698, 704))
    assert found.before(0, 30) == ([], Rebalance(18, 24))
    assert found.before(1, 18) == ([], None)


def test_partition_briefly_without_owner_moves_once() -> None:
    found = find_ownership([state(10, a="01"), state(20, since=18, a="0", b=""), state(21, since=20, a="0", b="1")])
    assert found.reassignments == [Reassignment("in", 1, "a", "b", 18, 21)]
    assert found.rebalances == [Rebalance(18, 20), Rebalance(20, 21)]


def test_rebalance_without_reassignment_is_a_rebalance() -> None:
    found = find_ownership([state(10, a="0"), state(20, "CompletingRebalance", since=18), state(22, since=20, a="0")])
    assert found.reassignments == []
    assert found.rebalances == [Rebalance(18, 22)]


def test_groups_are_kept_apart_and_sorted_by_time() -> None:
    first, second = state(10, a="0"), state(20, since=19, a="", b="0")
    other = replace(second, group="other")
    found = ownership_by_group([second, other, first])
    assert found["app"].reassignments == [Reassignment("in", 0, "a", "b", 19, 20)]
    assert found["other"].reassignments == []
