"""The Kafka source and its client process where there is no Kafka: what is said, how often, and that it ends."""

import time

import pytest

from agent.model.observations import Observation, Unavailable
from agent.sources.base import Batch
from agent.sources.kafka.source import KafkaSource, KafkaSourceSettings
from testbed.processes import free_port
from testbed.waiting import wait_until


@pytest.mark.parametrize(
    ("properties", "why"),
    [({}, "Connection refused"), ({"no.such.property": "1"}, "No such configuration property")],
    ids=["nobody-there", "unknown-property"],
)
def test_a_cluster_that_cannot_be_asked_is_said_once_and_why(properties: dict[str, str], why: str) -> None:
    """One Unavailable for the source, in words that help; then nothing more, and closing takes no time."""
    emitted: list[Observation] = []

    def emit(batch: Batch) -> None:
        emitted.extend(batch)

    address = f"127.0.0.1:{free_port()}"
    source = KafkaSource("main", KafkaSourceSettings(bootstrap_servers=address, properties=properties), emit)

    def blind() -> Unavailable | None:
        source.poll()
        return next((one for one in emitted if isinstance(one, Unavailable)), None)

    told = wait_until(blind, "the source to say that it is blind")
    for _ in range(3):
        source.poll()
    begin = time.monotonic()
    source.close()
    assert time.monotonic() - begin < 3
    assert emitted == [told]
    assert (told.source, told.group, told.topic) == ("kafka", None, None)
    assert why in told.reason
