"""Polls a Flink cluster: who leads, the job graphs that a new leader would recover, jobs, checkpoints, positions.

Three places are looked at, each with a sight of its own: REST, ZooKeeper and the storage directory of its high
availability (flink_jobmanagers and flink_jobs, flink_zookeeper, flink_storage).
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from agent.config.flink_section import Flink
from agent.model.observations import (
    Availability,
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Observation,
    Position,
)
from agent.sources.availability import SOURCE, AvailabilityTracker, now_ms
from agent.sources.background import run_in_thread
from agent.sources.base import ChangeDetector, Emit
from agent.sources.flink.ha_storage import job_graph_files
from agent.sources.flink.ha_znodes import Leader, Tree
from agent.sources.flink.ha_zookeeper import AwayError, FlinkZooKeeper, UnseenError
from agent.sources.flink.jobmanagers import JobManagers, Listed
from agent.sources.flink.jobs import Jobs
from agent.sources.http import RequestError

if TYPE_CHECKING:
    from concurrent.futures import Future

_RECOVERED_MS, _SUBMITTED_MS = 60_000, 10_000
"""How long a leader may take to recover jobs from their graphs, and how long a new graph is there before its job."""

_DISK_S = 2.0
"""How long a poll waits for the storage directory, which may be on a network."""


_TOLD = (JobManagerLeader, JobGraph, JobGraphFile, JobListing, FlinkJob, Checkpoints)
_PARTS = ("flink", "flink_zookeeper", "flink_storage")
"""What has a sight of its own, as `source` of Unavailable and Available: REST, ZooKeeper, the storage directory."""


class FlinkSource:
    """One Flink cluster. A poll takes no longer than the timeout and 5 s, whatever does not answer."""

    name = "flink"

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

        topics: those of the Kafka cluster that its jobs read, to tell the topic a.b from Flink's name for it, a_b.
        """
        known = [one for one in known if _is_of(cluster, one)]
        self.cluster = cluster
        self.interval = settings.poll_interval
        self._settings = settings
        self._emit = emit
        self._polled = ChangeDetector(known)
        self._sights = {part: AvailabilityTracker(part, cluster, known) for part in _PARTS}
        self._leader_at = max((one.at for one in known if isinstance(one, JobManagerLeader)), default=0)
        self._leadership: tuple[Leader | None, int] = (None, 0)
        """The leader last seen, and since when we have seen it."""
        self._graphs = {one.job: 0 for one in known if isinstance(one, JobGraph) and one.made_at is not None}
        """The job graphs last seen, and since when this run has."""
        self._counted: dict[str, tuple[int | None, int | None]] = {}
        """How many checkpoints a job had at the last poll, and how many were told."""
        self._files = {one.file for one in known if isinstance(one, JobGraphFile) and one.modified_at is not None}
        self._lacked: frozenset[str] = frozenset()
        self._job_managers = JobManagers(settings.rest)
        self._jobs = Jobs(cluster, settings, topics)
        self._listing_files: Future[list[JobGraphFile]] | None = None
        self._zookeeper = (
            FlinkZooKeeper(settings.zookeeper, settings.zookeeper_path, cluster, settings.zookeeper_client.options())
            if settings.zookeeper is not None
            else None
        )
        self._closed = False

    def poll(self) -> None:
        """Look once and emit what changed, in one batch: sights, leader, graphs, files, jobs and what they do."""
        found: list[Observation] = []
        tree = self._look_at_zookeeper(found)
        self._look_at_storage(found)
        self._look_at_jobs(tree, found)
        changes = self._polled.changes(found)
        if changes and not self._closed:
            self._emit(changes)

    def close(self) -> None:
        """End our session with ZooKeeper; requests under way end by themselves."""
        self._closed = True
        if self._zookeeper is not None:
            self._zookeeper.close()

    def _sight(self, part: str, reason: str | None) -> list[Observation]:
        return self._sights[part].update(now_ms(), {} if reason is None else {SOURCE: reason})

    # --- ZooKeeper

    def _look_at_zookeeper(self, found: list[Observation]) -> Tree | None:
        """The tree, where there is one to see."""
        if self._zookeeper is None:
            return None
        try:
            tree = self._zookeeper.read()
        except AwayError:
            return None
        except UnseenError as error:
            found += self._sight("flink_zookeeper", str(error))
            return None
        found += self._sight("flink_zookeeper", None)
        found.append(self._led_by(tree.leader, now_ms()))
        found += self._graphs_now(tree.graphs, now_ms())
        return tree

    def _led_by(self, leader: Leader | None, now: int) -> JobManagerLeader:
        """The leader; `since` is when it took the lead, by ZooKeeper's clock, which its `at` is when it is new."""
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

    def _graphs_now(self, graphs: list[JobGraph], now: int) -> list[JobGraph]:
        there = {one.job for one in graphs}
        gone = sorted(self._graphs.keys() - there)
        new = [one.job for one in graphs if one.job not in self._graphs]
        self._graphs = {job: self._graphs.get(job) or now for job in there}
        self._counted = {one.job: self._steady(one) for one in graphs}
        told = [
            msgspec.structs.replace(
                one, since=one.made_at if one.job in new else None, checkpoints=self._counted[one.job][1]
            )
            for one in graphs
        ]
        return [*told, *(JobGraph(at=now, cluster=self.cluster, job=job, made_at=None) for job in gone)]

    def _steady(self, graph: JobGraph) -> tuple[int | None, int | None]:
        """How many checkpoints it has, and how many to tell of: between the making of one and the removal of the
        oldest there is one more for a moment, which is no news.
        """
        now = graph.checkpoints
        last, told = self._counted.get(graph.job, (now, now))
        return (now, now if now == last or not now or not told else told)

    # --- the storage directory

    def _look_at_storage(self, found: list[Observation]) -> None:
        directory = self._settings.storage_directory
        if directory is None:
            return
        now = now_ms()
        if self._listing_files is None:
            look = partial(job_graph_files, directory, self._settings.cluster_id, self.cluster, now)
            self._listing_files = run_in_thread("flink-storage", look)
        try:
            files = self._listing_files.result(_DISK_S)
        except TimeoutError:
            if self._listing_files.done():  # the disk's own
                self._listing_files = None
            found += self._sight("flink_storage", f"{directory} does not answer")
            return
        except OSError as error:
            self._listing_files = None
            found += self._sight("flink_storage", f"{directory} cannot be read: {error.strerror or error}")
            return
        self._listing_files = None
        found += self._sight("flink_storage", None)
        found += files
        there = {one.file for one in files}
        gone = sorted(self._files - there)
        found += [JobGraphFile(at=now, cluster=self.cluster, file=file, modified_at=None) for file in gone]
        self._files = there

    # --- REST

    def _look_at_jobs(self, tree: Tree | None, found: list[Observation]) -> None:
        deadline = time.monotonic() + self._settings.timeout / 1000
        if tree is not None and tree.leader is None:
            found += self._sight("flink", f"no JobManager of {self.cluster} leads, as ZooKeeper tells")
            return
        leader = tree.leader.address if tree is not None and tree.leader is not None else None
        try:
            listed = self._job_managers.listing(leader, deadline)
        except RequestError as error:
            found += self._sight("flink", str(error))
            return
        if self._zookeeper is None and listed.old:  # in 1.4 it is the leader who answers
            found.append(JobManagerLeader(at=now_ms(), cluster=self.cluster, address=listed.endpoint.url))
        if self._zookeeper is None or (tree is not None and self._is_whole(listed)):
            found.append(self._listing(listed))
            for subject in self._jobs.gone(listed):
                self._polled.forget(subject)
        told = self._jobs.look(listed, deadline)
        found += self._sight("flink", self._jobs.complaint)
        found += told

    def _is_whole(self, listed: Listed) -> bool:
        """Whether it lists the jobs of all graphs, or has had the time to: a new leader recovers them one by one."""
        lacked = frozenset(self._graphs.keys() - {job.jid for job in listed.jobs})
        again, self._lacked = lacked == self._lacked, lacked
        _, led_since = self._leadership
        made_since = max((self._graphs[job] for job in lacked), default=0)
        settled = now_ms() > max(led_since + _RECOVERED_MS, made_since + _SUBMITTED_MS)
        return not lacked or (again and settled)

    def _listing(self, listed: Listed) -> JobListing:
        jobs = tuple(sorted(job.jid for job in listed.jobs))
        return JobListing(at=now_ms(), cluster=self.cluster, jobs=jobs, address=listed.endpoint.url)


def _is_of(cluster: str, one: Observation) -> bool:
    """Whether a source of the Flink cluster so named tells of this; a Kafka cluster may have the same name."""
    if isinstance(one, Position):
        return one.flink == cluster
    if isinstance(one, Availability):
        return one.cluster == cluster and one.source in _PARTS
    return isinstance(one, _TOLD) and one.cluster == cluster
