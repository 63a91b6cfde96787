"""What every rule is: options, the cases an observation touches, what is found in a scope, and how that is followed
until it has recovered.

A rule is pure: it looks at the facts and keeps nothing. The one that holds findings and the time is agent/engine/evaluator.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from agent.engine.facts import Facts
from agent.model.config_types import ConfigModel, NameFilter
from agent.model.findings import Finding, Records, Severity
from agent.model.observations import Observation
from agent.model.text import recovery, time_range


class Scope(NamedTuple):
    """What a rule judges as one: the named keys that it is about, the others None."""

    cluster: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    source: str | None = None
    job: str | None = None
    log: str | None = None

    @property
    def subject(self) -> dict[str, Any]:
        """The named keys that are set, in the order in which they are shown."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @property
    def in_partition(self) -> tuple[str, str, int]:
        """(cluster, topic, partition) of a case that has them."""
        if self.topic is None or self.partition is None:
            msg = f"{self} is not about a partition"
            raise ValueError(msg)
        return self.cluster, self.topic, self.partition

    @property
    def series(self) -> tuple[str, str, str, int]:
        """(cluster, group, topic, partition) of a case that has them."""
        cluster, topic, partition = self.in_partition
        if self.group is None:
            msg = f"{self} is not about a group"
            raise ValueError(msg)
        return cluster, self.group, topic, partition


class Advice(NamedTuple):
    """What an operator should do about a finding; both texts are templates over the fields of `render.advice`.

    now: at 3 a.m. prevent: in office hours, so that it does not happen again.
    only_while_open: nothing remains to be done at once when the finding has recovered. Lost or reprocessed records
    remain a task after it.
    """

    now: str = ""
    prevent: str = ""
    only_while_open: bool = False


class Rule(ConfigModel):
    """A rule as configured; its fields are its options, its kind is the name of its file.

    A rule owns its text: how a finding of it is titled, described and followed up stands in its own file.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    """The headline of an incident whose worst finding is of this kind; a template over the fields of `impact.title`."""

    default_severity: ClassVar[Severity] = Severity.WARNING
    is_ongoing: ClassVar[bool] = False
    """Whether a finding is a condition that lasts until it recovers, so that its end is worth mentioning."""

    changes_leader: ClassVar[bool] = False
    """Whether a finding is a leader change: `previous` and `current` name the leader."""

    is_about_sources: ClassVar[bool] = False
    """Whether a finding is about the availability of a source itself."""

    moves_position: ClassVar[bool] = False
    """Whether a finding is about where a reader or a log stands, so that causes can be ruled out for it."""

    advice: ClassVar[Mapping[str, Advice]] = {}
    """Advice by label; under the empty string for findings with none of the labels."""

    observes: ClassVar[tuple[type[Observation], ...]] = (Observation,)
    """The kinds of observations that `cases` is asked about."""

    severity: Literal["info", "warning", "critical"] | None = None
    """Replaces the severity shipped (findings that are info by their label stay info)."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """The cases in which this observation, already among the facts, may show something new. Called for each change:
        must be cheap.

        What takes facts of two subjects must be named by whichever of them comes last, up to a minute late.
        """
        raise NotImplementedError

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """All that the facts kept show in this scope. A finding with `known_at` after `facts.now` is asked for again
        then.

        `known_at` and the rest follow from what happened until LATENESS_MS after it and from the few changes before:
        what comes later must not count, or arrival would decide.
        """
        raise NotImplementedError

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """The finding with what has become of it since, and with `recovered_at` where it is over.

        Where that is after `facts.now` it is asked for again then.
        """
        raise NotImplementedError

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        """Return the finding as one sentence with its time. day: the date that times need not repeat."""
        time = "" if " UTC" in finding.detail else f", {time_range(finding, day)}"
        over = cls.is_ongoing and finding.recovered_at is not None
        return f"{finding.detail.rstrip('.')}{time}{recovery(finding, day, 'over') if over else ''}"

    @classmethod
    def advice_for(cls, finding: Finding) -> Advice:
        """Return the advice of the first label that has one, else the kind's own."""
        labels = (label for label in cls.advice if label in finding.labels)
        return cls.advice.get(next(labels, ""), Advice())

    @classmethod
    def title_suffix(cls, findings: Iterable[Finding]) -> str:
        """Return what the title adds about all findings of this kind; usually nothing."""
        del findings
        return ""

    @classmethod
    def ruled_out(cls, findings: Iterable[Finding]) -> list[str]:
        """Return the causes that the observations behind these findings of this kind rule out, as phrases."""
        del findings
        return []

    def effective_severity(self, severity: Severity | None) -> Severity | None:
        """The severity configured in place of this one; what is info stays info. None where neither is given."""
        return Severity(self.severity) if self.severity and severity is not Severity.INFO else severity

    def make_finding(
        self,
        scope: Scope,
        observation: Observation,
        *,
        detail: str,
        at: int | None = None,
        known_at: int | None = None,
        since: int | None = None,
        severity: Severity | None = None,
        labels: Iterable[str] = (),
        previous: Mapping[str, Any] | None = None,
        current: Mapping[str, Any] | None = None,
        records: Records | None = None,
        subject: Mapping[str, Any] | None = None,
    ) -> Finding:
        """A finding of this kind that the observation shows; times default to the observation's."""
        return Finding(
            rule=self.kind,
            kind=self.kind,
            severity=self.effective_severity(severity) or self.default_severity,
            at=observation.at if at is None else at,
            since=observation.since if since is None else since,
            subject={**scope.subject, **(subject or {})},
            labels=tuple(labels),
            previous=previous or {},
            current=current or {},
            records=records or Records(),
            detail=detail,
            known_at=observation.seen if known_at is None else known_at,
        )


class EventRule(Rule):
    """A rule about what happens in a moment and is over with it."""

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:  # noqa: ARG002 - the base's signature
        """Over at once."""
        return recovered(finding, finding.at)


def recovered(finding: Finding, at: int | None) -> Finding:
    """The finding as recovered at that moment; itself where there is none."""
    return finding if at is None else msgspec.structs.replace(finding, recovered_at=at)


class TopicRule(Rule):
    """A rule about topics or their partitions."""

    topics: NameFilter = NameFilter()
    """Topics judged."""


class GroupRule(TopicRule):
    """A rule about consumer groups on partitions."""

    groups: NameFilter = NameFilter()
    """Groups judged."""

    def applies_to(self, group: str, topic: str) -> bool:
        """Whether the group on the topic is meant."""
        return self.groups.match(group) and self.topics.match(topic)
