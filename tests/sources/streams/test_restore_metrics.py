"""What is read out of metrics in Prometheus format, named by either exporter. Real ones: tests/integration."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.streams.restore_metrics import TaskMetrics, task_metrics

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
_TOLD = [
    TaskMetrics("0_0", _THREAD, ("a", "b"), restored_total=450, remaining=1),
    TaskMetrics("1_0", _THREAD, (), restored_total=0, remaining=None),
]
_MICROMETER = _JMX.replace("kafka_streams_stream_", "kafka_stream_").replace("_metrics_", "_").replace(",}", "}")


@pytest.mark.parametrize(
    "text",
    [_JMX, _JMX.replace("_total{", "{").replace(",}", "}"), _MICROMETER],
    ids=["jmx 0.x", "jmx 1.x", "micrometer"],
)
def test_tasks_are_told_whoever_names_the_metrics(text: str) -> None:
    """With their stores; what stores, processor nodes and threads count under similar names is none of it."""
    assert task_metrics(text) == _TOLD


def test_a_total_of_nothing_is_believed_only_of_a_task_that_counts() -> None:
    """At the recording level INFO Kafka Streams gives 0 for what it does not count: restored and processed alike."""
    (first, second) = task_metrics(_JMX.replace('task_id="1_0",} 7.0', 'task_id="1_0",} 0.0'))
    assert (first.restored_total, second.restored_total) == (450, None)


@pytest.mark.parametrize("text", ["", "# HELP a b\n", "<html>log in</html>", '{"error":1}', "{", "noise", "a{b=c} 1"])
def test_what_is_no_metrics_is_refused(text: str) -> None:
    """Another service on the port, a login page."""
    with pytest.raises(ValueError, match=r"there are none|cannot read"):
        task_metrics(text)


def test_an_instance_without_tasks_tells_of_none() -> None:
    """It is no mistake: it may have no task, or be older than 3.5."""
    assert task_metrics("jvm_threads_current 20.0\n") == []


@given(st.lists(st.sampled_from([*_JMX.splitlines(), *'{}=", \n\\_1N']) | st.text(), max_size=20).map("".join))
def test_nothing_but_a_sentence_comes_of_garbage(text: str) -> None:
    """Whatever an address answers."""
    with contextlib.suppress(ValueError):
        task_metrics(text)
