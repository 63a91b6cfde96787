"""job_restarting: a Flink job does not get all its tasks to run, or restarts again and again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import msgspec
from pydantic import Field

from agent.engine.condition_rule import find_repetitions, intervals_over
from agent.engine.facts import Facts
from agent.engine.history import FLOOR, LONG_AGO, History
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration, duration_text
from agent.model.findings import Finding, reader
from agent.model.observations.base import Availability, Available, Observation
from agent.model.observations.flink import FlinkJob
from agent.model.times import clock
from agent.rules.queries.flink import REST, confirmed_at, describe_job, ended_at, job_subject
from agent.rules.queries.partitions import earliest

_STARTING = ("CREATED", "INITIALIZING", "RECONCILING", "RESTARTING", "FAILING")
_STABLE_MS = 30_000
_CACHED_MS = 10_000
"""How long after the state RESTARTING its time may be shown: web.refresh-interval (3 s) and a few polls."""


class JobRestarting(Rule):
    """A job gets no slots, or fails as soon as it runs; Flink may report it as RUNNING all the while.

    Labels: `not_running` (for `after` not all tasks ran, or the job was starting), `again_and_again` (`restarts` times
    within `within`; a restart with a number of tasks that the job has not had lately is a rescaling, and not counted).
    Not: jobs that have ended; one that is RUNNING and whose tasks are unknown; one of which some tasks run and never
    all have, as in a batch job; tasks that have finished, as those of a bounded source do; tasks that restore their
    state, however long (shown from Flink 1.13 on); what may have changed while REST was unavailable.
    Recovers when all tasks have run for 30 s, or the job ends.
    """

    title = "job {reader} is not running"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(now="Check the exceptions of {reader} and the free slots in Flink's web UI.", only_while_open=True),
    }
    observes = (FlinkJob, Availability)

    after: PositiveDuration = 60_000
    """How long tasks may be missing."""

    restarts: int = Field(3, ge=2)
    """Fewest restarts that are reported."""

    within: PositiveDuration = 600_000
    """How close together they are."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the job unless it has ended or its first state is healthy; a job that recovers is evaluated too.

        Once REST is available again, all jobs that were not healthy.
        """
        if isinstance(observation, Available) and observation.source == REST:
            last = (history.changes[-1] for history in facts.histories(FlinkJob, cluster=observation.cluster))
            return [Scope(job.cluster, job=job.job) for job in last if not job.ended and not _is_healthy(job)]
        if not isinstance(observation, FlinkJob) or observation.ended:
            return ()
        is_first = len(facts.history(FlinkJob, observation.cluster, observation.job).changes) == 1
        return () if is_first and _is_healthy(observation) else (Scope(observation.cluster, job=observation.job),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = facts.history(FlinkJob, scope.cluster, scope.job or "")
        repeated = self._repeated_restarts(history)
        for state in repeated:
            text = f"restarted {self.restarts} times within {duration_text(self.within)}"
            yield self._make(scope, state, "again_and_again", text, facts)
        for interval in intervals_over([history], lambda at: _is_stuck(history, at)):
            begin = history.as_of(interval.begin.at)
            known_at = confirmed_at(facts, scope.cluster, interval, self.after, (REST,))
            if begin is None or begin in repeated or known_at is None:
                continue
            shown = history.as_of(known_at) or begin
            finding = self._make(scope, shown, "not_running", _describe(begin, shown), facts)
            yield msgspec.structs.replace(finding, at=begin.at, since=begin.since, known_at=known_at)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        cluster, job = scope.cluster, scope.job or ""
        history = facts.history(FlinkJob, cluster, job)
        first = history.as_of(finding.at)
        later = [*([] if first is None else [first]), *history.after(finding.at)]
        stable = (
            max(state.at, finding.at) + _STABLE_MS
            for index, state in enumerate(later)
            if all(_is_healthy(other) for other in later[index:] if other.at < state.at + _STABLE_MS)
        )
        return recovered(finding, earliest(next(stable, None), ended_at(facts, cluster, job, finding.at)))

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        job, current = reader(finding.subject), finding.current
        if "again_and_again" in finding.labels:
            return f"job {job} keeps restarting"
        return f"job {job}: {current.get('tasks_running')} of {current.get('tasks')} tasks running"

    def _repeated_restarts(self, history: History[FlinkJob]) -> list[FlinkJob]:
        changes = history.changes
        restarts = [index for index in _find_restarts(changes) if not _is_rescaled(changes, index)]

        def are_enough(recent: list[int]) -> bool:
            times = [changes[index].at for index in recent[-self.restarts :]]
            return len(times) >= self.restarts and times[-1] - times[0] <= self.within

        return [changes[index] for index in find_repetitions(restarts, are_enough)]

    def _make(self, scope: Scope, state: FlinkJob, label: str, text: str, facts: Facts) -> Finding:
        cluster, job = scope.cluster, scope.job or ""
        return self.make_finding(
            scope,
            state,
            labels=(label,),
            detail=f"{describe_job(facts, cluster, job, state.at)} {text}",
            subject=job_subject(facts, cluster, job, state.at),
            current={"state": state.state, "tasks": state.tasks, "tasks_running": state.tasks_running},
        )


def _is_healthy(job: FlinkJob) -> bool:
    return job.state == "RUNNING" and job.tasks_running + job.tasks_finished >= job.tasks


def _is_restoring(job: FlinkJob) -> bool:
    """Return whether all tasks that do not run restore their state."""
    return job.state == "RUNNING" and job.tasks_running + job.tasks_finished + job.tasks_initializing >= job.tasks


def _is_stuck(history: History[FlinkJob], at: int) -> bool | None:
    """Return whether tasks that should run did not at that moment; None if not."""
    job = history.as_of(at)
    if job is None or _is_healthy(job) or _is_restoring(job) or job.state not in (*_STARTING, "RUNNING"):
        return None
    if job.state == "RUNNING" and job.tasks_running:
        # The tasks of a batch job become more with each stage that is scheduled (AdaptiveBatchScheduler).
        earlier = history.before(at, FLOOR)
        return any(before.tasks >= job.tasks and _is_healthy(before) for before in earlier) or None
    return True


def _find_restarts(changes: Sequence[FlinkJob]) -> Iterator[int]:
    """Yield where the job was restarted, or began to be; FAILING is the beginning of RESTARTING.

    The time of a restart may be shown some seconds after its state: JobManagers cache it, the states they do not.
    """
    dated_until = LONG_AGO
    for index, (before, after) in enumerate(pairwise(changes), 1):
        is_dated = after.restarting_at is not None and after.restarting_at != before.restarting_at
        if before.state == "RUNNING" and after.state in ("RESTARTING", "FAILING"):
            dated_until = LONG_AGO if is_dated else after.at + _CACHED_MS
            yield index
        elif is_dated:
            if after.at > dated_until and before.state != "FAILING":
                yield index
            dated_until = LONG_AGO


def _is_rescaled(changes: Sequence[FlinkJob], index: int) -> bool:
    """Return whether the job, restarted there, then has a number of tasks that it has not had in its states before.

    An adaptive scheduler restarts it so whenever it gets slots or is given others.
    """
    earlier = {state.tasks for state in changes[max(index - FLOOR, 0) : index] if state.state == "RUNNING"}
    after = next((state for state in changes[index:] if state.state == "RUNNING"), None)
    return after is not None and bool(earlier) and after.tasks not in earlier


def _describe(begin: FlinkJob, shown: FlinkJob) -> str:
    """Return how many tasks run, and since when not all of them do."""
    tasks = f"is {shown.state} with {shown.tasks_running} of {shown.tasks} tasks running"
    if shown.tasks_initializing:
        tasks += f" and {shown.tasks_initializing} restoring their state"
    is_same = (begin.state, begin.tasks_running, begin.tasks) == (shown.state, shown.tasks_running, shown.tasks)
    return f"{tasks}{'' if is_same else '; not all have run'} since {clock(begin.at)} UTC"
