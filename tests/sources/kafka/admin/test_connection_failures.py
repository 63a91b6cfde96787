"""librdkafka's log lines about connections as reasons; all lines were logged by librdkafka 2.16."""

import pytest

from agent.sources.kafka.admin.connection_failures import ConnectionFailures, parse_failure
from agent.sources.kafka.admin.protocol import ConnectionFailure

_REFUSED = "SASL authentication error: Authentication failed during authentication due to invalid credentials"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "k:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
            ConnectionFailure("k:1", None, "Connect to ipv4#127.0.0.1:1 failed: Connection refused"),
        ),
        (
            f"sasl_ssl://k:9093/2005: {_REFUSED} (after 3ms in state AUTH_REQ, 1 identical error(s) suppressed)",
            ConnectionFailure("k:9093", 2005, _REFUSED),
        ),
        (
            (
                "ssl://[::1]:9093/7: Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: "
                "SSL alert number 42 (after 1ms in state APIVERSION_QUERY)"
            ),
            ConnectionFailure("[::1]:9093", 7, "the broker refuses our client certificate (bad certificate)"),
        ),
        (
            (
                "kafka-1:9093/bootstrap: Disconnected: connection closed by peer: receive 0 after POLLIN "
                "(after 1ms in state APIVERSION_QUERY)"
            ),
            ConnectionFailure(
                "kafka-1:9093",
                None,
                "the broker closed the connection at the first request: does its listener expect TLS or SASL?",
            ),
        ),
        ("Failed to acquire SASL OAUTHBEARER token: connection refused", None),
    ],
    ids=["refused", "password", "certificate", "protocol", "client"],
)
def test_a_log_line_is_read(line: str, expected: ConnectionFailure | None) -> None:
    assert parse_failure(line) == expected


def test_the_same_reason_names_all_its_brokers() -> None:
    failures = ConnectionFailures()
    for broker in (2, 1):
        failures.add(ConnectionFailure(f"kafka-{broker}:9093", broker, _REFUSED), at=1_000)
    failures.add(ConnectionFailure("kafka-3:9093", 3, "certificate has expired"), at=1_000)
    assert failures.reasons(2_000) == f"kafka-1:9093, kafka-2:9093: {_REFUSED}; kafka-3:9093: certificate has expired"
    assert failures.reasons(2_000, broker=3) == "kafka-3:9093: certificate has expired"
    assert failures.is_access_denied(2_000)


def test_a_failure_of_a_known_broker_keeps_its_id() -> None:
    failures = ConnectionFailures()
    failures.add(ConnectionFailure("kafka-1:9093", 1, "refused"), at=1_000)
    failures.add(ConnectionFailure("kafka-1:9093", None, "expired"), at=2_000)
    assert failures.reasons(2_000, broker=1) == "kafka-1:9093: expired"


def test_an_old_failure_explains_nothing() -> None:
    failures = ConnectionFailures()
    failures.add(ConnectionFailure("", None, "file /secret is empty"), at=1_000)
    assert failures.client_failure(61_000) == failures.reasons(61_000) == "file /secret is empty"
    assert failures.client_failure(61_001) is None
    assert not failures.reasons(61_001)
