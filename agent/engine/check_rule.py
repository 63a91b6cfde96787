"""Base of the rules that report what Spark checks find.

The finding itself holds when it happened; the observation holds which run found it. Checks compare, rules report.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

import msgspec

from agent.engine.facts import Facts
from agent.engine.history import FINALIZATION_MS, RETENTION_MS, History
from agent.engine.rule import EventRule, GroupRule, Scope, TopicRule, recovered
from agent.model.findings import Finding, finding_from_json
from agent.model.observations.base import Observation
from agent.model.observations.checks import CheckFinding, CheckRun


class CheckInput(StrEnum):
    """What a check reads, which decides the options it takes."""

    LOG_DIRECTORIES = "log_directories"
    CHANGELOGS = "changelogs"
    COMMITS = "commits"
    """Committed offsets in the journal."""
    CLUSTERS = "clusters"
    """Committed offsets and log offsets of several clusters in the journal."""
    JOURNAL = "journal"
    """All of the journal, and the incidents."""
    FLINK_JOBS = "flink_jobs"
    """Flink jobs in the journal, and Flink's HA storage."""


class CheckRule(TopicRule):
    """A rule that reports what the check of its name finds, until a complete run no longer finds it."""

    observes = (CheckFinding,)

    summary: ClassVar[str]
    """What the check reads and finds, in one line."""

    input: ClassVar[CheckInput] = CheckInput.LOG_DIRECTORIES
    """What the check reads."""

    posts_report: ClassVar[bool] = False
    """Whether a scheduled run posts its summary as a message of its own."""

    min_brokers: ClassVar[int] = 1
    """How many brokers' log directories the check needs."""

    def matches(self, observation: CheckFinding) -> bool:
        """Return whether the rule's filters select what the finding is about."""
        return self.topics.match(observation.topic or "")

    def is_reportable(self, finding: Finding) -> bool:  # noqa: ARG002 - for rules with further conditions
        """Return whether the finding is to be reported."""
        return True

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        if not isinstance(observation, CheckFinding) or observation.check != self.kind or not self.matches(observation):
            return ()
        return (
            Scope(observation.cluster, observation.group, observation.topic, observation.partition, observation.broker),
        )

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield each finding once, as the first run reported it, until it is final."""
        reported = set()
        for observation in _sightings(self.kind, scope, facts):
            found = _parse(observation.finding)
            if found is None or observation.seen <= facts.now - FINALIZATION_MS or not self.is_reportable(found):
                continue
            finding = msgspec.structs.replace(
                found,
                rule=self.kind,
                kind=self.kind,
                severity=self.effective_severity(found.severity) or found.severity,
                recovered_at=None,
                subject={**found.subject, **scope.subject},
                known_at=observation.seen,
            )
            if finding.key not in reported:
                reported.add(finding.key)
                yield finding

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Return the finding as recovered at the first complete run after the last that found it."""
        # Each run is evaluated when it ends: sightings of earlier runs need not be kept.
        recent = facts.history(CheckRun, scope.cluster, self.kind).after(
            max(finding.known_at, facts.now - RETENTION_MS)
        )
        runs = [run.at for run in recent if run.complete and run.outcome != "failed"]
        if not runs:
            return finding
        sightings = _sightings(self.kind, scope, facts).after(finding.known_at)
        last = max((found.at for found in sightings if _is_same(found, finding)), default=finding.known_at)
        return recovered(finding, next((at for at in runs if at > last), None))


class GroupCheckRule(EventRule, CheckRule, GroupRule):
    """A rule that reports what a check finds about groups on topics."""

    def matches(self, observation: CheckFinding) -> bool:
        group, topic = observation.group, observation.topic
        return group is not None and topic is not None and self.applies_to(group, topic)


def _sightings(check: str, scope: Scope, facts: Facts) -> History[CheckFinding]:
    return facts.history(CheckFinding, scope.cluster, check, scope.group, scope.topic, scope.partition, scope.broker)


def _is_same(observation: CheckFinding, finding: Finding) -> bool:
    """Return whether the observation has the finding's time, subject and position, whatever else has changed."""
    found = _parse(observation.finding)
    return (
        found is not None
        and (found.at, found.position) == (finding.at, finding.position)
        and {**found.subject, "cluster": observation.cluster} == finding.subject
    )


@lru_cache(maxsize=4_096)
def _parse(text: str) -> Finding | None:
    """Return the finding, or None if the text is not one: a journal edited by hand may hold anything."""
    try:
        return finding_from_json(text)
    except ValueError:
        return None
