"""Incidents of real faults on real clusters: the agent as its own process, Slack as its strict stand-in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState, LogOffsets
from testbed.consumers import AutoCommitConsumer, ExplicitConsumer, SubscribedConsumer
from testbed.faults import clean_failover, flink_reset
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Traffic, fill
from testbed.waiting import wait_until
from tests.integration.scenes import committed, findings, has, move_offsets, named, now, watched
from tests.parameters import KAFKA_VERSIONS

pytestmark = pytest.mark.integration


def consumer_at_end(cluster: Cluster, topic: str, group: str, records: int) -> ExplicitConsumer:
    """Return a slow consumer by assign() at the end of a log that holds so many records."""
    fill(cluster.bootstrap_servers, [(topic, 0)], records)
    read_all(cluster, topic, group, records)
    return ExplicitConsumer(cluster.bootstrap_servers, group, [(topic, 0)], rate=300)


def read_all(cluster: Cluster, topic: str, group: str, records: int) -> None:
    """Read and commit so many records by assign(), and close."""
    with ExplicitConsumer(cluster.bootstrap_servers, group, [(topic, 0)], rate=50_000) as consumer:
        wait_until(lambda: consumer.committed.get((topic, 0), 0) >= records, f"{group} to have committed {records}")


def test_reset_on_0_11_is_one_critical_incident_with_its_cause(kafka_0_11: Cluster, tmp_path: Path) -> None:
    leader, follower, _ = kafka_0_11.brokers
    topic, group = named("topic"), named("flink-job")
    kafka_0_11.create_topic(topic, assignment={0: [leader, follower]})
    consumer = consumer_at_end(kafka_0_11, topic, group, 4000)
    with (
        Slack() as slack,
        watched(kafka_0_11, tmp_path, slack) as agent,
        Traffic(kafka_0_11.bootstrap_servers, [(topic, 0)], 60),
        consumer,
    ):
        agent.wait_for(committed(group, 4100), f"{group} to commit")
        done = flink_reset(kafka_0_11, topic, 0, consumer, unreplicated=200)
        agent.wait_for(committed(group, done.rewind.position), f"{group} to catch up", 120)
        incident = agent.wait_for_incident(
            lambda incident: has(incident, "offset_rewind", group=group) and incident["status"] == "recovered",
            "recovery",
            60,
        )
        (rewind,) = findings(agent.unmerged(), "offset_rewind", group=group)
        assert (incident["severity"], incident["correlation"]) == ("critical", "reset-after-session-loss")
        assert "to_earliest" in rewind["labels"]
        assert 2 * rewind["current"]["offset"] < rewind["previous"]["offset"] <= done.rewind.position
        losses = findings([incident], "broker_session_lost", broker=leader)
        assert [(loss["previous"]["session"], loss["current"]["session"]) for loss in losses] == [
            tuple(registration.session for registration in done.leader_sessions)
        ]
        moves = findings([incident], "leader_moved", topic=topic)
        assert [move["subject"]["brokers"] for move in moves] == [[leader, follower], [follower, leader]]
        (message,) = [message for message in slack.messages() if incident["id"] in message.words]
        assert message.edits
        assert len(slack.messages()) <= 3


@pytest.mark.acceptance
def test_same_fault_with_a_clean_election_is_not_critical(kafka_0_11: Cluster, tmp_path: Path) -> None:
    leader, follower, _ = kafka_0_11.brokers
    topic, group = named("topic"), named("steady")
    kafka_0_11.create_topic(topic, assignment={0: [leader, follower]})
    consumer = consumer_at_end(kafka_0_11, topic, group, 4000)
    with watched(kafka_0_11, tmp_path) as agent, Traffic(kafka_0_11.bootstrap_servers, [(topic, 0)], 60), consumer:
        agent.wait_for(committed(group, 4100), f"{group} to commit")
        clean_failover(kafka_0_11, topic, 0)
        agent.wait_for(committed(group, consumer.positions[topic, 0] + 300), f"{group} to go on", 120)
        incidents = agent.unmerged()
        assert findings(incidents, "broker_session_lost", broker=leader)
        assert not findings(incidents, "offset_rewind")
        assert {incident["severity"] for incident in incidents} == {"info"}


def test_reset_on_3_9_goes_to_the_divergence_point(kafka_3_9: Cluster, tmp_path: Path) -> None:
    """KIP-320: the consumer resets to the new leader's log end offset."""
    leader, follower, _ = kafka_3_9.brokers
    topic, group = named("topic"), named("validating")
    kafka_3_9.create_topic(topic, assignment={0: [leader, follower]})
    consumer = consumer_at_end(kafka_3_9, topic, group, 4000)
    with watched(kafka_3_9, tmp_path) as agent, Traffic(kafka_3_9.bootstrap_servers, [(topic, 0)], 300), consumer:
        agent.wait_for(committed(group, 4100), f"{group} to commit")
        done = flink_reset(kafka_3_9, topic, 0, consumer, unreplicated=2500)
        assert done.rewind.to > 3000

        def is_whole(incident: Mapping[str, Any]) -> bool:
            return has(incident, "offset_rewind", group=group) and has(incident, "log_truncated", topic=topic)

        incident = agent.wait_for_incident(is_whole, "the rewind and the truncation")
        (rewind,) = findings([incident], "offset_rewind", group=group)
        assert "to_divergence" in rewind["labels"]
        assert "to_earliest" not in rewind["labels"]
        assert incident["correlation"] == "reset-after-session-loss"


@pytest.mark.acceptance
def test_reset_hidden_by_auto_commit_is_found(kafka_0_11: Cluster, tmp_path: Path) -> None:
    """librdkafka's auto-commit never commits a lower offset: it does not move while the log grows."""
    leader, follower, _ = kafka_0_11.brokers
    topic, group = named("topic"), named("auto")
    kafka_0_11.create_topic(topic, assignment={0: [leader, follower]})
    fill(kafka_0_11.bootstrap_servers, [(topic, 0)], 12_000)
    with AutoCommitConsumer(kafka_0_11.bootstrap_servers, group, [topic], rate=50_000) as fast:
        fast.wait_until_at(topic, 0, 12_000)
    consumer = AutoCommitConsumer(kafka_0_11.bootstrap_servers, group, [topic], rate=200)
    with watched(kafka_0_11, tmp_path) as agent, Traffic(kafka_0_11.bootstrap_servers, [(topic, 0)], 60), consumer:
        agent.wait_for(committed(group, 12_400), f"{group} to commit")
        flink_reset(kafka_0_11, topic, 0, consumer, unreplicated=200)
        incident = agent.wait_for_incident(
            lambda incident: has(incident, "hidden_reset", group=group), "the hidden reset", 120
        )
        assert incident["severity"] != "info"
        assert has(incident, "broker_session_lost", broker=leader)
        assert not findings(agent.unmerged(), "offset_rewind", group=group)


@pytest.mark.acceptance
def test_expired_offsets_explain_a_reset_to_earliest(tmp_path: Path) -> None:
    """0.11 expires offsets after `offsets.retention.minutes`; the group restarts at auto.offset.reset."""
    topic, group = "topic", "weekly"
    forgetful = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 2000}
    with Cluster("0.11.0.0", (1,), workdir=tmp_path / "kafka", config=forgetful) as cluster:
        cluster.create_topic(topic)
        fill(cluster.bootstrap_servers, [(topic, 0)], 5000)
        with watched(cluster, tmp_path / "agent") as agent:
            read_all(cluster, topic, group, 5000)
            agent.wait_for(committed(group, 5000), f"{group} to commit 5000")

            def is_expired(fact: Observation) -> bool:
                return isinstance(fact, Commit) and fact.group == group and fact.offset is None

            agent.wait_for(is_expired, "the offset to expire", 180)
            with ExplicitConsumer(cluster.bootstrap_servers, group, [(topic, 0)], rate=100):
                incident = agent.wait_for_incident(
                    lambda incident: has(incident, "offset_rewind", group=group), "the rewind"
                )
        (rewind,) = findings([incident], "offset_rewind", group=group)
        assert {"after_expiry", "to_earliest"} <= set(rewind["labels"])
        assert incident["severity"] == "critical"


@pytest.mark.acceptance
def test_truncation_is_reported_without_any_consumer(kafka_3_9: Cluster, tmp_path: Path) -> None:
    leader, follower, _ = kafka_3_9.brokers
    topic = named("unread")
    kafka_3_9.create_topic(topic, assignment={0: [leader, follower]})
    with watched(kafka_3_9, tmp_path) as agent:
        with Traffic(kafka_3_9.bootstrap_servers, [(topic, 0)], 200):
            wait_until(lambda: (kafka_3_9.log_end(topic, 0) or 0) > 1000, "some records")
            kafka_3_9.freeze(follower)
            kafka_3_9.wait_until_gone(follower)
            kafka_3_9.wait_for_leader(topic, 0, leader, isr=[leader])
            behind = kafka_3_9.log_end(topic, 0) or 0
            wait_until(lambda: (kafka_3_9.log_end(topic, 0) or 0) > behind + 2000, "records that only the leader has")
        end = kafka_3_9.log_end(topic, 0) or 0
        agent.wait_for(
            lambda fact: isinstance(fact, LogOffsets) and fact.topic == topic and fact.log_end == end, "the end"
        )
        kafka_3_9.freeze(leader)
        kafka_3_9.thaw(follower)
        kafka_3_9.wait_until_registered(follower)
        kafka_3_9.wait_for_leader(topic, 0, follower)
        incident = agent.wait_for_incident(
            lambda incident: has(incident, "log_truncated", topic=topic), "the truncation"
        )
        kafka_3_9.repair()
    (truncated,) = findings([incident], "log_truncated", topic=topic)
    assert truncated["previous"]["log_end"] == end
    assert truncated["records"]["lost"] >= 2000
    assert has(incident, "unclean_election", topic=topic)
    assert has(incident, "broker_session_lost", broker=leader)


def test_operator_reset_of_an_idle_group_is_info(kafka_3_9: Cluster, tmp_path: Path) -> None:
    topic, group = named("topic"), named("idle")
    kafka_3_9.create_topic(topic)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5000)
    with Slack() as slack, watched(kafka_3_9, tmp_path, slack) as agent:
        with SubscribedConsumer(kafka_3_9.bootstrap_servers, group, [topic], rate=50_000) as consumer:
            wait_until(lambda: consumer.committed.get((topic, 0), 0) >= 5000, f"{group} to have committed")
            agent.wait_for(
                lambda fact: isinstance(fact, GroupState) and fact.group == group and bool(fact.members), "members"
            )
        agent.wait_for(
            lambda fact: isinstance(fact, GroupState) and fact.group == group and fact.state == "Empty", "Empty"
        )
        agent.wait_for(committed(group, 5000), f"{group} to commit 5000")
        move_offsets(kafka_3_9, group, topic, 0)
        incident = agent.wait_for_incident(lambda incident: has(incident, "offset_rewind", group=group), "the reset")
        agent.wait_until_evaluated(now() + 5000)
        (rewind,) = findings(agent.unmerged(), "offset_rewind", group=group)
        assert "operator_reset" in rewind["labels"]
        assert incident["severity"] == "info"
        assert not slack.messages()


def test_reset_under_an_assigned_consumer_is_not_an_operators(kafka_3_9: Cluster, tmp_path: Path) -> None:
    """A group without members commits all the time."""
    topic, group = named("topic"), named("assigned")
    kafka_3_9.create_topic(topic)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5000)
    # The consumer does not notice the reset: its next commit undoes it within five seconds.
    consumer = ExplicitConsumer(kafka_3_9.bootstrap_servers, group, [(topic, 0)], rate=5000, commit_ms=5000)
    with watched(kafka_3_9, tmp_path) as agent, Traffic(kafka_3_9.bootstrap_servers, [(topic, 0)], 60), consumer:
        first = agent.wait_for(committed(group, 5300), f"{group} to commit")
        agent.wait_for(lambda later: committed(group, 5300)(later) and later.at > first.at, f"{group} to go on")
        move_offsets(kafka_3_9, group, topic, 0)
        incident = agent.wait_for_incident(lambda incident: has(incident, "offset_rewind", group=group), "the rewind")
        agent.wait_until_evaluated(now() + 5000)
        for rewind in findings(agent.unmerged(), "offset_rewind", group=group):
            assert "operator_reset" not in rewind["labels"]
        assert incident["severity"] != "info"


@pytest.mark.parametrize("version", KAFKA_VERSIONS)
def test_recreated_topic_is_no_rewind(version: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(version)
    topic, group = named("topic"), named("reader")
    cluster.create_topic(topic)
    fill(cluster.bootstrap_servers, [(topic, 0)], 5000)
    with watched(cluster, tmp_path) as agent:
        read_all(cluster, topic, group, 5000)
        agent.wait_for(committed(group, 5000), f"{group} to commit 5000")
        cluster.delete_topic(topic)
        cluster.create_topic(topic)
        fill(cluster.bootstrap_servers, [(topic, 0)], 100)
        recreated_at = now()
        read_all(cluster, topic, group, 100)
        agent.wait_for(
            lambda fact: (
                isinstance(fact, Commit) and fact.group == group and fact.at > recreated_at and fact.offset == 100
            ),
            f"{group} to commit in the new topic",
        )
        agent.wait_until_evaluated(now() + 7000)
        incidents = agent.unmerged()
        assert findings(incidents, "topic_recreated", topic=topic)
        assert not findings(incidents, "offset_rewind")
        assert not findings(incidents, "log_truncated")
        assert not findings(incidents, "beyond_end")


@pytest.mark.acceptance
@pytest.mark.parametrize("version", KAFKA_VERSIONS)
def test_broker_down_and_up_is_not_critical(version: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(version)
    broker, other, _ = cluster.brokers
    topic, group = named("topic"), named("reader")
    cluster.create_topic(topic, assignment={0: [broker, other]})
    consumer = consumer_at_end(cluster, topic, group, 2000)
    with watched(cluster, tmp_path) as agent, Traffic(cluster.bootstrap_servers, [(topic, 0)], 60), consumer:
        agent.wait_for(committed(group, 2100), f"{group} to commit")
        # Under KRaft a restart faster than the poll is invisible: the broker stays down until that is observed.
        cluster.freeze(broker)
        cluster.wait_until_gone(broker)
        agent.wait_for(
            lambda fact: isinstance(fact, BrokerRegistration) and fact.broker == broker and fact.gone,
            f"{broker} to be down",
        )
        cluster.repair()
        agent.wait_for(committed(group, consumer.positions[topic, 0] + 300), f"{group} to go on", 120)
        incident = agent.wait_for_incident(
            lambda incident: any(
                loss["recovered_at"] for loss in findings([incident], "broker_session_lost", broker=broker)
            ),
            f"broker {broker} down and up",
        )
        assert incident["severity"] != "critical"
        incidents = agent.unmerged()
        assert not findings(incidents, "offset_rewind")
        assert all(incident["severity"] != "critical" for incident in incidents)


@pytest.mark.acceptance
@pytest.mark.parametrize("version", KAFKA_VERSIONS)
def test_rolling_restart_under_load_is_not_critical(
    version: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cluster: Cluster = request.getfixturevalue(version)
    topic, group, members = named("topic"), named("reader"), named("members")
    ring = [*cluster.brokers, *cluster.brokers]
    cluster.create_topic(topic, assignment={number: ring[number % 3 : number % 3 + 2] for number in range(6)})
    places = [(topic, number) for number in range(6)]
    with (
        watched(cluster, tmp_path) as agent,
        Traffic(cluster.bootstrap_servers, places, 50),
        ExplicitConsumer(cluster.bootstrap_servers, group, places, rate=3000) as by_assign,
        SubscribedConsumer(cluster.bootstrap_servers, members, [topic], rate=3000),
    ):
        agent.wait_for(committed(group, 200), f"{group} to commit")
        agent.wait_for(committed(members, 200), f"{members} to commit")
        cluster.rolling_restart()
        for number in range(6):
            by_assign.wait_until_at(topic, number, (cluster.log_end(topic, number) or 0) + 100)
        agent.wait_until_evaluated(now() + 20_000)
        incidents = agent.unmerged()
        assert {loss["subject"]["broker"] for loss in findings(incidents, "broker_session_lost")} == set(
            cluster.brokers
        )
        assert not findings(incidents, "offset_rewind")
        assert [incident["title"] for incident in incidents if incident["severity"] == "critical"] == []
