"""Positions of a job's subtasks in Kafka, from Flink's offset metrics: names, freshness, requests.

The metric ids of a vertex are `<subtask>.<operator>.<metric>`, where each space, dot, colon and comma of a name has
become an underscore (org.apache.flink.runtime.metrics.dump.MetricQueryService).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from agent.model.observations.flink import Position
from agent.sources.flink.rest import Job, Metric, RestEndpoint, Subtask, Vertex, VertexDetails

_OFFSET_METRIC = re.compile(
    r"(?P<subtask>\d{1,9})\.(?P<operator>.+)\."
    r"(?:KafkaSourceReader\.topic\.(?P<topic>[^.]+)\.partition\.(?P<partition>\d{1,9})"
    r"\.(?P<kind>current|committed)Offset"
    r"|KafkaConsumer\.topic\.(?P<topic_1_5>[^.]+)\.partition\.(?P<partition_1_5>\d{1,9})"
    r"\.(?P<kind_1_5>current|committed)Offsets"
    r"|KafkaConsumer\.(?P<kind_1_4>current|committed)-offsets\.(?P<topic_1_4>[^.]+)-(?P<partition_1_4>\d{1,9}))",
    re.ASCII,
)
"""KafkaSource; FlinkKafkaConsumer from 1.5 on; FlinkKafkaConsumer of 1.4, whose names later versions also keep."""

_OFFSET = re.compile(r"[0-9]{1,18}")
_REPLACED = str.maketrans(" .:,", "____")
_LONGEST_OPERATOR = 80
"""Characters; longer operator names are cut (AbstractMetricGroup, METRICS_OPERATOR_NAME_MAX_LENGTH)."""

_REFRESH_MS = 10_000
"""How old a metric must be for a request to refresh it (metrics.fetcher.update-interval; fixed in 1.4). The request
that triggers the refresh still returns the old value.
"""

_IDS_KEPT_MS = 60_000
"""How long a vertex's metric ids are kept. A new execution lists them at each read for as long: metrics appear when
partitions are assigned.
"""

_LONGEST_QUERY = 3000
"""Characters. Flink's server accepts request lines of up to 4096 (Netty's HttpServerCodec)."""


class PartitionReader(NamedTuple):
    """One subtask of one operator that reads a partition; names as in metrics. vertex: its id."""

    vertex: str
    operator: str
    subtask: int
    topic: str
    partition: int


class Offsets(NamedTuple):
    """Offsets in metrics. current: of the last record read. committed: of the next to read, None if never committed."""

    current: int
    committed: int | None


class Reading(NamedTuple):
    """A fresh reading. since: when the offset may have changed at the earliest, ms; None for the first reading."""

    reader: PartitionReader
    offsets: Offsets
    since: int | None


def to_metric_name(name: str) -> str:
    """Return a name as it appears in metric ids."""
    return name.translate(_REPLACED)


def is_offset_metric(metric: str) -> bool:
    """Return whether a metric's id is that of an offset."""
    return _OFFSET_METRIC.fullmatch(metric) is not None


def parse_offsets(vertex: str, metrics: Iterable[Metric]) -> dict[PartitionReader, Offsets]:
    """Return the offsets among a vertex's metrics.

    Omits partitions of which no record has been read yet: they have -1, or the legacy consumer's markers for "the
    group's offset" and the like, far below zero.
    """
    values: dict[str, dict[PartitionReader, int]] = {"current": {}, "committed": {}}
    for metric in metrics:
        match = _OFFSET_METRIC.fullmatch(metric.id)
        if match is None or metric.value is None or not _OFFSET.fullmatch(metric.value):
            continue
        kind, topic, partition = (
            match[name] or match[f"{name}_1_5"] or match[f"{name}_1_4"] for name in ("kind", "topic", "partition")
        )
        reader = PartitionReader(vertex, match["operator"], int(match["subtask"]), topic, int(partition))
        values[kind][reader] = int(metric.value)
    return {reader: Offsets(current, values["committed"].get(reader)) for reader, current in values["current"].items()}


def find_operator_name(vertex: str, operator: str) -> str:
    """Return the operator's original name from its vertex's name, which lists the chain, or else the metric name."""
    chain = re.split(r" -> |, ?|[()]", re.sub(r"-&gt;", "->", vertex))
    return next((name for name in chain if to_metric_name(name)[:_LONGEST_OPERATOR] == operator), operator)


def find_topic(metric_topic: str, topics: Iterable[str]) -> str | None:
    """Return the topic that a metric's name stands for, or that name if no known topic fits.

    Returns None if several topics fit: their metrics overwrite each other in Flink.
    """
    matches = [topic for topic in topics if to_metric_name(topic) == metric_topic]
    if not matches:
        return metric_topic
    return matches[0] if len(matches) == 1 else None


class FreshnessFilter:
    """Filter for the fresh readings of a job's metrics, because responses do not say how old a metric is.

    JobManagers refresh metrics only when asked, and only now and then: after a time without requests, the response is
    as old as the last request. So the first reading from a new endpoint, of a new execution, or after a quiet time is
    dropped. A later one is fresh if it differs from the first, since it was made afterwards, or after the time that
    Flink takes to refresh.

    A partition is read by one subtask of one operator. Metrics of other subtasks are left over from an earlier
    execution; those of other operators are ignored.
    """

    def __init__(self, interval: int) -> None:
        """interval: how often readings are taken, ms."""
        self._refresh_ms = _REFRESH_MS + 2 * interval
        self._execution: Hashable = None
        self._first_at = self._last_at = 0
        self._seen: dict[PartitionReader, tuple[Offsets, int | None]] = {}
        self._changed_at: dict[PartitionReader, int] = {}
        self._operators: dict[tuple[str, int], tuple[str, str]] = {}
        self._reported: dict[tuple[str, int], tuple[Offsets, int]] = {}

    def filter(self, execution: Hashable, at: int, metrics: Mapping[PartitionReader, Offsets]) -> Sequence[Reading]:
        """Return the fresh readings, at most one of each partition, ordered by partition.

        execution: identifies the endpoint, the execution of the job and the attempts of its subtasks.
        """
        before, self._last_at = self._last_at, at
        if execution != self._execution or at - before > self._refresh_ms:
            self._execution, self._first_at, self._changed_at = execution, at, {}
            self._seen = {reader: (offsets, None) for reader, offsets in metrics.items()}
            return ()
        for reader, offsets in metrics.items():
            if reader not in self._seen or self._seen[reader][0] != offsets:
                self._changed_at[reader] = at
                self._seen[reader] = (offsets, before)
        all_refreshed = at - self._first_at >= self._refresh_ms
        readers: dict[tuple[str, int], list[PartitionReader]] = defaultdict(list)
        for reader in metrics:
            readers[reader.topic, reader.partition].append(reader)
        fresh = []
        for partition in sorted(readers):
            current = self._find_current_reader(partition, readers[partition])
            if current is not None and (all_refreshed or current in self._changed_at):
                offsets, read_after = self._seen[current]
                since = self._date_change(partition, offsets, read_after or self._first_at)
                fresh.append(Reading(current, offsets, since))
        return fresh

    def _find_current_reader(
        self, partition: tuple[str, int], readers: Sequence[PartitionReader]
    ) -> PartitionReader | None:
        """Return the subtask that reads the partition now, or None while that is unknown."""
        operators = sorted({reader[:2] for reader in readers})
        if self._operators.get(partition) not in operators:
            self._operators[partition] = operators[0]
        subtasks = [reader for reader in readers if reader[:2] == self._operators[partition]]
        if len(subtasks) == 1:
            return subtasks[0]
        moving = [reader for reader in subtasks if reader in self._changed_at]
        return max(moving, key=lambda reader: self._changed_at[reader]) if moving else None

    def _date_change(self, partition: tuple[str, int], offsets: Offsets, read_after: int) -> int | None:
        """Return the time after which the last reported offset was read; None if there is none or it is unchanged."""
        last = self._reported.get(partition)
        if last is not None and last[0] == offsets:
            return None
        self._reported[partition] = (offsets, read_after)
        return last[1] if last is not None else None


class _MetricIds:
    """Ids of a vertex's offset metrics."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.listed_at = 0
        self.execution: object = None
        self.execution_at = 0

    def is_due(self, execution: object, now: int) -> bool:
        """Return whether the ids must be listed again."""
        if execution != self.execution:
            self.execution, self.execution_at = execution, now
        is_new = self.listed_at - self.execution_at < _IDS_KEPT_MS
        return is_new or now - self.listed_at >= _IDS_KEPT_MS


class JobPositions:
    """Positions of one job in one Kafka cluster."""

    def __init__(self, flink: str, kafka: str, interval: int, topics: Callable[[], Iterable[str]] | None) -> None:
        """flink, kafka: cluster names. interval: how often `read` is called, ms. topics: those of the Kafka cluster."""
        self._flink, self._kafka, self._topics = flink, kafka, topics
        self._freshness = FreshnessFilter(interval)
        self._metric_ids: dict[str, _MetricIds] = {}

    def read(
        self, endpoint: RestEndpoint, job: Job, vertices: Sequence[Vertex], now: Callable[[], int], deadline: float
    ) -> list[Position]:
        """Return the positions that are known to be fresh. now: the clock, ms. Raises RequestError."""
        metrics: dict[PartitionReader, Offsets] = {}
        subtasks: dict[str, dict[int, Subtask]] = {}
        for vertex in vertices:
            ids, vertex_subtasks = self._fetch_metric_ids(endpoint, job, vertex, now(), deadline)
            if ids:
                subtasks[vertex.id] = vertex_subtasks
                # Flink replaces only some characters of an operator's name.
                for names in split_into_queries([quote(name, safe="") for name in ids]):
                    path = f"{_path(job, vertex)}/metrics?get={','.join(names)}"
                    metrics.update(parse_offsets(vertex.id, endpoint.fetch(path, tuple[Metric, ...], deadline)))
        attempts = tuple((vertex_id, _attempts(numbered.values())) for vertex_id, numbered in subtasks.items())
        at = now()
        topics = self._group_topics_by_metric_name() if metrics else {}
        vertex_names = {vertex.id: vertex.name for vertex in vertices}
        positions = []
        for reader, offsets, since in self._freshness.filter((endpoint.url, job.start_time, attempts), at, metrics):
            topic = find_topic(reader.topic, topics.get(reader.topic, ()))
            if topic is None:
                continue
            subtask = subtasks[reader.vertex].get(reader.subtask)
            positions.append(
                Position(
                    at=at,
                    since=since,
                    cluster=self._kafka,
                    flink=self._flink,
                    job=job.jid,
                    name=job.name,
                    topic=topic,
                    partition=reader.partition,
                    offset=offsets.current + 1,
                    committed=offsets.committed,
                    task=find_operator_name(vertex_names[reader.vertex], reader.operator),
                    subtask=reader.subtask,
                    host=subtask.task_manager_host if subtask is not None else None,
                    attempt=subtask.attempt if subtask is not None else None,
                )
            )
        return positions

    def _fetch_metric_ids(
        self, endpoint: RestEndpoint, job: Job, vertex: Vertex, now: int, deadline: float
    ) -> tuple[list[str], dict[int, Subtask]]:
        """Return the ids of a vertex's offset metrics and its subtasks; both empty if it does not read Kafka."""
        ids = self._metric_ids.setdefault(vertex.id, _MetricIds())
        subtasks: dict[int, Subtask] = {}
        if ids.names:
            subtasks = self._fetch_subtasks(endpoint, job, vertex, deadline)
        execution = ((endpoint.url, job.start_time), _attempts(subtasks.values()))
        if ids.is_due(execution, now):
            metrics = endpoint.fetch(f"{_path(job, vertex)}/metrics", tuple[Metric, ...], deadline)
            ids.names = sorted(metric.id for metric in metrics if is_offset_metric(metric.id))
            ids.listed_at = now
        if ids.names and not subtasks:
            subtasks = self._fetch_subtasks(endpoint, job, vertex, deadline)
        return ids.names, subtasks

    @staticmethod
    def _fetch_subtasks(endpoint: RestEndpoint, job: Job, vertex: Vertex, deadline: float) -> dict[int, Subtask]:
        details = endpoint.fetch(_path(job, vertex), VertexDetails, deadline)
        return {subtask.subtask: subtask for subtask in details.subtasks}

    def _group_topics_by_metric_name(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for topic in self._topics() if self._topics is not None else ():
            groups.setdefault(to_metric_name(topic), []).append(topic)
        return groups


def split_into_queries(names: Sequence[str]) -> list[list[str]]:
    """Split quoted metric ids into as few lists as fit into a request line each."""
    queries: list[list[str]] = []
    length = _LONGEST_QUERY
    for name in names:
        length += len(name) + 1
        if length > _LONGEST_QUERY:
            queries.append([])
            length = len(name)
        queries[-1].append(name)
    return queries


def _path(job: Job, vertex: Vertex) -> str:
    return f"/jobs/{job.jid}/vertices/{vertex.id}"


def _attempts(subtasks: Iterable[Subtask]) -> tuple[tuple[int, int], ...]:
    return tuple((subtask.subtask, subtask.attempt) for subtask in subtasks)
