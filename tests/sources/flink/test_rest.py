"""REST addresses that hang, drip, lie or refuse: always one sentence, never later than the deadline; and responses."""

import time

import msgspec
import pytest

from agent.sources.flink.rest import (
    JobDetails,
    JobsOverview,
    Metric,
    NotFoundError,
    RestEndpoint,
    Subtask,
    VertexDetails,
    is_tolerated,
)
from agent.sources.http import HttpStatusError, RequestError, RequestTimeoutError
from testbed.processes import free_port
from tests.sources.endpoints import Behaviour, FaultyServer, dripping, hanging, raw_response, status
from tests.sources.flink.recorded import VERTEX, RecordedResponses

_NO_JOBS = '{"jobs":[]}'


def _fetch_error(behaviour: Behaviour, error: type[RequestError] = RequestError) -> str:
    with FaultyServer(behaviour) as server, pytest.raises(error) as raised:
        RestEndpoint(server.url).fetch("/jobs/overview", JobsOverview, time.monotonic() + 0.5)
    sentence = str(raised.value)
    assert server.url in sentence
    assert "\n" not in sentence
    return sentence


def test_response_is_decoded_and_unknown_keys_are_ignored() -> None:
    """Later versions add keys."""
    with FaultyServer(status("200 OK", '{"jobs":[],"new":1}')) as server:
        response = RestEndpoint(server.url).fetch("/jobs/overview", JobsOverview, time.monotonic() + 30)
    assert response == JobsOverview(jobs=())


def test_url_path_prefixes_each_request_path() -> None:
    """As with a proxy that serves several clusters."""
    with FaultyServer(status("200 OK", _NO_JOBS)) as server:
        RestEndpoint(f"{server.url}/flink-1").fetch("/jobs/overview", JobsOverview, time.monotonic() + 30)
    assert server.requested == ["/flink-1/jobs/overview"]


@pytest.mark.parametrize("behaviour", [hanging, dripping])
def test_hanging_endpoint_fails_at_the_deadline(behaviour: Behaviour) -> None:
    """Also one whose bytes drip, so that no wait for a packet is too long."""
    assert "does not answer /jobs/overview within 0.5 s" in _fetch_error(behaviour, RequestTimeoutError)


def test_no_request_is_sent_after_the_deadline() -> None:
    """Otherwise a late poll would grow later."""
    with FaultyServer(status("200 OK", _NO_JOBS)) as server, pytest.raises(RequestTimeoutError):
        RestEndpoint(server.url).fetch("/jobs/overview", JobsOverview, time.monotonic() - 1)
    assert server.requested == []


def test_refused_connection_is_reported_with_its_reason() -> None:
    with pytest.raises(RequestError, match="cannot be reached: Connection refused"):
        RestEndpoint(f"http://127.0.0.1:{free_port()}").fetch("/overview", JobsOverview, time.monotonic() + 30)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "invalid HTTP|cannot be reached"),
        (b"\x00\x01\x02garbage\r\n\r\n", "invalid HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>log in</html>", "unexpected response from Flink"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"jobs":{}}', "unexpected response from Flink"),
        (
            b'HTTP/1.1 200 OK\r\n\r\n{"jobs":[{"jid":"x","name":"n","state":"s","start-time":1}]}',
            "unexpected response from Flink",
        ),
        (
            b'HTTP/1.1 200 OK\r\n\r\n{"jobs":[{"jid":"'
            + b"0" * 32
            + b'","name":"n","state":"s","start-time":%d}]}' % 10**18,
            "unexpected response from Flink",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe", "unexpected response from Flink"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "unexpected response from Flink"),
    ],
)
def test_unexpected_response_is_an_error(content: bytes, reason: str) -> None:
    """Nothing, noise, another protocol, a truncated body, pages, JSON of another shape."""
    with FaultyServer(raw_response(content)) as server, pytest.raises(RequestError, match=reason):
        RestEndpoint(server.url).fetch("/jobs/overview", JobsOverview, time.monotonic() + 30)


def test_503_is_a_refusal_with_flinks_explanation() -> None:
    body = '{"errors":["Service temporarily unavailable due to an ongoing leader election. Please refresh."]}'
    sentence = _fetch_error(status("503 Service Unavailable", body), HttpStatusError)
    assert "503 Service Unavailable" in sentence
    assert "ongoing leader election" in sentence


def test_redirect_is_a_refusal_and_not_followed() -> None:
    """A standby of 1.4 redirects to the leader as it knows it."""
    leader = "http://127.0.0.1:1/jobs/overview"
    sentence = _fetch_error(status("307 Temporary Redirect", headers=f"Location: {leader}\r\n"), HttpStatusError)
    assert f"redirects to {leader}" in sentence


def test_refusals_are_tolerated_for_30_s_and_404_always() -> None:
    assert "404 Not Found" in _fetch_error(status("404 Not Found"), NotFoundError)
    assert is_tolerated(NotFoundError("404", 404), 0, 10**9)
    assert is_tolerated(HttpStatusError("503", 503), 1_000, 31_000)
    assert not is_tolerated(HttpStatusError("503", 503), 1_000, 31_001)


@pytest.mark.parametrize("line", ["200 OK", "204 No Content"])
def test_empty_response_means_no_metrics(line: str) -> None:
    """1.4.2 sends it the first time that a vertex's metrics are requested."""
    with FaultyServer(status(line)) as server:
        assert RestEndpoint(server.url).fetch("/metrics", tuple[Metric, ...], time.monotonic() + 30) == ()


def test_subtasks_have_host_and_attempt(recorded: RecordedResponses) -> None:
    """1.4 has the port behind the host, later versions in `endpoint`."""
    subtasks = recorded.decode(f"/vertices/{VERTEX}", VertexDetails).subtasks
    found = [(subtask.subtask, subtask.attempt, subtask.task_manager_host) for subtask in subtasks]
    assert found == [(0, 0, "localhost"), (1, 0, "localhost")]


def test_job_details_have_vertices_and_state_timestamps(recorded: RecordedResponses) -> None:
    """A timestamp is 0 if the job was never in that state."""
    details = recorded.decode(recorded.jobs["reader"].jid, JobDetails)
    assert [vertex.id for vertex in details.vertices] == [VERTEX]
    assert details.vertices[0].name.startswith("Source: kafka-source -> work")
    assert details.timestamps["RESTARTING"] == 0
    assert details.timestamps["RUNNING"] >= recorded.jobs["reader"].start_time


@pytest.mark.parametrize(
    ("fields", "host"),
    [
        ({"host": "tm-1:6122"}, "tm-1"),
        ({"host": "tm-1", "endpoint": "tm-1:6122"}, "tm-1"),
        ({"endpoint": "[fd00::1]:6122"}, "[fd00::1]"),
        ({"endpoint": "fd00::1"}, "fd00::1"),
        ({"host": "(unassigned)"}, None),
        ({}, None),
    ],
)
def test_task_manager_host_excludes_the_port(fields: dict[str, str], host: str | None) -> None:
    """IPv6 too; a subtask that waits for a slot has no host."""
    assert msgspec.convert({"subtask": 0, **fields}, Subtask).task_manager_host == host
