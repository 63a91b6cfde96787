"""Incidents of real faults in Kafka's newer protocols, beside healthy groups: what is posted, and what is not."""

import re
import subprocess
from pathlib import Path

import pytest

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, PartitionState
from testbed.artifacts import KAFKA_TOOLS
from testbed.consumers import ExplicitConsumer, SubscribedConsumer
from testbed.faults import flink_reset
from testbed.kafka import Cluster
from testbed.servers import java_command
from testbed.slack import Slack
from testbed.traffic import Traffic, fill
from testbed.transactions import OpenTransaction
from tests.integration.scenes import (
    LATE_MS,
    assert_nothing_reported,
    assert_only_message,
    bystanders,
    committed,
    findings,
    has,
    move_offsets,
    named,
    now,
    watched,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

# --- elections


def test_election_from_the_elr_is_not_reported(kafka_4_1: Cluster, slack: Slack, tmp_path: Path) -> None:
    """KIP-966: with an empty ISR, an eligible leader replica is elected, which has all that was committed."""
    leader, follower, _ = kafka_4_1.brokers
    topic, group = named("topic"), named("reader")
    kafka_4_1.create_topic(topic, assignment={0: [leader, follower]}, config={"min.insync.replicas": "2"})

    def is_led(by: int | None, isr: tuple[int, ...], fact: Observation) -> bool:
        return isinstance(fact, PartitionState) and fact.topic == topic and (fact.leader, fact.isr) == (by, isr)

    with (
        bystanders(kafka_4_1),
        watched(kafka_4_1, tmp_path, slack) as agent,
        Traffic(kafka_4_1.bootstrap_servers, [(topic, 0)], 60),
        ExplicitConsumer(kafka_4_1.bootstrap_servers, group, [(topic, 0)]) as consumer,
    ):
        agent.wait_for(committed(group, 300), f"{group} to commit")
        kafka_4_1.freeze(follower)
        agent.wait_for(lambda fact: is_led(leader, (leader,), fact), "an ISR of the leader alone")
        kafka_4_1.freeze(leader)
        agent.wait_for(lambda fact: is_led(None, (), fact) or is_led(-1, (), fact), "an empty ISR")
        kafka_4_1.thaw(follower)
        agent.wait_for(lambda fact: is_led(follower, (follower,), fact), "the election of the follower")
        kafka_4_1.thaw(leader)
        kafka_4_1.wait_for_leader(topic, 0, leader, isr=[leader, follower])
        agent.wait_for(committed(group, consumer.positions[topic, 0] + 300), f"{group} to go on")
        agent.wait_until_evaluated(now() + LATE_MS)
        assert consumer.rewinds == []
        incidents = agent.unmerged()
        assert findings(incidents, "leader_moved", topic=topic)
        assert not findings(incidents, "unclean_election")
        assert not findings(incidents, "log_truncated")
        assert_nothing_reported(agent, slack)


def test_unclean_election_under_kraft_is_one_incident(kafka_4_1: Cluster, slack: Slack, tmp_path: Path) -> None:
    leader, follower, _ = kafka_4_1.brokers
    topic, group = named("topic"), named("reader")
    kafka_4_1.create_topic(topic, assignment={0: [leader, follower]})
    fill(kafka_4_1.bootstrap_servers, [(topic, 0)], 4000)
    with (
        bystanders(kafka_4_1),
        watched(kafka_4_1, tmp_path, slack) as agent,
        Traffic(kafka_4_1.bootstrap_servers, [(topic, 0)], 300),
        ExplicitConsumer(kafka_4_1.bootstrap_servers, group, [(topic, 0)], rate=3000) as consumer,
    ):
        agent.wait_for(committed(group, 4100), f"{group} to commit")

        def is_led_by_follower(fact: Observation) -> bool:
            return isinstance(fact, PartitionState) and fact.topic == topic and fact.leader == follower

        def keep_follower_until_seen(step: str) -> None:
            if "rewound" in step:  # the old leader is about to lead again: polls may miss what came between
                agent.wait_for(is_led_by_follower, f"broker {follower} to be seen as the leader")

        done = flink_reset(kafka_4_1, topic, 0, consumer, unreplicated=6000, progress=keep_follower_until_seen)
        agent.wait_for(committed(group, done.rewind.position), f"{group} to catch up", 120)
        incident = agent.wait_for_incident(
            lambda incident: has(incident, "offset_rewind", group=group) and incident["status"] == "recovered",
            "recovery",
            120,
        )
        agent.wait_until_evaluated(now() + LATE_MS)
        incidents = agent.unmerged()
        (election,) = findings(incidents, "unclean_election", topic=topic)
        assert election["subject"]["brokers"] == [leader, follower]
        (truncation,) = findings(incidents, "log_truncated", topic=topic)
        (rewind,) = findings(incidents, "offset_rewind")
        assert "to_divergence" in rewind["labels"]
        assert rewind["previous"]["offset"] <= done.rewind.position
        assert rewind["current"]["offset"] >= done.rewind.to
        lost = done.rewind.position - done.rewind.to
        assert 1000 < truncation["records"]["lost"] <= lost + 600  # what was written since the last poll is not counted
        assert [other["title"] for other in incidents if other["severity"] != "info"] == [incident["title"]]
        assert incident["severity"] == "critical"
        words = assert_only_message(slack, incident).words
        assert "unclean" in words
        assert "lost" in words


# --- groups of the consumer protocol (KIP-848)


def test_seek_of_a_kip_848_group_is_one_incident(kafka_4_1: Cluster, slack: Slack, tmp_path: Path) -> None:
    topic, group = named("topic"), named("kip848")
    places = [(topic, 0), (topic, 1)]
    kafka_4_1.create_topic(topic, 2)
    fill(kafka_4_1.bootstrap_servers, places, 5000)
    with (
        bystanders(kafka_4_1),
        watched(kafka_4_1, tmp_path, slack) as agent,
        Traffic(kafka_4_1.bootstrap_servers, places, 50),
        SubscribedConsumer(kafka_4_1.bootstrap_servers, group, [topic], rate=2000, protocol="consumer") as consumer,
    ):
        agent.wait_for(committed(group, 5100), f"{group} to commit")
        for place in places:
            consumer.wait_until_at(*place, 5100)
        agent.wait_until_evaluated(now() + 5000)
        consumer.seek_to_start()
        done = [consumer.wait_for_rewind(*place) for place in places]
        incident = agent.wait_for_incident(
            lambda incident: has(incident, "offset_rewind", group=group) and incident["status"] == "recovered",
            "recovery",
            120,
        )
        agent.wait_until_evaluated(now() + LATE_MS)
        rewinds = findings(agent.unmerged(), "offset_rewind")
        assert [rewind["subject"]["partition"] for rewind in rewinds] == [0, 1]
        for rewind, truth in zip(rewinds, done, strict=True):
            assert rewind["subject"]["group"] == group
            assert "to_earliest" in rewind["labels"]
            assert "operator_reset" not in rewind["labels"]
            assert truth.position - 1000 < rewind["previous"]["offset"] <= truth.position
            assert 0 < rewind["records"]["reread"] <= truth.position
        states = [fact for fact in agent.observations() if isinstance(fact, GroupState) and fact.group == group]
        assert {state.type for state in states if state.state != "Dead"} == {"consumer"}
        assert [other["title"] for other in agent.unmerged() if other["severity"] != "info"] == [incident["title"]]
        assert_only_message(slack, incident)


def test_operator_reset_of_a_kip_848_group_is_info(kafka_4_1: Cluster, slack: Slack, tmp_path: Path) -> None:
    topic, group = named("topic"), named("kip848")
    kafka_4_1.create_topic(topic)
    fill(kafka_4_1.bootstrap_servers, [(topic, 0)], 5000)
    with bystanders(kafka_4_1), watched(kafka_4_1, tmp_path, slack) as agent:

        def is_in(state: str, fact: Observation) -> bool:
            return isinstance(fact, GroupState) and (fact.group, fact.state) == (group, state)

        with SubscribedConsumer(kafka_4_1.bootstrap_servers, group, [topic], rate=5000, protocol="consumer"):
            agent.wait_for(lambda fact: is_in("Stable", fact), "Stable")
            agent.wait_for(committed(group, 5000), f"{group} to commit")
        agent.wait_for(lambda fact: is_in("Empty", fact), "Empty")
        move_offsets(kafka_4_1, group, topic, 0)
        incident = agent.wait_for_incident(lambda incident: has(incident, "offset_rewind", group=group), "the reset")
        with SubscribedConsumer(kafka_4_1.bootstrap_servers, group, [topic], rate=5000, protocol="consumer"):
            agent.wait_until_evaluated(now() + LATE_MS)
        (rewind,) = findings(agent.unmerged(), "offset_rewind")
        assert "operator_reset" in rewind["labels"]
        assert (rewind["previous"]["offset"], rewind["current"]["offset"]) == (5000, 0)
        assert incident["severity"] == "info"
        assert_nothing_reported(agent, slack)


# --- transactions


def test_transaction_of_a_dead_producer_hangs(slack: Slack, tmp_path: Path) -> None:
    """The coordinator does not end it either, as in the bugs that KIP-890 fixes. The advised command ends it."""
    topic, group, name = "payments", "ledger", "payments-writer"
    config = {
        "transaction.max.timeout.ms": 60_000,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 3_600_000,
    }
    options = {"rules.transaction_hanging.after": '"90s"', "rules.transaction_hanging.waiting": '"30s"'}
    options |= {"rules.consumer_stalled.after": '"1m"'}
    with Cluster("3.9.1", workdir=tmp_path / "kafka", config=config) as cluster:
        cluster.create_topic(topic)
        with (
            bystanders(cluster),
            watched(cluster, tmp_path / "agent", slack, options) as agent,
            Traffic(cluster.bootstrap_servers, [(topic, 0)], 30),
            SubscribedConsumer(cluster.bootstrap_servers, group, [topic]),
        ):
            agent.wait_for(committed(group, 300), f"{group} to commit")
            with OpenTransaction(
                cluster.bootstrap_servers, (topic, 0), name, 50, tmp_path / "producer.log"
            ) as producer:
                producer.wait_until_open()
            advice = "kafka-transactions.sh --bootstrap-server"
            slack.wait_for(lambda: [message for message in slack.messages() if advice in message.words], 240)
            incident = agent.wait_for_incident(
                lambda incident: (
                    has(incident, "transaction_hanging", topic=topic) and incident["severity"] == "critical"
                ),
                "the transaction to hang",
            )
            (hanging,) = findings([incident], "transaction_hanging")
            assert hanging["current"]["groups"] == [group]
            assert hanging["current"]["transactional_id"] == name
            message = assert_only_message(slack, incident)
            command = re.search(r"kafka-transactions\.sh --bootstrap-server HOST:PORT (abort [^`]*)", message.words)
            assert command is not None
            _run_transactions_tool(cluster, tmp_path, command[1].split())
            incident = agent.wait_for_incident(
                lambda incident: (
                    has(incident, "transaction_hanging", topic=topic) and incident["status"] == "recovered"
                ),
                "the transaction to end",
            )
            agent.wait_for(committed(group, (cluster.log_end(topic, 0) or 0) + 100), f"{group} to go on")
            agent.wait_until_evaluated(now() + LATE_MS)
        incidents = agent.unmerged()
        assert [other["title"] for other in incidents if other["severity"] != "info"] == [incident["title"]]
        for kind in ("hidden_reset", "consumer_stalled", "offset_jump", "lag"):
            assert not findings(incidents, kind)
        assert len(assert_only_message(slack, incident).edits) < 10


def _run_transactions_tool(cluster: Cluster, workdir: Path, arguments: list[str]) -> None:
    """Run kafka-transactions.sh. Raises CalledProcessError."""
    main = ["org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", cluster.bootstrap_servers]
    subprocess.run(java_command(KAFKA_TOOLS, 128, workdir / "tool", [*main, *arguments]), check=True, timeout=120)


# --- deleted records


@pytest.mark.parametrize(
    ("log_start", "retention_ms", "label"),
    [(22_000, -1, "purged"), (22_000, 604_800_000, "perhaps_purged"), (15_000, 604_800_000, "perhaps_purged")],
)
def test_delete_records_beyond_a_group_is_not_retention(
    log_start: int, retention_ms: int, label: str, *, kafka_3_9: Cluster, slack: Slack, tmp_path: Path
) -> None:
    """Certain if retention.ms is unlimited; else it may have been lowered for a while, or records be older."""
    topic, group = named("topic"), named("slow")
    kafka_3_9.create_topic(topic, config={"retention.ms": str(retention_ms)})
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 20_000)
    with (
        bystanders(kafka_3_9),
        watched(kafka_3_9, tmp_path, slack) as agent,
        Traffic(kafka_3_9.bootstrap_servers, [(topic, 0)], 20),
        ExplicitConsumer(kafka_3_9.bootstrap_servers, group, [(topic, 0)], rate=100) as consumer,
    ):
        agent.wait_for(committed(group, 1000), f"{group} to commit")
        fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5000)
        agent.wait_for(
            lambda fact: isinstance(fact, LogOffsets) and fact.topic == topic and fact.log_end > 25_000, "more records"
        )
        kafka_3_9.delete_records(topic, 0, log_start)
        agent.wait_for(
            lambda fact: isinstance(fact, LogOffsets) and (fact.topic, fact.log_start) == (topic, log_start), "deletion"
        )
        incident = agent.wait_for_incident(lambda incident: has(incident, "retention_overrun", group=group), "the loss")
        consumer.wait_until_at(topic, 0, log_start + 500)
        agent.wait_until_evaluated(now() + LATE_MS)
        incidents = agent.unmerged()
        (loss,) = findings(incidents, "retention_overrun")
        assert loss["labels"] == [label]
        assert loss["current"]["log_start"] == log_start
        commits = [fact for fact in agent.observations() if isinstance(fact, Commit) and fact.group == group]
        assert loss["previous"]["offset"] == max(fact.offset or 0 for fact in commits if (fact.offset or 0) < log_start)
        assert loss["records"]["lost"] == log_start - loss["previous"]["offset"]
        assert not findings(incidents, "offset_jump")
        assert [other["title"] for other in incidents if other["severity"] != "info"] == [incident["title"]]
        words = assert_only_message(slack, incident).words
        assert "DeleteRecords" in words
        assert "Raise retention" not in words
