"""job_resurrected: a Flink job that had ended runs again after a failover, or will at the next one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.condition_rule import intervals_over
from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding, Severity, reader
from agent.model.observations.base import Availability, Observation
from agent.model.observations.flink import FlinkJob, JobGraph, JobListing, JobManagerLeader
from agent.model.times import clock
from agent.rules.queries.flink import (
    ZOOKEEPER,
    Resurrection,
    confirmed_at,
    count_restores,
    describe_job,
    ended_at,
    find_resurrections,
    graph_znode,
    is_active,
    job_subject,
    ran_alongside,
    short_address,
)
from agent.rules.queries.partitions import earliest
from agent.rules.queries.subjects import job_graphs_in, jobs_in

_LOCK_SLACK_MS = 10_000
_PREVENTION = "Upgrade to Flink 1.5.4, 1.6.1 or later (FLINK-10011)."
_PHRASES = {
    "running": "runs again after it had ended",
    "ended_with_graph": "has ended, its job graph remains",
    "foreign_lock": "job graph locked by another session than the leader's",
}


class JobResurrected(Rule):
    """A job's graph outlives the job, and the next leading JobManager recovers it (FLINK-10011 and similar bugs).

    The dead job then runs beside its successor, from no checkpoint.

    Labels: `foreign_lock` (for `session_timeout` and 10 s more, a lock of the graph has belonged to another session
    than the leader's, so the leader cannot remove it), `ended_with_graph` (a job is FINISHED, CANCELED or FAILED and
    `linger` later its graph is still there), `running` (critical: a job runs whose graph is older than the leadership
    and which had ended, or had been missing from the leader's listing for 30 s).
    Not: a dead leader's lock until its session has expired, a job submitted after a failover, one that ran before it, a
    job that is SUSPENDED, what happened before the agent started, what may have changed while ZooKeeper was
    unavailable. Without ZooKeeper nothing is reported.
    Recovers when the lock or the graph is removed, or the job no longer runs.
    """

    title = "job {reader} will run again at the next JobManager failover (Flink cluster {cluster})"
    titles: ClassVar[Mapping[str, str]] = {
        "running": "job {reader} runs again after it had ended (Flink cluster {cluster})",
    }
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "running": Advice(
            now="Cancel {job} and delete {graph}, before the next JobManager failover. Then check that {others} has "
            "its slots back, and what {reader} has written since {start}.",
            prevent=_PREVENTION,
        ),
        "ended_with_graph": Advice(
            now="Delete the job graph of {reader} before the next JobManager failover: {graph}.",
            prevent=_PREVENTION,
            only_while_open=True,
        ),
        "foreign_lock": Advice(
            now="Restart the standby JobManager that holds the lock on the job graph of {reader} ({job}): the lock "
            "ends with its session. Do not cancel {reader} before that.",
            prevent=_PREVENTION,
            only_while_open=True,
        ),
    }
    observes = (FlinkJob, JobGraph, JobManagerLeader, JobListing, Availability)

    session_timeout: PositiveDuration = 60_000
    """high-availability.zookeeper.client.session-timeout of the JobManagers: how long a dead one's locks remain."""

    linger: PositiveDuration = 30_000
    """How long the graph of a job that has ended may remain."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the job if it has had a graph; leaders, listings and availability concern all such jobs."""
        match observation:
            case FlinkJob(cluster=cluster, job=job) | JobGraph(cluster=cluster, job=job):
                jobs: Iterable[str] = (job,) if facts.history(JobGraph, cluster, job).last is not None else ()
            case JobManagerLeader(cluster=cluster) | JobListing(cluster=cluster):
                jobs = job_graphs_in(facts, cluster)
            case Availability(cluster=cluster, source=source) if source == ZOOKEEPER:
                jobs = job_graphs_in(facts, cluster)
            case _:
                return ()
        return [Scope(cluster, job=job) for job in jobs]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield the resurrections last: they replace findings that began at the same moment."""
        yield from self._foreign_locks(scope, facts)
        yield from self._remaining_graphs(scope, facts)
        for resurrection in find_resurrections(facts, scope.cluster, scope.job or ""):
            yield self._resurrected(scope, resurrection, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        cluster, job, at = scope.cluster, scope.job or "", finding.at
        if "running" in finding.labels:
            return recovered(finding, ended_at(facts, cluster, job, at))
        graphs, leaders = facts.history(JobGraph, cluster, job), facts.history(JobManagerLeader, cluster)
        if "ended_with_graph" in finding.labels:
            removed = (graph.at for graph in graphs.after(at) if graph.made_at is None)
            active = (state.at for state in facts.history(FlinkJob, cluster, job).after(at) if is_active(state))
            return recovered(finding, earliest(next(removed, None), next(active, None)))
        moments = sorted({change.at for history in (graphs, leaders) for change in history.after(at)})
        owners = finding.current["locks"]
        released = (
            moment
            for moment in moments
            if not any(_is_foreign_lock(owner, graphs.as_of(moment), leaders.as_of(moment)) for owner in owners)
        )
        return recovered(finding, next(released, None))

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        phrase = next((_PHRASES[label] for label in finding.labels if label in _PHRASES), None)
        return super().timeline(finding, day) if phrase is None else f"job {reader(finding.subject)}: {phrase}"

    def _foreign_locks(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        cluster, job = scope.cluster, scope.job or ""
        graphs, leaders = facts.history(JobGraph, cluster, job), facts.history(JobManagerLeader, cluster)
        begun: dict[int, tuple[Observation, int, list[str]]] = {}
        for owner in sorted({owner for graph in graphs for owner in graph.locks}):

            def is_foreign(at: int, owner: str = owner) -> bool | None:
                leader = leaders.as_of(at)
                has_session = leader is not None and leader.session is not None
                return (has_session and _is_foreign_lock(owner, graphs.as_of(at), leader)) or None

            for interval in intervals_over([graphs, leaders], is_foreign):
                hold = self.session_timeout + _LOCK_SLACK_MS
                known_at = confirmed_at(facts, cluster, interval, hold, (ZOOKEEPER,))
                if known_at is not None:
                    begun.setdefault(interval.begin.at, (interval.begin, known_at, []))[2].append(owner)
        for begin, known_at, owners in begun.values():
            leader, graph = leaders.as_of(begin.at), graphs.as_of(begin.at)
            session = None if leader is None else leader.session
            yield self.make_finding(
                scope,
                begin,
                known_at=known_at,
                labels=("foreign_lock",),
                detail=f"{describe_job(facts, cluster, job, begin.at)} will run again after its end (FLINK-10011): "
                f"session {', '.join(owners)} has locked its job graph, not the leader's {session}, since "
                f"{clock(begin.at)} UTC",
                subject=job_subject(facts, cluster, job, begin.at),
                current={"locks": owners, "session": session, "file": None if graph is None else graph.file},
            )

    def _remaining_graphs(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        cluster, job = scope.cluster, scope.job or ""
        graphs, states = facts.history(JobGraph, cluster, job), facts.history(FlinkJob, cluster, job)

        def remains(at: int) -> bool | None:
            graph, state = graphs.as_of(at), states.as_of(at)
            if graph is None or graph.made_at is None or state is None or not state.ended:
                return None
            at_end = graphs.as_of(state.at)
            return at_end is None or at_end.made_at == graph.made_at or None  # else of the next run under the same id

        for interval in intervals_over([graphs, states], remains):
            begin = interval.begin
            graph, state = graphs.as_of(begin.at), states.as_of(begin.at)
            known_at = confirmed_at(facts, cluster, interval, self.linger, (ZOOKEEPER,))
            if graph is None or state is None or known_at is None:
                continue
            yield self.make_finding(
                scope,
                begin,
                known_at=known_at,
                labels=("ended_with_graph",),
                detail=f"{describe_job(facts, cluster, job, begin.at)} will run again at the next JobManager failover: "
                f"its job graph{_made_at(graph)} remains, although it has been {state.state} since {clock(state.at)} "
                "UTC",
                subject=job_subject(facts, cluster, job, begin.at),
                current={
                    "state": state.state,
                    "file": graph.file,
                    "znode": graph_znode(job, graph.file, graph.znode),
                    "locks": list(graph.locks),
                },
            )

    def _resurrected(self, scope: Scope, resurrection: Resurrection, facts: Facts) -> Finding:
        cluster, job = scope.cluster, scope.job or ""
        active, graph, before = resurrection.active, resurrection.graph, resurrection.before
        restores = count_restores(facts, cluster, job, resurrection)
        restored = {None: "", 0: ", no checkpoint restored"}.get(restores, ", restored from a checkpoint")
        others = [
            other
            for other in jobs_in(facts, cluster)
            if other != job and ran_alongside(facts, cluster, other, resurrection)
        ]
        leader = short_address(resurrection.new_leader.address)
        ending = f"was {before.state} at" if isinstance(before, FlinkJob) else "had not been listed since"
        company = "" if not others else f"; runs alongside job {others[0]}"
        company += f" and {len(others) - 1} more" if len(others) > 1 else ""
        return self.make_finding(
            scope,
            active,
            known_at=resurrection.known_at,
            severity=Severity.CRITICAL,
            labels=("running",),
            detail=f"{describe_job(facts, cluster, job, active.at)} runs again since {clock(active.at)} UTC{restored}: "
            f"it {ending} {clock(before.at)}, new leader {leader} recovered its job graph{_made_at(graph)}{company}",
            subject=job_subject(facts, cluster, job, active.at),
            current={
                "state": active.state,
                "restored": restores,
                "checkpoints": graph.checkpoints,
                "others": others,
                "file": graph.file,
                "znode": graph_znode(job, graph.file, graph.znode),
                "made_at": graph.made_at,
            },
        )


def _made_at(graph: JobGraph) -> str:
    return "" if graph.made_at is None else f" of {clock(graph.made_at)}"


def _is_foreign_lock(owner: str, graph: JobGraph | None, leader: JobManagerLeader | None) -> bool:
    """Return whether the session has a lock of the graph and is not the leader's."""
    return graph is not None and owner in graph.locks and (leader is None or leader.session != owner)
