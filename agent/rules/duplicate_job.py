"""duplicate_job: two jobs of one name run at the same time."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import ClassVar

from agent.engine.facts import FINALIZATION_MS, LATENESS_MS, Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import NameFilter, PositiveDuration
from agent.model.findings import Finding
from agent.model.observations import FlinkJob, JobListing, Observation, Position, clock
from agent.rules.queries.flink import Spell, lasting, listed, over
from agent.rules.queries.subjects import jobs_in, read_by

_DEFAULTS = NameFilter(include=["Flink Streaming Job", "Flink Java Job at *", "Flink Batch Job", "insert-into_*"])
"""Names that Flink gives to jobs without one (StreamGraphGenerator, ExecutionEnvironment, TableEnvironment)."""


class DuplicateJob(Rule):
    """Two jobs of one name have been RUNNING in a Flink cluster for `after`: each record is processed twice.

    Where the partitions that both read are known, some must be the same; they are waited for up to a minute.
    Not: jobs under a name that Flink gives by itself, unless both are seen to read the same partition; a job that is
    not listed any more.
    Recovers when one of them no longer runs.
    """

    title = "two jobs {job_name} run in {cluster}"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="cancel the one of the two jobs {reader} that should not run: both write.", only_while_open=True
        ),
    }
    observes = (FlinkJob, Position)

    after: PositiveDuration = 10_000
    """How long both must run."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """The cluster, with each state of a job whose name another has, and each partition that such a job reads."""
        match observation:
            case FlinkJob(cluster=cluster, job=job, name=name):
                pass
            case Position(flink=cluster, job=job, name=name) if _first(observation, facts):
                pass
            case _:
                return ()
        others = (facts.history(FlinkJob, cluster, other).last for other in jobs_in(facts, cluster) if other != job)
        return (Scope(cluster),) if any(other is not None and other.name == name for other in others) else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each time that two run together."""
        by_name: dict[str, list[str]] = {}
        for job in jobs_in(facts, scope.cluster):
            last = facts.history(FlinkJob, scope.cluster, job).last
            # What was over that long ago is settled: of a name that runs every few minutes there are thousands.
            if last is not None and (last.state == "RUNNING" or last.at > facts.now - FINALIZATION_MS):
                by_name.setdefault(last.name, []).append(job)
        for name, jobs in by_name.items():
            for pair in combinations(jobs, 2):
                for spell in _together(scope.cluster, pair, facts):
                    known_at = self._known_at(name, pair, spell, facts)
                    if known_at is not None:
                        yield self._twice(scope, name, pair, spell, known_at)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when one of them no longer runs."""
        cluster, jobs = scope.cluster, finding.subject["jobs"]
        ends = [over(facts, cluster, job, finding.at) for job in jobs]
        stops = (
            one.at
            for job in jobs
            for one in facts.history(FlinkJob, cluster, job).after(finding.at)
            if one.state != "RUNNING"
        )
        return recovered(finding, min([*stops, *(end for end in ends if end is not None)], default=None))

    def _known_at(self, name: str, pair: tuple[str, str], spell: Spell, facts: Facts) -> int | None:
        """When it is known that they do the same; None where they do not, or it cannot be said."""
        soon, later = spell.known_at(self.after), spell.known_at(max(self.after, LATENESS_MS))
        for known_at in (soon, later):
            mine, theirs = (_reads(job, facts, known_at) for job in pair)
            if mine & theirs:
                return known_at if spell.lasted(known_at - spell.begin.at) else None
        by_name = not (mine and theirs) and not _DEFAULTS.match(name)
        return later if by_name and spell.lasted(later - spell.begin.at) else None

    def _twice(self, scope: Scope, name: str, pair: tuple[str, str], spell: Spell, known_at: int) -> Finding:
        return self.make_finding(
            scope,
            spell.begin,
            known_at=known_at,
            detail=f"jobs {pair[0]} and {pair[1]}, both {name}, run at the same time since {clock(spell.begin.at)} UTC",
            subject={"jobs": list(pair), "job_name": name},
        )


def _together(cluster: str, pair: tuple[str, str], facts: Facts) -> Iterator[Spell]:
    histories = [facts.history(FlinkJob, cluster, job) for job in pair]

    def both(at: int) -> bool | None:
        states = [history.as_of(at) for history in histories]
        run = all(one is not None and one.state == "RUNNING" for one in states)
        return (run and all(listed(facts, cluster, job, at) for job in pair)) or None

    return lasting([*histories, facts.history(JobListing, cluster)], both)


def _reads(job: str, facts: Facts, by: int) -> set[tuple[str, str, int]]:
    """The partitions that the job had been seen to read by then."""
    return {
        (cluster, topic, partition)
        for cluster, topic, partition in read_by(facts, job)
        if facts.history(Position, cluster, job, topic, partition).as_of(by) is not None
    }


def _first(position: Position, facts: Facts) -> bool:
    history = facts.history(Position, position.cluster, position.job, position.topic, position.partition)
    return len(history.changes) == 1
