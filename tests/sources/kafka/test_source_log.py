"""What the Kafka source logs of requests that fail."""

import pytest
import structlog

from agent.model.name_filter import NameFilter
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import Call, CompletedCall
from agent.sources.kafka.source_log import SourceLog


def refusals(*failures: protocol.Failure) -> list[str]:
    """Return the reasons that are logged if the types of groups cannot be listed."""
    source_log = SourceLog("main", NameFilter(), NameFilter(), ())
    with structlog.testing.capture_logs() as lines:
        for failure in failures:
            call = Call(("typed groups",), ("typed groups",), 0, protocol.ListTypedGroups())
            source_log.add(CompletedCall(call, 1, failure))
    assert all(line["event"] == "kafka_refuses" for line in lines)
    return [line["reason"] for line in lines]


@pytest.mark.parametrize(
    "failure",
    [
        protocol.Failure(31, "CLUSTER_AUTHORIZATION_FAILED"),
        protocol.Failure(35, "UNSUPPORTED_VERSION"),
        protocol.Failure(protocol.UNSUPPORTED, "kafka-python does not support SASL mechanism OAUTHBEARER"),
    ],
)
def test_a_refusal_is_logged_once(failure: protocol.Failure) -> None:
    assert refusals(failure, failure) == [failure.text]


@pytest.mark.parametrize(
    "failure",
    [
        protocol.Failure(-1, "kafka-python cannot connect"),
        protocol.Failure(-185, "timed out"),
        protocol.Failure(5, "LEADER_NOT_AVAILABLE"),
        protocol.Failure(14, "COORDINATOR_LOAD_IN_PROGRESS"),
        protocol.Failure(58, "SASL_AUTHENTICATION_FAILED"),
    ],
)
def test_brokers_that_are_down_or_busy_refuse_nothing(failure: protocol.Failure) -> None:
    assert refusals(failure) == []
