"""Flink's offset metrics: names in every version, fresh readings, queries."""

import time
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.flink.positions import (
    FreshnessFilter,
    JobPositions,
    Offsets,
    PartitionReader,
    find_operator_name,
    find_topic,
    is_offset_metric,
    parse_offsets,
    split_into_queries,
)
from agent.sources.flink.rest import Job, Metric, RestEndpoint, Vertex
from tests.sources.endpoints import FaultyServer, json_responses
from tests.sources.flink.recorded import VERTEX, RecordedResponses

_SOURCE = "Source__kafka-source"
_READER = PartitionReader("v", _SOURCE, 0, "t", 3)


def _filter(freshness: FreshnessFilter, at: int, offset: int, execution: str = "a") -> list[int]:
    """Return the fresh offsets of one reading."""
    readings = freshness.filter(execution, at, {_READER: Offsets(offset, None)})
    return [reading.offsets.current for reading in readings]


@pytest.mark.parametrize(
    ("current", "committed", "reader"),
    [
        (
            "0.Source__kafka-source.KafkaConsumer.current-offsets.in-put-1-12",
            "0.Source__kafka-source.KafkaConsumer.committed-offsets.in-put-1-12",
            PartitionReader("v", _SOURCE, 0, "in-put-1", 12),
        ),
        (
            "3.Source__kafka-source.KafkaConsumer.topic.in_put.partition.0.currentOffsets",
            "3.Source__kafka-source.KafkaConsumer.topic.in_put.partition.0.committedOffsets",
            PartitionReader("v", _SOURCE, 3, "in_put", 0),
        ),
        (
            "11.Source__kafka-source.KafkaSourceReader.topic.in_put.partition.1.currentOffset",
            "11.Source__kafka-source.KafkaSourceReader.topic.in_put.partition.1.committedOffset",
            PartitionReader("v", _SOURCE, 11, "in_put", 1),
        ),
    ],
    ids=["1.4.2", "FlinkKafkaConsumer from 1.5 on", "KafkaSource"],
)
def test_offset_metrics_of_every_version_are_parsed(current: str, committed: str, reader: PartitionReader) -> None:
    assert is_offset_metric(current)
    assert is_offset_metric(committed)
    assert parse_offsets("v", [Metric(current, "99"), Metric(committed, "100")]) == {reader: Offsets(99, 100)}


@pytest.mark.parametrize("value", ["-1", "-915623761776", "-915623761773", "NaN", "\u00b2", "9" * 5_000, None])
def test_markers_for_no_offset_are_omitted(value: str | None) -> None:
    current = "0.S.KafkaSourceReader.topic.t.partition.0.currentOffset"
    committed = "0.S.KafkaSourceReader.topic.t.partition.0.committedOffset"
    assert parse_offsets("v", [Metric(current, value), Metric(committed, "5")]) == {}
    assert parse_offsets("v", [Metric(current, "5"), Metric(committed, value)]) == {
        PartitionReader("v", "S", 0, "t", 0): Offsets(5, None)
    }


@pytest.mark.parametrize(
    "name",
    [
        "0.Source__kafka-source.KafkaSourceReader.KafkaConsumer.commit-latency-avg",
        "0.Source__kafka-source.KafkaConsumer.commitsSucceeded",
        "Source__kafka-source.KafkaSourceReader.topic.t.partition.0.currentOffset",
        "0.numRecordsIn",
        f"{'9' * 5_000}.S.KafkaSourceReader.topic.t.partition.0.currentOffset",
    ],
)
def test_other_metrics_are_not_offsets(name: str) -> None:
    """Nor is one without its subtask, as in the subtasks' own listing."""
    assert not is_offset_metric(name)


def test_metric_id_begins_with_the_subtask() -> None:
    metric = Metric("7.S.KafkaSourceReader.topic.t.partition.2.currentOffset", "41")
    assert parse_offsets("v", [metric]) == {PartitionReader("v", "S", 7, "t", 2): Offsets(41, None)}


def test_recorded_metrics_give_offsets_of_all_partitions(recorded: RecordedResponses) -> None:
    """Three partitions of one topic, read by two subtasks; a committed offset is at most one above the current."""
    offsets = parse_offsets(VERTEX, recorded.decode("/metrics", tuple[Metric, ...]))
    topics = {(reader.operator, reader.topic) for reader in offsets}
    assert topics <= {("Source__kafka-source", "in_put"), ("Source__kafka-source", "in.put")}
    assert {reader.partition: reader.subtask for reader in offsets} == {0: 0, 1: 1, 2: 0}
    assert all((offset.committed or 0) <= offset.current + 1 for offset in offsets.values())


def test_first_reading_is_dropped_and_a_changed_one_is_fresh() -> None:
    """The first may be as old as the last request; what differs from it was made since."""
    freshness = FreshnessFilter(2_000)
    assert _filter(freshness, 0, 100) == []
    assert _filter(freshness, 2_000, 100) == []
    assert _filter(freshness, 4_000, 120) == [120]
    assert _filter(freshness, 6_000, 120) == [120]


def test_unchanged_reading_is_fresh_after_flinks_refresh_time() -> None:
    """A partition without new records does not move: known after ten seconds and two requests."""
    freshness = FreshnessFilter(2_000)
    assert [_filter(freshness, at, 100) for at in range(0, 16_000, 2_000)] == [[]] * 7 + [[100]]


def test_partition_missing_from_the_first_response_is_fresh() -> None:
    """The first response of a JobManager that has not asked its TaskManagers yet is empty."""
    freshness = FreshnessFilter(2_000)
    assert freshness.filter("a", 0, {}) == ()
    assert _filter(freshness, 2_000, 7) == [7]


class _JobManager:
    """Caches metrics as Flink does: a request refreshes them when they are ten seconds old, and gets the old ones."""

    def __init__(self) -> None:
        self._cached, self._refreshed_at = 0, -100_000

    def fetch(self, now: int) -> int:
        """Return the cached offset; the true one is the time."""
        cached = self._cached
        if now - self._refreshed_at > 10_000:
            self._cached = self._refreshed_at = now
        return cached


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(500, 20_000), st.booleans()), max_size=60),
    st.integers(1, 10_000),
)
def test_alternating_job_managers_never_rewind_positions(requests: list[tuple[str, int, bool]], interval: int) -> None:
    """Seen on 1.20: 1328 from one JobManager, then 1321 from the other. Others ask them too, and refresh metrics."""
    freshness, now, offsets = FreshnessFilter(interval), 0, [0]
    job_managers = {"a": _JobManager(), "b": _JobManager()}
    for name, delay, is_by_others in requests:
        now += delay
        offset = job_managers[name].fetch(now)
        offsets += [] if is_by_others else _filter(freshness, now, offset, name)
    assert offsets == sorted(offsets)


def test_reading_after_a_quiet_time_is_dropped() -> None:
    """It is as old as the request before it; the next one is fresh."""
    freshness = FreshnessFilter(2_000)
    assert [_filter(freshness, at, at) for at in (0, 2_000, 62_000, 64_000)] == [[], [2_000], [], [64_000]]


def test_change_is_dated_before_the_old_value_was_read() -> None:
    """A metric may be as old as the request before: the change was between that one and now."""
    freshness = FreshnessFilter(2_000)
    _filter(freshness, 0, 100)
    _filter(freshness, 2_000, 110)
    (third,) = freshness.filter("a", 4_000, {_READER: Offsets(120, None)})
    (fourth,) = freshness.filter("a", 6_000, {_READER: Offsets(50, None)})
    assert (third.since, fourth.since) == (0, 2_000)


def test_metric_left_by_an_earlier_execution_is_no_position() -> None:
    """Partition 3 moved to subtask 1; subtask 0's metric is still in the JobManager, frozen."""
    freshness = FreshnessFilter(2_000)
    frozen, moving = _READER, _READER._replace(subtask=1)
    batches = [
        freshness.filter("a", at, {frozen: Offsets(900, None), moving: Offsets(100 + at, None)})
        for at in range(0, 20_000, 2_000)
    ]
    assert {reading.reader for batch in batches for reading in batch} == {moving}


def test_only_one_operator_of_a_partition_is_reported() -> None:
    freshness = FreshnessFilter(2_000)
    other = _READER._replace(operator="Source__other")
    batches = [
        freshness.filter("a", at, {other: Offsets(at, None), _READER: Offsets(5 + 2 * at, None)})
        for at in range(0, 20_000, 2_000)
    ]
    assert {reading.reader for batch in batches for reading in batch} == {_READER}


def test_topic_is_found_if_exactly_one_fits() -> None:
    """Flink writes a.b, a:b and a_b alike: `a_b`. If no topic fits, the metric's name is used."""
    assert find_topic("a_b", ["a.b", "c"]) == "a.b"
    assert find_topic("a_b", ["c"]) == "a_b"
    assert find_topic("a_b", ["a.b", "a_b"]) is None


def test_operator_name_is_found_in_the_vertex_name() -> None:
    """Vertices chain names, some versions escape the arrow; a name that is not found stays as in metrics."""
    chain = "Source: kafka-source -> work -> Sink: sink"
    assert find_operator_name(chain, "Source__kafka-source") == "Source: kafka-source"
    assert find_operator_name("Source: a.b -&gt; work", "Source__a_b") == "Source: a.b"
    long = "Source: " + "x" * 100
    assert find_operator_name(f"{long} -> work", f"Source__{'x' * 72}") == long
    assert find_operator_name("renamed", "Source__kafka-source") == "Source__kafka-source"


def test_queries_fit_into_request_lines() -> None:
    """Netty refuses a request line above 4096 characters; no name is left out, none is asked for twice."""
    names = [
        f"{number}.Source__kafka-source.KafkaSourceReader.topic.orders.partition.{number}.x" for number in range(500)
    ]
    queries = split_into_queries(names)
    assert [name for query in queries for name in query] == names
    assert all(len(",".join(query)) <= 3000 for query in queries)
    assert len(queries) < 20
    assert split_into_queries([]) == []


def test_names_of_operators_are_quoted() -> None:
    """Flink replaces only spaces, dots, colons and commas in a metric's id."""
    metric_id = "0.Source__Orders_&_\u8ba2\u5355.KafkaSourceReader.topic.t.partition.0.currentOffset"
    vertex = f"/jobs/{'a' * 32}/vertices/{VERTEX}"
    job = Job("a" * 32, "orders", "RUNNING", 1)
    responses: dict[str, Any] = {
        vertex: {"subtasks": [{"subtask": 0, "attempt": 0, "status": "RUNNING"}]},
        f"{vertex}/metrics": [{"id": metric_id, "value": "41"}],
    }
    vertices = [Vertex(id=VERTEX, name="Source: Orders & \u8ba2\u5355")]
    with FaultyServer(json_responses(responses)) as server:
        positions = JobPositions("f", "main", 1_000, None)
        positions.read(RestEndpoint(server.url), job, vertices, lambda: 5_000, time.monotonic() + 10)
    query = next(path for path in server.requested if "?get=" in path).partition("?get=")[2]
    assert query.isascii()
    assert "&" not in query
    assert unquote(query) == metric_id
