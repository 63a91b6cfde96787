"""duplicate_job: two jobs of the same name run at the same time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import ClassVar

from agent.engine.condition_rule import Interval, intervals_over
from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding
from agent.model.observations.base import Availability, Available, Observation
from agent.model.observations.flink import FlinkJob, JobListing, Position
from agent.model.times import clock
from agent.rules.queries.flink import DEFAULT_NAMES, REST, confirmed_at, ended_at, is_listed
from agent.rules.queries.subjects import positions_of


class DuplicateJob(Rule):
    """Two jobs of the same name have been RUNNING in a Flink cluster for `after`: each record is processed twice.

    If the partitions that both read are known, they must have one in common; they are waited for up to a minute.
    Not: jobs with a default name of Flink, unless both are seen to read the same partition; a job that is no longer
    listed; what may have changed while REST was unavailable.
    Recovers when one of them no longer runs.
    """

    title = "two jobs named {job_name} are running on Flink cluster {cluster}"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(now="Cancel the {reader} job that should not run: both write output.", only_while_open=True),
    }
    observes = (FlinkJob, Position, Availability)

    after: PositiveDuration = 10_000
    """How long both must run."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the cluster for a job whose name another job has, and for each new partition that such a job reads.

        Once REST is available again, the cluster too.
        """
        match observation:
            case FlinkJob(cluster=cluster, job=job, name=name):
                pass
            case Position(flink=cluster, job=job, name=name) if _is_first(observation, facts):
                pass
            case Available(source=source, cluster=cluster) if source == REST:
                return (Scope(cluster),) if facts.histories(FlinkJob, cluster=cluster) else ()
            case _:
                return ()
        others = (history.changes[-1] for history in facts.histories(FlinkJob, cluster=cluster))
        return (Scope(cluster),) if any(other.name == name and other.job != job for other in others) else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        by_name: dict[str, list[str]] = {}
        for history in facts.histories(FlinkJob, cluster=scope.cluster):
            last = history.changes[-1]
            # Jobs that ended before that are final; a name that runs every few minutes has hundreds of them.
            if last.state == "RUNNING" or last.at > facts.final_before:
                by_name.setdefault(last.name, []).append(last.job)
        for name, jobs in by_name.items():
            for pair in combinations(jobs, 2):
                if not _may_overlap(scope.cluster, pair, facts):
                    continue
                for interval in _both_running(scope.cluster, pair, facts):
                    known_at = self._known_at(scope.cluster, name, pair, interval, facts)
                    if known_at is not None:
                        yield self.make_finding(
                            scope,
                            interval.begin,
                            known_at=known_at,
                            detail=f"two jobs named {name} are running, {pair[0]} and {pair[1]}, since "
                            f"{clock(interval.begin.at)} UTC",
                            subject={"jobs": list(pair), "job_name": name},
                        )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        cluster, jobs = scope.cluster, finding.subject["jobs"]
        ends = [ended_at(facts, cluster, job, finding.at) for job in jobs]
        states = (state for job in jobs for state in facts.history(FlinkJob, cluster, job).after(finding.at))
        stops = (state.at for state in states if state.state != "RUNNING")
        return recovered(finding, min([*stops, *(end for end in ends if end is not None)], default=None))

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        return f"two jobs named {finding.subject.get('job_name')} are running"

    def _known_at(self, flink: str, name: str, pair: tuple[str, str], interval: Interval, facts: Facts) -> int | None:
        """Return when it is known that both do the same, or None if they do not or it cannot be known."""
        known_at: int | None = None
        for after in (self.after, max(self.after, LATENESS_MS)):
            known_at = confirmed_at(facts, flink, interval, after, (REST,))
            if known_at is None:
                return None
            first, second = (_partitions_read(flink, job, facts, known_at) for job in pair)
            if first & second:
                return known_at
        is_same_by_name = not (first and second) and not DEFAULT_NAMES.match(name)
        return known_at if is_same_by_name else None


def _both_running(cluster: str, pair: tuple[str, str], facts: Facts) -> Iterator[Interval]:
    histories = [facts.history(FlinkJob, cluster, job) for job in pair]

    def is_running(at: int) -> bool | None:
        states = [history.as_of(at) for history in histories]
        running = all(state is not None and state.state == "RUNNING" for state in states)
        return (running and all(is_listed(facts, cluster, job, at) for job in pair)) or None

    return intervals_over([*histories, facts.history(JobListing, cluster)], is_running)


def _may_overlap(cluster: str, pair: tuple[str, str], facts: Facts) -> bool:
    """Return whether both may have run at once, by their first and last states alone: of jobs in succession none do."""
    first, second = (facts.history(FlinkJob, cluster, job).changes for job in pair)
    return not (_is_over(first, second[0].at) or _is_over(second, first[0].at))


def _is_over(states: Sequence[FlinkJob], at: int) -> bool:
    """Return whether the job had ended for good by that moment."""
    return states[-1].ended and states[-1].at <= at


def _partitions_read(flink: str, job: str, facts: Facts, at: int) -> set[tuple[str, str, int]]:
    """Return the partitions that the job had been seen to read by `at`."""
    positions = (history.as_of(at) for history in positions_of(facts, flink, job))
    return {(position.cluster, position.topic, position.partition) for position in positions if position is not None}


def _is_first(position: Position, facts: Facts) -> bool:
    return len(facts.history_of(position).changes) == 1
