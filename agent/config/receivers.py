"""[receivers.NAME]: receivers of incidents beside Slack, each with patterns that select what it gets."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, SecretStr

from agent.config.credentials import Credential, CredentialError, resolve
from agent.config.http_client import read_authorities
from agent.config.toml_places import KeyPath
from agent.model.matchers import Matchers

URL_PATTERN = r"https?://[^/@?#\s]+([/?][!-~]*)?"

SecretReader: TypeAlias = Callable[[], object]
"""Reads a secret; raises CredentialError."""


def _url(value: str) -> str:
    if not re.fullmatch(URL_PATTERN, value):
        msg = "expected an http or https URL without a user name"
        raise ValueError(msg)
    return value


Url = Annotated[str, AfterValidator(_url)]
"""An address without a user name. It is not repeated in errors: its path may be secret."""


class ReceiverSettings(Matchers):
    """A receiver of incidents. `kind` says what it is; the tables "Receivers of kind" below have the other keys.

    It gets an incident from severity warning on if an effect matches all the patterns that are given, and then follows
    it to its end. Without patterns it gets every such incident, and the weekly review, which has severity info.
    Several receivers may have the same kind, and one incident may go to several.
    """

    kind: ClassVar[str]

    def secrets(self) -> Iterator[tuple[KeyPath, Credential, SecretReader]]:
        """Yield the key path below this table, the source and the reader of each secret."""
        yield from ()

    def connect(self, name: str) -> Any:
        """Return the receiver, as agent.notify defines it. name: by which it is known. Raises CredentialError."""
        raise NotImplementedError


def read_matching(source: Credential, pattern: str, expected: str) -> SecretStr:
    """Return a secret that must match as a whole. Raises CredentialError, which says what is expected instead."""
    secret = resolve(source)
    if not re.fullmatch(pattern, secret.get_secret_value()):
        place = next(f"{key} {value}" for key, value in source.model_dump(exclude_none=True).items())
        msg = f"{place} must hold {expected}"
        raise CredentialError(msg)
    return secret


def authorities(ca: Path | None) -> Iterator[tuple[KeyPath, Credential, SecretReader]]:
    """Yield the key `ca`, whose file must be readable as those of secrets and hold certificates, if it is given."""
    if ca is not None:
        yield ("ca",), Credential(file=ca), partial(read_authorities, ca)
