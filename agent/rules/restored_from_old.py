"""restored_from_old: a Flink job is restored from a checkpoint or savepoint far older than its last completed one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, ended
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding, reader
from agent.model.observations.base import Observation
from agent.model.observations.flink import Checkpoints, FlinkJob
from agent.model.text import day_of, instant, span
from agent.model.times import clock
from agent.rules.queries.flink import describe_job, ended_at, job_subject
from agent.rules.queries.old_restores import (
    Restore,
    State,
    find_restores,
    restored_state,
)

_FAILURES = 3
"""How many checkpoints in a row must have failed if it was the last completed one: `checkpoint_failing`'s default."""


class _OldRestore(NamedTuple):
    """A restore from an old state. older_by: how far it is behind what could have been restored."""

    restore: Restore
    state: State
    newest: State
    older_by: int
    failures: int


class RestoredFromOld(Rule):
    """A job was restored from a checkpoint or savepoint at least `min_age` older than its last completed one.

    Everything since then is reprocessed, and sinks without transactions write it twice. It is a warning even if
    somebody chose the old one: that cannot be observed.

    A job with a new id continues another one that has ended: one whose checkpoint or savepoint it was restored from,
    or that was restored from the same, or continued one of these; if no path shows it, one of the same name. REST does
    not report when the restored checkpoint was taken. If Backflow has not seen it complete, its age is estimated from
    its id and from how often the job completed checkpoints.
    Labels: `savepoint`, `resubmitted` (under a new job id, so not by Flink itself), `checkpoints_failed` (it is the
    last completed one, but for `min_age` at least 3 checkpoints in a row had failed since).
    Not: a restore from the last completed checkpoint, however old, if none has failed since; a recovery from it after a
    savepoint that was taken since, which Flink does not use for that (from 1.15 on); the first start from a savepoint
    of a job that Backflow does not know; a copy of a job that runs on.
    Ends when the job has ended, or has run for as long as it was taken back.
    """

    title = "{reader} was restored from an old checkpoint"
    is_single = True
    titles: ClassVar[Mapping[str, str]] = {
        "checkpoints_failed": "{reader} was restored from its last completed checkpoint, which is old",
        "savepoint": "{reader} was restored from an old savepoint",
    }
    advice: ClassVar[Mapping[str, Advice]] = {
        "checkpoints_failed": Advice(
            now="Deduplicate what {reader} has written since {taken}; find out why its checkpoints failed."
        ),
        "resubmitted": Advice(
            now="If that was not intended, stop {reader} and start it from {newest}, if it still exists. Otherwise "
            "deduplicate what it has written since {taken}.",
            prevent="Stop {reader} with a savepoint (flink stop) and start it from that one.",
        ),
        "": Advice(
            now="Stop {reader} and start it from {newest}, if it still exists. Otherwise deduplicate what it has "
            "written since {taken}.",
            prevent="Find out why Flink did not restore {newest}: its entry in high-availability metadata, its files, "
            "or execution.state-recovery.path in the configuration.",
        ),
    }
    observes = (Checkpoints,)

    min_age: PositiveDuration = 600_000
    """How much older than the last completed one it must be."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the job if it has just been restored."""
        if not isinstance(observation, Checkpoints) or observation.restored_at is None:
            return ()
        last_two = facts.history(Checkpoints, observation.cluster, observation.job).changes[-2:]
        is_restored = len(last_two) < 2 or last_two[0].restored_at != observation.restored_at
        return (Scope(observation.cluster, job=observation.job),) if is_restored else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for restore in find_restores(facts, scope.cluster, scope.job or ""):
            old = self._judge(facts, restore)
            if old is not None:
                yield self._finding(scope, facts, old)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        caught_up_at = finding.at + finding.current["older_by_ms"]
        job_ended_at = ended_at(facts, scope.cluster, scope.job or "", finding.at)
        if job_ended_at is not None and job_ended_at < caught_up_at:
            state = facts.history(FlinkJob, scope.cluster, scope.job).last
            reason = f"the job is {state.state}" if state is not None and state.ended else "the job is no longer listed"
            return ended(finding, job_ended_at, reason)
        return ended(finding, caught_up_at, "the job has run for as long as it was taken back")

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        if "older_by_ms" not in finding.current:
            return super().timeline(finding, day)
        return f"{reader(finding.subject)}: {_describe(finding, day)}"

    def _judge(self, facts: Facts, restore: Restore) -> _OldRestore | None:
        """Return the restore if it is from an old state, as far as can be known, else None."""
        newest = restore.newest
        state = restored_state(facts, restore, newest) if newest is not None else None
        if newest is None or state is None or state.id > newest.id:
            return None
        failures = restore.count_failures(newest) if state.id == newest.id else 0
        if state.id == newest.id and failures < _FAILURES:
            return None
        older_by = (restore.before.at if failures else newest.at) - state.at
        return _OldRestore(restore, state, newest, older_by, failures) if older_by >= self.min_age else None

    def _finding(self, scope: Scope, facts: Facts, old: _OldRestore) -> Finding:
        reading, before = old.restore.reading, old.restore.before
        restored_at = min(reading.restored_at or reading.at, reading.at)
        is_resubmitted = before.job != reading.job
        labels = {
            "checkpoints_failed": old.failures > 0,
            "savepoint": old.state.is_savepoint,
            "resubmitted": is_resubmitted,
        }
        finding = self.make_finding(
            scope,
            reading,
            at=restored_at,
            known_at=reading.seen,
            detail="",
            labels=(label for label, applies in labels.items() if applies),
            subject=job_subject(facts, scope.cluster, reading.job, reading.at),
            previous=_fields(old.newest) | ({"jobs": [before.job]} if is_resubmitted else {}),
            current=_fields(old.state)
            | {"restored_at": reading.restored_at, "older_by_ms": old.older_by}
            | ({"failures": old.failures} if old.failures else {}),
        )
        name = describe_job(facts, scope.cluster, reading.job, reading.at)
        how = _describe(finding, day_of(restored_at))
        return replace(finding, since=None, detail=f"{name} was {how}, at {clock(restored_at)} UTC")


def _fields(state: State) -> dict[str, Any]:
    """Return a state as fields of a finding."""
    time = {"triggered_at": state.at} | ({} if state.is_exact else {"estimated": True})
    return {"id": state.id, "savepoint": state.is_savepoint, "path": state.path, **time}


def _name(state: Mapping[str, Any]) -> str:
    return f"{'savepoint' if state['savepoint'] else 'checkpoint'} {state['id']}"


def _describe(finding: Finding, day: str) -> str:
    """Return what was restored and how old it was, as a clause."""
    newest, state = finding.previous, finding.current
    about = "about " if "estimated" in state else ""
    verb = "started" if "jobs" in newest else "restored"
    restored = f"{verb} from {_name(state)} of {about}{instant(state['triggered_at'], day)}"
    age = span(state["older_by_ms"])
    if "failures" in state:
        return f"{restored}, its last completed one; {state['failures']} checkpoints failed in the {age} since"
    owner = f"the last completed one of job {newest['jobs'][0]}" if "jobs" in newest else "its last completed one"
    return f"{restored}, {about}{age} older than {_name(newest)}, {owner}"
