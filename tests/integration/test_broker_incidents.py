"""Incidents of brokers on real clusters, beside healthy groups: reassignments, and a broker that is down for long."""

from functools import partial
from pathlib import Path

import pytest

from agent.model.observations.base import Observation
from agent.model.observations.kafka import PartitionState
from testbed.consumers import ExplicitConsumer, SubscribedConsumer
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import Place, Traffic, fill
from testbed.waiting import wait_until
from tests.integration.scenes import (
    LATE_MS,
    assert_nothing_reported,
    assert_only_message,
    bystanders,
    committed,
    findings,
    has,
    named,
    now,
    watched,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

# --- reassignments


@pytest.mark.parametrize("version", ["kafka_3_9", "kafka_4_1"])
def test_reassignment_under_load_is_not_reported(
    version: str, slack: Slack, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cluster: Cluster = request.getfixturevalue(version)
    first, second, third = cluster.brokers
    topic, group, members = named("topic"), named("reader"), named("members")
    places = [(topic, number) for number in range(3)]
    throttled = {"leader.replication.throttled.replicas": "*"}
    before = {0: [first, second], 1: [second, third], 2: [third, first]}
    cluster.create_topic(topic, assignment=before, config=throttled)
    fill(cluster.bootstrap_servers, places, 10_000)
    options = {f"rules.{rule}.after": '"5s"' for rule in ("under_replicated", "partition_offline")}
    with (
        bystanders(cluster),
        watched(cluster, tmp_path, slack, options) as agent,
        Traffic(cluster.bootstrap_servers, places, 50),
        ExplicitConsumer(cluster.bootstrap_servers, group, places, rate=5000) as by_assign,
        SubscribedConsumer(cluster.bootstrap_servers, members, [topic], rate=5000) as by_group,
    ):
        for reader in (group, members):
            agent.wait_for(committed(reader, 10_100), f"{reader} to commit")
        cluster.throttle(1)
        cluster.reassign(topic, {0: [second, third], 1: [third, first], 2: [first, second]})
        for place in places:
            agent.wait_for(partial(_is_reassigned, place), "the reassignment")
        agent.wait_until_evaluated(now() + LATE_MS)
        cluster.throttle(100_000_000)
        for number, replicas in before.items():
            target = [*replicas[1:], ({first, second, third} - set(replicas)).pop()]
            cluster.wait_for_leader(topic, number, target[0], isr=target)
        ends = [(cluster.log_end(topic, number) or 0) + 300 for number in range(3)]
        for number, end in enumerate(ends):
            by_assign.wait_until_at(topic, number, end)
            by_group.wait_until_at(topic, number, end)
        agent.wait_until_evaluated(now() + LATE_MS)
        assert by_assign.rewinds == by_group.rewinds == []
        assert_nothing_reported(agent, slack)


def _is_reassigned(place: Place, fact: Observation) -> bool:
    """Return whether the partition has the replicas from before the reassignment and one that it adds."""
    return isinstance(fact, PartitionState) and (fact.topic, fact.partition) == place and len(fact.replicas) == 3


def test_reassignment_to_a_broker_that_dies_has_stalled(kafka_4_1: Cluster, slack: Slack, tmp_path: Path) -> None:
    first, target, third = kafka_4_1.brokers
    topic, group = named("topic"), named("reader")
    throttled = {"leader.replication.throttled.replicas": "*"}
    kafka_4_1.create_topic(topic, assignment={0: [first, third]}, config=throttled)
    fill(kafka_4_1.bootstrap_servers, [(topic, 0)], 10_000)
    with (
        bystanders(kafka_4_1),
        watched(kafka_4_1, tmp_path, slack, {"rules.reassignment_stalled.after": '"90s"'}) as agent,
        Traffic(kafka_4_1.bootstrap_servers, [(topic, 0)], 50),
        ExplicitConsumer(kafka_4_1.bootstrap_servers, group, [(topic, 0)], rate=5000) as consumer,
    ):
        agent.wait_for(committed(group, 10_100), f"{group} to commit")
        kafka_4_1.throttle(1)
        kafka_4_1.reassign(topic, {0: [third, target]})
        agent.wait_for(
            lambda fact: isinstance(fact, PartitionState) and fact.topic == topic and fact.adding == (target,),
            "KIP-455",
        )
        kafka_4_1.kill(target)
        slack.wait_for(slack.messages, 150)
        incident = agent.wait_for_incident(
            lambda incident: has(incident, "reassignment_stalled", topic=topic), "the reassignment to stall"
        )
        (stalled,) = findings([incident], "reassignment_stalled")
        assert stalled["subject"]["brokers"] == [target]
        assert stalled["labels"] == ["target_down"]
        kafka_4_1.start(target)
        kafka_4_1.throttle(100_000_000)
        kafka_4_1.wait_for_leader(topic, 0, third, isr=[third, target], seconds=120)
        incident = agent.wait_for_incident(
            lambda incident: has(incident, "reassignment_stalled", topic=topic) and incident["status"] == "recovered",
            "the reassignment to finish",
        )
        agent.wait_for(committed(group, consumer.positions[topic, 0] + 300), f"{group} to go on")
        agent.wait_until_evaluated(now() + LATE_MS)
        assert consumer.rewinds == []
        incidents = agent.unmerged()
        assert not findings(incidents, "under_replicated")
        assert [other["title"] for other in incidents if other["severity"] != "info"] == [incident["title"]]
        assert f"broker {target} down" in assert_only_message(slack, incident).words


# --- a broker down for long


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("version", ["kafka_3_9", "kafka_4_1"])
def test_broker_down_for_10_minutes_is_one_incident(
    version: str, slack: Slack, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With the delays as shipped: followers take over, but a topic with one replica cannot be read."""
    cluster: Cluster = request.getfixturevalue(version)
    down, other, _ = cluster.brokers
    topic, single, group, stuck = named("topic"), named("single"), named("reader"), named("stuck")
    places = [(topic, number) for number in range(3)]
    cluster.create_topic(topic, assignment={key: [down, other] for key in range(3)})
    cluster.create_topic(single, assignment={0: [down]})
    fill(cluster.bootstrap_servers, [(single, 0)], 50_000)
    with (
        bystanders(cluster),
        watched(cluster, tmp_path, slack) as agent,
        Traffic(cluster.bootstrap_servers, places, 50),
        SubscribedConsumer(cluster.bootstrap_servers, group, [topic]) as reader,
        SubscribedConsumer(cluster.bootstrap_servers, stuck, [single], rate=20) as waiting,
    ):
        agent.wait_for(committed(group, 300), f"{group} to commit")
        agent.wait_for(committed(stuck, 300), f"{stuck} to commit")
        begin = now()
        cluster.kill(down)
        wait_until(lambda: now() > begin + 600_000, "10 minutes to pass", 610, every=1)
        agent.wait_until_evaluated(now())
        incident = agent.wait_for_incident(lambda incident: has(incident, "broker_down", broker=down), "broker down")
        assert {
            finding["subject"]["partition"] for finding in findings([incident], "under_replicated", topic=topic)
        } == {
            0,
            1,
            2,
        }
        assert findings([incident], "partition_offline", topic=single)
        cluster.start(down)
        cluster.wait_until_in_sync()
        waiting.wait_until_at(single, 0, waiting.committed[single, 0] + 200)
        incident = agent.wait_for_incident(
            lambda incident: has(incident, "broker_down", broker=down) and incident["status"] == "recovered", "recovery"
        )
        agent.wait_for(committed(group, reader.positions[topic, 0] + 100), f"{group} to go on")
        agent.wait_until_evaluated(now() + LATE_MS)
        incidents = agent.unmerged()
        assert not findings(incidents, "offset_rewind")
        assert [other["title"] for other in incidents if other["severity"] != "info"] == [incident["title"]]
        assert str(down) in assert_only_message(slack, incident).words
