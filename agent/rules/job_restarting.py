"""job_restarting: a Flink job does not get all its tasks to run, or restarts again and again."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

import msgspec
from pydantic import Field

from agent.engine.facts import FLOOR, Facts, History
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration, duration_text
from agent.model.findings import Finding
from agent.model.observations import FlinkJob, Observation, clock
from agent.rules.queries.flink import lasting, named, over, spoken
from agent.rules.queries.partitions import earliest

_ON_THE_WAY = ("CREATED", "INITIALIZING", "RECONCILING", "RESTARTING", "FAILING")
_SOUND_MS = 30_000


class JobRestarting(Rule):
    """A job gets no slots, or fails as soon as it runs. What it says of itself may be RUNNING all the while.

    Labels: `not_running` (for `after` not all tasks have run, or the job was on the way to it), `again_and_again`
    (`restarts` times within `within`).
    Not: jobs that have ended; one that is RUNNING and of which no tasks are known; one of which some tasks run and
    never all have, as in a batch.
    Recovers when all tasks have run for 30 s, or the job is over.
    """

    title = "job {reader} does not get to run"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(now="see the exceptions of {reader} and the free slots in Flink's web page.", only_while_open=True),
    }
    observes = (FlinkJob,)

    after: PositiveDuration = 60_000
    """How long not all tasks may run."""

    restarts: int = Field(3, ge=2)
    """Fewest restarts told."""

    within: PositiveDuration = 600_000
    """How close together they are."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each state of a job that has not ended but for its first sound one: a job that recovers is looked at too."""
        if not isinstance(observation, FlinkJob) or observation.ended:
            return ()
        first = len(facts.history(FlinkJob, observation.cluster, observation.job).changes) == 1
        return () if first and _sound(observation) else (Scope(observation.cluster, job=observation.job),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each time too long, each row of restarts."""
        history = facts.history(FlinkJob, scope.cluster, scope.job or "")
        rows = list(self._rows(history))
        for one in rows:
            how = f"has restarted {self.restarts} times within {duration_text(self.within)}"
            yield self._told(scope, one, "again_and_again", how, facts)
        for spell in lasting([history], lambda at: _stuck(history, at)):
            begin = history.as_of(spell.begin.at)
            if begin is None or begin in rows or not spell.lasted(self.after):
                continue
            tasks = f"{begin.tasks_running} of {begin.tasks} tasks run"
            how = f"is {begin.state} and {tasks} since {clock(begin.at)} UTC"
            told = self._told(scope, begin, "not_running", how, facts)
            yield msgspec.structs.replace(told, known_at=spell.known_at(self.after))

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when all tasks have run for long enough, or with the job."""
        cluster, job = scope.cluster, scope.job or ""
        history = facts.history(FlinkJob, cluster, job)
        held = history.as_of(finding.at)
        later = [*([] if held is None else [held]), *history.after(finding.at)]
        sound = (
            max(one.at, finding.at) + _SOUND_MS
            for number, one in enumerate(later)
            if _sound(one) and all(_sound(other) for other in later[number:] if other.at < one.at + _SOUND_MS)
        )
        return recovered(finding, earliest(sound, over(facts, cluster, job, finding.at)))

    def _rows(self, history: History[FlinkJob]) -> Iterator[FlinkJob]:
        """The restarts that make it enough, where the one before did not."""
        changes = history.changes
        places = [number for number, (before, one) in enumerate(pairwise(changes), 1) if _restarted(before, one)]
        for count, place in enumerate(places, 1):
            # No further back than histories surely reach, or what is told would hang on what they still hold.
            row = [changes[each] for each in places[:count] if each > place - FLOOR]
            if self._enough(row) and not self._enough(row[:-1]):
                yield changes[place]

    def _enough(self, row: list[FlinkJob]) -> bool:
        return len(row) >= self.restarts and row[-1].at - row[-self.restarts].at <= self.within

    def _told(self, scope: Scope, one: FlinkJob, label: str, how: str, facts: Facts) -> Finding:
        cluster, job = scope.cluster, scope.job or ""
        return self.make_finding(
            scope,
            one,
            labels=(label,),
            detail=f"{spoken(facts, cluster, job, one.at)} {how}",
            subject=named(facts, cluster, job, one.at),
            current={"state": one.state, "tasks": one.tasks, "tasks_running": one.tasks_running},
        )


def _sound(one: FlinkJob) -> bool:
    return one.state == "RUNNING" and one.tasks_running >= one.tasks


def _stuck(history: History[FlinkJob], at: int) -> bool | None:
    """Whether tasks that should run did not at that moment; None where not."""
    one = history.as_of(at)
    if one is None or one.state not in (*_ON_THE_WAY, "RUNNING") or (one.state == "RUNNING" and _sound(one)):
        return None
    if one.state == "RUNNING" and one.tasks_running:
        return any(other.tasks and _sound(other) for other in history.before(at, FLOOR)) or None
    return True


def _restarted(before: FlinkJob, one: FlinkJob) -> bool:
    """Whether the job was restarted, or began to be, between two sightings. FAILING is the beginning of RESTARTING."""
    if one.restarting_at is not None and one.restarting_at != before.restarting_at:
        return before.state != "FAILING"
    return before.state == "RUNNING" and one.state in ("RESTARTING", "FAILING")
