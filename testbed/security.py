"""Security of a testbed cluster: certificates, SASL users and ACLs, all made when a test starts.

Brokers keep a PLAINTEXT listener for each other and for the testbed, whose user ANONYMOUS is a super user. Clients
under test use the listeners SASL_SSL and SSL, where only ACLs permit something.
"""

import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from testbed.artifacts import KAFKA
from testbed.servers import java_command
from testbed.waiting import wait_until

T = TypeVar("T", AclBinding, AclBindingFilter)

LISTENERS = ("SASL_SSL", "SSL")
"""The listeners that brokers have beside PLAINTEXT."""

USER = "backflow"
"""The user of the clients under test. With PLAIN its password never changes."""
PLAIN_PASSWORD = "plain-password"  # noqa: S105  of a cluster on loopback that lives for minutes

_AUTHORIZERS = {
    True: "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    False: "kafka.security.authorizer.AclAuthorizer",
}
"""By whether the cluster runs under KRaft."""

_ITERATIONS = 4096


class CertificateError(Exception):
    """openssl is missing or failed; the message is what it printed."""


class Security:
    """Certificates of an authority of its own, and the properties of brokers and clients that use them."""

    def __init__(self, directory: Path) -> None:
        """Make the authority, and a certificate for clients."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.authority = directory / "ca.pem"
        self._authority_key = directory / "ca.key"
        _openssl(
            f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=backflow-testbed-ca"
            f" -keyout {self._authority_key} -out {self.authority}"
        )
        self.certificate, self.key = directory / "client.crt", directory / "client.key"
        self._issue("client", f"/CN={USER}")

    def issue_broker_certificate(self, broker: int, *, expired: bool = False, host: str = "127.0.0.1") -> None:
        """Issue the broker's certificate; one that is replaced is used from the broker's next start on."""
        name = f"broker-{broker}"
        kind = "IP" if host[0].isdigit() else "DNS"
        self._issue(name, f"/CN={name}", f"subjectAltName={kind}:{host}", days=0 if expired else 2)
        pem = "".join((self._directory / f"{name}.{part}").read_text() for part in ("key", "crt"))
        self._key_store(broker).write_text(pem)

    def broker_properties(self, broker: int, *, kraft: bool) -> dict[str, str]:
        """Return the properties of a broker or controller."""
        if not self._key_store(broker).exists():
            self.issue_broker_certificate(broker)
        module = "org.apache.kafka.common.security"
        return {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required "
            f'user_{USER}="{PLAIN_PASSWORD}";',
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._key_store(broker)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "listener.name.ssl.ssl.client.auth": "required",
            "authorizer.class.name": _AUTHORIZERS[kraft],
            "super.users": "User:ANONYMOUS",
        }

    def issue_zookeeper_certificate(self, *, expired: bool = False) -> Path:
        """Issue ZooKeeper's certificate; return its PEM file, which ZooKeeper reads at its start."""
        self._issue("zookeeper", "/CN=zookeeper", "subjectAltName=IP:127.0.0.1", days=0 if expired else 2)
        path = self._directory / "zookeeper.pem"
        path.write_text("".join((self._directory / f"zookeeper.{part}").read_text() for part in ("key", "crt")))
        return path

    def sasl_properties(self, mechanism: str, password_file: Path) -> dict[str, object]:
        """Return the `[clusters.NAME.kafka]` properties of a client with user and password."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": {"file": str(password_file)},
        }

    def tls_properties(self) -> dict[str, object]:
        """Return the `[clusters.NAME.kafka]` properties of a client with a certificate."""
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority),
            "ssl.certificate.location": str(self.certificate),
            "ssl.key.location": str(self.key),
        }

    def _key_store(self, broker: int) -> Path:
        return self._directory / f"broker-{broker}.pem"

    def _issue(self, name: str, subject: str, extension: str = "", *, days: int = 2) -> None:
        """Issue a certificate; with 0 days it has expired a second later."""
        request, key, certificate = (self._directory / f"{name}.{kind}" for kind in ("csr", "key", "crt"))
        _openssl(f"req -newkey rsa:2048 -nodes -subj {subject} -keyout {key} -out {request}")
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(extension + "\n")
        _openssl(
            f"x509 -req -in {request} -CA {self.authority} -CAkey {self._authority_key} -CAcreateserial"
            f" -days {days} -extfile {extensions} -out {certificate}"
        )


def set_password(admin: AdminClient, password: str | None, user: str = USER) -> None:
    """Set the user's SCRAM password; None deletes the user's credentials."""
    alteration = (
        UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        if password is None
        else UserScramCredentialUpsertion(
            user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS), password.encode()
        )
    )
    admin.alter_user_scram_credentials([alteration], request_timeout=30)[user].result()


def grant(
    admin: AdminClient, resource: str, name: str, operation: str, *, user: str = USER, prefixed: bool = False
) -> None:
    """Allow the user an operation, such as DESCRIBE on TOPIC `*`, and wait until the authorizer knows it."""
    binding = _binding(AclBinding, resource, name, operation, user, prefixed=prefixed)
    admin.create_acls([binding], request_timeout=30)[binding].result()
    wait_until(lambda: _acls(admin, resource, name, operation, user, prefixed=prefixed), "the ACL to exist")


def withdraw(
    admin: AdminClient, resource: str, name: str, operation: str, *, user: str = USER, prefixed: bool = False
) -> None:
    """Delete what `grant` has created."""
    pattern = _binding(AclBindingFilter, resource, name, operation, user, prefixed=prefixed)
    admin.delete_acls([pattern], request_timeout=30)[pattern].result()
    wait_until(lambda: not _acls(admin, resource, name, operation, user, prefixed=prefixed), "the ACL to be deleted")


def _acls(admin: AdminClient, *described: str, prefixed: bool) -> list[AclBinding]:
    found: list[AclBinding] = admin.describe_acls(
        _binding(AclBindingFilter, *described, prefixed=prefixed), request_timeout=30
    ).result()
    return found


def _binding(kind: Callable[..., T], resource: str, name: str, operation: str, user: str, *, prefixed: bool) -> T:
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    return kind(
        ResourceType[resource], name, pattern, f"User:{user}", "*", AclOperation[operation], AclPermissionType.ALLOW
    )


def run_kafka_acls(arguments: str, bootstrap_servers: str, directory: Path) -> None:
    """Run `kafka-acls` with the arguments of a documented command, as the super user. Raises CalledProcessError."""
    config = directory / "admin.properties"
    config.write_text("")
    given = shlex.split(arguments.replace("\\\n", " "))
    given[given.index("--bootstrap-server") + 1] = bootstrap_servers
    given[given.index("--command-config") + 1] = str(config)
    command = java_command(KAFKA["3.9.1"], 128, directory, ["kafka.admin.AclCommand", *given])
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def client_properties(table: Mapping[str, object]) -> dict[str, str]:
    """Return a `[clusters.NAME.kafka]` table as librdkafka takes it, with its secrets read."""
    return {
        name: Path(value["file"]).read_text().strip() if isinstance(value, dict) else str(value)
        for name, value in table.items()
    }


def _openssl(arguments: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *shlex.split(arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        msg = "openssl is needed to make certificates and is not on the PATH."
        raise CertificateError(msg) from error
    if done.returncode:
        raise CertificateError(done.stdout)
