"""What ClusterState makes of results about groups, commits and metadata: refusals, incomplete ones."""

import msgspec
import pytest
from msgspec.structs import replace

from agent.model.name_filter import NameFilter
from agent.model.observations.kafka import (
    BrokerRegistration,
    Commit,
    GroupState,
    LastStableOffset,
    PartitionState,
)
from agent.sources.availability import SOURCE, Unit
from agent.sources.base import ChangeDetector
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import Call
from agent.sources.kafka.admin.protocol import ConnectionFailure
from agent.sources.kafka.state.affected_rules import AffectedRules
from agent.sources.kafka.state.cluster_state import ClusterState
from agent.sources.kafka.state.permissions import Acl
from tests.sources.kafka.state.cluster_results import (
    LATER,
    REFUSED,
    a_commit,
    apply,
    apply_commits,
    apply_end,
    apply_metadata,
    new_state,
    unavailable,
)

_UNKNOWN_TOPIC = protocol.Failure(3, "?")
_NOT_COORDINATOR = protocol.Failure(16, "moved")
_TIMED_OUT = protocol.Failure(-185, "timed out")


def _group(state: str) -> GroupState:
    return GroupState(at=2, cluster="main", group="g", state=state)


def _taken_commits(state: ClusterState) -> list[tuple[int, int | None]]:
    return [(fact.partition, fact.offset) for fact in state.take_observations() if isinstance(fact, Commit)]


def _share_state(end: int) -> ClusterState:
    """Return a state that has read a share group once, and the log end since."""
    state = new_state()
    apply_metadata(state, [1], {0: 1})
    apply(state, protocol.ListTypedGroups(), protocol.TypedGroups({"g": protocol.TypedGroup("share", "Stable")}))
    assert (state.groups, state.type_of("g")) == (["g"], "share")
    _apply_share_offset(state, start=0, lag=end, at=2)
    apply_end(state, end, sent_at=3)
    assert _taken_commits(state) == []
    return state


def _apply_share_offset(state: ClusterState, *, start: int, lag: int, at: int) -> None:
    offsets = protocol.ShareOffsets([protocol.ShareOffset("t", 0, start, lag)], [])
    apply(state, protocol.ListShareOffsets("g"), offsets, at=at)


def test_an_unchanged_group_is_as_it_was() -> None:
    """Its state is emitted as of now, its commits are not; those of a dead group have to be read in full."""
    state = new_state()
    apply(state, protocol.DescribeGroup("g"), _group("Stable"))
    apply_commits(state, 5)
    assert state.committed.is_settled("g")
    state.take_observations()
    for request in (protocol.DescribeGroup("g"), protocol.ListCommits("g")):
        apply(state, request, protocol.Unchanged(), at=9)
    assert [(type(fact), fact.at) for fact in state.take_observations()] == [(GroupState, 9)]
    assert state.committed.of("g").keys() == {("t", 0)}
    apply(state, protocol.DescribeGroup("g"), _group("Dead"))
    assert not state.committed.is_settled("g")


@pytest.mark.parametrize("kept", [[], [1]], ids=["missing", "failed"])
def test_a_group_is_settled_when_all_its_commits_could_be_read(kept: list[int]) -> None:
    state = new_state(a_commit(1, 5))
    apply_commits(state, 7, failed=kept)
    assert not state.committed.is_settled("g")
    apply_commits(state, 7, 5)
    assert state.committed.is_settled("g")


def test_an_unchanged_group_is_available() -> None:
    state = new_state()
    apply(state, protocol.FetchMetadata([]), protocol.Metadata([1], {}))
    apply_commits(state, 5)
    call = Call(("commits", "g"), ("commits", "g"), 1, protocol.ListCommits("g"))
    state.abandon([call])
    assert Unit(group="g") in unavailable(state)
    apply(state, protocol.ListCommits("g"), protocol.Unchanged())
    assert unavailable(state) == {}


def _check_topic(state: ClusterState, failure: protocol.Failure | None = None, *, sent_at: int = 3) -> None:
    """Check the topic that has vanished after the listing without it; two listings arrive at the same time."""
    assert "t" in state.due_checks(LATER)[0]
    apply(state, protocol.CheckTopics(["t"]), protocol.TopicChecks({"t": failure}), sent_at=sent_at)


@pytest.mark.parametrize("failure", [None, protocol.Failure(3, "Unknown topic")], ids=["topic", "no-topic"])
def test_an_offset_no_longer_listed_is_deleted_once(failure: protocol.Failure | None) -> None:
    state = new_state(a_commit(1, 5))
    apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7)]
    _check_topic(state, failure)
    apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7), (1, None)]
    apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7)]


def test_offsets_of_a_topic_that_is_hidden_are_unavailable() -> None:
    """Brokers leave out what we may not describe, without an error."""
    state = new_state(a_commit(1, 5))
    apply_commits(state, 7)
    _check_topic(state, protocol.Failure(29, "Topic authorization failed"))
    apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7), (0, 7)]
    assert unavailable(state) == {
        Unit(
            "g", "t", 1
        ): "Cannot read the committed offset of g on t[1]: Kafka does not permit User:backflow to describe "
        "it. Allow it: kafka-acls --bootstrap-server kafka-1:9093 --command-config admin.properties --add "
        "--allow-principal User:backflow --operation Describe --topic t"
    }
    apply_commits(state, 7, 6)
    assert _taken_commits(state) == [(0, 7), (1, 6)]
    assert unavailable(state) == {}


def test_a_check_that_fails_here_decides_nothing() -> None:
    state = new_state(a_commit(1, 5))
    apply_commits(state, 7)
    _check_topic(state, protocol.Failure(-185, "Local: Timed out"))
    apply_commits(state, 7)
    assert _taken_commits(state) == [(0, 7), (0, 7)]
    assert unavailable(state) == {}


def test_a_refused_commit_is_unavailable_and_not_deleted() -> None:
    state = new_state(a_commit(1, 5))
    apply_commits(state, 7, failed=[1])
    assert _taken_commits(state) == [(0, 7)]
    assert unavailable(state) == {Unit("g", "t", 1): "Cannot read the committed offset of g on t[1]: refused"}


def test_unchanged_metadata_counts_as_read_again() -> None:
    """A broker that is missing for the second time is gone."""
    state = new_state()
    for brokers in ([1, 2], [1]):
        apply_metadata(state, brokers, {})
    state.take_observations()
    apply(state, protocol.FetchMetadata([]), protocol.Unchanged())
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
    apply(state, request, protocol.Topics({"t": protocol.Topic("x", [partition])}))
    assert len(detector.changes(state.take_observations())) == 1
    apply(state, request, protocol.Unchanged(), at=50)
    assert detector.changes(state.take_observations()) == []
    moved = msgspec.structs.replace(partition, at=60, leader=2)
    apply(state, request, protocol.Topics({"t": protocol.Topic("x", [moved])}))
    assert [fact.since for fact in detector.changes(state.take_observations())] == [50]


def test_a_partition_that_a_transaction_holds_back_is_watched_until_it_does_not() -> None:
    held_back = LastStableOffset(at=1, cluster="main", topic="t", partition=0, offset=40)
    state = new_state(held_back, topics=NameFilter(include=["nothing"]))
    apply_metadata(state, [1], {0: 1})
    assert state.partitions_by_leader(LATER) == {1: [("t", 0)]}
    apply_end(state, 100, sent_at=1)
    ended = protocol.StableOffsets([replace(held_back, at=2, offset=100)])
    apply(state, protocol.ListStableOffsets(1, [("t", 0)]), ended)
    observed = [fact for fact in state.take_observations() if isinstance(fact, LastStableOffset)]
    assert [(fact.offset, fact.held_back) for fact in observed] == [(100, False)]
    assert state.partitions_by_leader(LATER) == {}


def test_a_group_that_moved_makes_the_client_stale() -> None:
    """librdkafka would ask the old coordinator for ever, and crash when it refuses to list commits."""
    state = new_state(GroupState(at=1, cluster="main", group="g", state="Stable"))
    assert (state.client_is_stale, state.readable_groups) == (False, ["g"])
    apply(state, protocol.DescribeGroup("g"), _NOT_COORDINATOR)
    assert (state.client_is_stale, state.readable_groups) == (True, [])
    assert list(unavailable(state)) == [Unit("g")]
    state.begin_poll()
    apply(state, protocol.DescribeGroup("g"), _group("Stable"))
    assert (state.client_is_stale, state.readable_groups, unavailable(state)) == (False, ["g"], {})


def test_a_broker_that_leaves_makes_the_client_stale() -> None:
    """A new broker does not; a broker that knows no brokers is ignored."""
    state = new_state()
    for brokers, is_stale in (([1, 2], False), ([1], True), ([], False), ([1, 2], False)):
        state.begin_poll()
        apply_metadata(state, brokers, {})
        assert state.client_is_stale == is_stale


def test_a_broker_is_absent_when_missing_for_the_second_time() -> None:
    """A broker that was suspended responds with old metadata."""
    state = new_state()
    for brokers, absent in (([1, 2], []), ([1], []), ([1, 2], []), ([1], []), ([1], [2]), ([1], []), ([1, 2], [])):
        apply_metadata(state, brokers, {})
        registrations = [fact for fact in state.take_observations() if isinstance(fact, BrokerRegistration)]
        assert [registration.broker for registration in registrations if registration.gone] == absent
        assert [registration.broker for registration in registrations if not registration.gone] == brokers


def test_a_topic_is_deleted_when_unknown_for_the_second_time() -> None:
    """A broker whose metadata lags deletes nothing."""
    partition = PartitionState(
        at=1, cluster="main", topic="t", partition=0, leader=1, replicas=(1,), isr=(1,), topic_id="x"
    )
    state, request = new_state(partition), protocol.DescribeTopics(["t"])
    topic = protocol.Topic("x", [partition])
    results: list[protocol.Topic | protocol.Failure] = [_UNKNOWN_TOPIC, topic, _UNKNOWN_TOPIC, _UNKNOWN_TOPIC]
    for result in results:
        assert state.watched_topics == ["t"]
        apply(state, request, protocol.Topics({"t": result}))
    assert [fact.replicas for fact in state.take_observations() if isinstance(fact, PartitionState)] == [(1,), ()]
    assert state.watched_topics == []


def test_a_group_is_dead_once_its_commits_are_gone() -> None:
    state = new_state(a_commit(0, 5))
    apply(state, protocol.DescribeGroup("g"), _group("Dead"))
    assert (state.groups, state.take_observations()) == (["g"], [])
    apply_commits(state)
    assert state.take_observations() == []
    _check_topic(state)
    apply_commits(state)
    assert [fact.state for fact in state.take_observations() if isinstance(fact, GroupState)] == ["Dead"]
    assert state.groups == []


def test_a_group_with_commits_that_cannot_be_described_is_unknown() -> None:
    """A Streams application has moved to the streams protocol, which the call does not cover: it is alive."""
    state = new_state(a_commit(0, 5), GroupState(at=1, cluster="main", group="g", state="Stable", type="classic"))
    for offset in (6, 7):
        apply(state, protocol.DescribeGroup("g"), _group("Dead"))
        apply_commits(state, offset)
        states = [fact for fact in state.take_observations() if isinstance(fact, GroupState)]
        assert [(fact.state, fact.type) for fact in states] == [("Unknown", "classic")]
    assert state.groups == ["g"]


def test_a_group_has_the_type_it_is_listed_with() -> None:
    """One whose coordinator did not answer this time keeps its last."""
    state = new_state()
    listings: list[dict[str, str | None]] = [{"g": "consumer"}, {"g": None}, {}]
    for types in listings:
        apply(state, protocol.ListGroups(), protocol.Groups(types, []))
        apply(state, protocol.DescribeGroup("g"), _group("Stable"))
    assert [fact.type for fact in state.take_observations() if isinstance(fact, GroupState)] == ["consumer"] * 3


def test_states_unknown_to_the_client_come_from_the_listing() -> None:
    """librdkafka does not know those of KIP-848."""
    state = new_state()
    for listed, described in (("Reconciling", "Unknown"), ("Assigning", "Unknown"), ("Assigning", "Stable")):
        groups = protocol.TypedGroups({"g": protocol.TypedGroup("consumer", listed)})
        apply(state, protocol.ListTypedGroups(), groups)
        apply(state, protocol.DescribeGroup("g"), _group(described))
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
    apply_end(state, 12, sent_at=21)
    assert _taken_commits(state) == [(0, 7)]


def test_share_group_moves_back_only_if_it_must_have() -> None:
    """A burst written between the end and the lag is no rewind; a lag above all that was written is."""
    state = _share_state(end=10)
    for at, start, lag, end in ((10, 0, 0, 10), (20, 0, 5, 15), (30, 4, 15, 15)):
        _apply_share_offset(state, start=start, lag=lag, at=at)
        apply_end(state, end, sent_at=at + 1)
    assert _taken_commits(state) == [(0, 10), (0, 10), (0, 4)]


def test_share_group_is_deleted_with_its_offsets() -> None:
    state = _share_state(end=10)
    _apply_share_offset(state, start=0, lag=0, at=10)
    apply_end(state, 10, sent_at=11)
    assert _taken_commits(state) == [(0, 10)]
    apply(state, protocol.DescribeTypedGroup("g", "share"), _group("Dead"))
    apply(state, protocol.ListShareOffsets("g"), protocol.ShareOffsets([], []), at=20)
    assert _taken_commits(state) == []
    _check_topic(state, sent_at=21)
    apply(state, protocol.ListShareOffsets("g"), protocol.ShareOffsets([], []), at=22)
    assert _taken_commits(state) == [(0, None)]
    assert state.groups == []


def test_refused_share_offsets_are_not_unavailable() -> None:
    """Brokers before 4.2 do not report the lag."""
    state = _share_state(end=10)
    apply(state, protocol.ListShareOffsets("g"), protocol.Failure(protocol.UNSUPPORTED, "too old"))
    assert (unavailable(state), _taken_commits(state)) == ({}, [])


def test_a_refused_second_client_leaves_the_rest_available() -> None:
    """Its coordinator errors do not make librdkafka's client stale; a group that it describes is unavailable."""
    state = new_state()
    refused = protocol.Failure(protocol.UNSUPPORTED, "kafka-python does not support SASL mechanism OAUTHBEARER")
    apply(state, protocol.ListGroups(), protocol.Groups({"g": "classic"}, []))
    apply(state, protocol.ListTypedGroups(), refused)
    assert unavailable(state) == {}
    apply(state, protocol.DescribeTypedGroup("s", "streams"), _NOT_COORDINATOR)
    assert (state.client_is_stale, list(unavailable(state))) == (False, [Unit("s")])


def test_open_transactions_are_requested_of_the_leader() -> None:
    state = new_state()
    apply_metadata(state, [1], {0: 1})
    apply_end(state, 100, sent_at=1)
    assert state.partitions_by_leader(LATER) == state.due_stable_offsets(100_000) == {1: [("t", 0)]}
    for at in (1, 2):
        stable = LastStableOffset(at=at, cluster="main", topic="t", partition=0, offset=40)
        apply(state, protocol.ListStableOffsets(1, [("t", 0)]), protocol.StableOffsets([stable]))
    assert state.due_transactions(60_001) == [protocol.DescribeOpenTransaction("t", 0, 1, 40)]
    assert [fact.offset for fact in state.take_observations() if isinstance(fact, LastStableOffset)] == [40]


def test_the_source_is_unavailable_if_no_broker_responds() -> None:
    """The client's error is preferred to the timeout; a broker that refuses has responded."""
    state = new_state()
    assert unavailable(state) == {}
    apply(state, protocol.ListCommits("g"), _TIMED_OUT)
    assert unavailable(state) == {SOURCE: "No broker of main answers: timed out"}
    assert unavailable(state, failures=[ConnectionFailure("kafka-1:9093", 1, "connection refused")])[SOURCE].endswith(
        "connection refused"
    )
    apply(state, protocol.ListCommits("g"), REFUSED)
    assert list(unavailable(state)) == [Unit("g")]
