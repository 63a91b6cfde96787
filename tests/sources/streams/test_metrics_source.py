"""The source of restore metrics among addresses that misbehave. Real applications: tests/integration."""

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from agent.config.streams_section import Streams
from agent.model.observations import Available, Observation, TaskRestore, Unavailable
from agent.sources.streams.metrics_source import StreamsMetricsSource
from testbed.processes import free_port
from tests.integration.seen import Seen
from tests.sources.endpoints import Behaviour, FaultyServer, dripping, hanging, raw_response, status


def _metrics(*tasks: tuple[str, str, int]) -> Behaviour:
    """Answers with tasks: (task, thread, records restored)."""
    lines = [
        f'kafka_streams_stream_task_metrics_restore_total{{task_id="{task}",thread_id="{thread}"}} {records}\n'
        f'kafka_streams_stream_task_metrics_process_total{{task_id="{task}",thread_id="{thread}"}} 1.0\n'
        for task, thread, records in tasks
    ]
    return status("200 OK", "".join(["up 1.0\n", *lines]))


def _endless(connection: socket.socket, path: str, ended: threading.Event) -> None:
    """Answers with metrics without end, as fast as they are taken."""
    del path
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not ended.is_set():
        connection.sendall(b"up 1.0\n" * 10_000)


@contextmanager
def _watching(
    seen: Seen, urls: Sequence[str], known: Sequence[Observation] = (), timeout: str = "1s"
) -> Iterator[StreamsMetricsSource]:
    fields = {"metrics": [f"{url}/metrics" for url in urls], "timeout": timeout}
    settings = Streams.model_validate_json(json.dumps(fields))
    source = StreamsMetricsSource("shop", "main", "shop", settings, seen, known)
    try:
        yield source
    finally:
        source.close()


def _told(seen: Seen) -> list[tuple[str, str | None, int | None]]:
    return [(one.task, one.thread, one.restored_total) for one in seen.all(TaskRestore)]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (hanging, "does not answer"),
        (dripping, "does not answer"),
        (_endless, "does not answer|more than 32 MiB"),
        (raw_response(b"noise\r\n"), "invalid HTTP"),
        (raw_response(b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe 1"), "no metrics in Prometheus format"),
        (status("200 OK", "<html>log in</html>"), "no metrics in Prometheus format: cannot read '<html>log in</html>'"),
        (status("200 OK"), "no metrics in Prometheus format: there are none"),
        (status("500 Internal Server Error"), "500 Internal Server Error"),
        (status("302 Found", headers="Location: /login\r\n"), "redirects to /login"),
    ],
)
def test_one_bad_instance_is_named_and_keeps_no_other_from_being_heard(bad: Behaviour, said: str) -> None:
    """However it fails. It is said once, and that it is seen again when it is."""
    seen = Seen()
    with (
        FaultyServer(bad) as first,
        FaultyServer(_metrics(("0_0", "b-StreamThread-1", 7))) as second,
        _watching(seen, [first.url, second.url]) as source,
    ):
        source.poll()
        source.poll()
        (blind,) = seen.all(Unavailable)
        assert (blind.source, blind.cluster) == ("streams_metrics", "shop")
        assert first.url in blind.reason
        assert second.url not in blind.reason
        assert any(part in blind.reason for part in said.split("|"))
        assert _told(seen) == [("0_0", "b-StreamThread-1", 7)]
        first.behaviour = _metrics(("0_1", "a-StreamThread-1", 9))
        seen.wait_for(source, Available)
    assert ("0_1", "a-StreamThread-1", 9) in _told(seen)


def test_nobody_listens_at_the_address_of_an_instance_that_is_down() -> None:
    """The sentence has the system's own reason."""
    seen = Seen()
    with _watching(seen, [f"http://127.0.0.1:{free_port()}"]) as source:
        source.poll()
    assert "cannot be reached: Connection refused" in seen.all(Unavailable)[0].reason


def test_what_has_not_changed_is_not_told_again() -> None:
    """Each fact once; a task that is gone from the instance, and one that has come to another thread, are news."""
    seen = Seen()
    with (
        FaultyServer(_metrics(("0_0", "a-1", 7), ("0_1", "a-1", 8))) as server,
        _watching(seen, [server.url]) as source,
    ):
        source.poll()
        source.poll()
        assert _told(seen) == [("0_0", "a-1", 7), ("0_1", "a-1", 8)]
        seen.mark()
        server.behaviour = _metrics(("0_0", "a-2", 0))
        source.poll()
        source.poll()
        assert _told(seen) == [("0_0", "a-2", 0), ("0_1", None, None)]
        seen.mark()
        server.behaviour = _metrics(("0_0", "a-2", 0), ("0_1", "a-1", 8))
        source.poll()
        assert _told(seen) == [("0_1", "a-1", 8)]


def test_a_task_that_went_while_the_agent_was_down_is_told_as_gone() -> None:
    """What was known before counts, of the same instances."""
    seen = Seen()
    with FaultyServer(_metrics()) as server:
        url = f"{server.url}/metrics"
        mine = TaskRestore(at=1, cluster="main", application="shop", endpoint=url, task="0_0", thread="a-1")
        other = TaskRestore(at=1, cluster="main", application="bank", endpoint=url, task="0_1", thread="a-1")
        with _watching(seen, [server.url], [mine, other]) as source:
            source.poll()
    assert _told(seen) == [("0_0", None, None)]


def test_of_two_threads_with_a_task_the_application_s_own_is_believed() -> None:
    """Two applications in one process number their tasks alike; where neither is known to be ours nothing is told."""
    seen = Seen()
    both = (("0_0", "bank-5f-StreamThread-1", 7), ("0_0", "shop-5f-StreamThread-1", 8))
    with FaultyServer(_metrics(*both)) as server, _watching(seen, [server.url]) as source:
        source.poll()
        server.behaviour = _metrics(("0_0", "a-StreamThread-1", 7), ("0_0", "a-StreamThread-2", 8))
        source.poll()
    assert _told(seen) == [("0_0", "shop-5f-StreamThread-1", 8)]


def test_a_closed_source_tells_nothing() -> None:
    """Also of a poll that was under way."""
    seen = Seen()
    with FaultyServer(_metrics(("0_0", "a-1", 7))) as server, _watching(seen, [server.url]) as source:
        source.close()
        source.poll()
    assert seen.batches == []
