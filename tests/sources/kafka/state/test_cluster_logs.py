"""What ClusterState makes of log offsets: unchanged, late and abandoned ones, logs at rest, heartbeats."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import (
    BrokerRegistration,
    Commit,
    LogOffsets,
    PartitionState,
)
from agent.sources.availability import Unit
from agent.sources.base import ChangeDetector
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import Call
from agent.sources.kafka.admin.connection_failures import ConnectionFailures
from agent.sources.kafka.state.affected_rules import AffectedRules
from agent.sources.kafka.state.cluster_state import ClusterState
from agent.sources.kafka.state.permissions import Acl
from tests.sources.kafka.state.cluster_results import (
    ALL,
    LATER,
    a_commit,
    apply,
    apply_commits,
    apply_end,
    apply_metadata,
    new_state,
    unavailable,
)

_BEGUN = 1_000_000
_FRESH_MS = 660_000
"""How old the last reading of an unchanged log may be for the Spark checks."""


def _list_offsets_call() -> Call:
    return Call(("offsets", 1), ("offsets", 1), 5, protocol.ListOffsets(1, [("t", 0)]))


def test_an_absent_leader_makes_log_offsets_unavailable() -> None:
    state = new_state()
    apply_metadata(state, [1], {0: 1})
    apply_end(state, None, sent_at=5)
    assert [fact for fact in state.take_observations() if isinstance(fact, LogOffsets)] == []
    assert list(unavailable(state)) == [Unit(None, "t", 0)]
    apply_end(state, 10, sent_at=6)
    assert [fact.at for fact in state.take_observations() if isinstance(fact, LogOffsets)] == [6]
    assert unavailable(state) == {}


def test_a_partition_that_a_result_leaves_out_is_unchanged() -> None:
    """Its next change is dated since then."""
    state = new_state()
    apply_metadata(state, [1], {0: 1})
    assert not state.logs.are_settled([("t", 0)])
    apply_end(state, 10, sent_at=5)
    assert state.logs.are_settled([("t", 0)])
    state.take_observations()
    state.begin_poll()
    apply(state, protocol.ListOffsets(1, [("t", 0)], complete=False), protocol.Offsets([], []), sent_at=8)
    assert state.has_response
    assert state.take_observations() == []
    overdue = Call(("offsets", 1), ("offsets", 1), 7, protocol.ListOffsets(1, [("t", 0)]))
    assert state.unavailable([overdue], ConnectionFailures(), [], 10) == {}
    apply_end(state, 4, sent_at=9)
    assert [(fact.log_end, fact.since) for fact in state.take_observations() if isinstance(fact, LogOffsets)] == [
        (4, 8)
    ]


def test_what_is_confirmed_without_being_listed_has_heartbeats() -> None:
    """Once in ten minutes and a half, dated when it was confirmed; what is not confirmed any more has none."""
    detector = ChangeDetector()
    acl = Acl("kafka-1:9093", "User:backflow", AffectedRules({}, watch_partitions=True))
    state = ClusterState("main", ALL, ALL, detector, (), acl=acl, watch_partitions=True)
    apply(state, protocol.FetchMetadata([]), protocol.Metadata([1], {"t": {0: 1, 1: 1}}))
    begun, read, described = 1_000_000, protocol.ListOffsets(1, [("t", 0)]), protocol.DescribeTopics(["t"])
    places = [PartitionState(at=begun, cluster="main", topic="t", partition=0, leader=1, replicas=(1,), isr=(1,))]
    apply(state, described, protocol.Topics({"t": protocol.Topic(None, places)}), begun, begun)
    ends = [
        LogOffsets(at=begun, cluster="main", topic="t", partition=number, log_start=0, log_end=9) for number in (0, 1)
    ]
    apply(state, protocol.ListOffsets(1, [("t", 0), ("t", 1)]), protocol.Offsets(ends, []), begun, begun)
    commits = protocol.Commits("main", "g", begun, {"t": [0, 5, -1]}, [])
    apply(state, protocol.ListCommits("g"), commits, begun, begun)
    emitted = detector.changes(state.take_observations())
    for second in range(1, 2_000):
        now = begun + 1_000 * second
        if second % 7 == 0:
            apply(state, read, protocol.Offsets([], []), now - 100, now - 50)
        for request in (described, protocol.ListCommits("g")):
            apply(state, request, protocol.Unchanged(), now - 100, now - 50)
        beats = state.take_observations()
        changes = detector.changes(beats)
        assert [fact for fact in beats if not isinstance(fact, BrokerRegistration)] == [
            fact for fact in changes if not isinstance(fact, BrokerRegistration)
        ]
        emitted += changes
    for kind, offset in ((LogOffsets, 100), (PartitionState, 50), (Commit, 50)):
        at = [fact.at for fact in emitted if isinstance(fact, kind) and fact.partition == 0]
        assert len(at) == 4
        assert all(600_000 <= later - earlier <= 640_000 for earlier, later in pairwise(at))
        assert {moment % 1_000 for moment in at[1:]} == {1_000 - offset}
    assert len([fact for fact in emitted if isinstance(fact, LogOffsets) and fact.partition == 1]) == 1


def _watched_logs(*known: Observation) -> tuple[ClusterState, ChangeDetector]:
    detector = ChangeDetector(known)
    acl = Acl("kafka-1:9093", "User:backflow", AffectedRules({}, watch_partitions=True))
    state = ClusterState("main", ALL, ALL, detector, known, acl=acl, watch_partitions=True)
    apply(state, protocol.FetchMetadata([]), protocol.Metadata([1, 2], {"t": {0: 1, 1: 1, 2: 2}}))
    return state, detector


def _read_logs(
    watched: tuple[ClusterState, ChangeDetector], second: int, leader: int, *partitions: int, in_full: bool = False
) -> list[tuple[int, int]]:
    """Apply unchanged log ends; return the partitions of which some were emitted, and when."""
    (state, detector), at = watched, _BEGUN + second * 1_000
    listed = [
        LogOffsets(at=at, cluster="main", topic="t", partition=number, log_start=0, log_end=9) for number in partitions
    ]
    request = protocol.ListOffsets(leader, [("t", number) for number in partitions])
    apply(state, request, protocol.Offsets(listed if in_full else [], []), at, at)
    changes = detector.changes(state.take_observations())
    return [(fact.partition, second) for fact in changes if isinstance(fact, LogOffsets)]


def test_an_unchanged_log_has_a_heartbeat_in_time_after_a_restart() -> None:
    known = LogOffsets(at=_BEGUN - 500_000, cluster="main", topic="t", partition=0, log_start=0, log_end=9)
    watched = _watched_logs(known)
    assert _read_logs(watched, 0, 1, 0, 1, in_full=True) == [(1, 0)]
    emitted = [beat for second in range(7, 300, 7) for beat in _read_logs(watched, second, 1, 0, 1)]
    ((partition, second),) = emitted
    assert partition == 0
    assert second * 1_000 + 500_000 <= _FRESH_MS


def test_an_unchanged_log_has_a_heartbeat_in_time_after_its_leader_moved() -> None:
    """The partitions that the new leader has already are not due yet."""
    watched = _watched_logs()
    assert _read_logs(watched, 0, 1, 0, 1, in_full=True) == [(0, 0), (1, 0)]
    for second in range(7, 590, 7):
        beats = _read_logs(watched, second, 1, 0, 1)
        beats += _read_logs(watched, second, 2, 2, in_full=second == 301) if second >= 301 else []
        assert beats == ([(2, 301)] if second == 301 else [])
    assert _read_logs(watched, 590, 2, 2, 1, in_full=True) == []
    emitted = [beat for second in range(597, 800, 7) for beat in _read_logs(watched, second, 2, 2, 1)]
    ((partition, second),) = emitted
    assert partition == 1
    assert second * 1_000 <= _FRESH_MS


def test_no_heartbeat_takes_back_a_change_of_the_same_poll() -> None:
    """A late response shows the change, and the next one, in the same poll, that nothing has changed since."""
    known = (
        Commit(at=_BEGUN, cluster="main", group="g", topic="t", partition=0, offset=4_000),
        LogOffsets(at=_BEGUN, cluster="main", topic="t", partition=0, log_start=0, log_end=9_000),
    )
    state, detector = _watched_logs(*known)
    now, read = _BEGUN + 650_000, protocol.ListOffsets(1, [("t", 0)])
    grown = LogOffsets(at=now, cluster="main", topic="t", partition=0, log_start=0, log_end=9_500)
    apply(state, protocol.ListCommits("g"), protocol.Commits("main", "g", now, {"t": [0, 9_200, -1]}, []), now, now)
    apply(state, read, protocol.Offsets([grown], []), now, now)
    apply(state, protocol.ListCommits("g"), protocol.Unchanged(), now + 100, now + 200)
    apply(state, read, protocol.Offsets([], []), now + 100, now + 200)
    changes = detector.changes(state.take_observations())
    assert [fact.offset for fact in changes if isinstance(fact, Commit)] == [9_200]
    assert [fact.log_end for fact in changes if isinstance(fact, LogOffsets)] == [9_500]


def _rested(end: int = 10) -> ClusterState:
    """Return a state in which t[0] has had the same log end for two minutes, up to LATER."""
    state = new_state()
    apply_metadata(state, [1], {0: 1})
    for sent_at in (5, LATER):
        assert state.logs.is_due([("t", 0)], sent_at)
        apply_end(state, end, sent_at=sent_at)
    return state


def test_a_log_at_rest_is_read_in_turn() -> None:
    state = _rested()
    assert not state.logs.is_due([("t", 0)], LATER + 6_999)
    assert state.logs.is_due([("t", 0)], LATER + 7_000)
    apply_end(state, 11, sent_at=LATER + 7_000)
    assert state.logs.is_due([("t", 0)], LATER + 8_000)


def _elect(state: ClusterState) -> None:
    apply(state, protocol.FetchMetadata([]), protocol.Metadata([1, 2], {"t": {0: 2}}), at=LATER)


def _fail(state: ClusterState) -> None:
    apply_end(state, None, sent_at=LATER)


def _follow(state: ClusterState) -> None:
    """A group that is followed in the log has moved back."""
    state.apply_followed(frozenset({"g"}), [a_commit(0, 5)], lambda *_: set(), LATER)


def _poll(state: ClusterState) -> None:
    apply_commits(state, 5)
    state.logs._live_until.clear()
    apply(state, protocol.ListCommits("g"), protocol.Commits("main", "g", 1, {"t": [0, 6, -1]}, []), at=LATER)


@pytest.mark.parametrize("happen", [_elect, _fail, _follow, _poll])
def test_a_log_at_rest_is_read_at_once_when_something_happens(happen: Callable[[ClusterState], None]) -> None:
    state = _rested()
    assert not state.logs.is_due([("t", 0)], LATER + 1_000)
    happen(state)
    assert state.logs.is_due([("t", 0)], LATER + 1_000)


def test_log_offsets_are_not_settled_while_a_leader_is_away() -> None:
    state = new_state()
    apply_metadata(state, [1], {0: 1})
    apply_end(state, 10, sent_at=5)
    apply_end(state, None, sent_at=6)
    assert not state.logs.are_settled([("t", 0)])
    apply_end(state, 10, sent_at=7)
    assert state.logs.are_settled([("t", 0)])
    apply_metadata(state, [1], {})
    assert not state.logs.are_settled([("t", 0)])


def test_log_offsets_of_others_stay_settled_while_a_leader_is_away() -> None:
    """Else a single partition that is offline for days has all of them read in full by each poll."""
    state = new_state()
    apply_metadata(state, [1, 2], {0: 1, 1: 2, 2: 2})
    for partition in (1, 2):
        offsets = LogOffsets(at=5, cluster="main", topic="t", partition=partition, log_start=0, log_end=7)
        apply(state, protocol.ListOffsets(2, [("t", partition)]), protocol.Offsets([offsets], []), sent_at=5)
    apply_end(state, None, sent_at=6)
    assert state.logs.are_settled([("t", 1), ("t", 2)])
    assert not state.logs.are_settled([("t", 0), ("t", 1)])


def test_a_late_result_of_a_former_leader_is_ignored() -> None:
    state = new_state()
    apply_metadata(state, [1, 2], {0: 2})
    apply_end(state, 10, sent_at=9)
    state.take_observations()
    apply_end(state, 12, sent_at=5)
    apply_end(state, None, sent_at=5)
    assert state.take_observations() == []
    assert unavailable(state, _list_offsets_call()) == {}


def test_abandoned_log_offsets_are_unavailable_until_read_again() -> None:
    """A broker lost power during a call to it; the next leader answers another call."""
    state = new_state()
    apply_metadata(state, [1, 2], {0: 1})
    apply_end(state, 10, sent_at=2)
    state.abandon([_list_offsets_call()])
    assert list(unavailable(state)) == [Unit(None, "t", 0)]
    apply_metadata(state, [2], {0: 2})
    apply_end(state, 12, sent_at=9)
    assert unavailable(state) == {}


def test_an_offline_partition_is_unavailable_and_not_requested() -> None:
    state = new_state()
    apply_metadata(state, [1], {0: -1, 1: 1})
    assert state.partitions_by_leader(LATER) == {1: [("t", 1)]}
    assert unavailable(state) == {
        Unit(None, "t", 0): "Cannot read the log offsets of t[0]: the partition has no leader"
    }


def test_what_is_not_watched_any_more_is_not_unavailable() -> None:
    """The leader of a partition is away, its topic cannot be described, and then its only group is deleted."""
    state = new_state(topics=NameFilter(include=["nothing"]))
    apply_metadata(state, [1], {0: 1})
    apply_commits(state, 5)
    assert state.partitions_by_leader(LATER) == {1: [("t", 0)]}
    apply_metadata(state, [1], {0: -1})
    apply(state, protocol.DescribeTopics(["t"]), protocol.Topics({"t": protocol.Failure(5, "leader not available")}))
    assert state.partitions_by_leader(LATER) == {}
    assert set(unavailable(state)) == {Unit(None, "t", 0), Unit(topic="t")}
    state.apply_followed(["g"], [replace(a_commit(0, 5), offset=None)], lambda *_: set(), 9)
    apply_metadata(state, [1], {0: 1})
    assert state.partitions_by_leader(LATER) == {}
    assert unavailable(state) == {}
