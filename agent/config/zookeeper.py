"""How the agent connects to ZooKeeper: the ensemble's address and the tables `zookeeper_client`."""

import os
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, model_validator

from agent.config.credentials import Credential, resolve
from agent.config.toml_places import KeyPath
from agent.model.config_types import ConfigModel, PositiveDuration

SERVER = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(?::\d{1,5})?"
"""A regular expression for the address of a server, with or without a port."""

_ENSEMBLE = re.compile(rf"({SERVER}(?:,{SERVER})*)(/[^\s,]*)?")
_PORT = re.compile(r":(\d{1,5})$")


def without_blanks(value: str) -> str:
    """Return a list of servers without the blanks around its commas."""
    return ",".join(server.strip() for server in value.split(","))


def check_ports(servers: str) -> None:
    """Raise ValueError if a server in a list, which SERVER matches, has a port that TCP does not have."""
    for server in servers.split(","):
        port = _PORT.search(server)
        if port is not None and not 0 < int(port[1]) < 65536:
            msg = f'"{server}" has no valid port: expected 1 to 65535'
            raise ValueError(msg)


def _ensemble(value: str) -> str:
    servers = without_blanks(value)
    match = _ENSEMBLE.fullmatch(servers)
    if match is None:
        msg = f'expected servers such as "zk-1:2181,zk-2:2181" or "zk-1:2181,zk-2:2181/chroot", got "{value}"'
        raise ValueError(msg)
    check_ports(match[1])
    *others, last = match[1].split(",")
    if match[2] is None and not _PORT.search(last) and any(map(_PORT.search, others)):
        msg = f'"{last}" has no port; did you mean the chroot "{",".join(others)}/{last}"?'
        raise ValueError(msg)
    return servers


Ensemble = Annotated[str, AfterValidator(_ensemble)]
"""ZooKeeper servers `host:port`, separated by commas, with an optional chroot after the last."""


class ZooKeeperAuth(Credential):
    """An authentication that the agent presents to ZooKeeper.

    For example:

        auth = [{ scheme = "digest", credential = "zookeeper-auth" }]
    """

    scheme: str = "digest"
    """ZooKeeper's name of the scheme. With `digest` the secret has the form `user:password`."""


class ZooKeeperSasl(ConfigModel):
    """SASL authentication of the agent to ZooKeeper."""

    mechanism: Literal["DIGEST-MD5", "GSSAPI"]
    """SASL mechanism."""
    username: str | None = None
    """User name for `DIGEST-MD5`."""
    password: Credential | None = None
    """Where to read the password for `DIGEST-MD5`."""
    service: str | None = None
    """Service name for `GSSAPI`. Default: `zookeeper`."""
    principal: str | None = None
    """Principal for `GSSAPI`."""


class ZooKeeperClient(ConfigModel):
    """How the agent connects to ZooKeeper."""

    session_timeout: PositiveDuration = 10_000
    """Session timeout of the agent's own ZooKeeper session."""
    auth: tuple[ZooKeeperAuth, ...] = ()
    """Authentications that the agent presents."""
    sasl: ZooKeeperSasl | None = None
    """SASL authentication."""
    use_ssl: bool = False
    """Whether to connect by TLS."""
    certfile: Path | None = None
    """PEM file with the client certificate."""
    keyfile: Path | None = None
    """PEM file with the key of the client certificate."""
    keyfile_password: Credential | None = None
    """Where to read the password of `keyfile`."""
    ca: Path | None = None
    """PEM file with the certificates of trusted authorities."""
    verify_certs: bool = True
    """Whether to verify the certificates of the servers."""
    check_hostname: bool = False
    """Whether a server's certificate must be issued for its host name."""

    @model_validator(mode="after")
    def _refuse_kerberos(self) -> Self:
        if self.sasl is not None and self.sasl.mechanism == "GSSAPI" and find_spec("kerberos") is None:
            msg = "SASL mechanism GSSAPI needs the Python package `kerberos`, which is not installed; or use DIGEST-MD5"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _require_tls(self) -> Self:
        if not self.use_ssl and any((self.certfile, self.keyfile, self.keyfile_password, self.ca)):
            msg = "certfile, keyfile, keyfile_password and ca have no effect without `use_ssl = true`"
            raise ValueError(msg)
        return self

    def secrets(self) -> Iterator[tuple[KeyPath, Credential]]:
        """Yield the key path below this table and the source of each secret."""
        yield from ((("auth", index), auth) for index, auth in enumerate(self.auth))
        if self.sasl is not None and self.sasl.password is not None:
            yield ("sasl", "password"), self.sasl.password
        if self.keyfile_password is not None:
            yield ("keyfile_password",), self.keyfile_password

    def options(self, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return the keyword arguments of kazoo's KazooClient except `hosts`.

        They include secrets. Raises CredentialError.
        """
        options: dict[str, Any] = {"timeout": self.session_timeout / 1000}
        if self.auth:
            options["auth_data"] = [(auth.scheme, resolve(auth, environment).get_secret_value()) for auth in self.auth]
        if self.sasl:
            options["sasl_options"] = _plain_fields(self.sasl, environment)
        if self.use_ssl:
            if self.certfile or self.keyfile:
                options["keyfile_password"] = ""  # without one OpenSSL asks for it on the terminal
            options |= _plain_fields(self, environment, "certfile", "keyfile", "keyfile_password", "ca", "verify_certs")
            options |= {"use_ssl": True, "check_hostname": self.check_hostname}
        return options


def _plain_fields(table: ConfigModel, environment: Mapping[str, str], *names: str) -> dict[str, Any]:
    """Return the fields that are set, with secrets resolved and paths as text."""
    fields = {}
    for name in names or type(table).model_fields:
        value = getattr(table, name)
        if isinstance(value, Credential):
            value = resolve(value, environment).get_secret_value()
        if value is not None:
            fields[name] = str(value) if isinstance(value, Path) else value
    return fields
