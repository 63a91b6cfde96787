"""The base of every rule: its options, its scopes, how it detects, follows and describes findings.

A rule is pure: it looks at the facts and keeps nothing. agent/engine/evaluator.py holds findings and the time.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from agent.engine.facts import Facts
from agent.engine.history import LONG_AFTER, LONG_AGO
from agent.engine.ordinary import CommitProgress, SeriesAtRest
from agent.model.batches import Flags
from agent.model.config_types import ConfigModel
from agent.model.findings import Finding, Records, Severity
from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import LogOffsets, PartitionState
from agent.model.text import recovery, time_range

_TIME_CLAUSE = re.compile(r",? (?:at|since|by) (?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\.\d UTC$")
"""The time at the end of a `detail`, which a timeline row begins with."""

ELECTION = "leader_election"
"""The cause of a `CauseCheck` about leader changes of the finding's partition: with one, they are not its causes."""

_RULED_OUT, _POSSIBLE = "ruled_out", "not_ruled_out"


class Scope(NamedTuple):
    """What one evaluation of a rule covers: the keys that identify it; the others are None."""

    cluster: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    source: str | None = None
    job: str | None = None
    log: str | None = None
    others: tuple[tuple[str, Hashable], ...] = ()
    """Keys that only one system has, by name, such as a connector; a rule lists these names in `scope_keys`."""

    @classmethod
    def of_partition(cls, observation: LogOffsets | PartitionState) -> "Scope":
        """Return the scope of the partition that the observation is about."""
        return cls(observation.cluster, topic=observation.topic, partition=observation.partition)

    @property
    def subject(self) -> dict[str, Any]:
        """The keys that are set, in the order in which they are shown."""
        named = {name: value for name, value in self._asdict().items() if value is not None and name != "others"}
        return {**named, **dict(self.others)}

    @property
    def in_partition(self) -> tuple[str, str, int]:
        """(cluster, topic, partition). Raises ValueError if the scope has no partition."""
        if self.topic is None or self.partition is None:
            msg = f"{self} is not about a partition"
            raise ValueError(msg)
        return self.cluster, self.topic, self.partition

    @property
    def series(self) -> tuple[str, str, str, int]:
        """(cluster, group, topic, partition). Raises ValueError if the scope has no group."""
        cluster, topic, partition = self.in_partition
        if self.group is None:
            msg = f"{self} is not about a group"
            raise ValueError(msg)
        return cluster, self.group, topic, partition


class Advice(NamedTuple):
    """What an operator should do about a finding; both texts are templates over the fields of `render.advice`.

    now: at 3 a.m. prevent: in office hours, so that it does not happen again.
    only_while_open: `now` no longer applies once the finding has recovered. Lost or reprocessed records remain a task.
    """

    now: str = ""
    prevent: str = ""
    only_while_open: bool = False


class CauseCheck(NamedTuple):
    """Whether the observations rule out a possible cause of a finding.

    cause: the label of findings that have this cause (`operator_reset`). evidence: the observation that rules it out,
    as a clause. doubt: if there is no such observation, why the cause cannot be ruled out, as a clause.
    """

    cause: str
    evidence: str = ""
    doubt: str = ""


ChosenSeverity: TypeAlias = Literal["info", "warning", "critical"]
"""A severity as an option."""


class Rule(ConfigModel):
    """A rule as configured; its fields are its options, its kind is the name of its file.

    A rule owns its text: the file of its kind says how its findings are titled, described and followed up.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    """The headline of an incident whose worst finding is of this kind: a template over the fields of its subject."""

    titles: ClassVar[Mapping[str, str]] = {}
    """Titles by label, instead of `title`: a warning of what may happen reads differently from the fact."""

    default_severity: ClassVar[Severity] = Severity.WARNING
    is_ongoing: ClassVar[bool] = False
    """Whether a finding is a condition that lasts until it recovers, so that its end is worth mentioning."""

    is_single: ClassVar[bool] = False
    """Whether a scope has one open finding at most: what is detected until it recovers belongs to it."""

    is_delay: ClassVar[bool] = False
    """Whether a finding is about a reader that does not keep up, or what that costs: it joins what lasts already."""

    moves_position: ClassVar[bool] = False
    """Whether a finding is about the position of a reader or the end of a log."""

    moves_reader: ClassVar[bool] = False
    """Whether a finding is the move of a reader: an event of its own, even if a truncation behind it lost records."""

    recreates_topic: ClassVar[bool] = False
    """Whether a finding is the re-creation of its topic."""

    reports_agent: ClassVar[bool] = False
    """Whether a finding is about Backflow itself: a source, a part or a check.

    What is unavailable does not hide it, and a configuration without such a rule is warned about.
    """

    advice: ClassVar[Mapping[str, Advice]] = {}
    """Advice by label; under the empty string for findings with none of the labels."""

    observes: ClassVar[tuple[type[Observation], ...]] = (Observation,)
    """The kinds of observations that `scopes` is called with; without any, the rule needs no `scopes`."""

    revisits: ClassVar[type[Observation] | None] = None
    """The kind of observations whose histories `revisit` is called with, every `revisit_ms`."""

    revisit_ms: ClassVar[int] = 60_000

    scope_keys: ClassVar[tuple[str, ...]] = ()
    """The names in `others` of this rule's scopes."""

    ignores_all_progress: ClassVar[bool] = False
    """Whether `scopes` returns nothing for a commit that is further than the one before it."""

    ignores_growth: ClassVar[bool] = False
    """Whether `scopes` returns nothing for log offsets that are unchanged but for a log end that is higher than before.

    Nor lower than any offset that a group has committed.
    """

    severity: ChosenSeverity | None = None
    """Replaces the default severity. Findings that are info because of a label stay info."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the scopes to evaluate after this change. Called for each change, so it must be cheap.

        A rule that joins two subjects returns the scope when either changes: facts may be up to a minute late.
        """
        raise NotImplementedError

    def revisit(self, history: Any, facts: Facts) -> Iterable[Scope]:
        """Return the scopes to evaluate because time has passed, whether or not something has changed.

        For rules about what does not happen: called every `revisit_ms` for each subject, so it must be cheap. A
        condition that has just ended counts too, as long as a finding about it would not be final.
        """
        raise NotImplementedError

    def ignores_progress(self, progress: CommitProgress, facts: Facts) -> Flags:
        """Return the commits for which `scopes` would return nothing. A rule that observes commits may name some."""
        del facts
        return np.full(len(progress), self.ignores_all_progress)

    def ignores_series(self, series: SeriesAtRest, facts: Facts) -> Flags:
        """Return the series for which `revisit` would return nothing. A rule that revisits commits may name some."""
        del facts
        return np.zeros(len(series.last_at), np.bool_)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield all findings in the scope. One with `known_at` after `facts.now` is evaluated again then.

        `known_at` and the rest depend only on what happened until LATENESS_MS after it and on the few changes before.
        Later facts must not count, or the order of arrival would decide.
        """
        raise NotImplementedError

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Return the finding as it is by now, with `recovered_at` if it has recovered.

        If `recovered_at` is after `facts.now`, the finding is followed again then.
        """
        raise NotImplementedError

    def concerns(self, finding: Finding, observation: Observation) -> bool:
        """Return whether an observation of something that `follow` reads may change what it returns.

        If not, that is found out some seconds later. Called for each such observation while a finding is open, so it
        must be cheap.
        """
        del finding, observation
        return True

    def reconcile(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        """Return the findings of one scope, as followed, with what they imply about each other.

        Of a rule that `is_single`, without those that happened while an earlier one was open.
        """
        if not self.is_single:
            return findings
        kept: list[Finding] = []
        open_until = LONG_AGO
        for finding in sorted(findings, key=lambda finding: (finding.at, finding.key)):
            if finding.at > open_until:
                kept.append(finding)
                open_until = LONG_AFTER if finding.recovered_at is None else finding.recovered_at
        return kept

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        """Return the finding as one sentence with its time. day: the date that times need not repeat."""
        time = "" if " UTC" in finding.detail else f", {time_range(finding, day)}"
        is_resolved = cls.is_ongoing and finding.recovered_at is not None
        return f"{finding.detail.rstrip('.')}{time}{recovery(finding, day, 'resolved') if is_resolved else ''}"

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        """Return a short phrase for a timeline row, without the time that the row begins with.

        day: the date that further times need not repeat.
        """
        del day
        return _TIME_CLAUSE.sub("", finding.detail.rstrip("."))

    @classmethod
    def advice_for(cls, finding: Finding) -> Advice:
        """Return the advice of the first label that has one, else the kind's own."""
        labels = (label for label in cls.advice if label in finding.labels)
        return cls.advice.get(next(labels, ""), Advice())

    @classmethod
    def title_for(cls, finding: Finding) -> str:
        """Return the title of the first label that has one, else the kind's own."""
        title = next((cls.titles[label] for label in finding.labels if label in cls.titles), cls.title)
        records = max(finding.records.reread, finding.records.lost, finding.records.skipped)
        return title.replace("{records} records", "{records} record") if records == 1 else title

    @classmethod
    def title_suffix(cls, findings: Iterable[Finding]) -> str:
        """Return what the title adds about all findings of this kind; usually nothing."""
        del findings
        return ""

    def effective_severity(self, severity: Severity | None) -> Severity | None:
        """Return the configured severity instead of this one, unless this one is info; None if neither is given."""
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
        checks: Iterable[CauseCheck] = (),
    ) -> Finding:
        """Return a finding of this kind that the observation shows; times default to the observation's."""
        return Finding(
            rule=self.kind,
            kind=self.kind,
            severity=self.effective_severity(severity) or self.default_severity,
            at=observation.at if at is None else at,
            since=observation.since if since is None else since,
            subject={**scope.subject, **(subject or {})},
            labels=tuple(labels),
            previous=previous or {},
            current={**(current or {}), **_check_fields(checks)},
            records=records or Records(),
            detail=detail,
            known_at=observation.seen if known_at is None else known_at,
        )


def cause_checks(finding: Finding) -> list[CauseCheck]:
    """Return what was checked when the finding was made; nothing about the causes that it has."""
    ruled_out, possible = (finding.current.get(name) or {} for name in (_RULED_OUT, _POSSIBLE))
    return [
        *(CauseCheck(cause, evidence=evidence) for cause, evidence in ruled_out.items()),
        *(CauseCheck(cause, doubt=doubt) for cause, doubt in possible.items()),
    ]


def _check_fields(checks: Iterable[CauseCheck]) -> dict[str, dict[str, str]]:
    """Return the checks as fields of a finding's `current`: clauses by cause."""
    checks = list(checks)
    fields = {
        _RULED_OUT: {check.cause: check.evidence for check in checks if check.evidence},
        _POSSIBLE: {check.cause: check.doubt for check in checks if not check.evidence},
    }
    return {name: clauses for name, clauses in fields.items() if clauses}


def without_covered(findings: Iterable[Finding], covers: Callable[[Finding, Finding], bool]) -> list[Finding]:
    """Return the findings in order of time, without those that an earlier one covers: for `Rule.reconcile`."""
    kept: list[Finding] = []
    for finding in sorted(findings, key=lambda finding: (finding.at, finding.key)):
        if not any(covers(earlier, finding) for earlier in kept):
            kept.append(finding)
    return kept


class EventRule(Rule):
    """A rule about momentary events, which recover at once."""

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:  # noqa: ARG002 - the base's signature
        """Return the finding as recovered when it happened."""
        return recovered(finding, finding.at)


def recovered(finding: Finding, at: int | None) -> Finding:
    """Return the finding as recovered at that moment, or unchanged if it is None."""
    return finding if at is None else msgspec.structs.replace(finding, recovered_at=at)


def reopened(finding: Finding) -> Finding:
    """Return the finding as neither recovered nor ended."""
    current = {name: value for name, value in finding.current.items() if name != "ended"}
    return msgspec.structs.replace(finding, recovered_at=None, current=current)


def ended(finding: Finding, at: int, reason: str) -> Finding:
    """Return the finding as over because its subject is gone or of no interest any more.

    reason: a clause that says why ("the group was deleted"); `current["ended"]` holds it, and texts say it instead of
    a recovery.
    """
    return msgspec.structs.replace(finding, recovered_at=at, current={**finding.current, "ended": reason})


class TopicRule(Rule):
    """A rule about topics or their partitions."""

    topics: NameFilter = NameFilter()
    """Which topics the rule is about."""


class GroupRule(TopicRule):
    """A rule about consumer groups on partitions."""

    groups: NameFilter = NameFilter()
    """Which groups the rule is about."""

    def applies_to(self, group: str, topic: str) -> bool:
        """Return whether the options include the group and the topic."""
        return self.groups.match(group) and self.topics.match(topic)
