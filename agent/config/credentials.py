"""Where secrets come from: files, the environment, systemd. rules.toml names the place, never the secret."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, SecretStr, model_validator

from agent.model.config_types import ConfigModel


def _name(of: str, pattern: str, allowed: str) -> AfterValidator:
    """Refuses text that is no such name, without showing it: it may be the secret itself, put in the wrong place."""

    def checked(value: str) -> str:
        if not re.fullmatch(pattern, value):
            msg = f"is no name of {of}; names have {allowed} only"
            raise ValueError(msg)
        return value

    return AfterValidator(checked)


EnvironmentName = Annotated[str, _name("an environment variable", r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and _")]
CredentialName = Annotated[str, _name("a systemd credential", r"[A-Za-z0-9._-]+", "letters, digits, -, _ and .")]


class CredentialError(Exception):
    """A secret cannot be had; the sentence names the place looked at, never what stood there."""


class Credential(ConfigModel):
    """The place of one secret: exactly one of a file, an environment variable and a systemd credential."""

    file: Path | None = None
    env: EnvironmentName | None = None
    credential: CredentialName | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if [self.file, self.env, self.credential].count(None) != 2:
            msg = 'name exactly one place: { file = "..." }, { env = "..." } or { credential = "..." }'
            raise ValueError(msg)
        return self


def resolve(place: Credential, environment: Mapping[str, str] = os.environ) -> SecretStr:
    """The secret that stands there now, without blanks around it. Raises CredentialError, also where it is empty."""
    if place.env is not None:
        name = f"environment variable {place.env}"
        if place.env not in environment:
            msg = f"{name} is not set"
            raise CredentialError(msg)
        secret = environment[place.env]
    elif place.file is not None:
        name = f"file {place.file}"
        secret = _read(place.file, name)
    else:
        directory = environment.get("CREDENTIALS_DIRECTORY")
        if directory is None:
            msg = (
                f"credential {place.credential}: $CREDENTIALS_DIRECTORY is not set; systemd sets it for a service that "
                f"has LoadCredential={place.credential}:/path/of/the/secret"
            )
            raise CredentialError(msg)
        path = Path(directory, str(place.credential))
        name = f"credential {place.credential}: file {path}"
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
        raise CredentialError(msg) from None  # the decoding error shows the bytes it failed on
