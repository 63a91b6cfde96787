"""What ClusterState makes of results: late ones, refusals, incomplete ones."""

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import (
    BrokerRegistration,
    Commit,
    GroupState,
    LastStableOffset,
    LogOffsets,
    PartitionState,
)
from agent.sources.availability import SOURCE, Unit
from agent.sources.base import ChangeDetector
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import Call, CompletedCall
from agent.sources.kafka.admin.connection_failures import ConnectionFailures
from agent.sources.kafka.admin.protocol import ConnectionFailure
from agent.sources.kafka.state.affected_rules import AffectedRules
from agent.sources.kafka.state.cluster_state import ClusterState
from agent.sources.kafka.state.permissions import Acl

_LATER = 120_000
_REFUSED = protocol.Failure(42, "refused")
_UNKNOWN_TOPIC = protocol.Failure(3, "?")
_NOT_COORDINATOR = protocol.Failure(16, "moved")
_TIMED_OUT = protocol.Failure(-185, "timed out")
_ALL = NameFilter()


def _state(*known: Observation, topics: NameFilter = _ALL) -> ClusterState:
    acl = Acl("kafka-1:9093", "User:backflow", AffectedRules({}, watch_partitions=True))
    state = ClusterState("main", _ALL, topics, ChangeDetector(), known, acl=acl, watch_partitions=True)
    state.begin_poll()
    return state


def _apply(
    state: ClusterState, request: protocol.Request, result: protocol.Result, sent_at: int = 1, at: int = 2
) -> None:
    name = getattr(request, "group", "")
    kinds: dict[type[protocol.Request], str] = {
        protocol.ListCommits: "commits",
        protocol.DescribeGroup: "states",
        protocol.DescribeTypedGroup: "states",
    }
    key = (kinds.get(type(request), type(request).__name__), name)
    state.apply(CompletedCall(Call(key, key, sent_at, request), at, result))


def _apply_metadata(state: ClusterState, brokers: list[int], leaders: dict[int, int]) -> None:
    _apply(state, protocol.FetchMetadata([]), protocol.Metadata(brokers, {"t": leaders}))


def _apply_end(state: ClusterState, end: int | None, sent_at: int) -> None:
    """Apply the offsets of t[0]; no end: its leader is away."""
    logs, failures = [], []
    if end is None:
        failures.append(protocol.PartitionFailure("t", 0, None))
    else:
        logs.append(LogOffsets(at=sent_at, cluster="main", topic="t", partition=0, log_start=0, log_end=end))
    _apply(state, protocol.ListOffsets(1, [("t", 0)]), protocol.Offsets(logs, failures), sent_at=sent_at)


def _apply_commits(state: ClusterState, *offsets: int, failed: Collection[int] = ()) -> None:
    numbers = [number for partition, offset in enumerate(offsets) for number in (partition, offset, -1)]
    failures = [protocol.PartitionFailure("t", partition, _REFUSED) for partition in failed]
    _apply(state, protocol.ListCommits("g"), protocol.Commits("main", "g", 1, {"t": numbers}, failures))


def _commit(partition: int, offset: int) -> Commit:
    return Commit(at=1, cluster="main", group="g", topic="t", partition=partition, offset=offset)


def _group(state: str) -> GroupState:
    return GroupState(at=2, cluster="main", group="g", state=state)


def _taken_commits(state: ClusterState) -> list[tuple[int, int | None]]:
    return [(fact.partition, fact.offset) for fact in state.take_observations() if isinstance(fact, Commit)]


def _share_state(end: int) -> ClusterState:
    """Return a state that has read a share group once, and the log end since."""
    state = _state()
    _apply_metadata(state, [1], {0: 1})
    _apply(state, protocol.ListTypedGroups(), protocol.TypedGroups({"g": protocol.TypedGroup("share", "Stable")}))
    assert (state.groups, state.type_of("g")) == (["g"], "share")
    _apply_share_offset(state, start=0, lag=end, at=2)
    _apply_end(state, end, sent_at=3)
    assert _taken_commits(state) == []
    return state


def _apply_share_offset(state: ClusterState, *, start: int, lag: int, at: int) -> None:
    offsets = protocol.ShareOffsets([protocol.ShareOffset("t", 0, start, lag)], [])
    _apply(state, protocol.ListShareOffsets("g"), offsets, at=at)


def _unavailable(state: ClusterState, *overdue: Call, failures: Sequence[ConnectionFailure] = ()) -> dict[Unit, str]:
    connections = ConnectionFailures()
    for failure in failures:
        connections.add(failure, 1_000)
    return state.unavailable(overdue, connections, (), 1_000)


def _list_offsets_call() -> Call:
    return Call(("offsets", 1), ("offsets", 1), 5, protocol.ListOffsets(1, [("t", 0)]))


def test_an_unchanged_group_is_as_it_was() -> None:
    """Its state is emitted as of now, its commits are not; those of a dead group have to be read in full."""
    state = _state()
    _apply(state, protocol.DescribeGroup("g"), _group("Stable"))
    _apply_commits(state, 5)
    assert state.committed.is_settled("g")
    state.take_observations()
    for request in (protocol.DescribeGroup("g"), protocol.ListCommits("g")):
        _apply(state, request, protocol.Unchanged(), at=9)
    assert [(type(fact), fact.at) for fact in state.take_observations()] == [(GroupState, 9)]
    assert state.committed.of("g").keys() == {("t", 0)}
    _apply(state, protocol.DescribeGroup("g"), _group("Dead"))
    assert not state.committed.is_settled("g")


@pytest.mark.parametrize("kept", [[], [1]], ids=["missing", "failed"])
def test_a_group_is_settled_when_all_its_commits_could_be_read(kept: list[int]) -> None:
    state = _state(_commit(1, 5))
    _apply_commits(state, 7, failed=kept)
    assert not state.committed.is_settled("g")
    _apply_commits(state, 7, 5)
    assert state.committed.is_settled("g")


def test_an_unchanged_group_is_available() -> None:
    state = _state()
    _apply(state, protocol.FetchMetadata([]), protocol.Metadata([1], {}))
    _apply_commits(state, 5)
    call = Call(("commits", "g"), ("commits", "g"), 1, protocol.ListCommits("g"))
    state.abandon([call])
    assert Unit(group="g") in _unavailable(state)
    _apply(state, protocol.ListCommits("g"), protocol.Unchanged())
    assert _unavailable(state) == {}


def _check_topic(state: ClusterState, failure: protocol.Failure | None = None, *, sent_at: int = 3) -> None:
    """Check the topic that has vanished after the listing without it; two listings arrive at the same time."""
    assert "t" in state.due_checks(_LATER)[0]
    _apply(state, protocol.CheckTopics(["t"]), protocol.TopicChecks({"t": failure}), sent_at=sent_at)


@pytest.mark.parametrize("failure", [None, protocol.Failure(3, "Unknown topic")], ids=["topic", "no-topic"])
def test_an_offset_no_longer_listed_is_deleted_once(failure: protocol.Failure | None) -> None:
    state = _state(_commit(1, 5))
    _apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7)]
    _check_topic(state, failure)
    _apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7), (1, None)]
    _apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7)]


def test_offsets_of_a_topic_that_is_hidden_are_unavailable() -> None:
    """Brokers leave out what we may not describe, without an error."""
    state = _state(_commit(1, 5))
    _apply_commits(state, 7)
    _check_topic(state, protocol.Failure(29, "Topic authorization failed"))
    _apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7), (0, 7)]
    assert _unavailable(state) == {
        Unit(
            "g", "t", 1
        ): "Cannot read the committed offset of g on t[1]: Kafka does not permit User:backflow to describe "
        "it. Allow it: kafka-acls --bootstrap-server kafka-1:9093 --command-config admin.properties --add "
        "--allow-principal User:backflow --operation Describe --topic t"
    }
    _apply_commits(state, 7, 6)
    assert _taken_commits(state) == [(0, 7), (1, 6)]
    assert _unavailable(state) == {}


def test_a_check_that_fails_here_decides_nothing() -> None:
    state = _state(_commit(1, 5))
    _apply_commits(state, 7)
    _check_topic(state, protocol.Failure(-185, "Local: Timed out"))
    _apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7), (0, 7)]
    assert _unavailable(state) == {}


def test_a_refused_commit_is_unavailable_and_not_deleted() -> None:
    state = _state(_commit(1, 5))
    _apply_commits(state, 7, failed=[1])
    assert _taken_commits(state) == [(0, 7)]
    assert _unavailable(state) == {Unit("g", "t", 1): "Cannot read the committed offset of g on t[1]: refused"}


def test_an_absent_leader_makes_log_offsets_unavailable() -> None:
    state = _state()
    _apply_metadata(state, [1], {0: 1})
    _apply_end(state, None, sent_at=5)
    assert [fact for fact in state.take_observations() if isinstance(fact, LogOffsets)] == []
    assert list(_unavailable(state)) == [Unit(None, "t", 0)]
    _apply_end(state, 10, sent_at=6)
    assert [fact.at for fact in state.take_observations() if isinstance(fact, LogOffsets)] == [6]
    assert _unavailable(state) == {}


def test_a_partition_that_a_result_leaves_out_is_unchanged() -> None:
    """Its next change is dated since then."""
    state = _state()
    _apply_metadata(state, [1], {0: 1})
    assert not state.logs.are_settled([("t", 0)])
    _apply_end(state, 10, sent_at=5)
    assert state.logs.are_settled([("t", 0)])
    state.take_observations()
    state.begin_poll()
    _apply(state, protocol.ListOffsets(1, [("t", 0)], complete=False), protocol.Offsets([], []), sent_at=8)
    assert state.has_response
    assert state.take_observations() == []
    overdue = Call(("offsets", 1), ("offsets", 1), 7, protocol.ListOffsets(1, [("t", 0)]))
    assert state.unavailable([overdue], ConnectionFailures(), [], 10) == {}
    _apply_end(state, 4, sent_at=9)
    assert [(fact.log_end, fact.since) for fact in state.take_observations() if isinstance(fact, LogOffsets)] == [
        (4, 8)
    ]


def test_what_is_confirmed_without_being_listed_has_heartbeats() -> None:
    """Once in ten minutes and a half, dated when it was confirmed; what is not confirmed any more has none."""
    detector = ChangeDetector()
    acl = Acl("kafka-1:9093", "User:backflow", AffectedRules({}, watch_partitions=True))
    state = ClusterState("main", _ALL, _ALL, detector, (), acl=acl, watch_partitions=True)
    _apply(state, protocol.FetchMetadata([]), protocol.Metadata([1], {"t": {0: 1, 1: 1}}))
    begun, read, described = 1_000_000, protocol.ListOffsets(1, [("t", 0)]), protocol.DescribeTopics(["t"])
    places = [PartitionState(at=begun, cluster="main", topic="t", partition=0, leader=1, replicas=(1,), isr=(1,))]
    _apply(state, described, protocol.Topics({"t": protocol.Topic(None, places)}), begun, begun)
    ends = [
        LogOffsets(at=begun, cluster="main", topic="t", partition=number, log_start=0, log_end=9) for number in (0, 1)
    ]
    _apply(state, protocol.ListOffsets(1, [("t", 0), ("t", 1)]), protocol.Offsets(ends, []), begun, begun)
    commits = protocol.Commits("main", "g", begun, {"t": [0, 5, -1]}, [])
    _apply(state, protocol.ListCommits("g"), commits, begun, begun)
    emitted = detector.changes(state.take_observations())
    for second in range(1, 2_000):
        now = begun + 1_000 * second
        if second % 7 == 0:
            _apply(state, read, protocol.Offsets([], []), now - 100, now - 50)
        for request in (described, protocol.ListCommits("g")):
            _apply(state, request, protocol.Unchanged(), now - 100, now - 50)
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


_BEGUN = 1_000_000
_FRESH_MS = 660_000
"""How old the last reading of an unchanged log may be for the Spark checks."""


def _watched_logs(*known: Observation) -> tuple[ClusterState, ChangeDetector]:
    detector = ChangeDetector(known)
    acl = Acl("kafka-1:9093", "User:backflow", AffectedRules({}, watch_partitions=True))
    state = ClusterState("main", _ALL, _ALL, detector, known, acl=acl, watch_partitions=True)
    _apply(state, protocol.FetchMetadata([]), protocol.Metadata([1, 2], {"t": {0: 1, 1: 1, 2: 2}}))
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
    _apply(state, request, protocol.Offsets(listed if in_full else [], []), at, at)
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
    _apply(state, protocol.ListCommits("g"), protocol.Commits("main", "g", now, {"t": [0, 9_200, -1]}, []), now, now)
    _apply(state, read, protocol.Offsets([grown], []), now, now)
    _apply(state, protocol.ListCommits("g"), protocol.Unchanged(), now + 100, now + 200)
    _apply(state, read, protocol.Offsets([], []), now + 100, now + 200)
    changes = detector.changes(state.take_observations())
    assert [fact.offset for fact in changes if isinstance(fact, Commit)] == [9_200]
    assert [fact.log_end for fact in changes if isinstance(fact, LogOffsets)] == [9_500]


def _rested(end: int = 10) -> ClusterState:
    """Return a state in which t[0] has had the same log end for two minutes, up to _LATER."""
    state = _state()
    _apply_metadata(state, [1], {0: 1})
    for sent_at in (5, _LATER):
        assert state.logs.is_due([("t", 0)], sent_at)
        _apply_end(state, end, sent_at=sent_at)
    return state


def test_a_log_at_rest_is_read_in_turn() -> None:
    state = _rested()
    assert not state.logs.is_due([("t", 0)], _LATER + 6_999)
    assert state.logs.is_due([("t", 0)], _LATER + 7_000)
    _apply_end(state, 11, sent_at=_LATER + 7_000)
    assert state.logs.is_due([("t", 0)], _LATER + 8_000)


def _elect(state: ClusterState) -> None:
    _apply(state, protocol.FetchMetadata([]), protocol.Metadata([1, 2], {"t": {0: 2}}), at=_LATER)


def _fail(state: ClusterState) -> None:
    _apply_end(state, None, sent_at=_LATER)


def _follow(state: ClusterState) -> None:
    """A group that is followed in the log has moved back."""
    state.apply_followed(frozenset({"g"}), [_commit(0, 5)], lambda *_: set(), _LATER)


def _poll(state: ClusterState) -> None:
    _apply_commits(state, 5)
    state.logs._live_until.clear()
    _apply(state, protocol.ListCommits("g"), protocol.Commits("main", "g", 1, {"t": [0, 6, -1]}, []), at=_LATER)


@pytest.mark.parametrize("happen", [_elect, _fail, _follow, _poll])
def test_a_log_at_rest_is_read_at_once_when_something_happens(happen: Callable[[ClusterState], None]) -> None:
    state = _rested()
    assert not state.logs.is_due([("t", 0)], _LATER + 1_000)
    happen(state)
    assert state.logs.is_due([("t", 0)], _LATER + 1_000)


def test_log_offsets_are_not_settled_while_a_leader_is_away() -> None:
    state = _state()
    _apply_metadata(state, [1], {0: 1})
    _apply_end(state, 10, sent_at=5)
    _apply_end(state, None, sent_at=6)
    assert not state.logs.are_settled([("t", 0)])
    _apply_end(state, 10, sent_at=7)
    assert state.logs.are_settled([("t", 0)])
    _apply_metadata(state, [1], {})
    assert not state.logs.are_settled([("t", 0)])


def test_unchanged_metadata_counts_as_read_again() -> None:
    """A broker that is missing for the second time is gone."""
    state = _state()
    for brokers in ([1, 2], [1]):
        _apply_metadata(state, brokers, {})
    state.take_observations()
    _apply(state, protocol.FetchMetadata([]), protocol.Unchanged())
    gone = [fact.broker for fact in state.take_observations() if isinstance(fact, BrokerRegistration) and fact.gone]
    assert gone == [2]


def test_unchanged_topics_date_the_next_change() -> None:
    partition = PartitionState(
        at=1, cluster="main", topic="t", partition=0, leader=1, replicas=(1,), isr=(1,), topic_id="x"
    )
    detector = ChangeDetector()
    acl = Acl("kafka-1:9093", "User:backflow", AffectedRules({}, watch_partitions=True))
    state = ClusterState("main", NameFilter(), NameFilter(), detector, [], acl=acl, watch_partitions=True)
    request = protocol.DescribeTopics(["t"])
    _apply(state, request, protocol.Topics({"t": protocol.Topic("x", [partition])}))
    assert len(detector.changes(state.take_observations())) == 1
    _apply(state, request, protocol.Unchanged(), at=50)
    assert detector.changes(state.take_observations()) == []
    moved = msgspec.structs.replace(partition, at=60, leader=2)
    _apply(state, request, protocol.Topics({"t": protocol.Topic("x", [moved])}))
    assert [fact.since for fact in detector.changes(state.take_observations())] == [50]


def test_a_late_result_of_a_former_leader_is_ignored() -> None:
    state = _state()
    _apply_metadata(state, [1, 2], {0: 2})
    _apply_end(state, 10, sent_at=9)
    state.take_observations()
    _apply_end(state, 12, sent_at=5)
    _apply_end(state, None, sent_at=5)
    assert state.take_observations() == []
    assert _unavailable(state, _list_offsets_call()) == {}


def test_abandoned_log_offsets_are_unavailable_until_read_again() -> None:
    """A broker lost power during a call to it; the next leader answers another call."""
    state = _state()
    _apply_metadata(state, [1, 2], {0: 1})
    _apply_end(state, 10, sent_at=2)
    state.abandon([_list_offsets_call()])
    assert list(_unavailable(state)) == [Unit(None, "t", 0)]
    _apply_metadata(state, [2], {0: 2})
    _apply_end(state, 12, sent_at=9)
    assert _unavailable(state) == {}


def test_an_offline_partition_is_unavailable_and_not_requested() -> None:
    state = _state()
    _apply_metadata(state, [1], {0: -1, 1: 1})
    assert state.partitions_by_leader(_LATER) == {1: [("t", 1)]}
    assert _unavailable(state) == {
        Unit(None, "t", 0): "Cannot read the log offsets of t[0]: the partition has no leader"
    }


def test_what_is_not_watched_any_more_is_not_unavailable() -> None:
    """The leader of a partition is away, its topic cannot be described, and then its only group is deleted."""
    state = _state(topics=NameFilter(include=["nothing"]))
    _apply_metadata(state, [1], {0: 1})
    _apply_commits(state, 5)
    assert state.partitions_by_leader(_LATER) == {1: [("t", 0)]}
    _apply_metadata(state, [1], {0: -1})
    _apply(state, protocol.DescribeTopics(["t"]), protocol.Topics({"t": protocol.Failure(5, "leader not available")}))
    assert state.partitions_by_leader(_LATER) == {}
    assert set(_unavailable(state)) == {Unit(None, "t", 0), Unit(topic="t")}
    state.apply_followed(["g"], [replace(_commit(0, 5), offset=None)], lambda *_: set(), 9)
    _apply_metadata(state, [1], {0: 1})
    assert state.partitions_by_leader(_LATER) == {}
    assert _unavailable(state) == {}


def test_a_partition_that_a_transaction_holds_back_is_watched_until_it_does_not() -> None:
    held_back = LastStableOffset(at=1, cluster="main", topic="t", partition=0, offset=40)
    state = _state(held_back, topics=NameFilter(include=["nothing"]))
    _apply_metadata(state, [1], {0: 1})
    assert state.partitions_by_leader(_LATER) == {1: [("t", 0)]}
    _apply_end(state, 100, sent_at=1)
    ended = protocol.StableOffsets([replace(held_back, at=2, offset=100)])
    _apply(state, protocol.ListStableOffsets(1, [("t", 0)]), ended)
    observed = [fact for fact in state.take_observations() if isinstance(fact, LastStableOffset)]
    assert [(fact.offset, fact.held_back) for fact in observed] == [(100, False)]
    assert state.partitions_by_leader(_LATER) == {}


def test_a_group_that_moved_makes_the_client_stale() -> None:
    """librdkafka would ask the old coordinator for ever, and crash when it refuses to list commits."""
    state = _state(GroupState(at=1, cluster="main", group="g", state="Stable"))
    assert (state.client_is_stale, state.readable_groups) == (False, ["g"])
    _apply(state, protocol.DescribeGroup("g"), _NOT_COORDINATOR)
    assert (state.client_is_stale, state.readable_groups) == (True, [])
    assert list(_unavailable(state)) == [Unit("g")]
    state.begin_poll()
    _apply(state, protocol.DescribeGroup("g"), _group("Stable"))
    assert (state.client_is_stale, state.readable_groups, _unavailable(state)) == (False, ["g"], {})


def test_a_broker_that_leaves_makes_the_client_stale() -> None:
    """A new broker does not; a broker that knows no brokers is ignored."""
    state = _state()
    for brokers, is_stale in (([1, 2], False), ([1], True), ([], False), ([1, 2], False)):
        state.begin_poll()
        _apply_metadata(state, brokers, {})
        assert state.client_is_stale == is_stale


def test_a_broker_is_absent_when_missing_for_the_second_time() -> None:
    """A broker that was suspended responds with old metadata."""
    state = _state()
    for brokers, absent in (([1, 2], []), ([1], []), ([1, 2], []), ([1], []), ([1], [2]), ([1], []), ([1, 2], [])):
        _apply_metadata(state, brokers, {})
        registrations = [fact for fact in state.take_observations() if isinstance(fact, BrokerRegistration)]
        assert [registration.broker for registration in registrations if registration.gone] == absent
        assert [registration.broker for registration in registrations if not registration.gone] == brokers


def test_a_topic_is_deleted_when_unknown_for_the_second_time() -> None:
    """A broker whose metadata lags deletes nothing."""
    partition = PartitionState(
        at=1, cluster="main", topic="t", partition=0, leader=1, replicas=(1,), isr=(1,), topic_id="x"
    )
    state, request = _state(partition), protocol.DescribeTopics(["t"])
    topic = protocol.Topic("x", [partition])
    results: list[protocol.Topic | protocol.Failure] = [_UNKNOWN_TOPIC, topic, _UNKNOWN_TOPIC, _UNKNOWN_TOPIC]
    for result in results:
        assert state.watched_topics == ["t"]
        _apply(state, request, protocol.Topics({"t": result}))
    assert [fact.replicas for fact in state.take_observations() if isinstance(fact, PartitionState)] == [(1,), ()]
    assert state.watched_topics == []


def test_a_group_is_dead_once_its_commits_are_gone() -> None:
    state = _state(_commit(0, 5))
    _apply(state, protocol.DescribeGroup("g"), _group("Dead"))
    assert (state.groups, state.take_observations()) == (["g"], [])
    _apply_commits(state)
    assert state.take_observations() == []
    _check_topic(state)
    _apply_commits(state)
    assert [fact.state for fact in state.take_observations() if isinstance(fact, GroupState)] == ["Dead"]
    assert state.groups == []


def test_a_group_with_commits_that_cannot_be_described_is_unknown() -> None:
    """A Streams application has moved to the streams protocol, which the call does not cover: it is alive."""
    state = _state(_commit(0, 5), GroupState(at=1, cluster="main", group="g", state="Stable", type="classic"))
    for offset in (6, 7):
        _apply(state, protocol.DescribeGroup("g"), _group("Dead"))
        _apply_commits(state, offset)
        states = [fact for fact in state.take_observations() if isinstance(fact, GroupState)]
        assert [(fact.state, fact.type) for fact in states] == [("Unknown", "classic")]
    assert state.groups == ["g"]


def test_a_group_has_the_type_it_is_listed_with() -> None:
    """One whose coordinator did not answer this time keeps its last."""
    state = _state()
    listings: list[dict[str, str | None]] = [{"g": "consumer"}, {"g": None}, {}]
    for types in listings:
        _apply(state, protocol.ListGroups(), protocol.Groups(types, []))
        _apply(state, protocol.DescribeGroup("g"), _group("Stable"))
    assert [fact.type for fact in state.take_observations() if isinstance(fact, GroupState)] == ["consumer"] * 3


def test_states_unknown_to_the_client_come_from_the_listing() -> None:
    """librdkafka does not know those of KIP-848."""
    state = _state()
    for listed, described in (("Reconciling", "Unknown"), ("Assigning", "Unknown"), ("Assigning", "Stable")):
        groups = protocol.TypedGroups({"g": protocol.TypedGroup("consumer", listed)})
        _apply(state, protocol.ListTypedGroups(), groups)
        _apply(state, protocol.DescribeGroup("g"), _group(described))
    facts = [fact for fact in state.take_observations() if isinstance(fact, GroupState)]
    assert [(fact.state, fact.type) for fact in facts] == [
        ("Reconciling", "consumer"), ("Assigning", "consumer"), ("Stable", "consumer"),
    ]  # fmt: skip


def test_share_group_is_read_by_its_lag_once_logs_are() -> None:
    """The lag is of a moment between two readings of the log end."""
    state = _share_state(end=10)
    _apply_share_offset(state, start=0, lag=3, at=10)
    assert _taken_commits(state) == []
    _apply_share_offset(state, start=0, lag=3, at=20)
    _apply_end(state, 12, sent_at=21)
    assert _taken_commits(state) == [(0, 7)]


def test_share_group_moves_back_only_if_it_must_have() -> None:
    """A burst written between the end and the lag is no rewind; a lag above all that was written is."""
    state = _share_state(end=10)
    for at, start, lag, end in ((10, 0, 0, 10), (20, 0, 5, 15), (30, 4, 15, 15)):
        _apply_share_offset(state, start=start, lag=lag, at=at)
        _apply_end(state, end, sent_at=at + 1)
    assert _taken_commits(state) == [(0, 10), (0, 10), (0, 4)]


def test_share_group_is_deleted_with_its_offsets() -> None:
    state = _share_state(end=10)
    _apply_share_offset(state, start=0, lag=0, at=10)
    _apply_end(state, 10, sent_at=11)
    assert _taken_commits(state) == [(0, 10)]
    _apply(state, protocol.DescribeTypedGroup("g", "share"), _group("Dead"))
    _apply(state, protocol.ListShareOffsets("g"), protocol.ShareOffsets([], []), at=20)
    assert _taken_commits(state) == []
    _check_topic(state, sent_at=21)
    _apply(state, protocol.ListShareOffsets("g"), protocol.ShareOffsets([], []), at=22)
    assert _taken_commits(state) == [(0, None)]
    assert state.groups == []


def test_refused_share_offsets_are_not_unavailable() -> None:
    """Brokers before 4.2 do not report the lag."""
    state = _share_state(end=10)
    _apply(state, protocol.ListShareOffsets("g"), protocol.Failure(protocol.UNSUPPORTED, "too old"))
    assert (_unavailable(state), _taken_commits(state)) == ({}, [])


def test_a_refused_second_client_leaves_the_rest_available() -> None:
    """Its coordinator errors do not make librdkafka's client stale; a group that it describes is unavailable."""
    state = _state()
    refused = protocol.Failure(protocol.UNSUPPORTED, "kafka-python does not support SASL mechanism OAUTHBEARER")
    _apply(state, protocol.ListGroups(), protocol.Groups({"g": "classic"}, []))
    _apply(state, protocol.ListTypedGroups(), refused)
    assert _unavailable(state) == {}
    _apply(state, protocol.DescribeTypedGroup("s", "streams"), _NOT_COORDINATOR)
    assert (state.client_is_stale, list(_unavailable(state))) == (False, [Unit("s")])


def test_open_transactions_are_requested_of_the_leader() -> None:
    state = _state()
    _apply_metadata(state, [1], {0: 1})
    _apply_end(state, 100, sent_at=1)
    assert state.partitions_by_leader(_LATER) == state.due_stable_offsets(100_000) == {1: [("t", 0)]}
    for at in (1, 2):
        stable = LastStableOffset(at=at, cluster="main", topic="t", partition=0, offset=40)
        _apply(state, protocol.ListStableOffsets(1, [("t", 0)]), protocol.StableOffsets([stable]))
    assert state.due_transactions(60_001) == [protocol.DescribeOpenTransaction("t", 0, 1, 40)]
    assert [fact.offset for fact in state.take_observations() if isinstance(fact, LastStableOffset)] == [40]


def test_the_source_is_unavailable_if_no_broker_responds() -> None:
    """The client's error is preferred to the timeout; a broker that refuses has responded."""
    state = _state()
    assert _unavailable(state) == {}
    _apply(state, protocol.ListCommits("g"), _TIMED_OUT)
    assert _unavailable(state) == {SOURCE: "No broker of main answers: timed out"}
    assert _unavailable(state, failures=[ConnectionFailure("kafka-1:9093", 1, "connection refused")])[SOURCE].endswith(
        "connection refused"
    )
    _apply(state, protocol.ListCommits("g"), _REFUSED)
    assert list(_unavailable(state)) == [Unit("g")]
