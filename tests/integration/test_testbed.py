"""Real brokers start, faults have their effects, and no process is left running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from testbed.consumers import AutoCommitConsumer, ExplicitConsumer, RecordingConsumer, Rewind
from testbed.faults import clean_failover, flink_reset
from testbed.kafka import Cluster
from testbed.traffic import Traffic, fill
from testbed.waiting import wait_until
from tests.parameters import KAFKA_VERSIONS

pytestmark = pytest.mark.integration


def _topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).translate({ord(sign): "-" for sign in "[]"})


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_a_record_makes_a_round_trip(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    topic = _topic(request)
    cluster.create_topic(topic, assignment={0: [2011, 2024], 1: [2024, 2005]})
    fill(cluster.bootstrap_servers, [(topic, 1)], records=1)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 1, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.error() is None
    assert (message.partition(), message.offset()) == (1, 0)
    state = cluster.partition_state(topic, 0)
    assert state is not None
    assert (state.leader, state.replicas) == (2011, (2011, 2024))


@pytest.mark.parametrize("cluster", ["kafka_0_11", "kafka_3_9"], indirect=True)
def test_a_broker_re_registers_with_another_session(cluster: Cluster) -> None:
    before, after = cluster.expire_session(2011)
    assert before.session is not None
    assert after.session is not None
    assert before.session != after.session
    assert before.czxid < after.czxid


@pytest.mark.parametrize("cluster", KAFKA_VERSIONS, indirect=True)
def test_a_killed_broker_starts_with_a_new_broker_epoch(cluster: Cluster) -> None:
    before = cluster.wait_until_registered(2005)
    cluster.kill(2005)
    cluster.start(2005)
    cluster.wait_until_in_sync()
    assert before.czxid < cluster.wait_until_registered(2005).czxid


def test_a_frozen_kraft_broker_is_fenced_until_thawed(kafka_4_1: Cluster, request: pytest.FixtureRequest) -> None:
    topic = _topic(request)
    kafka_4_1.create_topic(topic, assignment={0: [2005, 2011]})
    kafka_4_1.freeze(2005)
    kafka_4_1.wait_until_gone(2005)
    kafka_4_1.wait_for_leader(topic, 0, 2011)
    kafka_4_1.thaw(2005)
    kafka_4_1.wait_for_leader(topic, 0, 2005, isr=[2005, 2011])
    assert kafka_4_1.registration(2005) is not None


@pytest.mark.parametrize("cluster", ["kafka_0_11", "kafka_3_9"], indirect=True)
def test_a_cut_zookeeper_link_expires_only_that_session(cluster: Cluster) -> None:
    before = {broker: cluster.wait_until_registered(broker) for broker in cluster.brokers}
    cluster.cut(2005)
    cluster.wait_until_gone(2005)
    cluster.heal(2005)
    after = {broker: cluster.wait_until_registered(broker) for broker in cluster.brokers}
    assert {broker for broker in cluster.brokers if before[broker] != after[broker]} == {2005}


def test_a_lost_tail_lowers_the_log_end_offset(kafka_0_11: Cluster, request: pytest.FixtureRequest) -> None:
    topic = _topic(request)
    kafka_0_11.create_topic(topic, assignment={0: [2005]})
    fill(kafka_0_11.bootstrap_servers, [(topic, 0)], records=5000)
    assert kafka_0_11.log_end(topic, 0) == 5000
    kafka_0_11.kill(2005)
    assert kafka_0_11.lose_tail(2005, topic, 0, keep=0.9) > 0
    kafka_0_11.start(2005)
    kafka_0_11.wait_for_leader(topic, 0, 2005)
    end = wait_until(lambda: kafka_0_11.log_end(topic, 0), f"the end of {topic}[0]")
    assert 4000 <= end < 5000


@pytest.mark.acceptance
def test_an_unclean_election_resets_to_the_log_start_on_0_11(
    kafka_0_11: Cluster, request: pytest.FixtureRequest
) -> None:
    """The fault of the flink-reset report; auto commit hides it."""
    topic = _topic(request)
    kafka_0_11.create_topic(topic, assignment={0: [2005, 2011], 1: [2011, 2024]})
    places = [(topic, 0), (topic, 1)]
    fill(kafka_0_11.bootstrap_servers, places, records=5000)
    consumer = ExplicitConsumer(kafka_0_11.bootstrap_servers, topic, places)
    hiding = AutoCommitConsumer(kafka_0_11.bootstrap_servers, f"{topic}-auto", [topic], rate=1000)
    with Traffic(kafka_0_11.bootstrap_servers, places, rate=100), consumer, hiding:
        consumer.wait_until_at(topic, 0, 5000)
        hiding.wait_until_at(topic, 0, 5000)
        fault = flink_reset(kafka_0_11, topic, 0, consumer, unreplicated=1000)
        hidden = hiding.wait_for_rewind(topic, 0)
        consumer.wait_until_at(topic, 0, fault.rewind.position)
        hiding.wait_until_at(topic, 0, hidden.position)
    assert fault.rewind.position > 6000
    assert fault.rewind.to == hidden.to == 0
    assert [rewind.partition for rewind in consumer.rewinds] == [0]
    # Auto commit hides what is reprocessed, up to the first offset that the new leader wrote.
    assert _lowest_commit(consumer, fault.rewind) < 5000 < _lowest_commit(hiding, hidden)
    assert [line for line in consumer.resets if "to offset BEGINNING" in line]
    assert fault.leader_sessions[0].session != fault.leader_sessions[1].session


@pytest.mark.acceptance
def test_an_unclean_election_resets_to_divergence_on_3_9(kafka_3_9: Cluster, request: pytest.FixtureRequest) -> None:
    """Since KIP-320 a consumer finds where the new leader's log diverges."""
    topic = _topic(request)
    kafka_3_9.create_topic(topic, assignment={0: [2005, 2011]})
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], records=5000)
    consumer = ExplicitConsumer(kafka_3_9.bootstrap_servers, topic, [(topic, 0)])
    with Traffic(kafka_3_9.bootstrap_servers, [(topic, 0)], rate=200), consumer:
        consumer.wait_until_at(topic, 0, 5000)
        fault = flink_reset(kafka_3_9, topic, 0, consumer)
    assert 5000 <= fault.rewind.to < fault.rewind.position


@pytest.mark.acceptance
@pytest.mark.parametrize("cluster", ["kafka_0_11", "kafka_3_9"], indirect=True)
def test_a_clean_election_rewinds_no_consumer(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    topic = _topic(request)
    cluster.create_topic(topic, assignment={0: [2005, 2011]})
    consumer = ExplicitConsumer(cluster.bootstrap_servers, topic, [(topic, 0)])
    with Traffic(cluster.bootstrap_servers, [(topic, 0)], rate=100), consumer:
        consumer.wait_until_at(topic, 0, 100)
        before, after = clean_failover(cluster, topic, 0)
        consumer.wait_until_at(topic, 0, consumer.positions[topic, 0] + 100)
    assert before.session != after.session
    assert consumer.rewinds == []


_STARTS_A_CLUSTER = """
import sys
from pathlib import Path
from testbed.kafka import Cluster
with Cluster("0.11.0.0", brokers=(2005,), workdir=Path(sys.argv[1])) as cluster:
    cluster.freeze(2005)
    print(*cluster.pids, flush=True)
    sys.stdin.read()
"""


def test_processes_end_when_the_test_is_killed(tmp_path: Path) -> None:
    """SIGKILL of their parent ends ZooKeeper and even a frozen broker."""
    command = [sys.executable, "-c", _STARTS_A_CLUSTER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(pids) == 2
        assert all(_is_alive(pid) for pid in pids)
        os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not any(_is_alive(pid) for pid in pids), f"processes {pids} to end", 10)


def _lowest_commit(consumer: RecordingConsumer, rewind: Rewind) -> int:
    """Return the lowest offset committed in the partition since the rewind."""
    place = (rewind.topic, rewind.partition)
    commits = (commit for commit in consumer.commits if (commit.topic, commit.partition) == place)
    return min(commit.offset for commit in commits if commit.at >= rewind.at)


def _is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
