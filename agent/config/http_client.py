"""How the agent authenticates at HTTP endpoints that it reads: the tables `http_client`."""

import base64
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Self

from pydantic import model_validator

from agent.config.credentials import Credential, CredentialError, resolve
from agent.config.toml_places import KeyPath
from agent.model.config_types import ConfigModel


class HttpClient(ConfigModel):
    """How the agent connects to HTTP endpoints: basic authentication, a bearer token, or a client certificate.

    For example:

        http_client = { ca = "/etc/backflow/ca.pem", token = { credential = "flink-token" } }
    """

    username: str | None = None
    """User name for basic authentication."""
    password: Credential | None = None
    """Where to read the password for basic authentication."""
    token: Credential | None = None
    """Where to read a bearer token."""
    ca: Path | None = None
    """PEM file with the certificates of trusted authorities. Default: those of the system."""
    certfile: Path | None = None
    """PEM file with the client certificate."""
    keyfile: Path | None = None
    """PEM file with the key of the client certificate."""
    keyfile_password: Credential | None = None
    """Where to read the password of `keyfile`."""

    @model_validator(mode="after")
    def _require_one_authentication(self) -> Self:
        if (self.username is None) != (self.password is None):
            msg = "`username` and `password` belong together"
            raise ValueError(msg)
        if self.username is not None and self.token is not None:
            msg = "`token` excludes `username` and `password`: there is one Authorization header"
            raise ValueError(msg)
        if self.certfile is None and (self.keyfile is not None or self.keyfile_password is not None):
            msg = "keyfile and keyfile_password have no effect without `certfile`"
            raise ValueError(msg)
        return self

    def secrets(self) -> Iterator[tuple[KeyPath, Credential]]:
        """Yield the key path below this table and the source of each secret."""
        for name in ("password", "token", "keyfile_password"):
            source = getattr(self, name)
            if source is not None:
                yield (name,), source

    def files(self) -> Iterator[tuple[KeyPath, Credential, Callable[[], object]]]:
        """Yield the key path in the table above, the source and the reader of each secret and each file of TLS."""
        for path, source in self.secrets():
            yield ("http_client", *path), source, partial(resolve, source)
        if self.ca is not None:
            yield ("http_client", "ca"), Credential(file=self.ca), partial(read_authorities, self.ca)
        if self.keyfile is not None:
            source = Credential(file=self.keyfile)
            yield ("http_client", "keyfile"), source, partial(resolve, source)
        if self.certfile is not None:
            yield ("http_client", "certfile"), Credential(file=self.certfile), self._read_certificate

    def headers(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the headers that authenticate, with the current secrets. Raises CredentialError."""
        if self.token is not None:
            return {"Authorization": f"Bearer {resolve(self.token, environment).get_secret_value()}"}
        if self.password is not None:
            login = f"{self.username}:{resolve(self.password, environment).get_secret_value()}"
            return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        return {}

    def tls_context(self, environment: Mapping[str, str] = os.environ) -> ssl.SSLContext:
        """Return the TLS settings with the current files. Raises CredentialError, OSError."""
        context = ssl.create_default_context(cafile=self.ca)
        self._load_certificate(context, environment)
        return context

    def _read_certificate(self) -> None:
        """Check that the client certificate can be used with its key. Raises CredentialError."""
        resolve(Credential(file=self.certfile))
        try:
            self._load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        except OSError as error:
            msg = f"file {self.certfile} cannot be used as client certificate: {error.strerror or error}"
            raise CredentialError(msg) from error

    def _load_certificate(self, context: ssl.SSLContext, environment: Mapping[str, str] = os.environ) -> None:
        """Add the client certificate, if there is one. Raises CredentialError, OSError."""
        if self.certfile is not None:
            password = self.keyfile_password
            # An empty one, because OpenSSL asks for it on the terminal if there is none.
            secret = "" if password is None else resolve(password, environment).get_secret_value()
            context.load_cert_chain(self.certfile, self.keyfile, secret)


def read_authorities(ca: Path) -> None:
    """Check that a PEM file has certificates of authorities. Raises CredentialError."""
    resolve(Credential(file=ca))
    try:
        ssl.create_default_context(cafile=ca)
    except OSError as error:
        msg = f"file {ca} holds no certificates of authorities: {error.strerror or error}"
        raise CredentialError(msg) from error
