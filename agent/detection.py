"""Rules run over facts: which cases to look at again, what findings are new, changed or withdrawn. Pure: observations in, changes out.

A case is judged afresh from the facts whenever one of them changes, so a fact that comes late (by up to the lateness) corrects what
was said: the findings in the end do not depend on the order in which sources reported. A finding older than that is
settled; from then on only its recovery is followed.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from agent.facts import LATENESS_MS, SETTLED_MS, Facts
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
)
from agent.rule import Case, Rule

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
        self.next_due: int | None = None
        """When the rules must look again at the latest, ms; None where nothing is waited for."""
        self._rules = rules
        self._held: dict[Judged, dict[FindingKey, Finding]] = {}
        self._watched: dict[tuple[object, ...], set[Judged]] = {}
        self._dirty: set[Judged] = set()
        self._due: list[tuple[int, tuple[str, str], Judged]] = []
        self._wake: dict[Judged, int] = {}
        self._fresh_until: dict[Judged, int] = {}

    def absorb(self, observation: Observation) -> bool:
        """Take a fact in; False where it is history, which changes nothing. What it touches is judged by `judge`."""
        facts = self.facts
        if not facts.absorb(observation):
            return False
        touched = self._dirty
        for name, rule in self._rules.items():
            for case in rule.cases(observation, facts):
                judged = Judged(name, case)
                self._mark(judged, observation.seen)
                touched.add(judged)
        for anchor in _anchors(observation):
            if anchor in self._watched:
                touched |= self._watched[anchor]
        if touched:
            # A batch may span hours: what it touches is judged while histories still hold it.
            judge_by = max(facts.now, observation.seen) + LATENESS_MS
            self.next_due = judge_by if self.next_due is None else min(self.next_due, judge_by)
        return True

    def judge(self, now: int) -> Changes:
        """Look again at what was touched and at what has come due by that moment."""
        self.facts.now = now
        dirty, self._dirty = self._dirty, set()
        while self._due and self._due[0][0] <= now:
            at, _, judged = heapq.heappop(self._due)
            if self._wake.get(judged) == at:
                del self._wake[judged]
                dirty.add(judged)
        changes = Changes([], [])
        for judged in sorted(dirty, key=_order):
            self._judge(judged, changes)
        self.next_due = self._due[0][0] if self._due else None
        return changes

    def resume(self, findings: Iterable[Finding], judged: Iterable[Observation]) -> None:
        """Carry on after a restart: findings made before it, and what had been judged. What may still change is judged
        again with the next batch.
        """
        for finding in findings:
            if finding.rule in self._rules:
                place = Judged(finding.rule, _case(finding))
                self._held.setdefault(place, {})[finding.key] = finding
                self._watch(place)
        for observation in judged:
            if self.absorb(observation):
                self.facts.now = max(self.facts.now, observation.seen)
        self._dirty = {*self._held, *self._fresh_until}

    def _mark(self, judged: Judged, seen: int) -> None:
        """Judge the case with every fact that concerns it until none can come late any more."""
        if judged not in self._fresh_until:
            self._watch(judged)
        self._fresh_until[judged] = max(self.facts.now, seen) + SETTLED_MS

    def _wait(self, judged: Judged, at: int) -> None:
        if self._wake.get(judged, at + 1) > at:
            self._wake[judged] = at
            heapq.heappush(self._due, (at, _order(judged), judged))

    def _judge(self, judged: Judged, changes: Changes) -> None:
        rule, facts = self._rules[judged.rule], self.facts
        held = self._held.get(judged, {})
        settled = facts.now - SETTLED_MS
        findings = {key: one for key, one in held.items() if one.known_at <= settled}
        for finding in rule.detect(judged.case, facts):
            if finding.known_at > facts.now:
                self._wait(judged, finding.known_at)
                self._fresh_until[judged] = max(self._fresh_until.get(judged, 0), finding.known_at + SETTLED_MS)
            elif finding.known_at > settled:
                named = msgspec.structs.replace(finding, rule=judged.rule)
                findings[named.key] = named
        changes.withdrawn.extend(key for key in held if key not in findings)
        for key, finding in findings.items():
            if finding.recovered_at is None or finding.recovered_at > settled:
                followed = rule.follow(msgspec.structs.replace(finding, recovered_at=None), judged.case, facts)
                findings[key] = followed
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
    if finding.recovered_at is None:
        return now - finding.known_at > FORGOTTEN_MS
    return max(finding.recovered_at, finding.known_at) <= now - SETTLED_MS


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
