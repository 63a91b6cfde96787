"""[http] and [heartbeat]: how the agent shows what it sees, and that it lives."""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent.config.credentials import Credential, CredentialError, CredentialName, EnvironmentName, resolve
from agent.model.config_types import ConfigModel, PositiveDuration

_LISTEN = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):)?(?P<port>\d{1,5})")
_URL = re.compile(r"https?://[^/@?#\s]+([/?#][!-~]*)?")

LOOPBACK = "127.0.0.1"


class Address(NamedTuple):
    """Where to listen. host: an IP address or `localhost`."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can connect."""
        return self.host == "localhost" or ip_address(self.host).is_loopback


def parse_listen(value: str) -> Address:
    """Return the address that "HOST:PORT" or "PORT" means; without a host only this host can connect.

    Raises ValueError.
    """
    match = _LISTEN.fullmatch(value)
    host = ((match and match["host"]) or LOOPBACK).strip("[]")
    if match is None or not 1 <= int(match["port"]) <= 65_535 or not _is_address(host):
        msg = (
            f'expected "ADDRESS:PORT", got "{value}": "127.0.0.1:9464" for this host only, "0.0.0.0:9464" for all '
            "interfaces"
        )
        raise ValueError(msg)
    return Address(host, int(match["port"]))


def _is_address(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host) is not None
    except ValueError:
        return False


def _listen(value: str) -> str:
    parse_listen(value)
    return value


def _url(value: str) -> str:
    if not _URL.fullmatch(value):
        msg = 'expected a URL such as "https://hc-ping.com/...", without a user name'
        raise ValueError(msg)
    return value


class Http(ConfigModel):
    """A read-only status page for browsers, `/metrics` for Prometheus, `/health` and `/ready`; off without this table.

    It has no login: whoever can connect can read the names of groups and topics and all incidents. For example:

        [http]
        listen = "127.0.0.1:9464"
    """

    listen: Annotated[str, AfterValidator(_listen)] = f"{LOOPBACK}:9464"
    """Address and port. A port alone means that only this host can connect."""
    hosts: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Names under which it is requested, besides IP addresses, `localhost` and this host's name. Others are refused."""

    @property
    def address(self) -> Address:
        """Where to listen."""
        return parse_listen(self.listen)


class Heartbeat(ConfigModel):
    """A dead man's switch: a URL that is requested as long as Backflow works, so that its absence raises an alarm.

    It is requested only while every loop makes progress and no delivery has been pending for more than two minutes.
    Exactly one of `url`, `url_file`, `url_env` and `url_credential` is required. For example:

        [heartbeat]
        url = "https://hc-ping.com/a7f3c0de-0000-4000-8000-000000000000"
    """

    url: Annotated[str, AfterValidator(_url)] | None = None
    """URL to request. A proxy of the environment (`https_proxy`) is used."""
    url_file: Path | None = None
    """File that holds the URL, if it is secret."""
    url_env: EnvironmentName | None = None
    """Environment variable that holds the URL."""
    url_credential: CredentialName | None = None
    """systemd credential that holds the URL."""
    method: Literal["GET", "POST"] = "GET"
    """HTTP method."""
    every: PositiveDuration = 60_000
    """How often."""

    @model_validator(mode="after")
    def _require_one_url(self) -> Self:
        if [self.url, self.url_file, self.url_env, self.url_credential].count(None) != 3:
            msg = "exactly one of `url`, `url_file`, `url_env` and `url_credential` is required"
            raise ValueError(msg)
        return self

    @property
    def secret(self) -> tuple[str, Credential] | None:
        """The key that names the source of a secret URL, and the source; None for `url`."""
        for name in Credential.model_fields:
            if (value := getattr(self, f"url_{name}")) is not None:
                return f"url_{name}", Credential(**{name: value})
        return None

    def read_url(self, environment: Mapping[str, str] = os.environ) -> SecretStr:
        """Return the URL. Raises CredentialError, also if it cannot be one."""
        if self.secret is None:
            return SecretStr(self.url or "")
        key, source = self.secret
        url = resolve(source, environment)
        if not _URL.fullmatch(url.get_secret_value()):
            msg = f"{key} {getattr(self, key)} must hold nothing but an http or https URL, without a user name"
            raise CredentialError(msg)
        return url
