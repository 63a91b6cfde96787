"""orphan_job_graph: a job graph in ZooKeeper whose job nobody runs, or a job graph's file to which no znode points."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import FINALIZATION_MS, Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding
from agent.model.observations import (
    Availability,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Observation,
    clock,
)
from agent.rules.queries.flink import REST, STORAGE, ZOOKEEPER, Spell, graph_znode, lasting, named, spoken, told_at
from agent.rules.queries.partitions import earliest
from agent.rules.queries.subjects import job_graph_files_in, job_graphs_in


class OrphanJobGraph(Rule):
    """What high availability keeps of a job outlives it: the next leader recovers every job graph that it finds.

    Labels: `znode` (a job graph in ZooKeeper whose job the leader has not listed for `after`), `file` (a job graph's
    file in the storage directory to which no znode has pointed for `file_after`: it only takes room).
    Not: while another JobManager comes to lead and recovers its jobs, while REST or ZooKeeper is out of sight, a job
    that has been seen to end (job_resurrected tells it), files where ZooKeeper is not seen.
    Recovers when it is gone, or the job is listed.
    """

    title = "a job graph without its job in {cluster}"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(prevent="delete what Flink's high availability keeps of jobs that are no more."),
    }
    observes = (JobGraph, JobGraphFile, JobListing, JobManagerLeader, Availability)

    after: PositiveDuration = 30_000
    """How long a job graph's job may be missing from the leader's listing."""

    file_after: PositiveDuration = 120_000
    """How long a file may be without its znode."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """The graph, or the cluster for its files; what concerns all of a cluster's graphs names them all."""
        cluster = getattr(observation, "cluster", "")
        match observation:
            case JobGraph(job=job):
                graphs: Iterable[str] = (job,)
            case JobListing() | JobManagerLeader():
                graphs = job_graphs_in(facts, cluster)
            case Availability(source=source) if source in (REST, ZOOKEEPER, STORAGE):
                graphs = job_graphs_in(facts, cluster)
            case _:
                graphs = ()
        files = not isinstance(observation, JobListing) and job_graph_files_in(facts, cluster)
        return [*(Scope(cluster, job=graph) for graph in graphs), *([Scope(cluster)] if files else [])]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each time long enough."""
        if scope.job is None:
            yield from self._files(scope, facts)
            return
        cluster, job = scope.cluster, scope.job
        for spell in _without_job(cluster, job, facts):
            graph = facts.history(JobGraph, cluster, job).as_of(spell.begin.at)
            known_at = told_at(facts, cluster, spell, self.after, (REST, ZOOKEEPER))
            if graph is None or known_at is None:
                continue
            kept = f"znode {graph_znode(job, graph.file, graph.znode)}{f', file {graph.file}' if graph.file else ''}"
            yield self.make_finding(
                scope,
                spell.begin,
                known_at=known_at,
                labels=("znode",),
                detail=f"{spoken(facts, cluster, job, spell.begin.at)} has a job graph in ZooKeeper ({kept}) and the "
                f"leader has not listed it since {clock(spell.begin.at)} UTC: it runs at the next change of leader",
                subject=named(facts, cluster, job, spell.begin.at),
                current={"made_at": graph.made_at, "file": graph.file, "checkpoints": graph.checkpoints},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the znode or the file is gone, or has its job or its znode."""
        cluster, at = scope.cluster, finding.at
        if scope.job is None:
            file = str(finding.subject["file"])
            gone = (one.at for one in facts.history(JobGraphFile, cluster, file).after(at) if one.modified_at is None)
            found = [
                one.at
                for job in job_graphs_in(facts, cluster)
                for one in facts.history(JobGraph, cluster, job).after(at)
                if one.made_at is not None and one.file == file
            ]
            return recovered(finding, earliest(gone, min(found, default=None)))
        gone = (one.at for one in facts.history(JobGraph, cluster, scope.job).after(at) if one.made_at is None)
        listed = (one.at for one in facts.history(JobListing, cluster).after(at) if scope.job in one.jobs)
        return recovered(finding, earliest(gone, next(listed, None)))

    def _files(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for file in job_graph_files_in(facts, scope.cluster):
            last = facts.history(JobGraphFile, scope.cluster, file).last
            if last is None or (last.modified_at is None and last.at <= facts.now - FINALIZATION_MS):
                continue
            for spell in _without_znode(scope.cluster, file, facts):
                known_at = told_at(facts, scope.cluster, spell, self.file_after, (ZOOKEEPER, STORAGE))
                if known_at is None:
                    continue
                yield self.make_finding(
                    scope,
                    spell.begin,
                    known_at=known_at,
                    labels=("file",),
                    detail=f"no job graph in ZooKeeper points to the file {file} since {clock(spell.begin.at)} UTC",
                    subject={"file": file},
                )


def _without_job(cluster: str, job: str, facts: Facts) -> Iterator[Spell]:
    """The spells in which the graph stood, one leader led, and did not list its job."""
    graphs, jobs = facts.history(JobGraph, cluster, job), facts.history(FlinkJob, cluster, job)
    leaders, listings = facts.history(JobManagerLeader, cluster), facts.history(JobListing, cluster)

    def orphan(at: int) -> tuple[str | None, str] | None:
        graph, leader, listing, known = graphs.as_of(at), leaders.as_of(at), listings.as_of(at), jobs.as_of(at)
        if graph is None or graph.made_at is None or leader is None or leader.address is None:
            return None
        if listing is None or job in listing.jobs or (known is not None and known.ended):
            return None
        return (leader.leader_id, leader.address)

    return lasting([graphs, jobs, leaders, listings], orphan)


def _without_znode(cluster: str, file: str, facts: Facts) -> Iterator[Spell]:
    """The spells in which the file stood, ZooKeeper was seen, and no graph there pointed to it."""
    files, leaders = facts.history(JobGraphFile, cluster, file), facts.history(JobManagerLeader, cluster)
    graphs = [facts.history(JobGraph, cluster, job) for job in job_graphs_in(facts, cluster)]
    pointing = [graph for graph in graphs if any(one.file == file for one in graph)]

    def alone(at: int) -> bool | None:
        stands, leader = files.as_of(at), leaders.as_of(at)
        seen = leader is not None and leader.session is not None
        states = [graph.as_of(at) for graph in pointing]
        pointed = any(one is not None and one.made_at is not None and one.file == file for one in states)
        return (stands is not None and stands.modified_at is not None and seen and not pointed) or None

    return lasting([files, leaders, *pointing], alone)
