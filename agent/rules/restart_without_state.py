"""restart_without_state: a Flink job that had completed checkpoints runs again with none restored."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from agent.engine.condition_rule import Interval, intervals_over
from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding, reader
from agent.model.observations.base import Availability, Available, Observation
from agent.model.observations.flink import Checkpoints, FlinkJob, JobManagerLeader
from agent.model.times import clock
from agent.rules.queries.flink import (
    REST,
    confirmed_at,
    describe_job,
    ended_at,
    has_state,
    job_subject,
    leader_changes,
)
from agent.rules.queries.partitions import earliest


class RestartWithoutState(Rule):
    """A job was started again under the same id, has run for `wait`, and was restored from nothing.

    It had completed checkpoints: now its state is empty and its sources start where their configuration says.

    Label: `after_failover` (the JobManager leader had changed in between).
    Not: a job that goes on, or restarts on its JobManager (its counts go on, and Flink restores it); a restore that
    REST shows only seconds after the tasks run, or up to a minute late with its time; one that had completed none; what
    may have changed while REST was unavailable.
    Recovers when the job is restored from a checkpoint or savepoint after all, or ends.
    """

    title = "job {reader} restarted without its state"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Stop {reader} and start it from its last good checkpoint or savepoint before it overwrites results."
        ),
    }
    observes = (Checkpoints, FlinkJob, Availability)

    wait: PositiveDuration = 15_000
    """How long it must run: REST shows a restore 8 to 10 s after the failover, seconds after the tasks run."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the job if its counts started over, or if it runs and was in another state before.

        Once REST is available again, all jobs that run.
        """
        match observation:
            case Checkpoints(cluster=cluster, job=job):
                last_two = facts.history(Checkpoints, cluster, job).changes[-2:]
                is_concerned = len(last_two) == 2 and _has_lost_state(*last_two)
            case FlinkJob(cluster=cluster, job=job, state="RUNNING"):
                is_concerned = len(facts.history(FlinkJob, cluster, job).changes) > 1
            case Available(cluster=cluster, source=source) if source == REST:
                states = (history.changes[-1] for history in facts.histories(FlinkJob, cluster=cluster))
                return [Scope(cluster, job=state.job) for state in states if state.state == "RUNNING"]
            case _:
                return ()
        return (Scope(cluster, job=job),) if is_concerned else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        cluster, job = scope.cluster, scope.job or ""
        history = facts.history(Checkpoints, cluster, job)
        for before, after in pairwise(history):
            if not _has_lost_state(before, after):
                continue
            run = _find_run(cluster, job, before, after, facts)
            known_at = None if run is None else confirmed_at(facts, cluster, run, self.wait, (REST,))
            if run is None or known_at is None:
                continue
            late = history.between(after.at, known_at + LATENESS_MS)
            if any(_is_restored_by(checkpoints, known_at) for checkpoints in late):
                continue
            leaders = facts.history(JobManagerLeader, cluster)
            failover = next((new for _, new in leader_changes(leaders) if before.at <= new.at <= known_at), None)
            completed = f"checkpoint {before.last or before.restored_id or before.completed}"
            moved = f" after JobManager {failover.address} took over" if failover is not None else ""
            yield self.make_finding(
                scope,
                run.begin,
                known_at=known_at,
                labels=("after_failover",) if failover is not None else (),
                detail=f"{describe_job(facts, cluster, job, run.begin.at)} had completed {completed} but restarted "
                f"with none restored{moved}, at {clock(run.begin.at)} UTC",
                subject=job_subject(facts, cluster, job, run.begin.at),
                previous={"completed": before.completed, "last": before.last},
                current={"completed": after.completed, "last": after.last, "restored_id": None},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        cluster, job = scope.cluster, scope.job or ""
        later = facts.history(Checkpoints, cluster, job).after(finding.at)
        restored = (checkpoints.at for checkpoints in later if checkpoints.restored_id is not None)
        return recovered(finding, earliest(next(restored, None), ended_at(facts, cluster, job, finding.at)))

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        return f"job {reader(finding.subject)}: restarted, no checkpoint restored"


def _has_lost_state(before: Checkpoints, after: Checkpoints) -> bool:
    """Return whether the counts are those of another execution, restored from nothing though there was something."""
    if after.restored_id is not None or not has_state(before):
        return False
    has_started_over = after.completed < before.completed or (after.last or 0) < (before.last or 0)
    return has_started_over or before.restored_id is not None


def _find_run(cluster: str, job: str, before: Checkpoints, after: Checkpoints, facts: Facts) -> Interval | None:
    """Return the first interval in which the job's next execution ran with those counts, or None."""
    states, history = facts.history(FlinkJob, cluster, job), facts.history(Checkpoints, cluster, job)
    old = states.as_of(before.at)
    restored = (checkpoints.at for checkpoints in history.after(after.at) if checkpoints.restored_id is not None)
    until = next(restored, None)

    def is_running(at: int) -> bool | None:
        state = states.as_of(at)
        if old is None or state is None or at < after.at or (until is not None and at >= until):
            return None
        return (state.state == "RUNNING" and state.tasks_running > 0 and state.started_at > old.started_at) or None

    return next(intervals_over([states, history], is_running), None)


def _is_restored_by(checkpoints: Checkpoints, at: int) -> bool:
    """Return whether a restore that REST shows late had been made by `at`."""
    return checkpoints.restored_id is not None and (checkpoints.restored_at is None or checkpoints.restored_at <= at)
