"""restart_without_state: a Flink job that had completed checkpoints runs again with none restored."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from agent.engine.facts import LATENESS_MS, Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding
from agent.model.observations import Checkpoints, FlinkJob, JobManagerLeader, Observation, clock
from agent.rules.queries.flink import Spell, had_state, lasting, leader_changes, named, over, spoken
from agent.rules.queries.partitions import earliest


class RestartWithoutState(Rule):
    """A job was started anew under the same id, has run for `wait`, and was restored from nothing though it had
    completed checkpoints: its state is empty and its sources begin where their configuration says.

    Label: `after_failover` (the JobManager leader had changed in between).
    Not: a job that goes on, or restarts on its JobManager (its counts go on, and Flink restores it); a restore that
    REST shows only seconds after the tasks run, or up to a minute late with its time; one that had completed none.
    Recovers when the job is restored from a checkpoint or savepoint after all, or is over.
    """

    title = "job {reader} runs again without its state"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="stop {reader} and start it from its last good checkpoint or savepoint before it overwrites its results."
        ),
    }
    observes = (Checkpoints, FlinkJob)

    wait: PositiveDuration = 15_000
    """How long it must run: REST tells of a restore 8 to 10 s after the failover, seconds after the tasks run."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each job whose counts began anew, and each that runs after it did not, or not all of it."""
        match observation:
            case Checkpoints(cluster=cluster, job=job):
                last_two = facts.history(Checkpoints, cluster, job).changes[-2:]
                concerned = len(last_two) == 2 and _anew(*last_two)
            case FlinkJob(cluster=cluster, job=job, state="RUNNING"):
                concerned = len(facts.history(FlinkJob, cluster, job).changes) > 1
            case _:
                return ()
        return (Scope(cluster, job=job),) if concerned else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each start without state."""
        cluster, job = scope.cluster, scope.job or ""
        history = facts.history(Checkpoints, cluster, job)
        for before, anew in pairwise(history):
            if not _anew(before, anew):
                continue
            run = _run(cluster, job, before, anew, facts)
            if run is None or not run.lasted(self.wait):
                continue
            known_at = run.known_at(self.wait)
            if any(_restored(one, known_at) for one in history.between(anew.at, known_at + LATENESS_MS)):
                continue
            leaders = facts.history(JobManagerLeader, cluster)
            failover = next((new for _, new in leader_changes(leaders) if before.at <= new.at <= known_at), None)
            had = f"checkpoint {before.last or before.restored_id or before.completed}"
            moved = f"; {failover.address} leads since {clock(failover.at)} UTC" if failover is not None else ""
            yield self.make_finding(
                scope,
                run.begin,
                known_at=known_at,
                labels=("after_failover",) if failover is not None else (),
                detail=f"{spoken(facts, cluster, job, run.begin.at)} runs again since {clock(run.begin.at)} UTC with "
                f"no checkpoint restored, though it had completed {had}{moved}",
                subject=named(facts, cluster, job, run.begin.at),
                previous={"completed": before.completed, "last": before.last},
                current={"completed": anew.completed, "last": anew.last, "restored_id": None},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the job is restored, or with the job."""
        cluster, job = scope.cluster, scope.job or ""
        restored = (
            one.at for one in facts.history(Checkpoints, cluster, job).after(finding.at) if one.restored_id is not None
        )
        return recovered(finding, earliest(restored, over(facts, cluster, job, finding.at)))


def _anew(before: Checkpoints, one: Checkpoints) -> bool:
    """Whether the counts are those of another execution, restored from nothing though there was something."""
    if one.restored_id is not None or not had_state(before):
        return False
    return one.completed < before.completed or (one.last or 0) < (before.last or 0) or before.restored_id is not None


def _run(cluster: str, job: str, before: Checkpoints, anew: Checkpoints, facts: Facts) -> Spell | None:
    """The first spell in which the job's next execution ran on those counts."""
    jobs, history = facts.history(FlinkJob, cluster, job), facts.history(Checkpoints, cluster, job)
    old = jobs.as_of(before.at)
    later = [one for one in history.after(anew.at) if one.restored_id is not None]
    until = later[0].at if later else None

    def runs(at: int) -> bool | None:
        one = jobs.as_of(at)
        if old is None or one is None or at < anew.at or (until is not None and at >= until):
            return None
        ran = one.state == "RUNNING" and one.tasks_running > 0
        return (ran and one.started_at > old.started_at) or None

    return next(lasting([jobs, history], runs), None)


def _restored(one: Checkpoints, by: int) -> bool:
    """Whether a restore that REST shows late had been made by then."""
    return one.restored_id is not None and (one.restored_at is None or one.restored_at <= by)
