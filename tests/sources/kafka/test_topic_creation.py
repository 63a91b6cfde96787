"""Clients that observe create no topics. librdkafka's own stand-in for a broker creates those it is asked for."""

import queue
from typing import Any

import pytest
import structlog
from confluent_kafka import KafkaError, Producer

from agent.sources.kafka.admin.log_forwarder import LogForwarder
from agent.sources.kafka.admin.process import make_admin_client
from agent.sources.kafka.log_consumer import make_log_consumer

STAND_IN = {"bootstrap.servers": "stand-in:9092", "test.mock.num.brokers": "1"}
ALLOWED = {**STAND_IN, "allow.auto.create.topics": "true"}


def find_error(client: Any, topic: str) -> int | None:
    """Return the error that a topic's metadata has the second time."""
    for _ in range(2):
        error = client.list_topics(topic, timeout=10).topics[topic].error
    return None if error is None else error.code()


def test_stand_in_creates_topics_for_a_client_that_allows_it() -> None:
    assert find_error(Producer(ALLOWED), "orders") is None
    assert find_error(Producer(STAND_IN), "orders") is None, "as is the default"


@pytest.mark.parametrize("properties", [STAND_IN, ALLOWED])
def test_metadata_of_a_deleted_topic_does_not_create_it_again(properties: dict[str, str]) -> None:
    """Whatever the user's properties say."""
    forwarder = LogForwarder(queue.SimpleQueue(), properties)
    admin = make_admin_client(properties, lambda error: pytest.fail(str(error)), forwarder)
    assert find_error(admin, "orders") == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert admin.list_topics(timeout=10).topics == {}


@pytest.mark.parametrize("properties", [STAND_IN, ALLOWED])
def test_consumers_of_logs_create_no_topics(properties: dict[str, str]) -> None:
    consumer = make_log_consumer("commits", properties, structlog.get_logger(), defaults={}, required={})
    assert find_error(consumer, "orders-changelog") == KafkaError.UNKNOWN_TOPIC_OR_PART
    consumer.close()
