"""Secrets are read from files, the environment or systemd, and never shown."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.config.credentials import Credential, CredentialError, resolve
from agent.config.sections import Slack


def test_secret_is_read_from_a_file_without_final_newline(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("correct horse\n")
    assert resolve(Credential(file=path)).get_secret_value() == "correct horse"


def test_secret_is_read_from_the_environment() -> None:
    assert resolve(Credential(env="PASSWORD"), {"PASSWORD": "pw"}).get_secret_value() == "pw"


def test_systemd_credential_is_read_from_its_directory(tmp_path: Path) -> None:
    (tmp_path / "slack-token").write_text("xoxb-1")
    place = Credential(credential="slack-token")
    assert resolve(place, {"CREDENTIALS_DIRECTORY": str(tmp_path)}).get_secret_value() == "xoxb-1"


def test_secret_is_not_shown_by_str_or_repr() -> None:
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
def test_missing_secret_is_reported_by_its_source(
    place: Credential, environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(CredentialError) as raised:
        resolve(place, environment)
    assert str(raised.value).startswith(sentence)


def test_undecodable_secret_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "key.der"
    path.write_bytes(b"hunter2\xff")
    with pytest.raises(CredentialError, match="is not UTF-8 text") as raised:
        resolve(Credential(file=path))
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("places", [{}, {"env": "A", "credential": "b"}, {"env": "xoxb-1"}, {"credential": "../b"}])
def test_credential_needs_exactly_one_valid_source(places: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Credential.model_validate(places)


@pytest.mark.parametrize(
    ("table", "secret"),
    [
        ({"channel": "c", "token_env": "SLACK"}, "xoxb-1\nxoxb-2"),
        ({"channel": "c", "token_env": "SLACK"}, "token = xoxb-1"),
        ({"webhook_env": "SLACK"}, "hooks.slack.example/services/hunter2"),
        ({"webhook_env": "SLACK"}, "https://hooks.slack.example/hunter2\nhttps://hooks.slack.example/b"),
    ],
)
def test_slack_secret_must_be_a_single_word(table: dict[str, str], secret: str) -> None:
    with pytest.raises(CredentialError, match=r"^env SLACK must hold .* and nothing else, in one line$"):
        Slack.model_validate(table).read_secret({"SLACK": secret})
