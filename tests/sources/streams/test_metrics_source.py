"""Restore metrics in both exporters' formats, and misbehaving endpoints. Real applications: tests/integration."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.sources import Streams
from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.streams import TaskRestore
from agent.sources.streams.metrics_source import StreamsMetricsSource, TaskMetrics, parse_task_metrics
from testbed.processes import free_port
from tests.integration.seen import Seen
from tests.sources.endpoints import Behaviour, FaultyServer, dripping, hanging, raw_response, status


def _metrics(*tasks: tuple[str, str, int]) -> Behaviour:
    """Respond with tasks: (task, thread, records restored)."""
    lines = [
        f'kafka_streams_stream_task_metrics_restore_total{{task_id="{task}",thread_id="{thread}"}} {records}\n'
        f'kafka_streams_stream_task_metrics_process_total{{task_id="{task}",thread_id="{thread}"}} 1.0\n'
        for task, thread, records in tasks
    ]
    return status("200 OK", "".join(["up 1.0\n", *lines]))


def _endless(connection: socket.socket, path: str, ended: threading.Event) -> None:
    """Respond with metrics without end, as fast as they are read."""
    del path
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not ended.is_set():
        connection.sendall(b"up 1.0\n" * 10_000)


@contextlib.contextmanager
def _open_source(
    seen: Seen, urls: Sequence[str], known: Sequence[Observation] = (), timeout: str = "1s"
) -> Iterator[StreamsMetricsSource]:
    fields = {"metrics": [f"{url}/metrics" for url in urls], "timeout": timeout}
    settings = Streams.model_validate_json(json.dumps(fields))
    source = StreamsMetricsSource("shop", "main", "shop", settings, seen, known)
    try:
        yield source
    finally:
        source.close()


def _restores(seen: Seen) -> list[tuple[str, str | None, int | None]]:
    return [(restore.task, restore.thread, restore.restored_total) for restore in seen.all(TaskRestore)]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (hanging, "does not answer"),
        (dripping, "does not answer"),
        (_endless, "does not answer|more than 32 MiB"),
        (raw_response(b"noise\r\n"), "invalid HTTP"),
        (raw_response(b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe 1"), "does not return metrics in Prometheus format"),
        (status("200 OK", "<html>log in</html>"), "metrics in Prometheus format: cannot read '<html>log in</html>'"),
        (status("200 OK"), "does not return metrics in Prometheus format: there are none"),
        (status("500 Internal Server Error"), "500 Internal Server Error"),
        (status("302 Found", headers="Location: /login\r\n"), "redirects to /login"),
    ],
)
def test_failing_instance_is_named_and_blocks_no_other(behaviour: Behaviour, reason: str) -> None:
    """It is reported once, and again when it is available."""
    seen = Seen()
    with (
        FaultyServer(behaviour) as first,
        FaultyServer(_metrics(("0_0", "b-StreamThread-1", 7))) as second,
        _open_source(seen, [first.url, second.url]) as source,
    ):
        source.poll()
        source.poll()
        (unavailable,) = seen.all(Unavailable)
        assert (unavailable.source, unavailable.cluster) == ("streams_metrics", "shop")
        assert first.url in unavailable.reason
        assert second.url not in unavailable.reason
        assert any(part in unavailable.reason for part in reason.split("|"))
        assert _restores(seen) == [("0_0", "b-StreamThread-1", 7)]
        first.behaviour = _metrics(("0_1", "a-StreamThread-1", 9))
        seen.wait_for(source, Available)
    assert ("0_1", "a-StreamThread-1", 9) in _restores(seen)


def test_refused_connection_is_reported_with_its_reason() -> None:
    seen = Seen()
    with _open_source(seen, [f"http://127.0.0.1:{free_port()}"]) as source:
        source.poll()
    assert "cannot be reached: Connection refused" in seen.all(Unavailable)[0].reason


def test_only_changes_are_emitted() -> None:
    """Such as a task that left the instance or moved to another thread."""
    seen = Seen()
    with (
        FaultyServer(_metrics(("0_0", "a-1", 7), ("0_1", "a-1", 8))) as server,
        _open_source(seen, [server.url]) as source,
    ):
        source.poll()
        source.poll()
        assert _restores(seen) == [("0_0", "a-1", 7), ("0_1", "a-1", 8)]
        seen.mark()
        server.behaviour = _metrics(("0_0", "a-2", 0))
        source.poll()
        source.poll()
        assert _restores(seen) == [("0_0", "a-2", 0), ("0_1", None, None)]
        seen.mark()
        server.behaviour = _metrics(("0_0", "a-2", 0), ("0_1", "a-1", 8))
        source.poll()
        assert _restores(seen) == [("0_1", "a-1", 8)]


def test_task_that_left_during_downtime_is_reported_at_start() -> None:
    seen = Seen()
    with FaultyServer(_metrics()) as server:
        url = f"{server.url}/metrics"
        own = TaskRestore(at=1, cluster="main", application="shop", endpoint=url, task="0_0", thread="a-1")
        other = TaskRestore(at=1, cluster="main", application="bank", endpoint=url, task="0_1", thread="a-1")
        with _open_source(seen, [server.url], [own, other]) as source:
            source.poll()
    assert _restores(seen) == [("0_0", None, None)]


def test_task_on_two_threads_is_the_applications_own() -> None:
    """Two applications in one process number their tasks alike; if neither is known to be ours, none is reported."""
    seen = Seen()
    both = (("0_0", "bank-5f-StreamThread-1", 7), ("0_0", "shop-5f-StreamThread-1", 8))
    with FaultyServer(_metrics(*both)) as server, _open_source(seen, [server.url]) as source:
        source.poll()
        server.behaviour = _metrics(("0_0", "a-StreamThread-1", 7), ("0_0", "a-StreamThread-2", 8))
        source.poll()
    assert _restores(seen) == [("0_0", "shop-5f-StreamThread-1", 8)]


def test_nothing_is_emitted_after_close() -> None:
    seen = Seen()
    with FaultyServer(_metrics(("0_0", "a-1", 7))) as server, _open_source(seen, [server.url]) as source:
        source.close()
        source.poll()
    assert seen.batches == []


# --- the format

_THREAD = "shop-StreamThread-1"
# As the JMX exporter 0.20.0 writes them; 1.0.1 leaves `_total` and the last comma out.
_JMX = """\
# HELP kafka_streams_stream_task_metrics_restore_total The total number of records restored
# TYPE kafka_streams_stream_task_metrics_restore_total untyped
kafka_streams_stream_task_metrics_restore_total{thread_id="shop-StreamThread-1",task_id="0_0",} 450.0
kafka_streams_stream_task_metrics_restore_total{thread_id="shop-StreamThread-1",task_id="1_0",} 0.0
kafka_streams_stream_task_metrics_restore_rate{thread_id="shop-StreamThread-1",task_id="0_0",} 0.0305
kafka_streams_stream_state_metrics_restore_rate{thread_id="shop-StreamThread-1",task_id="0_0",rocksdb_state_id="b",} 0.0
kafka_streams_stream_state_metrics_put_rate{thread_id="shop-StreamThread-1",task_id="0_0",in_memory_state_id="a",} 0.0
kafka_streams_stream_task_metrics_restore_remaining_records_total{thread_id="shop-StreamThread-1",task_id="0_0",} 1.0
kafka_streams_stream_task_metrics_restore_remaining_records_total{thread_id="shop-StreamThread-1",task_id="1_0",} NaN
kafka_streams_stream_task_metrics_process_total{thread_id="shop-StreamThread-1",task_id="1_0",} 7.0
kafka_streams_stream_processor_node_metrics_process_total{thread_id="shop-StreamThread-1",task_id="1_0",\
processor_node_id="KSTREAM-SOURCE-0000000000",} 9.0
kafka_streams_stream_thread_metrics_process_total{thread_id="shop-StreamThread-1",} 16.0
"""
_TASKS = [
    TaskMetrics("0_0", _THREAD, ("a", "b"), restored_total=450, remaining=1),
    TaskMetrics("1_0", _THREAD, (), restored_total=0, remaining=None),
]
_MICROMETER = _JMX.replace("kafka_streams_stream_", "kafka_stream_").replace("_metrics_", "_").replace(",}", "}")


@pytest.mark.parametrize(
    "text",
    [_JMX, _JMX.replace("_total{", "{").replace(",}", "}"), _MICROMETER],
    ids=["jmx 0.x", "jmx 1.x", "micrometer"],
)
def test_tasks_are_read_from_either_exporter(text: str) -> None:
    """With their stores; similar metrics of stores, processor nodes and threads are ignored."""
    assert parse_task_metrics(text) == _TASKS


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e30", "7" * 400])
def test_a_number_that_is_no_count_is_unknown(value: str) -> None:
    (task,) = parse_task_metrics(f'kafka_streams_stream_task_metrics_restore_total{{task_id="0_1"}} {value}\n')
    assert task.restored_total is None


def test_total_of_zero_counts_only_at_debug_level() -> None:
    """At the level INFO Kafka Streams has 0 for what it does not record: restored and processed alike."""
    (first, second) = parse_task_metrics(_JMX.replace('task_id="1_0",} 7.0', 'task_id="1_0",} 0.0'))
    assert (first.restored_total, second.restored_total) == (450, None)


@pytest.mark.parametrize(
    "text", ["", "# HELP a b\n", "<html>log in</html>", '{"error":1}', "{", "noise", "a{b=c} 1", f"a 1 {9**999}"]
)
def test_other_text_than_metrics_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"there are none|cannot read"):
        parse_task_metrics(text)


def test_instance_without_tasks_is_no_error() -> None:
    """It may be older than 3.5."""
    assert parse_task_metrics("jvm_threads_current 20.0\n") == []


@given(st.lists(st.sampled_from([*_JMX.splitlines(), *'{}=", \n\\_1N']) | st.text(), max_size=20).map("".join))
def test_garbage_raises_only_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_task_metrics(text)
