"""Polls the metrics of a Kafka Streams application's instances, for what its tasks have restored.

What the metrics are called, and what they mean: restore_metrics.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from urllib.parse import urlsplit

from agent.config.streams_section import Streams
from agent.model.observations import Availability, Observation, TaskRestore
from agent.sources.availability import SOURCE, AvailabilityTracker, now_ms
from agent.sources.background import run_in_thread
from agent.sources.base import ChangeDetector, Emit
from agent.sources.http import Endpoint, RequestError
from agent.sources.streams.restore_metrics import TaskMetrics, task_metrics

_ACCEPT = "text/plain;version=0.0.4"


class StreamsMetricsSource:
    """The instances of one [streams.NAME], asked at once: who does not answer keeps no other from being heard.

    What it cannot see is about the cluster NAME, so that an instance that is down hides nothing else; what tasks have
    restored is about the Kafka cluster.
    """

    name = "streams_metrics"

    def __init__(  # noqa: PLR0917 - where, what, to whom: as every source is made
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
        self._kafka, self._application = cluster, application
        self._timeout = settings.timeout / 1000
        self._emit = emit
        self._endpoints = {url: _endpoint(url) for url in dict.fromkeys(settings.metrics)}
        self._asked: dict[str, Future[list[TaskMetrics]]] = {}
        known = list(known)
        sights = [
            one for one in known if isinstance(one, Availability) and (one.source, one.cluster) == (self.name, name)
        ]
        mine = [one for one in known if isinstance(one, TaskRestore) and self._is_mine(one)]
        self._sights, self._polled = AvailabilityTracker(self.name, name, sights), ChangeDetector([*sights, *mine])
        self._held = {(one.endpoint, one.task): one for one in mine if one.thread is not None}
        self._closed = False

    def poll(self) -> None:
        """Ask all instances, and emit what changed in one batch."""
        deadline = time.monotonic() + self._timeout
        complaints: dict[str, str] = {}
        waiting: dict[Future[list[TaskMetrics]], str] = {}
        for url, (endpoint, path) in self._endpoints.items():
            before = self._asked.get(url)
            if before is not None and not before.done():  # a host's name that is still looked up
                complaints[url] = f"{url} still owes an answer to an earlier request"
                continue
            future = self._asked[url] = run_in_thread("streams-metrics", partial(_ask, endpoint, path, deadline))
            waiting[future] = url
        wait_for(waiting, max(deadline - time.monotonic(), 0))
        found: list[Observation] = []
        for future, url in waiting.items():
            try:
                found += self._restores(url, future.result(timeout=0))
            except RequestError as error:
                complaints[url] = str(error)
            except TimeoutError:
                complaints[url] = f"{url} does not answer within {self._timeout:.1f} s"
        reason = "; ".join(complaints[url] for url in self._endpoints if url in complaints)
        found += self._sights.update(now_ms(), {SOURCE: reason} if reason else {})
        changes = self._polled.changes(found)
        if changes and not self._closed:
            self._emit(changes)

    def close(self) -> None:
        """Requests under way end by themselves."""
        self._closed = True

    def _is_mine(self, one: TaskRestore) -> bool:
        return (one.cluster, one.application) == (self._kafka, self._application) and one.endpoint in self._endpoints

    def _restores(self, url: str, told: list[TaskMetrics]) -> list[TaskRestore]:
        """What the instance has now, and what it has no more."""
        at = now_ms()
        now = {
            (url, one.task): TaskRestore(
                at=at, cluster=self._kafka, application=self._application, endpoint=url, **one._asdict()
            )
            for one in _held_once(told, self._application)
        }
        there = {one.task for one in told}
        gone = [place for place in self._held if place[0] == url and place[1] not in there]
        for place in gone:
            del self._held[place]
        self._held |= now
        return [
            *now.values(),
            *(
                TaskRestore(at=at, cluster=self._kafka, application=self._application, endpoint=url, task=task)
                for _, task in gone
            ),
        ]


def _held_once(told: list[TaskMetrics], application: str) -> list[TaskMetrics]:
    """The tasks, each on one thread. Two threads have one where it is being handed over, of which the next poll tells,
    or where an instance runs two applications: client ids begin with the application's by default.
    """
    of_task: dict[str, list[TaskMetrics]] = {}
    for one in told:
        of_task.setdefault(one.task, []).append(one)
    chosen = []
    for held in of_task.values():
        own = held if len(held) == 1 else [one for one in held if one.thread.startswith(f"{application}-")]
        chosen += own if len(own) == 1 else []
    return chosen


def _endpoint(url: str) -> tuple[Endpoint, str]:
    """The address asked, and the path there."""
    parts = urlsplit(url)
    return Endpoint(f"{parts.scheme}://{parts.netloc}"), (parts.path or "/") + (
        f"?{parts.query}" if parts.query else ""
    )


def _ask(endpoint: Endpoint, path: str, deadline: float) -> list[TaskMetrics]:
    """The tasks as the instance tells them. Raises RequestError."""
    body = endpoint.get(path, _ACCEPT, deadline)
    try:
        return task_metrics(body.decode())
    except ValueError as error:
        msg = f"{endpoint.url} answers {path} with what are no metrics in Prometheus format: {error}"
        raise RequestError(msg) from error
