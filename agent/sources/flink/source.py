"""Polls a Flink cluster for its leader, job graphs, jobs, checkpoints and positions.

It reads REST, ZooKeeper and the storage directory of Flink's high availability; each is available or not by itself.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from agent.clock import now_ms
from agent.config.sources import Flink
from agent.model.observations.base import Availability, Observation
from agent.model.observations.flink import (
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Position,
)
from agent.sources.availability import SOURCE, AvailabilityTracker, Unit
from agent.sources.background import run_in_thread
from agent.sources.base import ChangeDetector, Emit
from agent.sources.flink.high_availability import (
    DisconnectedError,
    HaMetadata,
    HaUnavailableError,
    HaZooKeeper,
    Leader,
    list_job_graph_files,
)
from agent.sources.flink.jobmanagers import JobManagers, LeaderListing
from agent.sources.flink.jobs import Jobs
from agent.sources.http import RequestError

if TYPE_CHECKING:
    from concurrent.futures import Future

_RECOVERY_MS, _SUBMISSION_MS = 60_000, 10_000
"""How long a leader may take to recover jobs from their graphs, and for how long a new graph may precede its job."""

_STORAGE_TIMEOUT_S = 2.0
"""How long a poll waits for the storage directory, which may be on a network."""

_EMITTED = (JobManagerLeader, JobGraph, JobGraphFile, JobListing, FlinkJob, Checkpoints)
_REST, _ZOOKEEPER, _STORAGE = "flink", "flink_zookeeper", "flink_storage"
"""`source` of Unavailable and Available for REST, ZooKeeper and the storage directory."""


def source_of_part(part: str) -> str:
    """Return the name of the source that reports a part of what it reads, which is its own or one of the above."""
    return FlinkSource.name if part in (_REST, _ZOOKEEPER, _STORAGE) else part


class FlinkSource:
    """The source of one Flink cluster. A poll takes at most twice the timeout and 5 s, whatever does not answer."""

    name = "flink"
    problem = None

    def __init__(
        self,
        cluster: str,
        settings: Flink,
        emit: Emit,
        known: Iterable[Observation] = (),
        *,
        topics: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """cluster: its name in [flink.NAME]. known: the last observation of each subject before this run.

        topics: those of the Kafka cluster that its jobs read: Flink calls the topic a.b a_b.
        """
        known = [observation for observation in known if _is_about(cluster, observation)]
        self.cluster = cluster
        self.interval = settings.poll_interval
        self.read_at: int | None = None
        self._settings = settings
        self._emit = emit
        self._changes = ChangeDetector(known)
        self._availability = {part: AvailabilityTracker(part, cluster, known) for part in (_REST, _ZOOKEEPER, _STORAGE)}
        leaders = [leader for leader in known if isinstance(leader, JobManagerLeader)]
        self._leader_at = max((leader.at for leader in leaders), default=0)
        self._leadership: tuple[Leader | None, int] = (None, 0)
        """The last leader, and since when this run has seen it."""
        self._graphs = {graph.job: 0 for graph in known if isinstance(graph, JobGraph) and graph.made_at is not None}
        """The last job graphs, and since when this run has seen them."""
        self._checkpoint_counts: dict[str, tuple[int | None, int | None]] = {}
        """The number of checkpoints of each graph: at the last poll, and as reported."""
        self._files = {file.file for file in known if isinstance(file, JobGraphFile) and file.modified_at is not None}
        self._unlisted: frozenset[str] = frozenset()
        self._job_managers = JobManagers(settings.rest, settings.http_client)
        self._jobs = Jobs(cluster, settings, topics)
        self._file_listing: Future[list[JobGraphFile]] | None = None
        self._zookeeper = (
            HaZooKeeper(settings.zookeeper, settings.zookeeper_path, cluster, settings.zookeeper_client.options)
            if settings.zookeeper is not None
            else None
        )
        self._closed = False

    def poll(self) -> None:
        """Read everything once and emit what changed in one batch."""
        metadata, observations = self._poll_zookeeper()
        observations += self._poll_storage()
        observations += self._poll_rest(metadata)
        if not all(isinstance(fact, Availability) for fact in observations):
            self.read_at = now_ms()
        changes = self._changes.changes(observations)
        for observation in observations:
            if observation.is_gone:
                self._changes.end(observation.subject)
        if changes and not self._closed:
            self._emit(changes)

    def close(self) -> None:
        """End the ZooKeeper session; pending requests end by themselves."""
        self._closed = True
        if self._zookeeper is not None:
            self._zookeeper.close()

    def _report_availability(self, part: str, reason: str | None) -> list[Observation]:
        return self._availability[part].update(now_ms(), {} if reason is None else {SOURCE: reason})

    # --- ZooKeeper

    def _poll_zookeeper(self) -> tuple[HaMetadata | None, list[Observation]]:
        """Return the metadata if it can be read, and what is observed of it."""
        if self._zookeeper is None:
            return None, self._report_availability(_ZOOKEEPER, None)  # it may have been configured before
        try:
            metadata = self._zookeeper.read()
        except DisconnectedError:
            return None, []
        except HaUnavailableError as error:
            return None, self._report_availability(_ZOOKEEPER, str(error))
        observations = self._report_availability(_ZOOKEEPER, None)
        observations.append(self._observe_leader(metadata.leader, now_ms()))
        return metadata, observations + self._observe_graphs(metadata.graphs, now_ms())

    def _observe_leader(self, leader: Leader | None, now: int) -> JobManagerLeader:
        """Return the leader. `since` is when it became leader by ZooKeeper's clock; so is `at` if the leader is new."""
        last, _ = self._leadership
        if leader is None:
            self._leadership = (None, now)
            self._leader_at = max(self._leader_at, now)
            return JobManagerLeader(at=self._leader_at, cluster=self.cluster, address=None)
        if leader != last:
            self._leadership = (leader, now)
        self._leader_at = max(self._leader_at, now if leader == last else leader.since)
        return JobManagerLeader(
            at=self._leader_at,
            seen_at=now,
            since=leader.since,
            cluster=self.cluster,
            address=leader.address,
            leader_id=leader.id,
            session=leader.session,
        )

    def _observe_graphs(self, graphs: list[JobGraph], now: int) -> list[JobGraph]:
        """Return the job graphs, and those that were removed with made_at None."""
        present = {graph.job for graph in graphs}
        removed = sorted(self._graphs.keys() - present)
        new = present - self._graphs.keys()
        self._graphs = {job: self._graphs.get(job) or now for job in present}
        self._checkpoint_counts = {graph.job: self._debounce_checkpoints(graph) for graph in graphs}
        return [
            *(
                msgspec.structs.replace(
                    graph,
                    since=graph.made_at if graph.job in new else None,
                    checkpoints=self._checkpoint_counts[graph.job][1],
                )
                for graph in graphs
            ),
            *(JobGraph(at=now, cluster=self.cluster, job=job, made_at=None) for job in removed),
        ]

    def _debounce_checkpoints(self, graph: JobGraph) -> tuple[int | None, int | None]:
        """Return the number of checkpoints and the number to report.

        Between the creation of a checkpoint and the removal of the oldest one there is one more, which is not reported
        as a change.
        """
        current = graph.checkpoints
        last, reported = self._checkpoint_counts.get(graph.job, (current, current))
        return current, current if current == last or not current or not reported else reported

    # --- the storage directory

    def _poll_storage(self) -> list[Observation]:
        directory = self._settings.storage_directory
        if directory is None:
            return self._report_availability(_STORAGE, None)
        now = now_ms()
        if self._file_listing is None:
            listing = partial(list_job_graph_files, directory, self._settings.cluster_id, self.cluster, now)
            self._file_listing = run_in_thread("flink-storage", listing)
        try:
            files = self._file_listing.result(_STORAGE_TIMEOUT_S)
        except TimeoutError:
            if self._file_listing.done():  # raised by the file system
                self._file_listing = None
            return self._report_availability(_STORAGE, f"the storage directory {directory} does not answer")
        except OSError as error:
            self._file_listing = None
            reason = f"cannot read the storage directory {directory}: {error.strerror or error}"
            return self._report_availability(_STORAGE, reason)
        self._file_listing = None
        present = {file.file for file in files}
        removed = sorted(self._files - present)
        self._files = present
        return [
            *self._report_availability(_STORAGE, None),
            *files,
            *(JobGraphFile(at=now, cluster=self.cluster, file=file, modified_at=None) for file in removed),
        ]

    # --- REST

    def _poll_rest(self, metadata: HaMetadata | None) -> list[Observation]:
        deadline = time.monotonic() + self._settings.timeout / 1000
        if metadata is not None and metadata.leader is None:
            reason = f"no JobManager of {self.cluster} is the leader, according to ZooKeeper"
            return self._report_availability(_REST, reason)
        leader = metadata.leader.address if metadata is not None and metadata.leader is not None else None
        try:
            listing = self._job_managers.fetch_listing(leader, deadline)
        except RequestError as error:
            return self._report_availability(_REST, str(error))
        observations: list[Observation] = []
        if self._zookeeper is None and listing.is_1_4:  # in 1.4 only the leader responds
            observations.append(JobManagerLeader(at=now_ms(), cluster=self.cluster, address=listing.endpoint.url))
        if self._zookeeper is None or (metadata is not None and self._is_complete(listing)):
            observations.append(self._observe_listing(listing))
            for subject in self._jobs.forget_unlisted(listing):
                self._changes.forget(subject)
        jobs = self._jobs.poll(listing, deadline)
        unavailable = {Unit(group=name): reason for name, reason in self._jobs.refusals.items()}
        if self._jobs.failure is not None:
            unavailable[SOURCE] = self._jobs.failure
        return [*observations, *self._availability[_REST].update(now_ms(), unavailable), *jobs]

    def _is_complete(self, listing: LeaderListing) -> bool:
        """Return whether all graphs' jobs are listed or had the time to be: a new leader recovers them one by one."""
        unlisted = frozenset(self._graphs.keys() - {job.jid for job in listing.jobs})
        is_unchanged, self._unlisted = unlisted == self._unlisted, unlisted
        _, leader_since = self._leadership
        graph_since = max((self._graphs[job] for job in unlisted), default=0)
        is_overdue = now_ms() > max(leader_since + _RECOVERY_MS, graph_since + _SUBMISSION_MS)
        return not unlisted or (is_unchanged and is_overdue)

    def _observe_listing(self, listing: LeaderListing) -> JobListing:
        jobs = tuple(sorted(job.jid for job in listing.jobs))
        return JobListing(at=now_ms(), cluster=self.cluster, jobs=jobs, address=listing.endpoint.url)


def _is_about(cluster: str, observation: Observation) -> bool:
    """Return whether the source of this Flink cluster emitted it; a Kafka cluster may have the same name."""
    if isinstance(observation, Position):
        return observation.flink == cluster
    if isinstance(observation, Availability):
        return observation.cluster == cluster and observation.source in (_REST, _ZOOKEEPER, _STORAGE)
    return isinstance(observation, _EMITTED) and observation.cluster == cluster
