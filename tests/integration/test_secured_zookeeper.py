"""ZooKeeper with SASL and with TLS: what Backflow sees there, and what it says if it is refused or must not trust."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.kafka import BrokerRegistration
from testbed.agent import Agent
from testbed.artifacts import KAFKA
from testbed.processes import free_port
from testbed.security import Security
from testbed.servers import ZooKeeperServer
from tests.integration.scenes import findings, now

pytestmark = [pytest.mark.integration, pytest.mark.acceptance, pytest.mark.timeout(600)]

_ADMIN = "admin-password"
_REFUSED = "authentication failed: the user or the password in `zookeeper_client` is missing or wrong"
_BROKER = b'{"version":4,"host":"h","port":1,"endpoints":["PLAINTEXT://h:1"],"timestamp":"1"}'


class SaslServer(ZooKeeperServer):
    """A ZooKeeper that serves only clients that authenticate with DIGEST-MD5: `admin` and `backflow`."""

    def __init__(self, directory: Path, password: str) -> None:
        self._jaas = directory / "jaas.conf"
        config = {
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "enforce.auth.enabled": "true",
            "enforce.auth.schemes": "sasl",
        }
        flags = [f"-Djava.security.auth.login.config={self._jaas}"]
        super().__init__(KAFKA["3.9.1"], directory, config, flags)
        self.set_password(password)

    def set_password(self, password: str) -> None:
        """Set the password of `backflow`, from the next start on."""
        self._jaas.write_text(
            "Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
            f'  user_admin="{_ADMIN}"\n  user_backflow="{password}";\n}};\n'
        )


class TlsServer(ZooKeeperServer):
    """A ZooKeeper that has a port for TLS beside the plain one."""

    def __init__(self, directory: Path, security: Security) -> None:
        self.secure_port = free_port()
        certificate = security.issue_zookeeper_certificate()
        config = {
            "secureClientPort": str(self.secure_port),
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(certificate),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(security.authority),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        }
        super().__init__(KAFKA["3.9.1"], directory, config)


@contextmanager
def registered(server: ZooKeeperServer, broker: int, **options: Any) -> Iterator[str]:
    """Register a broker by an ephemeral znode, as brokers do; yield the id of its session."""
    server.wait_for_line("binding to port|bound to port")
    client = KazooClient(server.address, connection_retry={"max_tries": -1, "max_delay": 0.5}, **options)
    client.start(60)
    try:
        client.create(f"/brokers/ids/{broker}", _BROKER, ephemeral=True, makepath=True)
        yield f"{client.client_id[0]:#x}"
    finally:
        client.stop()
        client.close()


def agent_of(directory: Path, zookeeper: str, client: dict[str, Any]) -> Agent:
    """Return an agent of a cluster whose brokers cannot be reached, but whose ZooKeeper may be."""
    table = {
        "bootstrap_servers": f"127.0.0.1:{free_port()}",
        "poll_interval": "1s",
        "zookeeper": zookeeper,
        "zookeeper_client": {"session_timeout": "4s", **client},
    }
    return Agent(directory, {"main": table}, options={"rules.source_unavailable.after": json.dumps("15s")})


def wait_for_session(agent: Agent, broker: int, session: str) -> None:
    def is_registration(fact: Observation) -> bool:
        return isinstance(fact, BrokerRegistration) and (fact.broker, fact.session) == (broker, session)

    agent.wait_for(is_registration, f"the session of broker {broker}", 90)


def wait_for_outage(agent: Agent, words: str) -> None:
    """Wait for the incident about ZooKeeper, which must be the only one and have the words."""

    def is_outage(incident: dict[str, Any]) -> bool:
        return bool(findings([incident], "source_unavailable", source="zookeeper"))

    found = agent.wait_for_incident(is_outage, "ZooKeeper's outage to be reported", 120)
    (finding,) = findings([found], "source_unavailable", source="zookeeper")
    assert words in finding["detail"]
    assert [incident["id"] for incident in agent.unmerged() if is_outage(incident)] == [found["id"]]


def wait_until_visible(agent: Agent, since: int) -> None:
    def is_available(fact: Observation) -> bool:
        return isinstance(fact, Available) and fact.source == "zookeeper" and fact.is_whole and fact.at > since

    agent.wait_for(is_available, "ZooKeeper to be visible again", 90)


def sasl(password: Path) -> dict[str, Any]:
    secret = {"file": str(password)}
    return {"sasl": {"mechanism": "DIGEST-MD5", "username": "backflow", "password": secret}}


def as_admin() -> dict[str, Any]:
    return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": "admin", "password": _ADMIN}}


def test_sasl_sessions_are_seen_and_a_rotated_password_is_reread(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("first\n")
    server = SaslServer(tmp_path / "zookeeper", "first")
    with server, agent_of(tmp_path / "agent", server.address, sasl(password)) as agent:
        with registered(server, 1, **as_admin()) as session:
            wait_for_session(agent, 1, session)
        server.stop()
        server.set_password("second")
        server.start()
        wait_for_outage(agent, _REFUSED)
        rotated_at = now()
        password.write_text("second\n")
        wait_until_visible(agent, rotated_at)
        with registered(server, 2, **as_admin()) as session:
            wait_for_session(agent, 2, session)


def test_wrong_sasl_password_is_one_incident(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("wrong\n")
    server = SaslServer(tmp_path / "zookeeper", "right")
    with server, agent_of(tmp_path / "agent", server.address, sasl(password)) as agent:
        wait_for_outage(agent, _REFUSED)


def tls(security: Security, **changed: str) -> dict[str, Any]:
    paths = {"ca": security.authority, "certfile": security.certificate, "keyfile": security.key}
    return {"use_ssl": True, **{name: str(path) for name, path in paths.items()}, **changed}


def test_tls_sessions_are_seen_and_an_expired_certificate_told(tmp_path: Path) -> None:
    security = Security(tmp_path / "security")
    server = TlsServer(tmp_path / "zookeeper", security)
    with server, agent_of(tmp_path / "agent", f"127.0.0.1:{server.secure_port}", tls(security)) as agent:
        with registered(server, 1) as session:
            wait_for_session(agent, 1, session)
        server.stop()
        security.issue_zookeeper_certificate(expired=True)
        server.start()
        wait_for_outage(agent, "the server's certificate is not valid: certificate has expired")
        server.stop()
        security.issue_zookeeper_certificate()
        renewed_at = now()
        server.start()
        wait_until_visible(agent, renewed_at)
        with registered(server, 2) as session:
            wait_for_session(agent, 2, session)


def test_certificate_of_another_authority_is_one_incident(tmp_path: Path) -> None:
    security, other = Security(tmp_path / "security"), Security(tmp_path / "other")
    server = TlsServer(tmp_path / "zookeeper", security)
    client = tls(security, ca=str(other.authority))
    with server, agent_of(tmp_path / "agent", f"127.0.0.1:{server.secure_port}", client) as agent:
        wait_for_outage(agent, "the server's certificate is not valid: ")
        assert not [fact for fact in agent.observations() if isinstance(fact, BrokerRegistration)]
        assert any(isinstance(fact, Unavailable) and fact.source == "zookeeper" for fact in agent.observations())
