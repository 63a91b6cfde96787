"""Base of the rules that report what Spark checks find.

The finding itself holds when it happened; the observation holds which run found it. Checks compare, rules report.
"""

from collections.abc import Iterable, Iterator, Sequence
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
            found = _parse(observation)
            if found is None or observation.seen <= facts.now - FINALIZATION_MS or not self.is_reportable(found):
                continue
            finding = self._reported(found, scope, known_at=observation.seen)
            if finding.key not in reported:
                reported.add(finding.key)
                yield finding

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Return the finding as the last run described it, recovered at the first complete run after that.

        It keeps the time that the first run gave it.
        """
        # Each run is evaluated when it ends: earlier runs and their sightings need not be kept.
        since = max(finding.known_at, facts.now - RETENTION_MS)
        last = finding.known_at
        for sighting in reversed(_sightings(self.kind, scope, facts).after(since)):
            found = _parse(sighting)
            if found is not None and _is_same(found, finding):
                last = sighting.at
                newest = self._reported(found, scope, known_at=finding.known_at)
                finding = msgspec.structs.replace(newest, rule=finding.rule, at=finding.at, since=finding.since)
                break
        runs = facts.history(CheckRun, scope.cluster, self.kind).after(max(last, since))
        return recovered(finding, next((run.at for run in runs if run.complete and run.outcome != "failed"), None))

    def reconcile(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        """Return the findings without those that a later run dated otherwise while they were open."""
        kept: dict[str, list[Finding]] = {}
        for finding in sorted(findings, key=lambda finding: (finding.known_at, finding.at)):
            # Compared only with others at its place: there may be thousands.
            earlier = kept.setdefault(finding.key[1], [])
            if not any(first.is_open_at(finding.known_at) and _is_same(finding, first) for first in earlier):
                earlier.append(finding)
        return [finding for same_place in kept.values() for finding in same_place]

    def _reported(self, found: Finding, scope: Scope, known_at: int) -> Finding:
        return msgspec.structs.replace(
            found,
            rule=self.kind,
            kind=self.kind,
            severity=self.effective_severity(found.severity) or found.severity,
            recovered_at=None,
            subject={**found.subject, **scope.subject},
            known_at=known_at,
        )


class GroupCheckRule(EventRule, CheckRule, GroupRule):
    """A rule that reports what a check finds about groups on topics."""

    def matches(self, observation: CheckFinding) -> bool:
        group, topic = observation.group, observation.topic
        return group is not None and topic is not None and self.applies_to(group, topic)


def _sightings(check: str, scope: Scope, facts: Facts) -> History[CheckFinding]:
    return facts.history(CheckFinding, scope.cluster, check, scope.group, scope.topic, scope.partition, scope.broker)


def _is_same(found: Finding, finding: Finding) -> bool:
    """Return whether both are one fault, whatever else has changed: each run may estimate its time."""
    is_place = found.key[1] == finding.key[1]  # the subject and the position
    return is_place and (found.at == finding.at or found.labels[:1] == finding.labels[:1])


def _parse(observation: CheckFinding) -> Finding | None:
    """Return the finding, or None if the text is not one: a journal edited by hand may hold anything."""
    return _parse_of(observation.cluster, observation.finding)


@lru_cache(maxsize=4_096)
def _parse_of(cluster: str, text: str) -> Finding | None:
    try:
        found = finding_from_json(text)
    except ValueError:
        return None
    return msgspec.structs.replace(found, subject={**found.subject, "cluster": cluster})
