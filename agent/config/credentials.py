"""Secrets, read from files, environment variables or systemd credentials; rules.toml only names the source."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, SecretStr, model_validator

from agent.model.config_types import ConfigModel

_Text = TypeVar("_Text", str, Path)

SOURCES = '{ file = "..." }, { env = "..." } or { credential = "..." }'
"""How a secret is given in rules.toml."""


def _name(noun: str, pattern: str, allowed: str) -> AfterValidator:
    """Return a validator that does not show what it rejects: it may be the secret itself, in the wrong place."""

    def validate(value: str) -> str:
        if not re.fullmatch(pattern, value):
            msg = f"is not the name of {noun} ({allowed} only)"
            raise ValueError(msg)
        return value

    return AfterValidator(validate)


_SLACK_SECRET = re.compile(r"\s*(xox[a-z]-\d|xapp-\d|https?:/)")
"""How tokens and webhooks of Slack begin, also after `Path` has removed a slash."""


def refuse_slack_secret(value: _Text) -> _Text:
    """Return what names a channel or the source of a secret, unless it is the secret itself. Raises ValueError."""
    if _SLACK_SECRET.match(str(value)):
        msg = (
            "a secret must not be written in this file; write it to a file of its own, and give the path of that "
            "where a secret belongs"
        )
        raise ValueError(msg)
    return value


SecretFile = Annotated[Path, AfterValidator(refuse_slack_secret)]
EnvironmentName = Annotated[str, _name("an environment variable", r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and _")]
CredentialName = Annotated[
    str,
    _name("a systemd credential", r"[A-Za-z0-9._-]+", "letters, digits, -, _ and ."),
    AfterValidator(refuse_slack_secret),
]


class CredentialError(Exception):
    """A secret cannot be read; the message names its source, never its content."""


class Credential(ConfigModel):
    """The source of one secret; exactly one key is required.

    Secrets are never written in the file. They are read when the daemon starts, without surrounding blanks and line
    ends.

        "sasl.password" = { credential = "kafka-password" }

    The shipped unit loads only the credentials `slack-token` and `kafka-password`; for others, add
    `LoadCredential=NAME:/etc/backflow/NAME` by `systemctl edit backflow`.
    """

    file: SecretFile | None = None
    """File that holds the secret. A relative path starts from the working directory."""
    env: EnvironmentName | None = None
    """Environment variable that holds the secret."""
    credential: CredentialName | None = None
    """systemd credential that holds the secret (`LoadCredential=`)."""

    @model_validator(mode="after")
    def _require_one_source(self) -> Self:
        if [self.file, self.env, self.credential].count(None) != 2:
            msg = f"exactly one is required: {SOURCES}"
            raise ValueError(msg)
        return self


def resolve(source: Credential, environment: Mapping[str, str] = os.environ) -> SecretStr:
    """Return the current secret without surrounding blanks.

    Raises CredentialError if it is missing, unreadable or empty.
    """
    if source.env is not None:
        name = f"environment variable {source.env}"
        if source.env not in environment:
            msg = f"{name} is not set"
            raise CredentialError(msg)
        secret = environment[source.env]
    elif source.file is not None:
        name = f"file {source.file}"
        secret = _read(source.file, name)
    else:
        directory = environment.get("CREDENTIALS_DIRECTORY")
        if directory is None:
            msg = (
                f"credential {source.credential}: $CREDENTIALS_DIRECTORY is not set; systemd sets it for a service "
                f"with LoadCredential={source.credential}:/path/of/the/secret"
            )
            raise CredentialError(msg)
        path = Path(directory, str(source.credential))
        name = f"credential {source.credential}: file {path}"
        secret = _read(path, name)
    if not secret.strip():
        msg = f"{name} is empty"
        raise CredentialError(msg)
    return SecretStr(secret.strip())


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        msg = f"{name} cannot be read: {error.strerror}"
        raise CredentialError(msg) from error
    except UnicodeDecodeError:
        msg = f"{name} is not UTF-8 text"
        raise CredentialError(msg) from None  # the decoding error would show the bytes
