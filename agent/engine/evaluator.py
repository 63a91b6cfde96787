"""Rules run over facts: which cases to look at again, what findings are new, changed or withdrawn. Pure.

A scope is judged afresh when one of its facts changes, so a fact that comes late corrects what was said: in the end the
findings do not depend on the order in which sources reported. After SETTLED_MS a finding stands; what is followed from
then on is its recovery.
"""

import heapq
from collections.abc import Iterable, Mapping
from itertools import count
from typing import NamedTuple

import msgspec

from agent.engine.dependencies import Anchor, anchors, anchors_of
from agent.engine.facts import LATENESS_MS, LONG_AFTER, LONG_AGO, SETTLED_MS, Facts, Taken
from agent.engine.rule import Rule, Scope
from agent.model.findings import Finding, FindingKey
from agent.model.observations import KINDS, CheckFinding, Commit, Observation, Position

SOON_MS = 10_000
"""How soon a scope is looked at again for what its group, or others on its partition, have committed."""

FORGOTTEN_MS = 7 * 86_400_000
"""How long a finding that does not recover is followed."""


class Evaluation(NamedTuple):
    """A scope in the eyes of one rule."""

    rule: str
    scope: Scope


class Changes(NamedTuple):
    """What changed: findings that are new or replaced, and the keys of those withdrawn."""

    found: list[Finding]
    withdrawn: list[FindingKey]


class Evaluator:
    """The rules' state: the facts, the findings that may still change, and when to look again."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        """rules: by their name in rules.toml."""
        self.facts = Facts()
        self._rules = rules
        self._seen_by = {
            kind: [(name, rule) for name, rule in rules.items() if issubclass(kind, rule.observes)]
            for kind in KINDS.values()
        }
        self._held: dict[Evaluation, dict[FindingKey, Finding]] = {}
        self._watched: dict[Anchor, dict[Evaluation, None]] = {}
        self._dirty: dict[Evaluation, None] = {}
        self._judge_by = LONG_AFTER
        self._stale: dict[Anchor, None] = {}
        self._stale_by = LONG_AFTER
        self._due: list[tuple[int, int, Evaluation]] = []
        self._wake: dict[Evaluation, int] = {}
        self._number = count()
        self._fresh_until: dict[Evaluation, int] = {}

    @property
    def next_due(self) -> int:
        """When the rules must look again at the latest, ms; LONG_AFTER where nothing is waited for."""
        return min(self._due[0][0] if self._due else LONG_AFTER, self._judge_by, self._stale_by)

    def absorb(self, observation: Observation) -> bool:
        """Take a fact in; False where it is history, which changes nothing. What it touches is judged by `judge`."""
        taken = self.facts.absorb(observation)
        if taken is not Taken.NEWS:
            return taken is Taken.KNOWN
        dirty, watched = self._dirty, self._watched
        for name, rule in self._seen_by[type(observation)]:
            for scope in rule.scopes(observation, self.facts):
                judged = Evaluation(name, scope)
                self._mark(judged, observation.seen)
                dirty[judged] = None
        if watched:
            at_once, soon = anchors(observation)
            a_commit = isinstance(observation, Commit | Position)
            for anchor in at_once:
                if anchor in watched:
                    dirty.update(dict.fromkeys(one for one in watched[anchor] if not a_commit or one in self._held))
            for anchor in soon:
                if anchor in watched:
                    self._stale[anchor] = None
                    self._stale_by = min(self._stale_by, observation.seen + SOON_MS)
        if dirty:
            # A batch may span hours: what it touches is judged while histories still hold it.
            self._judge_by = min(self._judge_by, observation.seen + LATENESS_MS)
        return True

    def judge(self, now: int, *, everything: bool = False) -> Changes:
        """Look again at what was touched and what is due by that moment; everything: also at what is due soon."""
        self.facts.now = now
        dirty, self._dirty, self._judge_by = self._dirty, {}, LONG_AFTER
        if everything or self._stale_by <= now:
            for anchor in self._stale:
                dirty.update(self._watched.get(anchor, {}))
            self._stale, self._stale_by = {}, LONG_AFTER
        while self._due and self._due[0][0] <= now:
            at, _, judged = heapq.heappop(self._due)
            if self._wake.get(judged) == at:
                del self._wake[judged]
                dirty[judged] = None
        changes = Changes([], [])
        for judged in dirty:
            self._judge(judged, changes)
        return changes

    def resume(self, findings: Iterable[Finding], judged: Iterable[Observation]) -> None:
        """Carry on after a restart: findings made before it, and what had been judged. What may still change is judged
        again with the next batch.
        """
        for finding in findings:
            if finding.rule in self._rules:
                place = Evaluation(finding.rule, _scope(finding, self._rules[finding.rule]))
                self._held.setdefault(place, {})[finding.key] = finding
                self._watch(place)
        for observation in judged:
            if self.absorb(observation):
                self.facts.now = max(self.facts.now, observation.seen)
        self._dirty = dict.fromkeys([*self._held, *self._fresh_until])

    def _mark(self, judged: Evaluation, seen: int) -> None:
        """Judge the case with every fact that concerns it until none can come late any more."""
        if judged not in self._fresh_until:
            self._watch(judged)
        self._stay_fresh(judged, max(self.facts.now, seen) + SETTLED_MS)

    def _stay_fresh(self, judged: Evaluation, until: int) -> None:
        self._fresh_until[judged] = max(until, self._fresh_until.get(judged, until))

    def _wait(self, judged: Evaluation, at: int) -> None:
        if self._wake.get(judged, LONG_AFTER) > at:
            self._wake[judged] = at
            heapq.heappush(self._due, (at, next(self._number), judged))

    def _judge(self, judged: Evaluation, changes: Changes) -> None:
        rule, facts = self._rules[judged.rule], self.facts
        held = self._held.get(judged, {})
        settled = facts.now - SETTLED_MS
        final = {key: one for key, one in held.items() if one.known_at <= settled}
        findings: dict[FindingKey, Finding] = {}
        for finding in rule.detect(judged.scope, facts):
            if finding.known_at > facts.now:
                self._wait(judged, finding.known_at)
                self._stay_fresh(judged, finding.known_at + SETTLED_MS)
            elif finding.known_at > settled:
                named = msgspec.structs.replace(finding, rule=judged.rule)
                findings[named.key] = named
        findings |= final
        changes.withdrawn.extend(key for key in held if key not in findings)
        for key, finding in findings.items():
            if finding.recovered_at is None or finding.recovered_at > settled:
                findings[key] = self._followed(judged, msgspec.structs.replace(finding, recovered_at=None))
            if findings[key] != held.get(key):
                changes.found.append(findings[key])
        self._keep(judged, [one for one in findings.values() if _followed_until(one) > facts.now])

    def _followed(self, judged: Evaluation, finding: Finding) -> Finding:
        followed = self._rules[judged.rule].follow(finding, judged.scope, self.facts)
        if followed.recovered_at is None or followed.recovered_at <= self.facts.now:
            return followed
        self._wait(judged, followed.recovered_at)
        return msgspec.structs.replace(followed, recovered_at=None)

    def _keep(self, judged: Evaluation, findings: list[Finding]) -> None:
        if findings:
            self._held[judged] = {one.key: one for one in findings}
            self._watch(judged)
            self._wait(judged, min(map(_followed_until, findings)))
        else:
            self._held.pop(judged, None)
        if (fresh_until := self._fresh_until.get(judged, LONG_AGO)) > self.facts.now:
            self._wait(judged, fresh_until)
        else:
            self._fresh_until.pop(judged, None)
            if judged not in self._wake:
                self._unwatch(judged)

    def _watch(self, judged: Evaluation) -> None:
        for anchor in anchors_of(judged.scope, self._rules[judged.rule]):
            self._watched.setdefault(anchor, {})[judged] = None

    def _unwatch(self, judged: Evaluation) -> None:
        for anchor in anchors_of(judged.scope, self._rules[judged.rule]):
            watching = self._watched.get(anchor)
            if watching is not None:
                watching.pop(judged, None)
                if not watching:
                    del self._watched[anchor]


def _followed_until(finding: Finding) -> int:
    """When nothing about the finding can change any more, or has not for so long that it is given up."""
    if finding.recovered_at is None:
        return finding.known_at + FORGOTTEN_MS
    return max(finding.recovered_at, finding.known_at) + SETTLED_MS


def _scope(finding: Finding, rule: Rule) -> Scope:
    """The scope in which the rule found it; cases of what checks found name no source."""
    names = [name for name in Scope._fields if name != "source" or CheckFinding not in rule.observes]
    return Scope(**{name: finding.subject[name] for name in names if name in finding.subject})
