"""Discovery of Kafka Streams applications: late results, rebalances, ids with a common beginning."""

from collections.abc import Sequence
from typing import Any

import msgspec

from agent.model.observations.base import Observation
from agent.model.observations.kafka import GroupState, Member
from agent.model.observations.streams import StreamsApplication
from agent.sources.kafka.admin.streams_assignment import Assignment
from agent.sources.kafka.state.streams_discovery import StreamsApplications

_FIRST, _SECOND = (("in", 0), ("in", 1)), (("in", 0),)
_TASKS = {"m": Assignment(_FIRST, ("0_0", "0_1"))}


def _discovery(*configured: str, known: Sequence[Observation] = ()) -> StreamsApplications:
    return StreamsApplications("main", configured, known)


def _state(at: int, *members: Member, state: str = "Stable", **fields: Any) -> GroupState:
    assignor = fields.pop("assignor", "stream" if state == "Stable" else None)
    return GroupState(at=at, cluster="main", group="shop", state=state, members=members, assignor=assignor, **fields)


def _member(partitions: tuple[tuple[str, int], ...], name: str = "m", **fields: Any) -> Member:
    return Member(name, "/h", partitions, f"{name}-StreamThread-1-consumer", **fields)


def _observed(
    discovery: StreamsApplications, topics: dict[str, list[int]], *groups: str
) -> dict[str, StreamsApplication]:
    facts = discovery.observations(9, topics, groups)
    return {fact.application: fact for fact in facts if isinstance(fact, StreamsApplication)}


def test_tasks_are_added_only_to_the_partitions_they_came_with() -> None:
    """A result from before or after a rebalance is not taken for the current tasks."""
    discovery = _discovery()
    discovery.apply_group(_state(1, _member(_FIRST)))
    discovery.apply_tasks("shop", _TASKS, sent_at=2)
    assert discovery.add_tasks(_state(3, _member(_FIRST))).members[0].tasks == ("0_0", "0_1")
    assert discovery.add_tasks(_state(4, _member(_SECOND))).members[0].tasks == ()
    assert discovery.add_tasks(_state(4, _member(_FIRST, "other"))).members[0].tasks == ()


def test_tasks_are_requested_once_and_again_after_a_rebalance() -> None:
    """Not during one, and a result requested before it ended does not count."""
    discovery = _discovery()
    discovery.apply_group(_state(1, _member(_FIRST)))
    assert discovery.awaiting_tasks == ["shop"]
    discovery.apply_tasks("shop", _TASKS, sent_at=2)
    discovery.apply_group(_state(3, _member(_FIRST)))
    assert discovery.awaiting_tasks == []
    discovery.apply_group(_state(5, _member(()), state="PreparingRebalance"))
    assert discovery.awaiting_tasks == []
    discovery.apply_group(_state(7, _member(_SECOND)))
    discovery.apply_tasks("shop", _TASKS, sent_at=6)
    assert discovery.awaiting_tasks == ["shop"]
    discovery.apply_tasks("shop", {"m": Assignment(_SECOND, ("0_0",))}, sent_at=7)
    assert discovery.awaiting_tasks == []


def test_tasks_of_an_unseen_rebalance_are_requested_again() -> None:
    """It began and ended between two reads of the group; the known tasks are kept.

    Undecodable tasks are not requested again, and tasks of a deleted group are ignored.
    """
    discovery = _discovery()
    discovery.apply_group(_state(1, _member(_FIRST)))
    discovery.apply_tasks("shop", _TASKS, sent_at=2)
    discovery.apply_group(_state(3, _member(_SECOND)))
    for assignments in ({}, {"m": Assignment()}, _TASKS):
        discovery.apply_tasks("shop", assignments, sent_at=4)
        discovery.apply_group(_state(5, _member(_SECOND)))
        assert discovery.awaiting_tasks == ["shop"]
    assert discovery.add_tasks(_state(6, _member(_FIRST))).members[0].tasks == ("0_0", "0_1")
    discovery.apply_tasks("shop", {}, sent_at=7, decodable=False)
    assert discovery.awaiting_tasks == []
    discovery.forget("shop")
    discovery.apply_tasks("shop", {}, sent_at=8)
    discovery.apply_group(_state(7, _member(_FIRST)))
    assert discovery.awaiting_tasks == ["shop"]


def test_tasks_are_not_requested_of_idle_or_plain_groups() -> None:
    discovery = _discovery()
    discovery.apply_group(_state(1, _member(())))
    assert discovery.awaiting_tasks == []
    discovery.apply_group(_state(2, _member(_FIRST), assignor="range"))
    assert (discovery.awaiting_tasks, discovery.applications) == ([], frozenset())


def test_a_streams_group_is_an_application_with_its_own_tasks() -> None:
    """KIP-1071: there is no assignor, and the group's description includes the tasks."""
    discovery = _discovery()
    member = msgspec.structs.replace(_member(_FIRST), tasks=("0_1",) * len(_FIRST))
    state = msgspec.structs.replace(_state(1, member), assignor=None, type="streams")
    discovery.apply_group(state)
    assert (discovery.applications, discovery.awaiting_tasks) == (frozenset({state.group}), [])
    assert discovery.add_tasks(state).members == (member,)


def test_an_application_survives_a_rebalance_and_a_stop() -> None:
    """Kafka reports no assignor then; the last one is kept. Instances are counted outside of rebalances."""
    discovery = _discovery()
    running = _state(1, _member(_FIRST), _member((), "n"))
    assert _observed(discovery, {}, "shop") == {}
    discovery.apply_group(running)
    assert _observed(discovery, {}, "shop")["shop"].instances == 2
    rebalancing = _state(2, _member(()), state="CompletingRebalance")
    discovery.apply_group(rebalancing)
    assert discovery.add_tasks(rebalancing).assignor == "stream"
    assert _observed(discovery, {}, "shop")["shop"].instances == 2
    discovery.apply_group(_state(3, state="Empty"))
    assert _observed(discovery, {}, "shop")["shop"].instances == 0
    discovery.forget("shop")
    assert _observed(discovery, {}) == {}


def test_threads_of_a_process_are_one_instance() -> None:
    """The same client.id on two hosts is two instances, and so are two client.ids on a host."""
    discovery = _discovery()
    threads = [Member(f"{n}", host, (), f"app-StreamThread-{n}-consumer") for n in (1, 2) for host in ("/a", "/b")]
    discovery.apply_group(_state(1, *threads, Member("x", "/a", (), "other-StreamThread-1-consumer")))
    assert _observed(discovery, {}, "shop")["shop"].instances == 3


def test_the_longest_application_id_owns_the_changelog() -> None:
    """Store names and application ids may contain dashes."""
    discovery = _discovery("shop", "shop-eu", "ledger")
    topics = {
        "shop-counts-changelog": [0, 1], "shop-eu-counts-by-day-changelog": [0], "shopping-counts-changelog": [0],
        "shop-changelog": [0], "shop-eu-changelog": [0], "shop-counts-repartition": [0],
    }  # fmt: skip
    stores = {name: application.stores for name, application in _observed(discovery, topics).items()}
    assert stores == {"shop": (("counts", 2), ("eu", 1)), "shop-eu": (("counts-by-day", 1),), "ledger": ()}
    assert [topic for topic in topics if discovery.is_changelog(topic)] == [
        "shop-counts-changelog", "shop-eu-counts-by-day-changelog", "shop-eu-changelog",
    ]  # fmt: skip


def test_known_tasks_and_instances_are_kept_over_a_restart() -> None:
    """Tasks, assignor and, during a rebalance, instances stay as they were until something changes."""
    state = _state(1, _member(_FIRST, tasks=("0_0", "0_1")))
    application = StreamsApplication(at=1, cluster="main", application="shop", instances=5)
    discovery = _discovery(known=[_state(1, state="PreparingRebalance", assignor="stream"), application])
    assert _observed(discovery, {}, "shop") == {"shop": msgspec.structs.replace(application, at=9)}
    discovery = _discovery(known=[state])
    discovery.apply_group(_state(9, _member(_FIRST)))
    assert discovery.awaiting_tasks == []
    assert discovery.add_tasks(_state(9, _member(_FIRST))).members == state.members
    assert _discovery(known=[_state(1, _member(_FIRST))]).awaiting_tasks == ["shop"]
