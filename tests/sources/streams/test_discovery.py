"""What is made of groups and topics that may be Kafka Streams applications: late answers, rebalances, names alike."""

from collections.abc import Sequence
from typing import Any

import msgspec

from agent.model.observations import GroupState, Member, Observation, StreamsApplication
from agent.sources.streams.assignment import Assignment
from agent.sources.streams.discovery import StreamsView

_FIRST, _SECOND = (("in", 0), ("in", 1)), (("in", 0),)
_TASKS = {"m": Assignment(_FIRST, ("0_0", "0_1"))}


def _view(*named: str, known: Sequence[Observation] = ()) -> StreamsView:
    return StreamsView("main", named, known)


def _state(at: int, *members: Member, state: str = "Stable", **fields: Any) -> GroupState:
    assignor = fields.pop("assignor", "stream" if state == "Stable" else None)
    return GroupState(at=at, cluster="main", group="shop", state=state, members=members, assignor=assignor, **fields)


def _member(partitions: tuple[tuple[str, int], ...], name: str = "m", **fields: Any) -> Member:
    return Member(name, "/h", partitions, f"{name}-StreamThread-1-consumer", **fields)


def _told(view: StreamsView, topics: dict[str, list[int]], *groups: str) -> dict[str, StreamsApplication]:
    return {one.application: one for one in view.facts(9, topics, groups) if isinstance(one, StreamsApplication)}


def test_tasks_go_with_the_partitions_that_they_were_told_with() -> None:
    """An answer of before or after a rebalance is not taken for the tasks of this moment."""
    view = _view()
    view.take_group(_state(1, _member(_FIRST)))
    view.take_tasks("shop", _TASKS, asked=2)
    assert view.completed(_state(3, _member(_FIRST))).members[0].tasks == ("0_0", "0_1")
    assert view.completed(_state(4, _member(_SECOND))).members[0].tasks == ()
    assert view.completed(_state(4, _member(_FIRST, "other"))).members[0].tasks == ()


def test_tasks_are_asked_for_until_they_are_told_and_again_after_a_rebalance() -> None:
    """Not while one goes on, and not for an answer that was asked for before it ended."""
    view = _view()
    view.take_group(_state(1, _member(_FIRST)))
    assert view.untold == ["shop"]
    view.take_tasks("shop", _TASKS, asked=2)
    view.take_group(_state(3, _member(_FIRST)))
    assert view.untold == []
    view.take_group(_state(5, _member(()), state="PreparingRebalance"))
    assert view.untold == []
    view.take_group(_state(7, _member(_SECOND)))
    view.take_tasks("shop", _TASKS, asked=6)
    assert view.untold == ["shop"]
    view.take_tasks("shop", {"m": Assignment(_SECOND, ("0_0",))}, asked=7)
    assert view.untold == []


def test_what_was_told_in_a_rebalance_that_nobody_saw_is_asked_for_again() -> None:
    """It came and went between two readings of the group; what was known stands. What cannot be read is not asked for
    again, nor is anything of a group that is gone.
    """
    view = _view()
    view.take_group(_state(1, _member(_FIRST)))
    view.take_tasks("shop", _TASKS, asked=2)
    view.take_group(_state(3, _member(_SECOND)))
    for told in ({}, {"m": Assignment()}, _TASKS):
        view.take_tasks("shop", told, asked=4)
        view.take_group(_state(5, _member(_SECOND)))
        assert view.untold == ["shop"]
    assert view.completed(_state(6, _member(_FIRST))).members[0].tasks == ("0_0", "0_1")
    view.take_tasks("shop", {}, asked=7, decodable=False)
    assert view.untold == []
    view.forget("shop")
    view.take_tasks("shop", {}, asked=8)
    view.take_group(_state(7, _member(_FIRST)))
    assert view.untold == ["shop"]


def test_members_without_partitions_and_other_groups_are_not_asked_for() -> None:
    """There is nothing to be told."""
    view = _view()
    view.take_group(_state(1, _member(())))
    assert view.untold == []
    view.take_group(_state(2, _member(_FIRST), assignor="range"))
    assert (view.untold, view.applications) == ([], frozenset())


def test_an_application_stays_one_through_a_rebalance_and_when_it_is_stopped() -> None:
    """Kafka tells no assignor then; the last one told stands. Its instances are counted when it is at rest."""
    view = _view()
    running = _state(1, _member(_FIRST), _member((), "n"))
    assert _told(view, {}, "shop") == {}
    view.take_group(running)
    assert _told(view, {}, "shop")["shop"].instances == 2
    rebalancing = _state(2, _member(()), state="CompletingRebalance")
    view.take_group(rebalancing)
    assert view.completed(rebalancing).assignor == "stream"
    assert _told(view, {}, "shop")["shop"].instances == 2
    view.take_group(_state(3, state="Empty"))
    assert _told(view, {}, "shop")["shop"].instances == 0
    view.forget("shop")
    assert _told(view, {}) == {}


def test_threads_of_a_process_are_one_instance() -> None:
    """The same client.id on two hosts is two, two client.ids on a host as well."""
    view = _view()
    threads = [Member(f"{n}", host, (), f"app-StreamThread-{n}-consumer") for n in (1, 2) for host in ("/a", "/b")]
    view.take_group(_state(1, *threads, Member("x", "/a", (), "other-StreamThread-1-consumer")))
    assert _told(view, {}, "shop")["shop"].instances == 3


def test_the_longest_application_id_has_the_changelog() -> None:
    """A store may have dashes in its name, and so may an application."""
    view = _view("shop", "shop-eu", "ledger")
    topics = {
        "shop-counts-changelog": [0, 1], "shop-eu-counts-by-day-changelog": [0], "shopping-counts-changelog": [0],
        "shop-changelog": [0], "shop-eu-changelog": [0], "shop-counts-repartition": [0],
    }  # fmt: skip
    told = {name: one.stores for name, one in _told(view, topics).items()}
    assert told == {"shop": (("counts", 2), ("eu", 1)), "shop-eu": (("counts-by-day", 1),), "ledger": ()}
    assert [topic for topic in topics if view.owns(topic)] == [
        "shop-counts-changelog", "shop-eu-counts-by-day-changelog", "shop-eu-changelog",
    ]  # fmt: skip


def test_what_was_known_before_a_restart_need_not_be_asked_for_again() -> None:
    """Tasks, assignor and, in a rebalance, instances are those of before, until something changes."""
    state = _state(1, _member(_FIRST, tasks=("0_0", "0_1")))
    application = StreamsApplication(at=1, cluster="main", application="shop", instances=5)
    view = _view(known=[_state(1, state="PreparingRebalance", assignor="stream"), application])
    assert _told(view, {}, "shop") == {"shop": msgspec.structs.replace(application, at=9)}
    view = _view(known=[state])
    view.take_group(_state(9, _member(_FIRST)))
    assert view.untold == []
    assert view.completed(_state(9, _member(_FIRST))).members == state.members
    assert _view(known=[_state(1, _member(_FIRST))]).untold == ["shop"]
