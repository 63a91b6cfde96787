"""Secrets are had from a file, the environment or systemd, and never shown."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.config.credentials import Credential, CredentialError, resolve


def test_a_secret_in_a_file_is_read_without_the_newline_at_its_end(tmp_path: Path) -> None:
    """Editors end a file with a newline; no secret does."""
    path = tmp_path / "password"
    path.write_text("correct horse\n")
    assert resolve(Credential(file=path)).get_secret_value() == "correct horse"


def test_a_secret_is_had_from_the_environment() -> None:
    """The variable is the one named."""
    assert resolve(Credential(env="PASSWORD"), {"PASSWORD": "pw"}).get_secret_value() == "pw"


def test_a_systemd_credential_is_the_file_of_that_name_in_its_directory(tmp_path: Path) -> None:
    """As systemd.exec(5) has it: $CREDENTIALS_DIRECTORY."""
    (tmp_path / "slack-token").write_text("xoxb-1")
    place = Credential(credential="slack-token")
    assert resolve(place, {"CREDENTIALS_DIRECTORY": str(tmp_path)}).get_secret_value() == "xoxb-1"


def test_a_secret_does_not_show_itself() -> None:
    """Neither its repr nor its text holds it."""
    secret = resolve(Credential(env="PASSWORD"), {"PASSWORD": "hunter2"})
    assert "hunter2" not in f"{secret!r} {secret}"


@pytest.mark.parametrize(
    ("place", "environment", "sentence"),
    [
        (Credential(env="PASSWORD"), {}, "environment variable PASSWORD is not set"),
        (Credential(env="PASSWORD"), {"PASSWORD": " \n"}, "environment variable PASSWORD is empty"),
        (Credential(file=Path("/nowhere")), {}, "file /nowhere cannot be read: No such file or directory"),
        (Credential(file=Path("/")), {}, "file / cannot be read: Is a directory"),
        (Credential(credential="token"), {}, "credential token: $CREDENTIALS_DIRECTORY is not set"),
        (
            Credential(credential="token"), {"CREDENTIALS_DIRECTORY": "/nowhere"},
            "credential token: file /nowhere/token cannot be read: No such file or directory",
        ),
    ],
)  # fmt: skip
def test_a_secret_that_cannot_be_had_is_told_by_its_place(
    place: Credential, environment: dict[str, str], sentence: str
) -> None:
    """The operator reads what is missing, where."""
    with pytest.raises(CredentialError) as raised:
        resolve(place, environment)
    assert str(raised.value).startswith(sentence)


def test_bytes_that_are_no_text_are_not_shown(tmp_path: Path) -> None:
    """A key in DER put where a password belongs stays secret."""
    path = tmp_path / "key.der"
    path.write_bytes(b"hunter2\xff")
    with pytest.raises(CredentialError, match="is not UTF-8 text") as raised:
        resolve(Credential(file=path))
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("places", [{}, {"env": "A", "credential": "b"}, {"env": "xoxb-1"}, {"credential": "../b"}])
def test_a_place_is_exactly_one_and_well_named(places: dict[str, str]) -> None:
    """No place, two places, and a token pasted where the name of a variable belongs are mistakes."""
    with pytest.raises(ValidationError):
        Credential.model_validate(places)
