"""Reads the state, checkpoints and positions of each listed job from its JobManager, until a deadline."""

import time
from collections.abc import Callable, Iterable, Sequence

from agent.clock import now_ms
from agent.config.sources import Flink
from agent.model.observations.base import Observation, Subject
from agent.model.observations.flink import Checkpoints, FlinkJob, Position
from agent.sources.flink.jobmanagers import LeaderListing
from agent.sources.flink.positions import JobPositions
from agent.sources.flink.rest import (
    CheckpointStatistics,
    CompletedCheckpoint,
    Job,
    JobDetails,
    LatestCheckpoints,
    NotFoundError,
    RestEndpoint,
    RestoredCheckpoint,
    is_tolerated,
)
from agent.sources.http import HttpStatusError, RequestError

_ENDED = ("FINISHED", "CANCELED", "FAILED")

_CACHED_MS = 4_000
"""JobManagers respond about a job from a cache up to 3 s old (web.refresh-interval): the listing may already show the
new execution while the checkpoint counts are still those of the last one (seen on 1.20.1 after a failover).
"""


class _JobState:
    """State of one job between polls.

    execution: JobManager and start time. was_skipped: the last poll's deadline had passed before this job's turn.
    subjects: those of all positions emitted.
    """

    def __init__(self) -> None:
        self.execution: tuple[str, int] | None = None
        self.execution_seen_at = 0
        self.restarting_at: int | None = None
        self.refused_since: int | None = None
        self.was_skipped = False
        self.positions: JobPositions | None = None
        self.positions_at = 0
        self.subjects: set[Subject] = set()


class Jobs:
    """The jobs of one Flink cluster. A poll leaves out what it cannot read about a job.

    failure: why the last poll could not read everything it should; None if it could.
    """

    def __init__(self, cluster: str, settings: Flink, topics: Callable[[], Iterable[str]] | None) -> None:
        """topics: those of the Kafka cluster that the jobs read; None if unknown."""
        self._cluster, self._settings, self._topics = cluster, settings, topics
        self._states: dict[str, _JobState] = {}
        self.failure: str | None = None
        self.refusals: dict[str, str] = {}
        """Why single jobs have been refused for long, by their names, while others are answered."""

    def poll(self, listing: LeaderListing, deadline: float) -> list[Observation]:
        """Return the jobs' states, then their checkpoints, then their positions.

        deadline: of time.monotonic(); what is read of a job begins before it, and has the whole timeout.
        """
        refused_before = self.refusals
        self.failure, self.refusals = None, {}
        now = now_ms()
        jobs: list[Observation] = []
        checkpoints: list[Observation] = []
        positions: list[Observation] = []
        watched = [job for job in listing.jobs if self._settings.jobs.match(job.name)]
        in_time, asked = True, set[str]()
        # Jobs that the last poll's deadline skipped come first.
        for job in sorted(watched, key=lambda job: not self._state_of(job).was_skipped):
            state = self._state_of(job)
            execution = (listing.endpoint.url, job.start_time)
            if state.execution != execution:
                state.execution, state.execution_seen_at, state.restarting_at = execution, now, None
            if job.state not in _ENDED:
                state.was_skipped = not in_time or time.monotonic() >= deadline
                if state.was_skipped and job.name in refused_before:
                    self.refusals[job.name] = refused_before[job.name]
                elif not state.was_skipped:
                    asked.add(job.name)
                    own_deadline = time.monotonic() + self._settings.timeout / 1000
                    job_checkpoints, job_positions, in_time = self._fetch(listing.endpoint, job, state, own_deadline)
                    checkpoints += job_checkpoints
                    positions += job_positions
            jobs.append(make_flink_job(self._cluster, job, state.restarting_at, now))
        if asked and asked <= self.refusals.keys():
            self.failure = self.refusals[min(asked)]
            self.refusals = {}
        return [*jobs, *checkpoints, *positions]

    def forget_unlisted(self, listing: LeaderListing) -> list[Subject]:
        """Forget jobs that are no longer listed and return the subjects of what was emitted about them."""
        listed = {job.jid for job in listing.jobs}
        subjects: list[Subject] = []
        for job in self._states.keys() - listed:
            state = self._states.pop(job)
            subjects += [("flink_job", self._cluster, job), ("checkpoints", self._cluster, job), *state.subjects]
        return subjects

    def _state_of(self, job: Job) -> _JobState:
        return self._states.setdefault(job.jid, _JobState())

    def _fetch(
        self, endpoint: RestEndpoint, job: Job, state: _JobState, deadline: float
    ) -> tuple[Sequence[Checkpoints], Sequence[Position], bool]:
        """Return checkpoints and positions of a job that has not ended, and whether the endpoint answered in time."""
        checkpoints: list[Checkpoints] = []
        positions: list[Position] = []
        try:
            details = endpoint.fetch(f"/jobs/{job.jid}", JobDetails, deadline)
            restarting_at = details.timestamps.get("RESTARTING", 0)
            state.restarting_at = restarting_at if restarting_at >= job.start_time else None
            if now_ms() - state.execution_seen_at >= _CACHED_MS:
                checkpoints = self._fetch_checkpoints(endpoint, job, deadline)
            kafka = self._settings.kafka
            if kafka is not None and self._are_positions_due(job, state):
                interval = self._settings.metrics_interval
                state.positions = state.positions or JobPositions(self._cluster, kafka, interval, self._topics)
                positions = state.positions.read(endpoint, job, details.vertices, now_ms, deadline)
                state.positions_at = now_ms()
                state.subjects |= {position.subject for position in positions}
        except HttpStatusError as error:
            now = now_ms()
            state.refused_since = state.refused_since or now
            if not is_tolerated(error, state.refused_since, now):
                self.refusals[job.name] = str(error)
            return checkpoints, positions, True
        except RequestError as error:
            self.failure = str(error)
            return checkpoints, positions, False
        state.refused_since = None
        return checkpoints, positions, True

    def _fetch_checkpoints(self, endpoint: RestEndpoint, job: Job, deadline: float) -> list[Checkpoints]:
        try:
            statistics = endpoint.fetch(f"/jobs/{job.jid}/checkpoints", CheckpointStatistics, deadline)
        except NotFoundError:  # the job makes none
            return []
        checkpoints = make_checkpoints(self._cluster, job.jid, statistics, now_ms())
        return [checkpoints] if checkpoints is not None else []

    def _are_positions_due(self, job: Job, state: _JobState) -> bool:
        # Polls are never quite on time: half an interval early is due too.
        interval = self._settings.metrics_interval - self._settings.poll_interval // 2
        return job.state == "RUNNING" and now_ms() - state.positions_at >= interval


def make_flink_job(cluster: str, job: Job, restarting_at: int | None, at: int) -> FlinkJob:
    """Return a listed job as an observation."""
    return FlinkJob(
        at=at,
        cluster=cluster,
        job=job.jid,
        name=job.name,
        state=job.state,
        started_at=job.start_time,
        ended_at=job.end_time if job.end_time >= 0 else None,
        restarting_at=restarting_at,
        tasks=job.tasks.total,
        tasks_running=job.tasks.running,
        tasks_finished=job.tasks.finished,
        tasks_initializing=job.tasks.initializing,
    )


def make_checkpoints(cluster: str, job: str, statistics: CheckpointStatistics, at: int) -> Checkpoints | None:
    """Return a job's checkpoints as an observation, or None if it makes none."""
    counts = statistics.counts
    if counts is None:
        return None
    latest = statistics.latest or LatestCheckpoints()
    completed, savepoint, restored = latest.completed, latest.savepoint, latest.restored
    return Checkpoints(
        at=at,
        cluster=cluster,
        job=job,
        completed=counts.completed,
        failed=counts.failed,
        restored=counts.restored,
        last=completed.id if completed else None,
        last_triggered_at=completed.trigger_timestamp if completed else None,
        last_path=_known_path(completed),
        savepoint=savepoint.id if savepoint else None,
        savepoint_triggered_at=savepoint.trigger_timestamp if savepoint else None,
        restored_id=restored.id if restored else None,
        restored_at=restored.restore_timestamp if restored else None,
        restored_savepoint=restored.is_savepoint if restored else False,
        restored_path=_known_path(restored),
    )


def _known_path(checkpoint: CompletedCheckpoint | RestoredCheckpoint | None) -> str | None:
    """Return where a checkpoint is stored; None for "<checkpoint-not-externally-addressable>"."""
    path = checkpoint.external_path if checkpoint else None
    return None if path is None or path.startswith("<") else path
