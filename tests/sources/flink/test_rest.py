"""Asking REST addresses that hang, drip, lie or refuse: always one sentence, never later than the deadline."""

import time

import pytest

from agent.sources.flink.responses import Listing, Metric
from agent.sources.flink.rest import RestEndpoint
from agent.sources.http import HttpStatusError, RequestError, RequestTimeoutError
from testbed.processes import free_port
from tests.sources.endpoints import Behaviour, FaultyServer, dripping, hanging, raw_response, status

_NO_JOBS = '{"jobs":[]}'


def _complaint(behaviour: Behaviour, error: type[RequestError] = RequestError) -> str:
    """What is said of an address that behaves so."""
    with FaultyServer(behaviour) as server, pytest.raises(error) as raised:
        RestEndpoint(server.url).ask("/jobs/overview", Listing, time.monotonic() + 0.5)
    sentence = str(raised.value)
    assert server.url in sentence
    assert "\n" not in sentence
    return sentence


def test_a_good_answer_comes_back_as_a_type() -> None:
    """Unknown keys are no fault: later versions add some."""
    with FaultyServer(status("200 OK", '{"jobs":[],"new":1}')) as server:
        assert RestEndpoint(server.url).ask("/jobs/overview", Listing, time.monotonic() + 30) == Listing(jobs=())


def test_what_follows_the_port_is_put_before_each_path() -> None:
    """As where a proxy serves several clusters."""
    with FaultyServer(status("200 OK", _NO_JOBS)) as server:
        RestEndpoint(f"{server.url}/flink-1").ask("/jobs/overview", Listing, time.monotonic() + 30)
    assert server.requested == ["/flink-1/jobs/overview"]


@pytest.mark.parametrize("behaviour", [hanging, dripping])
def test_an_address_that_hangs_is_left_at_the_deadline(behaviour: Behaviour) -> None:
    """Also one whose bytes drip, so that no wait for a packet is too long."""
    assert "does not answer /jobs/overview within 0.5 s" in _complaint(behaviour, RequestTimeoutError)


def test_a_deadline_that_has_passed_asks_nobody() -> None:
    """So that a poll that is late does not grow later."""
    with FaultyServer(status("200 OK", _NO_JOBS)) as server, pytest.raises(RequestTimeoutError):
        RestEndpoint(server.url).ask("/jobs/overview", Listing, time.monotonic() - 1)
    assert server.requested == []


def test_an_address_where_nobody_listens_cannot_be_reached() -> None:
    """The sentence has the system's own reason."""
    with pytest.raises(RequestError, match="cannot be reached: Connection refused"):
        RestEndpoint(f"http://127.0.0.1:{free_port()}").ask("/overview", Listing, time.monotonic() + 30)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "invalid HTTP|cannot be reached"),
        (b"\x00\x01\x02garbage\r\n\r\n", "invalid HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>log in</html>", "with what Flink does not"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"jobs":{}}', "with what Flink does not"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"jobs":[{"jid":"x","name":"n","state":"s","start-time":1}]}', "Flink does not"),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe", "with what Flink does not"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "with"),
    ],
)
def test_garbage_is_told_as_such(content: bytes, said: str) -> None:
    """Nothing, noise, another protocol, a body cut short, pages, JSON of another shape."""
    with FaultyServer(raw_response(content)) as server, pytest.raises(RequestError, match=said):
        RestEndpoint(server.url).ask("/jobs/overview", Listing, time.monotonic() + 30)


def test_a_refusal_keeps_its_status_and_what_flink_said() -> None:
    """As around a failover."""
    body = '{"errors":["Service temporarily unavailable due to an ongoing leader election. Please refresh."]}'
    sentence = _complaint(status("503 Service Unavailable", body), HttpStatusError)
    assert "503 Service Unavailable" in sentence
    assert "ongoing leader election" in sentence


def test_a_redirect_is_not_followed_but_told() -> None:
    """A standby of 1.4 sends on to whom it takes for the leader."""
    leader = "http://127.0.0.1:1/jobs/overview"
    sentence = _complaint(status("307 Temporary Redirect", headers=f"Location: {leader}\r\n"), HttpStatusError)
    assert f"redirects to {leader}" in sentence


@pytest.mark.parametrize("line", ["200 OK", "204 No Content"])
def test_no_content_is_no_metrics(line: str) -> None:
    """What 1.4.2 answers the first time that a vertex's metrics are asked for."""
    with FaultyServer(status(line)) as server:
        assert RestEndpoint(server.url).ask("/metrics", tuple[Metric, ...], time.monotonic() + 30) == ()
