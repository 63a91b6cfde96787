"""orphan_job_graph: a job graph in ZooKeeper whose job does not run, or a job graph's file without a znode."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.condition_rule import Interval, intervals_over
from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding
from agent.model.observations.base import Availability, Observation
from agent.model.observations.flink import FlinkJob, JobGraph, JobGraphFile, JobListing, JobManagerLeader
from agent.model.text import place
from agent.model.times import clock
from agent.rules.queries.flink import (
    REST,
    STORAGE,
    ZOOKEEPER,
    confirmed_at,
    describe_job,
    graph_znode,
    job_subject,
)
from agent.rules.queries.partitions import earliest
from agent.rules.queries.subjects import job_graph_files_in, job_graphs_in


class OrphanJobGraph(Rule):
    """High availability metadata of a job outlives it: the next leader recovers every job graph that it finds.

    Labels: `znode` (a job graph in ZooKeeper whose job the leader has not listed for `after`), `file` (a job graph's
    file in the storage directory to which no znode has pointed for `file_after`: it only takes space).
    Not: while another JobManager becomes the leader and recovers its jobs, while REST or ZooKeeper is unavailable, a
    job that has been seen to end (job_resurrected reports it), files while ZooKeeper is not observed.
    Recovers when it is removed, or the job is listed.
    """

    title = "a job graph without its job in {cluster}"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(prevent="Delete the high availability metadata of jobs that no longer exist."),
    }
    observes = (JobGraph, JobGraphFile, JobListing, JobManagerLeader, Availability)

    after: PositiveDuration = 30_000
    """How long a job graph's job may be missing from the leader's listing."""

    file_after: PositiveDuration = 120_000
    """How long a file may be without its znode."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the job of a graph, and the cluster for its files; leaders and availability concern all graphs."""
        cluster = getattr(observation, "cluster", "")
        match observation:
            case JobGraph(job=job):
                jobs: Iterable[str] = (job,)
            case JobListing() | JobManagerLeader():
                jobs = job_graphs_in(facts, cluster)
            case Availability(source=source) if source in (REST, ZOOKEEPER, STORAGE):
                jobs = job_graphs_in(facts, cluster)
            case _:
                jobs = ()
        has_files = not isinstance(observation, JobListing) and job_graph_files_in(facts, cluster)
        return [*(Scope(cluster, job=job) for job in jobs), *([Scope(cluster)] if has_files else [])]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        if scope.job is None:
            yield from self._files(scope, facts)
            return
        cluster, job = scope.cluster, scope.job
        for interval in _without_job(cluster, job, facts):
            begin = interval.begin
            graph = facts.history(JobGraph, cluster, job).as_of(begin.at)
            known_at = confirmed_at(facts, cluster, interval, self.after, (REST, ZOOKEEPER))
            if graph is None or known_at is None:
                continue
            file = f", file {graph.file}" if graph.file else ""
            location = f"znode {graph_znode(job, graph.file, graph.znode)}{file}"
            yield self.make_finding(
                scope,
                begin,
                known_at=known_at,
                labels=("znode",),
                detail=f"{describe_job(facts, cluster, job, begin.at)} will run at the next leader change: its job "
                f"graph remains ({location}), not listed by the leader since {clock(begin.at)} UTC",
                subject=job_subject(facts, cluster, job, begin.at),
                current={"made_at": graph.made_at, "file": graph.file, "checkpoints": graph.checkpoints},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        cluster, at = scope.cluster, finding.at
        if scope.job is None:
            file = str(finding.subject["file"])
            history = facts.history(JobGraphFile, cluster, file)
            removed = (change.at for change in history.after(at) if change.modified_at is None)
            pointed_to = [
                graph.at
                for graphs in facts.histories(JobGraph, cluster=cluster)
                for graph in graphs.after(at)
                if graph.made_at is not None and graph.file == file
            ]
            return recovered(finding, earliest(next(removed, None), min(pointed_to, default=None)))
        removed = (graph.at for graph in facts.history(JobGraph, cluster, scope.job).after(at) if graph.made_at is None)
        listed = (listing.at for listing in facts.history(JobListing, cluster).after(at) if scope.job in listing.jobs)
        return recovered(finding, earliest(next(removed, None), next(listed, None)))

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        if "file" in finding.subject:
            return f"file {finding.subject['file']}: no znode points to it"
        return f"{place(finding.subject)}: job graph remains, job not listed"

    def _files(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for file in job_graph_files_in(facts, scope.cluster):
            for interval in _without_znode(scope.cluster, file, facts):
                known_at = confirmed_at(facts, scope.cluster, interval, self.file_after, (ZOOKEEPER, STORAGE))
                if known_at is None:
                    continue
                yield self.make_finding(
                    scope,
                    interval.begin,
                    known_at=known_at,
                    labels=("file",),
                    detail=f"no job graph in ZooKeeper points to file {file} since {clock(interval.begin.at)} UTC",
                    subject={"file": file},
                )


def _without_job(cluster: str, job: str, facts: Facts) -> Iterator[Interval]:
    """Yield the intervals in which the graph existed and one leader did not list its job."""
    graphs, jobs = facts.history(JobGraph, cluster, job), facts.history(FlinkJob, cluster, job)
    leaders, listings = facts.history(JobManagerLeader, cluster), facts.history(JobListing, cluster)

    def orphaned_under(at: int) -> tuple[str | None, str] | None:
        graph, leader, listing, state = graphs.as_of(at), leaders.as_of(at), listings.as_of(at), jobs.as_of(at)
        if graph is None or graph.made_at is None or leader is None or leader.address is None:
            return None
        if listing is None or job in listing.jobs or (state is not None and state.ended):
            return None
        return (leader.leader_id, leader.address)

    return intervals_over([graphs, jobs, leaders, listings], orphaned_under)


def _without_znode(cluster: str, file: str, facts: Facts) -> Iterator[Interval]:
    """Yield the intervals in which the file existed, ZooKeeper was observed, and no graph there pointed to the file."""
    files, leaders = facts.history(JobGraphFile, cluster, file), facts.history(JobManagerLeader, cluster)
    graphs = facts.histories(JobGraph, cluster=cluster)
    pointing = [history for history in graphs if any(graph.file == file for graph in history)]

    def is_orphan(at: int) -> bool | None:
        entry, leader = files.as_of(at), leaders.as_of(at)
        if entry is None or entry.modified_at is None or leader is None or leader.session is None:
            return None
        states = [history.as_of(at) for history in pointing]
        is_pointed_to = any(graph is not None and graph.made_at is not None and graph.file == file for graph in states)
        return not is_pointed_to or None

    return intervals_over([files, leaders, *pointing], is_orphan)
