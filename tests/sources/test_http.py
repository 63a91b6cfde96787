"""HTTP endpoints that ask for a login: headers, reloaded secrets, certificates of a private authority."""

import base64
import time
from pathlib import Path

import pytest

from agent.config.credentials import Credential
from agent.config.http_client import HttpClient
from agent.sources.http import Endpoint, HttpStatusError, RequestError
from tests.sources.endpoints import FaultyServer, status


def _get(endpoint: Endpoint) -> bytes:
    return endpoint.get("/metrics", "text/plain", time.monotonic() + 30)


def test_a_rotated_token_is_reloaded_after_a_refusal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    client = HttpClient(token=Credential(file=token))
    assert client.headers() == {"Authorization": "Bearer first"}
    with FaultyServer(status("401 Unauthorized")) as server:
        endpoint = Endpoint(server.url, client)
        with pytest.raises(HttpStatusError, match="401"):
            _get(endpoint)
        token.unlink()
        with pytest.raises(RequestError, match="cannot be read: No such file"):
            _get(endpoint)
        token.write_text("second\n")
        server.behaviour = status("200 OK", "body")
        assert _get(endpoint) == b"body"


def test_a_user_is_sent_as_basic_authentication(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINK_PASSWORD", "pässword")
    client = HttpClient(username="backflow", password=Credential(env="FLINK_PASSWORD"))
    kind, _, login = client.headers()["Authorization"].partition(" ")
    assert (kind, base64.b64decode(login).decode()) == ("Basic", "backflow:pässword")


def test_an_authority_that_is_missing_is_named(tmp_path: Path) -> None:
    endpoint = Endpoint("https://127.0.0.1:1", HttpClient(ca=tmp_path / "ca.pem"))
    with pytest.raises(RequestError, match="No such file"):
        _get(endpoint)
