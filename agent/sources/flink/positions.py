"""Asks a JobManager where the subtasks of a job read: which of their metrics are offsets, and what they say.

Which readings may be believed: flink_metrics.
"""

from collections.abc import Callable, Iterable, Sequence

from agent.model.observations import Position
from agent.sources.flink.metrics import (
    Offset,
    Place,
    Readings,
    filtered,
    is_offset,
    offsets,
    operator_named,
    topic_named,
)
from agent.sources.flink.responses import Job, Metric, Subtask, Subtasks, Vertex
from agent.sources.flink.rest import RestEndpoint

_IDS_KEPT_MS = 60_000
"""How long a vertex's metric ids are kept, in a new execution not at all: metrics come when partitions are assigned."""

_LONGEST_QUERY = 3000
"""Characters. Flink's server takes request lines of up to 4096 (Netty's HttpServerCodec)."""


class _Ids:
    """The offsets' metric ids of a vertex."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.listed_at = 0
        self.execution: object = None
        self.execution_at = 0

    def due(self, execution: object, now: int) -> bool:
        """Whether they must be listed again."""
        if execution != self.execution:
            self.execution, self.execution_at = execution, now
        new = self.listed_at - self.execution_at < _IDS_KEPT_MS
        return new or now - self.listed_at >= _IDS_KEPT_MS


class JobPositions:
    """The positions of one job in one Kafka cluster."""

    def __init__(self, flink: str, kafka: str, interval: int, topics: Callable[[], Iterable[str]] | None) -> None:
        """flink, kafka: the clusters' names. interval: how often `read` is called, ms. topics: those of the cluster."""
        self._flink, self._kafka, self._topics = flink, kafka, topics
        self._readings = Readings(interval)
        self._ids: dict[str, _Ids] = {}

    def read(
        self, endpoint: RestEndpoint, job: Job, vertices: Sequence[Vertex], now: Callable[[], int], deadline: float
    ) -> list[Position]:
        """Where its subtasks read, as far as that is known for sure. now: the clock, ms. Raises RequestError."""
        found: dict[Place, Offset] = {}
        subtasks: dict[str, dict[int, Subtask]] = {}
        for vertex in vertices:
            metrics, under = self._sources(endpoint, job, vertex, now(), deadline)
            if metrics:
                subtasks[vertex.id] = under
                for names in _queries(metrics):
                    path = f"{_path(job, vertex)}/metrics?get={','.join(names)}"
                    answer = endpoint.ask(path, tuple[Metric, ...], deadline)
                    found.update(offsets(vertex.id, answer))
        attempts = tuple((one, tuple((it.subtask, it.attempt) for it in of.values())) for one, of in subtasks.items())
        at = now()
        topics = self._topics_by_metric_name() if found else {}
        positions = []
        for place, offset, since in self._readings.take((endpoint.url, job.start_time, attempts), at, found):
            topic = topic_named(place.topic, topics.get(place.topic, ()))
            if topic is None:
                continue
            subtask = subtasks[place.vertex].get(place.subtask)
            vertex_name = next((one.name for one in vertices if one.id == place.vertex), "")
            positions.append(
                Position(
                    at=at,
                    since=since,
                    cluster=self._kafka,
                    flink=self._flink,
                    job=job.jid,
                    name=job.name,
                    topic=topic,
                    partition=place.partition,
                    offset=offset.current + 1,
                    committed=offset.committed,
                    task=operator_named(vertex_name, place.operator),
                    subtask=place.subtask,
                    host=subtask.where if subtask is not None else None,
                    attempt=subtask.attempt if subtask is not None else None,
                )
            )
        return positions

    def _sources(
        self, endpoint: RestEndpoint, job: Job, vertex: Vertex, now: int, deadline: float
    ) -> tuple[list[str], dict[int, Subtask]]:
        """The metric ids of a vertex that reads Kafka, and its subtasks; nothing of another."""
        ids = self._ids.setdefault(vertex.id, _Ids())
        started = (endpoint.url, job.start_time)
        subtasks: dict[int, Subtask] = {}
        if ids.names:
            subtasks = self._subtasks(endpoint, job, vertex, deadline)
        execution = (started, tuple((one.subtask, one.attempt) for one in subtasks.values()))
        if ids.due(execution, now):
            listed = endpoint.ask(f"{_path(job, vertex)}/metrics", tuple[Metric, ...], deadline)
            ids.names = sorted(one.id for one in listed if is_offset(one.id))
            ids.listed_at = now
        if ids.names and not subtasks:
            subtasks = self._subtasks(endpoint, job, vertex, deadline)
        return ids.names, subtasks

    @staticmethod
    def _subtasks(endpoint: RestEndpoint, job: Job, vertex: Vertex, deadline: float) -> dict[int, Subtask]:
        answer = endpoint.ask(_path(job, vertex), Subtasks, deadline)
        return {one.subtask: one for one in answer.subtasks}

    def _topics_by_metric_name(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for topic in self._topics() if self._topics is not None else ():
            names.setdefault(filtered(topic), []).append(topic)
        return names


def _path(job: Job, vertex: Vertex) -> str:
    return f"/jobs/{job.jid}/vertices/{vertex.id}"


def _queries(names: Sequence[str]) -> list[list[str]]:
    """The names in as few lists as fit into a query."""
    queries: list[list[str]] = []
    length = _LONGEST_QUERY
    for name in names:
        length += len(name) + 1
        if length > _LONGEST_QUERY:
            queries.append([])
            length = len(name)
        queries[-1].append(name)
    return queries
