"""[http] and [heartbeat]."""

from pathlib import Path

import pytest

from agent.config.credentials import CredentialError
from agent.config.loading import loads
from agent.config.problems import SettingsError
from agent.config.self_report import Address, Heartbeat, Http
from agent.config.settings import Settings


def read(text: str) -> Settings:
    return loads(text, "rules.toml", need_clusters=False)


def problem(text: str) -> str:
    with pytest.raises(SettingsError) as error:
        read(text)
    return str(error.value)


def test_neither_is_on_by_default() -> None:
    settings = read("")
    assert (settings.http, settings.heartbeat) == (None, None)


@pytest.mark.parametrize(
    ("listen", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80, True),
        ("9000", "127.0.0.1", 9000, True),
        ("localhost:9000", "localhost", 9000, True),
        ("[::1]:9000", "::1", 9000, True),
        ("0.0.0.0:9000", "0.0.0.0", 9000, False),  # noqa: S104 - what is parsed
        ("10.1.2.3:65535", "10.1.2.3", 65535, False),
        ("[::]:9000", "::", 9000, False),
    ],
)
def test_listen_means_loopback_unless_it_names_another_address(
    listen: str, host: str, port: int, *, is_loopback: bool
) -> None:
    settings = read(f'[http]\nlisten = "{listen}"\nhosts = ["backflow.internal"]')
    assert settings.http is not None
    assert settings.http.address == Address(host, port)
    assert settings.http.address.is_loopback is is_loopback
    assert settings.http.hosts == ("backflow.internal",)


def test_an_empty_table_listens_on_loopback() -> None:
    assert Http().address == Address("127.0.0.1", 9464)


@pytest.mark.parametrize("listen", [":9000", "0", "65536", "kafka-1:9000", "::1:9000", "127.0.0.1", "*:80", "1.2.3:80"])
def test_listen_that_is_no_address_is_refused(listen: str) -> None:
    message = problem(f'[http]\nlisten = "{listen}"')
    assert message.startswith('rules.toml:2: [http] listen: expected "ADDRESS:PORT"')
    assert '"0.0.0.0:9464" for all interfaces' in message


def test_heartbeat_takes_a_url_or_its_source(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("https://hc-ping.com/secret\n", encoding="utf-8")
    plain = read('[heartbeat]\nurl = "http://127.0.0.1:1/x@y"\nevery = "30s"\nmethod = "POST"').heartbeat
    assert plain is not None
    assert (plain.read_url().get_secret_value(), plain.every, plain.method) == (
        "http://127.0.0.1:1/x@y",
        30_000,
        "POST",
    )
    secret = read(f'[heartbeat]\nurl_file = "{file}"').heartbeat
    assert secret is not None
    assert secret.read_url().get_secret_value() == "https://hc-ping.com/secret"
    assert (secret.every, secret.method) == (60_000, "GET")


@pytest.mark.parametrize("url", ["hc-ping.com/x", "ftp://a/b", "http://user:pw@host/x", "http://", "http://a b"])
def test_heartbeat_refuses_what_is_no_url(url: str) -> None:
    message = problem(f'[heartbeat]\nurl = "{url}"')
    assert message.startswith('rules.toml:2: [heartbeat] url: expected a URL such as "https://hc-ping.com/..."')
    source = Heartbeat(url_env="HEARTBEAT_URL")
    with pytest.raises(CredentialError, match="url_env HEARTBEAT_URL must hold nothing but an http or https URL"):
        source.read_url({"HEARTBEAT_URL": url})


def test_heartbeat_needs_exactly_one_url(tmp_path: Path) -> None:
    assert "exactly one of `url`, `url_file`, `url_env` and `url_credential`" in problem("[heartbeat]\nevery = '1m'")
    assert "exactly one of" in problem('[heartbeat]\nurl = "http://a"\nurl_env = "A"')
    settings = read(f'[heartbeat]\nurl_file = "{tmp_path / "missing"}"')
    ((path, _, reason),) = settings.unreadable_secrets()
    assert path == ("heartbeat", "url_file")
    assert "missing" in reason
