"""job_resurrected: a Flink job that had ended runs again after a failover, or is about to at the next one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding, Severity
from agent.model.observations import Availability, FlinkJob, JobGraph, JobListing, JobManagerLeader, Observation, clock
from agent.rules.queries.flink import ZOOKEEPER, graph_znode, lasting, lives, named, over, spoken, told_at
from agent.rules.queries.partitions import earliest
from agent.rules.queries.resurrections import beside, restored, returns
from agent.rules.queries.subjects import job_graphs_in, jobs_in

_SHOWN = 3


class JobResurrected(Rule):
    """A job's graph outlives the job, and the next JobManager to lead recovers it (FLINK-10011 and its kin): the dead
    job runs beside its successor, from no checkpoint.

    Labels: `foreign_lock` (a lock of the graph belongs to a session other than the leader's for `session_timeout` and
    10 s more, so the leader cannot remove it), `ended_with_graph` (a job is FINISHED, CANCELED or FAILED and `linger`
    later its graph is still there), `running` (critical: a job runs whose graph is older than the leadership and which
    had ended, or had been missing from the leader's listing for 30 s).
    Not: a dead leader's lock until its session has expired, a job submitted after a failover, one that ran before it, a
    job that is SUSPENDED, what an agent that has just started has not seen
    before, what a ZooKeeper out of sight may have changed. Without ZooKeeper nothing is told.
    Recovers when the lock or the graph is gone, or the job no longer runs.
    """

    title = "job {reader} of {cluster} comes back at a JobManager failover"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "running": Advice(
            now="cancel {reader} ({job}) and delete its job graph, {graph}, before another JobManager leads; then see that {others} got its slots back, and what {reader} has written since {start}.",
            prevent="Flink 1.5.4, 1.6.1 or later (FLINK-10011).",
        ),
        "ended_with_graph": Advice(
            now="delete the job graph of {reader} ({job}), {graph}, before a JobManager fails over.",
            prevent="Flink 1.5.4, 1.6.1 or later (FLINK-10011).",
            only_while_open=True,
        ),
        "foreign_lock": Advice(
            now="restart the standby JobManager that holds the lock on the job graph of {reader} ({job}): its session ends, and its lock with it; do not cancel {reader} before that.",
            prevent="Flink 1.5.4, 1.6.1 or later (FLINK-10011).",
            only_while_open=True,
        ),
    }
    observes = (FlinkJob, JobGraph, JobManagerLeader, JobListing, Availability)

    session_timeout: PositiveDuration = 60_000
    """high-availability.zookeeper.client.session-timeout of the JobManagers: so long a dead one's locks outlive it."""

    linger: PositiveDuration = 30_000
    """How long the graph of a job that has ended may stand."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each job that has had a graph, with all that is seen of it; a leader and a listing concern all of them."""
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
        """Each lock, each graph left, each return; the return last, which replaces what began at the same moment."""
        yield from self._foreign_locks(scope, facts)
        yield from self._graphs_left(scope, facts)
        yield from self._returns(scope, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the lock or the graph is gone, or the job no longer runs."""
        cluster, job, at = scope.cluster, scope.job or "", finding.at
        graphs, leaders = facts.history(JobGraph, cluster, job), facts.history(JobManagerLeader, cluster)
        gone = (one.at for one in graphs.after(at) if one.made_at is None)
        if "running" in finding.labels:
            return recovered(finding, over(facts, cluster, job, at))
        if "ended_with_graph" in finding.labels:
            again = (one.at for one in facts.history(FlinkJob, cluster, job).after(at) if lives(one))
            return recovered(finding, earliest(gone, next(again, None)))
        moments = sorted({one.at for one in graphs.after(at)} | {one.at for one in leaders.after(at)})
        left = (
            moment for moment in moments if not _still(finding.current, graphs.as_of(moment), leaders.as_of(moment))
        )
        return recovered(finding, next(left, None))

    def _foreign_locks(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        cluster, job = scope.cluster, scope.job or ""
        graphs, leaders = facts.history(JobGraph, cluster, job), facts.history(JobManagerLeader, cluster)
        hold = self.session_timeout + 10_000
        begun: dict[int, tuple[Observation, int, list[str]]] = {}
        for owner in sorted({owner for graph in graphs for owner in graph.locks}):

            def foreign(at: int, owner: str = owner) -> bool | None:
                graph, leader = graphs.as_of(at), leaders.as_of(at)
                session = None if leader is None else leader.session
                return (graph is not None and owner in graph.locks and session not in (None, owner)) or None

            for spell in lasting([graphs, leaders], foreign):
                known_at = told_at(facts, cluster, spell, hold, (ZOOKEEPER,))
                if known_at is not None:
                    begun.setdefault(spell.begin.at, (spell.begin, known_at, []))[2].append(owner)
        for begin, known_at, owners in begun.values():
            leader, graph = leaders.as_of(begin.at), graphs.as_of(begin.at)
            session = None if leader is None else leader.session
            yield self.make_finding(
                scope,
                begin,
                known_at=known_at,
                labels=("foreign_lock",),
                detail=f"{spoken(facts, cluster, job, begin.at)} has a job graph that the leader cannot remove since "
                f"{clock(begin.at)} UTC. Its lock belongs to session {', '.join(owners)}, not to the leader's, "
                f"{session}; once the job has ended it runs again at the next change of leader (FLINK-10011)",
                subject=named(facts, cluster, job, begin.at),
                current={"locks": owners, "session": session, "file": None if graph is None else graph.file},
            )

    def _graphs_left(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        cluster, job = scope.cluster, scope.job or ""
        graphs, jobs = facts.history(JobGraph, cluster, job), facts.history(FlinkJob, cluster, job)

        def left(at: int) -> bool | None:
            graph, one = graphs.as_of(at), jobs.as_of(at)
            return (graph is not None and graph.made_at is not None and one is not None and one.ended) or None

        for spell in lasting([graphs, jobs], left):
            graph, one = graphs.as_of(spell.begin.at), jobs.as_of(spell.begin.at)
            known_at = told_at(facts, cluster, spell, self.linger, (ZOOKEEPER,))
            if graph is None or one is None or known_at is None:
                continue
            yield self.make_finding(
                scope,
                spell.begin,
                known_at=known_at,
                labels=("ended_with_graph",),
                detail=f"{spoken(facts, cluster, job, spell.begin.at)} is {one.state} since {clock(one.at)} UTC and "
                f"its job graph{_made(graph)} is still there. It runs again at the next change of leader",
                subject=named(facts, cluster, job, spell.begin.at),
                current={
                    "state": one.state,
                    "file": graph.file,
                    "znode": graph_znode(job, graph.file, graph.znode),
                    "locks": list(graph.locks),
                },
            )

    def _returns(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        cluster, job = scope.cluster, scope.job or ""
        for one in returns(cluster, job, facts):
            back, graph = one.back, one.graph
            restores = restored(cluster, job, one, facts)
            others = [other for other in jobs_in(facts, cluster) if other != job and beside(cluster, other, one, facts)]
            company = [spoken(facts, cluster, other, back.at) for other in others[:_SHOWN]]
            company += [f"{len(others) - _SHOWN} more"] * (len(others) > _SHOWN)
            age = (back.at - (graph.made_at or back.at)) / 1000
            yield self.make_finding(
                scope,
                back,
                known_at=one.known_at,
                severity=Severity.CRITICAL,
                labels=("running",),
                detail=f"{spoken(facts, cluster, job, back.at)} runs again since {clock(back.at)} UTC"
                f"{_restored_from(restores)}. It {one.before}; {one.new.address} came to lead after {one.old.address} "
                f"at {clock(one.new.at)} UTC and recovered its job graph{_made(graph)}, by then {age:,.0f} s old"
                f"{'; it runs beside ' * bool(company)}{', '.join(company)}",
                subject=named(facts, cluster, job, back.at),
                current={
                    "state": back.state,
                    "restored": restores,
                    "checkpoints": graph.checkpoints,
                    "others": others,
                    "file": graph.file,
                    "znode": graph_znode(job, graph.file, graph.znode),
                    "made_at": graph.made_at,
                },
            )


def _restored_from(restores: int | None) -> str:
    if restores is None:
        return ""
    return ", restored from a checkpoint" if restores else ", with no checkpoint restored"


def _made(graph: JobGraph) -> str:
    return "" if graph.made_at is None else f" of {clock(graph.made_at)} UTC"


def _still(current: Mapping[str, Any], graph: JobGraph | None, leader: JobManagerLeader | None) -> bool:
    """Whether any of the locks found is still there and not the leader's."""
    session = None if leader is None else leader.session
    return graph is not None and any(owner in graph.locks and owner != session for owner in current["locks"])
