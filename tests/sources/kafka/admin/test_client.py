"""The Kafka source and its admin process without a Kafka cluster."""

import time

import pytest

from agent.model.observations.base import Observation, Unavailable
from agent.sources.base import Batch
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
