"""What a JobManager tells of each job of a listing: its state, checkpoints and positions, until a deadline."""

from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus

from agent.config.flink_section import Flink
from agent.model.observations import Checkpoints, Observation, Position, Subject
from agent.sources.availability import now_ms
from agent.sources.flink.jobmanagers import Listed
from agent.sources.flink.positions import JobPositions
from agent.sources.flink.responses import CheckpointCounts, Details, Job, checkpoints, flink_job
from agent.sources.flink.rest import RestEndpoint
from agent.sources.http import HttpStatusError, RequestError

_ENDED = ("FINISHED", "CANCELED", "FAILED")

_CACHED_MS = 4_000
"""JobManagers answer about a job from a copy up to 3 s old (web.refresh-interval): by its listing it may run anew while
the counts of its checkpoints are still those of the last execution (seen on 1.20.1 after a failover).
"""

_PATIENCE_MS = 30_000
"""How long a JobManager may refuse to tell of a job that it lists: it does around each failover."""


class _Told:
    """What is kept of a job between polls."""

    def __init__(self) -> None:
        self.execution: tuple[str, int] | None = None
        self.execution_at = 0
        self.restarting_at: int | None = None
        self.refused_at: int | None = None
        self.late = False
        self.positions: JobPositions | None = None
        self.positions_at = 0
        self.read: set[Subject] = set()


class Jobs:
    """The jobs of one Flink cluster. What cannot be had of a job is left out of a look."""

    def __init__(self, cluster: str, settings: Flink, topics: Callable[[], Iterable[str]] | None) -> None:
        """topics: those of the Kafka cluster that the jobs read; None where they are not known."""
        self._cluster, self._settings, self._topics = cluster, settings, topics
        self._told: dict[str, _Told] = {}
        self.complaint: str | None = None
        """Why the last look could not see all that it should; a sentence."""

    def look(self, listed: Listed, deadline: float) -> list[Observation]:
        """The jobs' states, then their checkpoints, then their positions."""
        self.complaint = None
        now = now_ms()
        states: list[Observation] = []
        counts: list[Observation] = []
        positions: list[Observation] = []
        wanted = [job for job in listed.jobs if self._settings.jobs.match(job.name)]
        in_time = True
        # Those that a deadline kept from being asked come first.
        for job in sorted(wanted, key=lambda one: not self._of(one).late):
            told = self._of(job)
            if told.execution != (listed.endpoint.url, job.start_time):
                told.execution, told.execution_at, told.restarting_at = (listed.endpoint.url, job.start_time), now, None
            if job.state not in _ENDED:
                told.late = not in_time
                if in_time:
                    counted, read, in_time = self._ask(listed.endpoint, job, told, deadline)
                    counts += counted
                    positions += read
            states.append(flink_job(self._cluster, job, told.restarting_at, now))
        return [*states, *counts, *positions]

    def gone(self, listed: Listed) -> list[Subject]:
        """Forget jobs that are listed no more; returns what was told of them."""
        there = {job.jid for job in listed.jobs}
        subjects: list[Subject] = []
        for job in self._told.keys() - there:
            subjects += [("flink_job", self._cluster, job), ("checkpoints", self._cluster, job), *self._told[job].read]
            del self._told[job]
        return subjects

    def _of(self, job: Job) -> _Told:
        return self._told.setdefault(job.jid, _Told())

    def _ask(
        self, endpoint: RestEndpoint, job: Job, told: _Told, deadline: float
    ) -> tuple[Sequence[Checkpoints], Sequence[Position], bool]:
        """What it says of a job that has not ended, and whether it said so in time."""
        counted: list[Checkpoints] = []
        read: list[Position] = []
        try:
            details = endpoint.ask(f"/jobs/{job.jid}", Details, deadline)
            restarting_at = details.timestamps.get("RESTARTING", 0)
            told.restarting_at = restarting_at if restarting_at >= job.start_time else None
            if now_ms() - told.execution_at >= _CACHED_MS:
                counted = self._checkpoints(endpoint, job, deadline)
            kafka = self._settings.kafka
            if kafka is not None and self._due(job, told):
                interval = self._settings.metrics_interval
                told.positions = told.positions or JobPositions(self._cluster, kafka, interval, self._topics)
                read = told.positions.read(endpoint, job, details.vertices, now_ms, deadline)
                told.positions_at = now_ms()
                told.read |= {one.subject for one in read}
        except HttpStatusError as error:
            told.refused_at = told.refused_at or now_ms()
            if error.status != HTTPStatus.NOT_FOUND and now_ms() - told.refused_at > _PATIENCE_MS:
                self.complaint = str(error)
            return counted, read, True
        except RequestError as error:
            self.complaint = str(error)
            return counted, read, False
        told.refused_at = None
        return counted, read, True

    def _checkpoints(self, endpoint: RestEndpoint, job: Job, deadline: float) -> list[Checkpoints]:
        try:
            answer = endpoint.ask(f"/jobs/{job.jid}/checkpoints", CheckpointCounts, deadline)
        except HttpStatusError as error:
            if error.status == HTTPStatus.NOT_FOUND:  # it makes none
                return []
            raise
        counted = checkpoints(self._cluster, job.jid, answer, now_ms())
        return [counted] if counted is not None else []

    def _due(self, job: Job, told: _Told) -> bool:
        """Whether it is time to read positions; polls are never quite on time."""
        interval = self._settings.metrics_interval - self._settings.poll_interval // 2
        return job.state == "RUNNING" and now_ms() - told.positions_at >= interval
