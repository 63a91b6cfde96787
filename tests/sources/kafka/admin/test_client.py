"""The Kafka source and its admin process without a Kafka cluster."""

import time

import pytest

from agent.model.observations.base import Observation, Unavailable
from agent.model.observations.kafka import PartitionState
from agent.sources.base import GONE, Batch
from agent.sources.kafka.source import KafkaSource, KafkaSourceSettings
from testbed.processes import free_port
from testbed.waiting import wait_until


@pytest.mark.parametrize(
    ("properties", "reason"),
    [({}, "Connection refused"), ({"no.such.property": "1"}, "No such configuration property")],
    ids=["nobody-there", "unknown-property"],
)
def test_an_unreachable_cluster_is_reported_once_with_its_reason(properties: dict[str, str], reason: str) -> None:
    """Closing then takes no time."""
    emitted: list[Observation] = []

    def emit(batch: Batch) -> None:
        emitted.extend(batch)

    address = f"127.0.0.1:{free_port()}"
    source = KafkaSource(
        "main", KafkaSourceSettings(bootstrap_servers=address, read_properties=lambda: properties), emit
    )

    def find_outage() -> Unavailable | None:
        source.poll()
        return next((fact for fact in emitted if isinstance(fact, Unavailable)), None)

    outage = wait_until(find_outage, "the source to be unavailable")
    for _ in range(3):
        source.poll()
    begin = time.monotonic()
    source.close()
    assert time.monotonic() - begin < 3
    assert emitted == [outage]
    assert (outage.source, outage.group, outage.topic) == ("kafka", None, None)
    assert reason in outage.reason


def test_partitions_of_deleted_topics_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit, each deleted partition takes memory until the agent stops."""
    settings = KafkaSourceSettings(bootstrap_servers=f"127.0.0.1:{free_port()}", read_properties=dict)
    source = KafkaSource("main", settings, lambda _: None)
    for number in range(3 * GONE):
        there = PartitionState(at=1, cluster="main", topic=f"t{number}", partition=0, leader=1, replicas=(1,), isr=(1,))
        for state in (there, there.deleted(2)):
            monkeypatch.setattr(source._state, "take_observations", lambda state=state: [state])
            source._emit_changes([])
    source.close()
    known = [subject for subject in source._detector.subjects() if subject[0] == "partition_state"]
    assert GONE <= len(known) <= 2 * GONE
