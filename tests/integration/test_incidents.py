"""What Backflow makes of real faults on real clusters: the agent as its own process, Slack by its strict stand-in."""

from pathlib import Path

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

pytestmark = pytest.mark.integration


def reread(cluster: Cluster, topic: str, group: str, records: int) -> ExplicitConsumer:
    """A slow consumer by assign() at the end of a log that holds so many records."""
    fill(cluster.bootstrap_servers, [(topic, 0)], records)
    read_all(cluster, topic, group, records)
    return ExplicitConsumer(cluster.bootstrap_servers, group, [(topic, 0)], rate=300)


def read_all(cluster: Cluster, topic: str, group: str, records: int) -> None:
    """Read and commit so many records by assign(), and be gone."""
    with ExplicitConsumer(cluster.bootstrap_servers, group, [(topic, 0)], rate=50_000) as consumer:
        wait_until(lambda: consumer.committed.get((topic, 0), 0) >= records, f"{group} to have committed {records}")


def test_a_reset_on_0_11_is_one_critical_incident_that_names_its_cause(kafka_0_11: Cluster, tmp_path: Path) -> None:
    """The report flink-reset: broker, both sessions, leader moves in order, from where to where; one edited message."""
    leader, follower, _ = kafka_0_11.brokers
    topic, group = named("topic"), named("flink-job")
    kafka_0_11.create_topic(topic, assignment={0: [leader, follower]})
    consumer = reread(kafka_0_11, topic, group, 4000)
    with (
        Slack() as slack,
        watched(kafka_0_11, tmp_path, slack) as agent,
        Traffic(kafka_0_11.bootstrap_servers, [(topic, 0)], 60),
        consumer,
    ):
        agent.wait_for(committed(group, 4100), f"{group} to be seen at work")
        done = flink_reset(kafka_0_11, topic, 0, consumer, unreplicated=200)
        agent.wait_for(committed(group, done.rewind.position), f"{group} to be back", 120)
        incident = agent.wait_for_incident(
            lambda one: has(one, "offset_rewind", group=group) and one["status"] == "recovered", "recovery", 60
        )
        (rewind,) = findings(agent.unmerged(), "offset_rewind", group=group)
        assert (incident["severity"], incident["correlation"]) == ("critical", "reset-after-session-loss")
        assert "to_earliest" in rewind["labels"]
        assert rewind["current"]["offset"] < 1000 < rewind["previous"]["offset"] <= done.rewind.position
        losses = findings([incident], "broker_session_lost", broker=leader)
        assert [(one["previous"]["session"], one["current"]["session"]) for one in losses] == [
            tuple(one.session for one in done.leader_sessions)
        ]
        moves = findings([incident], "leader_moved", topic=topic)
        assert [one["subject"]["brokers"] for one in moves] == [[leader, follower], [follower, leader]]
        (message,) = [one for one in slack.messages() if incident["id"] in one.words]
        assert message.edits
        assert len(slack.messages()) <= 3


@pytest.mark.acceptance
def test_the_same_fault_with_a_clean_election_is_nothing_critical(kafka_0_11: Cluster, tmp_path: Path) -> None:
    """A follower in the ISR takes over: no record is lost, nobody goes back."""
    leader, follower, _ = kafka_0_11.brokers
    topic, group = named("topic"), named("steady")
    kafka_0_11.create_topic(topic, assignment={0: [leader, follower]})
    consumer = reread(kafka_0_11, topic, group, 4000)
    with watched(kafka_0_11, tmp_path) as agent, Traffic(kafka_0_11.bootstrap_servers, [(topic, 0)], 60), consumer:
        agent.wait_for(committed(group, 4100), f"{group} to be seen at work")
        clean_failover(kafka_0_11, topic, 0)
        agent.wait_for(committed(group, consumer.positions[topic, 0] + 300), f"{group} to go on", 120)
        standing = agent.unmerged()
        assert findings(standing, "broker_session_lost", broker=leader)
        assert not findings(standing, "offset_rewind")
        assert {one["severity"] for one in standing} == {"info"}


def test_on_3_9_the_rewind_goes_to_the_point_of_divergence(kafka_3_9: Cluster, tmp_path: Path) -> None:
    """KIP-320: the consumer goes back to where the new leader's log ends, and that is what it is called."""
    leader, follower, _ = kafka_3_9.brokers
    topic, group = named("topic"), named("validating")
    kafka_3_9.create_topic(topic, assignment={0: [leader, follower]})
    consumer = reread(kafka_3_9, topic, group, 4000)
    with watched(kafka_3_9, tmp_path) as agent, Traffic(kafka_3_9.bootstrap_servers, [(topic, 0)], 300), consumer:
        agent.wait_for(committed(group, 4100), f"{group} to be seen at work")
        done = flink_reset(kafka_3_9, topic, 0, consumer, unreplicated=2500)
        assert done.rewind.to > 3000
        incident = agent.wait_for_incident(lambda one: has(one, "offset_rewind", group=group), "the rewind")
        (rewind,) = findings([incident], "offset_rewind", group=group)
        assert "to_divergence" in rewind["labels"]
        assert "to_earliest" not in rewind["labels"]
        assert incident["correlation"] == "reset-after-session-loss"


@pytest.mark.acceptance
def test_a_reset_hidden_by_auto_commit_is_found_as_such(kafka_0_11: Cluster, tmp_path: Path) -> None:
    """librdkafka's auto-commit never goes back: the offset stands still while the log grows and the member lives."""
    leader, follower, _ = kafka_0_11.brokers
    topic, group = named("topic"), named("auto")
    kafka_0_11.create_topic(topic, assignment={0: [leader, follower]})
    fill(kafka_0_11.bootstrap_servers, [(topic, 0)], 12_000)
    with AutoCommitConsumer(kafka_0_11.bootstrap_servers, group, [topic], rate=50_000) as first:
        first.wait_until_at(topic, 0, 12_000)
    consumer = AutoCommitConsumer(kafka_0_11.bootstrap_servers, group, [topic], rate=200)
    with watched(kafka_0_11, tmp_path) as agent, Traffic(kafka_0_11.bootstrap_servers, [(topic, 0)], 60), consumer:
        agent.wait_for(committed(group, 12_400), f"{group} to be seen at work")
        flink_reset(kafka_0_11, topic, 0, consumer, unreplicated=200)
        incident = agent.wait_for_incident(lambda one: has(one, "hidden_reset", group=group), "the hidden reset", 120)
        assert incident["severity"] != "info"
        assert has(incident, "broker_session_lost", broker=leader)
        assert not findings(agent.unmerged(), "offset_rewind", group=group)


@pytest.mark.acceptance
def test_a_group_back_at_earliest_after_its_offsets_expired(tmp_path: Path) -> None:
    """The commonest reset of all: 0.11 forgets offsets, and the group comes back at auto.offset.reset."""
    topic, group = "topic", "weekly"
    forgetful = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 2000}
    with Cluster("0.11.0.0", (1,), workdir=tmp_path / "kafka", config=forgetful) as cluster:
        cluster.create_topic(topic)
        fill(cluster.bootstrap_servers, [(topic, 0)], 5000)
        with watched(cluster, tmp_path / "agent") as agent:
            read_all(cluster, topic, group, 5000)
            agent.wait_for(committed(group, 5000), f"{group} to be seen at 5000")

            def forgotten(one: Observation) -> bool:
                return isinstance(one, Commit) and one.group == group and one.offset is None

            agent.wait_for(forgotten, "the offset to expire", 180)
            with ExplicitConsumer(cluster.bootstrap_servers, group, [(topic, 0)], rate=100):
                incident = agent.wait_for_incident(lambda one: has(one, "offset_rewind", group=group), "the rewind")
        (rewind,) = findings([incident], "offset_rewind", group=group)
        assert {"after_expiry", "to_earliest"} <= set(rewind["labels"])
        assert incident["severity"] == "critical"


@pytest.mark.acceptance
def test_a_log_cut_short_by_an_unclean_election_is_told_without_any_consumer(
    kafka_3_9: Cluster, tmp_path: Path
) -> None:
    """Nobody reads the topic, and its records are lost all the same."""
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
        agent.wait_for(lambda one: isinstance(one, LogOffsets) and one.topic == topic and one.log_end == end, "the end")
        kafka_3_9.freeze(leader)
        kafka_3_9.thaw(follower)
        kafka_3_9.wait_until_registered(follower)
        kafka_3_9.wait_for_leader(topic, 0, follower)
        incident = agent.wait_for_incident(lambda one: has(one, "log_truncated", topic=topic), "the truncation")
        kafka_3_9.repair()
    (truncated,) = findings([incident], "log_truncated", topic=topic)
    assert truncated["previous"]["log_end"] == end
    assert truncated["records"]["lost"] >= 2000
    assert has(incident, "unclean_election", topic=topic)
    assert has(incident, "broker_session_lost", broker=leader)


def test_an_operators_reset_of_an_idle_group_is_info(kafka_3_9: Cluster, tmp_path: Path) -> None:
    """The group had members, has none now, and its offset is moved: nobody is woken."""
    topic, group = named("topic"), named("idle")
    kafka_3_9.create_topic(topic)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5000)
    with Slack() as slack, watched(kafka_3_9, tmp_path, slack) as agent:
        with SubscribedConsumer(kafka_3_9.bootstrap_servers, group, [topic], rate=50_000) as consumer:
            wait_until(lambda: consumer.committed.get((topic, 0), 0) >= 5000, f"{group} to have committed")
            agent.wait_for(
                lambda one: isinstance(one, GroupState) and one.group == group and bool(one.members), "members"
            )
        agent.wait_for(lambda one: isinstance(one, GroupState) and one.group == group and one.state == "Empty", "Empty")
        agent.wait_for(committed(group, 5000), f"{group} to be seen at 5000")
        move_offsets(kafka_3_9, group, topic, 0)
        incident = agent.wait_for_incident(lambda one: has(one, "offset_rewind", group=group), "the reset")
        agent.wait_until_evaluated(now() + 5000)
        (rewind,) = findings(agent.unmerged(), "offset_rewind", group=group)
        assert "operator_reset" in rewind["labels"]
        assert incident["severity"] == "info"
        assert not slack.messages()


def test_a_reset_under_a_consumer_by_assign_is_not_called_an_operators(kafka_3_9: Cluster, tmp_path: Path) -> None:
    """A group without members that commits all along: somebody's records are read again."""
    topic, group = named("topic"), named("assigned")
    kafka_3_9.create_topic(topic)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5000)
    # It does not notice the reset: its next commit undoes it, five seconds later at most.
    consumer = ExplicitConsumer(kafka_3_9.bootstrap_servers, group, [(topic, 0)], rate=5000, commit_ms=5000)
    with watched(kafka_3_9, tmp_path) as agent, Traffic(kafka_3_9.bootstrap_servers, [(topic, 0)], 60), consumer:
        seen = agent.wait_for(committed(group, 5300), f"{group} to be seen at work")
        agent.wait_for(lambda one: committed(group, 5300)(one) and one.at > seen.at, f"{group} to go on")
        move_offsets(kafka_3_9, group, topic, 0)
        incident = agent.wait_for_incident(lambda one: has(one, "offset_rewind", group=group), "the rewind")
        agent.wait_until_evaluated(now() + 5000)
        for one in findings(agent.unmerged(), "offset_rewind", group=group):
            assert "operator_reset" not in one["labels"]
        assert incident["severity"] != "info"


@pytest.mark.parametrize("version", ["kafka_0_11", "kafka_3_9", "kafka_4_1"])
def test_a_topic_created_again_is_no_rewind(version: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Deleted and created again under its name: its offsets start anew, and only that is said."""
    cluster: Cluster = request.getfixturevalue(version)
    topic, group = named("topic"), named("reader")
    cluster.create_topic(topic)
    fill(cluster.bootstrap_servers, [(topic, 0)], 5000)
    with watched(cluster, tmp_path) as agent:
        read_all(cluster, topic, group, 5000)
        agent.wait_for(committed(group, 5000), f"{group} to be seen at 5000")
        cluster.delete_topic(topic)
        cluster.create_topic(topic)
        fill(cluster.bootstrap_servers, [(topic, 0)], 100)
        begun = now()
        read_all(cluster, topic, group, 100)
        agent.wait_for(
            lambda one: isinstance(one, Commit) and one.group == group and one.at > begun and one.offset == 100,
            f"{group} to be seen in the new topic",
        )
        agent.wait_until_evaluated(now() + 7000)
        standing = agent.unmerged()
        assert findings(standing, "topic_recreated", topic=topic)
        assert not findings(standing, "offset_rewind")
        assert not findings(standing, "log_truncated")
        assert not findings(standing, "beyond_end")


@pytest.mark.acceptance
@pytest.mark.parametrize("version", ["kafka_0_11", "kafka_3_9", "kafka_4_1"])
def test_a_broker_lost_and_back_is_nothing_critical(
    version: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its loss is seen, its return too; a group that goes on reading is left alone."""
    cluster: Cluster = request.getfixturevalue(version)
    broker, other, _ = cluster.brokers
    topic, group = named("topic"), named("reader")
    cluster.create_topic(topic, assignment={0: [broker, other]})
    consumer = reread(cluster, topic, group, 2000)
    with watched(cluster, tmp_path) as agent, Traffic(cluster.bootstrap_servers, [(topic, 0)], 60), consumer:
        agent.wait_for(committed(group, 2100), f"{group} to be seen at work")
        # Under KRaft a bounce faster than the poll is invisible: it stays away until it has been missed.
        cluster.freeze(broker)
        cluster.wait_until_gone(broker)
        agent.wait_for(
            lambda one: isinstance(one, BrokerRegistration) and one.broker == broker and one.gone,
            f"{broker} to be missed",
        )
        cluster.repair()
        agent.wait_for(committed(group, consumer.positions[topic, 0] + 300), f"{group} to go on", 120)
        incident = agent.wait_for_incident(
            lambda one: any(lost["recovered_at"] for lost in findings([one], "broker_session_lost", broker=broker)),
            f"broker {broker} lost and back",
        )
        assert incident["severity"] != "critical"
        standing = agent.unmerged()
        assert not findings(standing, "offset_rewind")
        assert all(one["severity"] != "critical" for one in standing)


@pytest.mark.acceptance
@pytest.mark.parametrize("version", ["kafka_0_11", "kafka_3_9", "kafka_4_1"])
def test_a_rolling_restart_under_load_is_nothing_critical(
    version: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All brokers restarted one after the other while groups read: a storm of leader moves, and no alarm."""
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
        agent.wait_for(committed(group, 200), f"{group} to be seen at work")
        agent.wait_for(committed(members, 200), f"{members} to be seen at work")
        cluster.rolling_restart()
        for number in range(6):
            by_assign.wait_until_at(topic, number, (cluster.log_end(topic, number) or 0) + 100)
        agent.wait_until_evaluated(now() + 20_000)
        standing = agent.unmerged()
        assert {one["subject"]["broker"] for one in findings(standing, "broker_session_lost")} == set(cluster.brokers)
        assert not findings(standing, "offset_rewind")
        assert [one["title"] for one in standing if one["severity"] == "critical"] == []
