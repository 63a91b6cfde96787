"""Certificates that are refused, on real TLS servers: the reason, whose it is, and until when it is valid."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.config.http_client import HttpClient
from agent.model.observations.base import Observation, Unavailable
from agent.sources.base import Batch
from agent.sources.certificates import find_certificate_problem
from agent.sources.http import Endpoint, RequestError
from agent.sources.kafka.source import KafkaSource, KafkaSourceSettings
from agent.sources.zookeeper.session import Session
from testbed.security import Security
from testbed.waiting import wait_until

_BROKER = 2005


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    """Return an authority with a valid certificate for 127.0.0.1."""
    made = Security(tmp_path_factory.mktemp("security"))
    made.issue_broker_certificate(_BROKER)
    return made


@contextmanager
def serving_tls(security: Security, *, tls_1_2: bool = False) -> Iterator[int]:
    """A TLS server with the broker's certificate; yields its port. tls_1_2: also require one of the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    properties = security.broker_properties(_BROKER, kraft=True)
    context.load_cert_chain(properties["ssl.keystore.location"])
    if tls_1_2:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(security.authority)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # closed
                    return
                connection.settimeout(5)
                try:
                    with context.wrap_socket(connection, server_side=True) as tls:
                        tls.recv(1)
                except OSError:  # what a client does that refuses the certificate
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def verifying(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Security:
    """Return an authority whose certificate for 127.0.0.1 has expired."""
    made = Security(tmp_path_factory.mktemp("expired"))
    made.issue_broker_certificate(_BROKER, expired=True)
    with serving_tls(made) as port:
        wait_until(
            lambda: find_certificate_problem("127.0.0.1", port, verifying(made.authority)), "it to expire", seconds=10
        )
    return made


def test_an_accepted_certificate_has_no_problem(security: Security) -> None:
    with serving_tls(security) as port:
        assert find_certificate_problem("127.0.0.1", port, verifying(security.authority)) is None
    assert find_certificate_problem("127.0.0.1", port, verifying(security.authority)) is None  # nothing listens


@pytest.mark.parametrize("tls_1_2", [False, True])
def test_an_expired_certificate_is_named_with_its_end(expired: Security, tls_1_2: bool) -> None:  # noqa: FBT001
    """Also where the server refuses a client without a certificate."""
    with serving_tls(expired, tls_1_2=tls_1_2) as port:
        problem = find_certificate_problem("127.0.0.1", port, verifying(expired.authority))
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert problem is not None
    assert problem.startswith(
        f"certificate has expired (subject CN=broker-{_BROKER}, issuer CN=backflow-testbed-ca, valid until {today} "
    )
    assert problem.endswith(" UTC)")


def test_an_unknown_authority_is_named(security: Security, expired: Security) -> None:
    with serving_tls(security) as port:
        problem = find_certificate_problem("127.0.0.1", port, verifying(expired.authority))
    assert problem is not None
    assert f"(subject CN=broker-{_BROKER}, issuer CN=backflow-testbed-ca, valid until " in problem


def test_names_of_a_certificate_for_another_host_are_listed(tmp_path: Path) -> None:
    security = Security(tmp_path)
    security.issue_broker_certificate(_BROKER, host="kafka-1.example.com")
    with serving_tls(security) as port:
        problem = find_certificate_problem("127.0.0.1", port, verifying(security.authority))
    assert problem is not None
    assert problem.startswith(
        "IP address mismatch, certificate is not valid for '127.0.0.1' "
        f"(subject CN=broker-{_BROKER}, valid for DNS:kafka-1.example.com, issuer CN=backflow-testbed-ca, "
    )


def test_kafka_names_the_certificate_that_it_refuses(expired: Security) -> None:
    """In one line, by the real client."""
    emitted: list[Observation] = []

    def emit(batch: Batch) -> None:
        emitted.extend(batch)

    properties = {"security.protocol": "ssl", "ssl.ca.location": str(expired.authority)}
    with serving_tls(expired) as port:
        settings = KafkaSourceSettings(bootstrap_servers=f"127.0.0.1:{port}", read_properties=lambda: properties)
        source = KafkaSource("main", settings, emit)

        def find_reason() -> str | None:
            source.poll()
            reasons = [fact.reason for fact in emitted if isinstance(fact, Unavailable)]
            return next((reason for reason in reasons if "subject" in reason), None)

        reason = wait_until(find_reason, "the certificate to be named")
        source.close()
    assert f"127.0.0.1:{port}: the broker's certificate is not valid: certificate has expired (subject CN=" in reason
    assert "\n" not in reason


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")  # kazoo leaves it to the collector
def test_zookeeper_names_the_certificate_that_it_refuses(expired: Security) -> None:
    options = {"timeout": 3.0, "use_ssl": True, "ca": str(expired.authority), "check_hostname": True}
    with serving_tls(expired) as port:
        session = Session(f"127.0.0.1:{port}/kafka", lambda: options)
        session.start()
        wait_until(lambda: "subject" in session.failure, "the certificate to be named")
        failure = session.failure
        session.close()
    assert failure.startswith(
        f": the server's certificate is not valid: certificate has expired (subject CN=broker-{_BROKER}, "
    )


def test_http_names_the_certificate_that_it_refuses(expired: Security) -> None:
    with serving_tls(expired) as port:
        endpoint = Endpoint(f"https://127.0.0.1:{port}", HttpClient(ca=expired.authority))
        with pytest.raises(RequestError, match=r"not valid: certificate has expired \(subject CN=broker-2005, "):
            endpoint.get("/jobs/overview", "application/json", time.monotonic() + 10)
