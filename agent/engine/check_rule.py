"""What the rules about Spark checks' findings have in common: a finding observed becomes a finding of the rule.

When it happened stands in the finding; the observation says which run found it. Nothing is compared here: checks do.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import ClassVar

import msgspec

from agent.engine.facts import FINALIZATION_MS, RETENTION_MS, Facts, History
from agent.engine.rule import Scope, TopicRule, recovered
from agent.model.findings import Finding, finding_from_json
from agent.model.observations import CheckFinding, CheckRun, Observation


class CheckRule(TopicRule):
    """A rule about what the check of its name finds. It is over when the check looks at everything and no longer finds
    it.
    """

    observes = (CheckFinding,)

    reads: ClassVar[str]
    """What the check reads and finds, in one line."""

    def means(self, observation: CheckFinding) -> bool:
        """Whether the finding is about something that is judged."""
        return self.topics.match(observation.topic or "")

    def counts(self, finding: Finding) -> bool:  # noqa: ARG002 - for rules that ask for more
        """Whether the finding is worth telling."""
        return True

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each finding of the check."""
        if not isinstance(observation, CheckFinding) or observation.check != self.kind or not self.means(observation):
            return ()
        one = observation
        return (Scope(one.cluster, one.group, one.topic, one.partition, one.broker),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each finding once, as the first run told it; what has settled stands."""
        told = set()
        for observation in _findings(self.kind, scope, facts):
            read = _read(observation.finding)
            if read is None or observation.seen <= facts.now - FINALIZATION_MS or not self.counts(read):
                continue
            finding = msgspec.structs.replace(
                read,
                rule=self.kind,
                kind=self.kind,
                severity=self.effective_severity(read.severity) or read.severity,
                recovered_at=None,
                subject={**read.subject, **scope.subject},
                known_at=observation.seen,
            )
            if finding.key not in told:
                told.add(finding.key)
                yield finding

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over with the first complete run after the last that found it."""
        # Each run is looked at when it ends: sightings of those before need not be kept.
        recent = facts.history(CheckRun, scope.cluster, self.kind).after(
            max(finding.known_at, facts.now - RETENTION_MS)
        )
        runs = [one.at for one in recent if one.complete and one.outcome != "failed"]
        if not runs:
            return finding
        sightings = (one.at for one in _findings(self.kind, scope, facts).after(finding.known_at) if _is(one, finding))
        last = max(sightings, default=finding.known_at)
        return recovered(finding, next((at for at in runs if at > last), None))


def _findings(check: str, scope: Scope, facts: Facts) -> History[CheckFinding]:
    return facts.history(CheckFinding, scope.cluster, check, scope.group, scope.topic, scope.partition, scope.broker)


def _is(observation: CheckFinding, finding: Finding) -> bool:
    """Whether the finding was found again: what happened, where and when is the same, whatever is said of it now."""
    again = _read(observation.finding)
    return (
        again is not None
        and again.at == finding.at
        and {**again.subject, "cluster": observation.cluster} == finding.subject
    )


@lru_cache(maxsize=4_096)
def _read(text: str) -> Finding | None:
    """The finding; None where the text is none, which a file that people wrote may hold and a check never prints."""
    try:
        return finding_from_json(text)
    except ValueError:
        return None
