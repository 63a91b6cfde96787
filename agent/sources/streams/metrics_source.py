"""Polls restore metrics of a Kafka Streams application's instances, in Prometheus format.

The metrics are those of KIP-869 (TaskMetrics in 3.5 to 4.1): restore-total, recorded only at the level DEBUG, and
restore-remaining-records-total, both of the type stream-task-metrics with the tags thread-id and task-id. They belong
to the stream thread, with or without the state updater. The JMX exporter names them
kafka_streams_stream_task_metrics_restore_total (1.x omits the suffix), Micrometer kafka_stream_task_restore_total.
"""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from agent.clock import now_ms
from agent.config.http_client import HttpClient
from agent.config.sources import Streams
from agent.model.observations.base import Availability, Observation
from agent.model.observations.streams import TaskRestore
from agent.sources.availability import SOURCE, AvailabilityTracker
from agent.sources.background import run_in_thread
from agent.sources.base import ChangeDetector, Emit
from agent.sources.http import Endpoint, RequestError

_ACCEPT = "text/plain;version=0.0.4"

_TASK_LINE = re.compile(r"\w*_(?:restore|restore_remaining_records|process)(?:_total)?\{[^}]*\btask_id=", re.ASCII)
_TASK_METRIC = re.compile(r"_(restore|restore_remaining_records|process)(?:_total)?$", re.ASCII)
_STORE_LINE = re.compile(r"\w*_(?:restore|put|flush)_rate\{[^}]*_state_id=", re.ASCII)
_STORE_LABEL, _NODE_LABEL = "_state_id", "processor_node_id"
_QUOTED_CHARACTERS = 80
_MOST = 1 << 63
"""Counts from here on are none: Kafka's are Java longs."""


class TaskMetrics(NamedTuple):
    """A task on a thread, with the fields of TaskRestore."""

    task: str
    thread: str
    stores: tuple[str, ...]
    restored_total: int | None
    remaining: int | None


class StreamsMetricsSource:
    """The source of one [streams.NAME], which polls all its instances at once.

    Its availability is about the cluster NAME, so that an instance that is down hides nothing else; what tasks have
    restored is about the Kafka cluster.
    """

    name = "streams_metrics"
    problem = None

    def __init__(  # noqa: PLR0917 - every source is made in this way
        self,
        name: str,
        cluster: str,
        application: str,
        settings: Streams,
        emit: Emit,
        known: Iterable[Observation] = (),
    ) -> None:
        """name: in [streams.NAME]. cluster: the Kafka cluster. application: its application.id.

        known: the last observation of each subject before this run.
        """
        self.cluster = name
        self.interval = settings.metrics_interval
        self.read_at: int | None = None
        self._kafka, self._application = cluster, application
        self._timeout = settings.timeout / 1000
        self._emit = emit
        self._endpoints = {url: _make_endpoint(url, settings.http_client) for url in dict.fromkeys(settings.metrics)}
        self._requests: dict[str, Future[list[TaskMetrics]]] = {}
        known = list(known)
        availability = [
            observation
            for observation in known
            if isinstance(observation, Availability) and (observation.source, observation.cluster) == (self.name, name)
        ]
        restores = [restore for restore in known if isinstance(restore, TaskRestore) and self._is_own(restore)]
        self._availability = AvailabilityTracker(self.name, name, availability)
        self._changes = ChangeDetector([*availability, *restores])
        self._tasks = {(restore.endpoint, restore.task) for restore in restores if restore.thread is not None}
        self._closed = False

    def poll(self) -> None:
        """Fetch the metrics of all instances and emit what changed in one batch."""
        deadline = time.monotonic() + self._timeout
        failures: dict[str, str] = {}
        pending: dict[Future[list[TaskMetrics]], str] = {}
        for url, (endpoint, path) in self._endpoints.items():
            earlier = self._requests.get(url)
            if earlier is not None and not earlier.done():  # a host name that is still being resolved
                failures[url] = f"{url} has not answered an earlier request yet"
                continue
            request = partial(_fetch_task_metrics, endpoint, path, deadline)
            future = self._requests[url] = run_in_thread("streams-metrics", request)
            pending[future] = url
        wait_for(pending, max(deadline - time.monotonic(), 0))
        observations: list[Observation] = []
        for future, url in pending.items():
            try:
                observations += self._observe_tasks(url, future.result(timeout=0))
            except RequestError as error:
                failures[url] = str(error)
            except TimeoutError:
                failures[url] = f"{url} does not answer within {self._timeout:.1f} s"
        if len(failures) < len(self._endpoints):
            self.read_at = now_ms()
        reason = "; ".join(failures[url] for url in self._endpoints if url in failures)
        observations += self._availability.update(now_ms(), {SOURCE: reason} if reason else {})
        changes = self._changes.changes(observations)
        if changes and not self._closed:
            self._emit(changes)

    def close(self) -> None:
        """Stop emitting; pending requests end by themselves."""
        self._closed = True

    def _is_own(self, restore: TaskRestore) -> bool:
        is_of_application = (restore.cluster, restore.application) == (self._kafka, self._application)
        return is_of_application and restore.endpoint in self._endpoints

    def _observe_tasks(self, url: str, metrics: Sequence[TaskMetrics]) -> list[TaskRestore]:
        """Return the tasks that the instance has, and those that it no longer has, without a thread."""
        restore = partial(TaskRestore, at=now_ms(), cluster=self._kafka, application=self._application, endpoint=url)
        present = {task.task for task in metrics}
        removed = sorted(task for endpoint, task in self._tasks if endpoint == url and task not in present)
        self._tasks -= {(url, task) for task in removed}
        tasks = _select_tasks(metrics, self._application)
        self._tasks |= {(url, task.task) for task in tasks}
        return [*(restore(**task._asdict()) for task in tasks), *(restore(task=task) for task in removed)]


def parse_task_metrics(text: str) -> list[TaskMetrics]:
    """Return the tasks ordered by task and thread. Raises ValueError with a sentence if text has another format."""
    values: dict[tuple[str, str], dict[str, int | None]] = defaultdict(dict)
    stores: dict[tuple[str, str], set[str]] = defaultdict(set)
    for sample in _parse_samples(text):
        task = (sample.labels.get("task_id", ""), sample.labels.get("thread_id", ""))
        store_names = [value for label, value in sample.labels.items() if label.endswith(_STORE_LABEL)]
        if store_names:
            stores[task].update(store_names)
        elif _NODE_LABEL not in sample.labels and (metric := _TASK_METRIC.search(sample.name)):
            values[task][metric[1]] = int(sample.value) if abs(sample.value) < _MOST else None
    return [
        TaskMetrics(
            *task, tuple(sorted(stores[task])), _restored_total(metrics), metrics.get("restore_remaining_records")
        )
        for task, metrics in sorted(values.items())
        if "restore" in metrics
    ]


def _parse_samples(text: str) -> Iterable[Sample]:
    """Parse only the lines that matter, of thousands, and the first line to check the format."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    relevant = [line for line in lines if _TASK_LINE.match(line) or _STORE_LINE.match(line)]
    if not lines:
        msg = "there are none"
        raise ValueError(msg)
    parsed = lines[0]
    try:
        list(text_string_to_metric_families(parsed))
        parsed = "\n".join(relevant)
        return [sample for family in text_string_to_metric_families(parsed) for sample in family.samples]
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:  # the parser expects a name, a value, ...
        msg = f"cannot read {parsed[:_QUOTED_CHARACTERS]!r}"
        raise ValueError(msg) from error


def _restored_total(metrics: dict[str, int | None]) -> int | None:
    """Return the number of records restored, or None if it is not recorded.

    At the level INFO the metric exists and stays 0. A 0 counts only if the task also records what it processes, which
    it does at DEBUG.
    """
    return metrics["restore"] if metrics["restore"] or metrics.get("process") else None


def _select_tasks(metrics: Iterable[TaskMetrics], application: str) -> list[TaskMetrics]:
    """Return the tasks that are on one thread only.

    A task is on two threads while it is handed over, which the next poll resolves, or if an instance runs two
    applications: then the one whose client id begins with the application's, as it does by default, is returned.
    """
    by_task: dict[str, list[TaskMetrics]] = {}
    for task in metrics:
        by_task.setdefault(task.task, []).append(task)
    selected = []
    for tasks in by_task.values():
        own = tasks if len(tasks) == 1 else [task for task in tasks if task.thread.startswith(f"{application}-")]
        selected += own if len(own) == 1 else []
    return selected


def _make_endpoint(url: str, client: HttpClient) -> tuple[Endpoint, str]:
    """Return the endpoint, and the path there."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return Endpoint(f"{parts.scheme}://{parts.netloc}", client), (parts.path or "/") + query


def _fetch_task_metrics(endpoint: Endpoint, path: str, deadline: float) -> list[TaskMetrics]:
    """Return the tasks of an instance. Raises RequestError."""
    body = endpoint.get(path, _ACCEPT, deadline)
    try:
        return parse_task_metrics(body.decode())
    except ValueError as error:
        msg = f"{endpoint.url}{path} does not return metrics in Prometheus format: {error}"
        raise RequestError(msg) from error
