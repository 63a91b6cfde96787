"""Who owned what, from the states of a Streams application's group."""

from msgspec.structs import replace

from agent.model.observations import GroupState, Member
from spark_checks.changelogs.rebalances import Move, Rebalance, by_group, ownership


def state(at: int, name: str = "Stable", since: int | None = None, **held: str) -> GroupState:
    """A state of the group: which partitions of the topic `in` each thread has, as "02"."""
    members = tuple(
        Member(id=f"{thread}-id", client_id=f"{thread}-consumer", partitions=tuple(("in", int(one)) for one in places))
        for thread, places in held.items()
    )
    return GroupState(at=at, since=since, cluster="main", group="app", state=name, members=members)


def test_tasks_go_to_another_instance_and_come_back() -> None:
    """Eager: while the group rebalances nobody owns anything. A move begins when the old owner was last seen."""
    found = ownership([
        state(10, a="01"),
        state(20, "PreparingRebalance", since=18, a="", b=""),
        state(24, since=22, a="0", b="1"),
        state(600, a="0", b="1"),  # a heartbeat
        state(700, "PreparingRebalance", since=698, a=""),
        state(704, since=702, a="01"),
    ])  # fmt: skip
    assert found.moves == [Move("in", 1, "a", "b", 18, 24), Move("in", 1, "b", "a", 698, 704)]
    assert found.rebalances == [Rebalance(18, 24), Rebalance(698, 704)]
    assert found.before(1, 705) == ([Move("in", 1, "b", "a", 698, 704)], Rebalance(698, 704))
    assert found.before(0, 30) == ([], Rebalance(18, 24))
    assert found.before(1, 18) == ([], None)


def test_a_partition_that_nobody_owns_for_a_moment_moves_once() -> None:
    """Cooperative: the group is stable with what is to move unowned."""
    found = ownership([state(10, a="01"), state(20, since=18, a="0", b=""), state(21, since=20, a="0", b="1")])
    assert found.moves == [Move("in", 1, "a", "b", 18, 21)]
    assert found.rebalances == [Rebalance(18, 20), Rebalance(20, 21)]


def test_a_rebalance_that_moves_nothing_is_a_rebalance() -> None:
    """Of tasks that went away and came back between two polls nothing else is seen."""
    found = ownership([state(10, a="0"), state(20, "CompletingRebalance", since=18), state(22, since=20, a="0")])
    assert found.moves == []
    assert found.rebalances == [Rebalance(18, 22)]


def test_groups_are_told_apart() -> None:
    """And put in order of time."""
    first, second = state(10, a="0"), state(20, since=19, a="", b="0")
    other = replace(second, group="other")
    found = by_group([second, other, first])
    assert found["app"].moves == [Move("in", 0, "a", "b", 19, 20)]
    assert found["other"].moves == []
