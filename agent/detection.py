"""Rules run over facts: which cases to look at again, what findings are new, changed or withdrawn. Pure: observations in, changes out.

A case is judged afresh from the facts whenever one of them changes, so a fact that comes late (by up to the lateness) corrects what
was said: the findings in the end do not depend on the order in which sources reported. A finding older than that is settled; from
then on only its recovery is followed.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from agent.facts import LATENESS_MS, Facts
from agent.findings import Finding, FindingKey
from agent.observations import (
    BrokerRegistration,
    Commit,
    Controller,
    GroupState,
    LogOffsets,
    Observation,
    PartitionState,
    Sight,
    Tick,
)
from agent.rule import Case, Rule

SETTLED_MS = 2 * LATENESS_MS
"""How long after it could first be known a finding may still change or be withdrawn."""

FORGOTTEN_MS = 7 * 86_400_000
"""How long a finding that does not recover is followed."""


class Judged(NamedTuple):
    """A case in the eyes of one rule."""

    rule: str
    case: Case


class Changes(NamedTuple):
    """What changed: findings that are new or replaced, and the keys of those withdrawn."""

    found: list[Finding]
    withdrawn: list[FindingKey]


class Detection:
    """The rules' state: the facts, the findings that may still change, and when to look again."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        """rules: by their name in rules.toml."""
        self.facts = Facts()
        self._rules = rules
        self._held: dict[Judged, dict[FindingKey, Finding]] = {}
        self._watched: dict[tuple[object, ...], set[Judged]] = {}
        self._due: list[tuple[int, Judged]] = []
        self._wake: dict[Judged, int] = {}
        self._fresh_until: dict[Judged, int] = {}

    def take(self, observations: Iterable[Observation]) -> Changes:
        """Absorb a batch and judge what it touches."""
        dirty: set[Judged] = set()
        facts = self.facts
        for observation in observations:
            if not facts.absorb(observation) or isinstance(observation, Tick):
                continue
            for name, rule in self._rules.items():
                for case in rule.cases(observation, facts):
                    self._mark(Judged(name, case))
                    dirty.add(Judged(name, case))
            for anchor in _anchors(observation):
                dirty |= self._watched.get(anchor, set())
        while self._due and self._due[0][0] <= facts.now:
            at, judged = heapq.heappop(self._due)
            if self._wake.get(judged) == at:
                del self._wake[judged]
                dirty.add(judged)
        changes = Changes([], [])
        for judged in sorted(dirty, key=_order):
            self._judge(judged, changes)
        return changes

    def absorb(self, observations: Iterable[Observation]) -> None:
        """Take in what had been judged before a restart; what may still change is judged again with the next batch."""
        for observation in observations:
            if self.facts.absorb(observation):
                for name, rule in self._rules.items():
                    for case in rule.cases(observation, self.facts):
                        self._mark(Judged(name, case))
        for judged in self._fresh_until:
            self._wait(judged, self.facts.now)

    def resume(self, findings: Iterable[Finding]) -> None:
        """Follow findings made before a restart."""
        for finding in findings:
            if finding.rule in self._rules:
                judged = Judged(finding.rule, _case(finding))
                self._held.setdefault(judged, {})[finding.key] = finding
                self._watch(judged)

    @property
    def next_due(self) -> int | None:
        """When time alone may show something, ms; None where nothing is waited for."""
        return self._due[0][0] if self._due else None

    def _mark(self, judged: Judged) -> None:
        """Judge the case with every fact that concerns it until none can come late any more."""
        if judged not in self._fresh_until:
            self._watch(judged)
        self._fresh_until[judged] = self.facts.now + SETTLED_MS

    def _wait(self, judged: Judged, at: int) -> None:
        if self._wake.get(judged, at + 1) > at:
            self._wake[judged] = at
            heapq.heappush(self._due, (at, judged))

    def _judge(self, judged: Judged, changes: Changes) -> None:
        rule, facts = self._rules[judged.rule], self.facts
        held = self._held.get(judged, {})
        settled = facts.now - SETTLED_MS
        findings = {key: one for key, one in held.items() if one.known_at <= settled}
        for finding in rule.detect(judged.case, facts):
            if finding.known_at > facts.now:
                self._wait(judged, finding.known_at)
            elif finding.known_at > settled:
                named = msgspec.structs.replace(finding, rule=judged.rule)
                findings[named.key] = named
        changes.withdrawn.extend(key for key in held if key not in findings)
        for key, finding in findings.items():
            if finding.recovered_at is None:
                findings[key] = rule.follow(finding, judged.case, facts)
            if findings[key] != held.get(key):
                changes.found.append(findings[key])
        self._keep(judged, [one for one in findings.values() if not _over(one, facts.now)])

    def _keep(self, judged: Judged, findings: list[Finding]) -> None:
        fresh_until = self._fresh_until.get(judged, 0)
        if findings:
            self._held[judged] = {one.key: one for one in findings}
            self._watch(judged)
        else:
            self._held.pop(judged, None)
        if fresh_until > self.facts.now:
            self._wait(judged, fresh_until)
            return
        self._fresh_until.pop(judged, None)
        if not findings and judged not in self._wake:
            self._unwatch(judged)

    def _watch(self, judged: Judged) -> None:
        for anchor in _case_anchors(judged.case):
            self._watched.setdefault(anchor, set()).add(judged)

    def _unwatch(self, judged: Judged) -> None:
        for anchor in _case_anchors(judged.case):
            watching = self._watched.get(anchor)
            if watching is not None:
                watching.discard(judged)
                if not watching:
                    del self._watched[anchor]


def _over(finding: Finding, now: int) -> bool:
    """Whether nothing about the finding can change any more, or has for so long that it is given up."""
    settled = finding.recovered_at is not None and finding.known_at <= now - SETTLED_MS
    return settled or now - finding.known_at > FORGOTTEN_MS


def _order(judged: Judged) -> tuple[str, str]:
    return judged.rule, repr(judged.case)


def _case(finding: Finding) -> Case:
    return Case(**{name: finding.subject[name] for name in Case._fields if name in finding.subject})


def _case_anchors(case: Case) -> list[tuple[object, ...]]:
    """The observations' anchors that concern a case held: its partition or topic, its group, its broker, its source, else its cluster."""
    anchors: list[tuple[object, ...]] = []
    if case.topic is not None:
        anchors.append(("topic", case.cluster, case.topic, case.partition))
    if case.group is not None:
        anchors.append(("group", case.cluster, case.group))
    if case.broker is not None:
        anchors.append(("broker", case.cluster, case.broker))
    if case.source is not None:
        anchors.append(("source", case.cluster, case.source))
    return anchors or [("cluster", case.cluster)]


def _anchors(observation: Observation) -> list[tuple[object, ...]]:
    match observation:
        case Commit(cluster=cluster, group=group, topic=topic, partition=partition):
            return [("topic", cluster, topic, partition), ("group", cluster, group)]
        case PartitionState(cluster=cluster, topic=topic, partition=partition):
            return [("topic", cluster, topic, partition), ("topic", cluster, topic, None)]
        case LogOffsets(cluster=cluster, topic=topic, partition=partition):
            return [("topic", cluster, topic, partition)]
        case GroupState(cluster=cluster, group=group):
            return [("group", cluster, group)]
        case BrokerRegistration(cluster=cluster, broker=broker):
            return [("broker", cluster, broker)]
        case Controller(cluster=cluster):
            return [("cluster", cluster)]
        case Sight(cluster=cluster, source=source):
            return [("source", cluster, source)]
        case _:
            return []
