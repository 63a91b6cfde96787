"""Evaluates rules over facts: what to evaluate again, and which findings are new, changed or withdrawn. Pure.

A scope is evaluated again when something changes that its last evaluation read, so a late fact corrects earlier
findings: in the end the findings do not depend on the order in which sources reported. After FINALIZATION_MS a finding
is final; only its recovery is followed from then on.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from agent.engine.commit_intake import absorb_ordinary, one_per_key
from agent.engine.defects import SetAside, propagate
from agent.engine.dependencies import NO_EVALUATIONS, Dependencies, Evaluation
from agent.engine.ended import find_ended
from agent.engine.facts import DependencyKey, Facts
from agent.engine.growth_intake import absorb_growth
from agent.engine.history import FINALIZATION_MS, LATENESS_MS, LONG_AFTER, LONG_AGO, Change
from agent.engine.revisits import Revisits, next_time
from agent.engine.rule import Rule, Scope, reopened
from agent.engine.timers import Timers
from agent.model.batches import CommitBatch, LogOffsetsBatch, ObservationBatch, Part
from agent.model.findings import Finding, FindingKey
from agent.model.observations.base import Observation, Subject
from agent.model.observations.checks import CheckFinding
from agent.model.observations.kafka import Commit

SOON_MS = 10_000
"""How soon a scope is evaluated again for frequent changes elsewhere: other commits of its group or partition."""

_TOGETHER_MS = 100
"""What is due soon within this time is evaluated together."""

_SOON_AT_ONCE = 20
"""How much is detected again in that time at most: what is new need not wait long, however many findings are open."""

_AT_THE_LATEST_MS = LATENESS_MS - 2 * SOON_MS
"""How long what is due soon may wait while its findings are not final: no late fact may be missed."""

SETTLING_MS = 15_000
"""How long after it could first be known a finding is detected again with each change of what it depends on.

After that a change shows at once only whether the finding recovers; the rest follows after SOON_MS.
"""

_TIDY_MS = 60_000
"""How often what is gone is forgotten, and series on which nothing depends are kept in columns again."""

ABANDONED_MS = 7 * 86_400_000
"""How long a finding that does not recover is followed."""


@dataclass(slots=True)
class _Stale:
    """The first change of a subject whose dependents were not all evaluated at once. changes: of all, by its last."""

    observation: Observation
    changes: int

    @property
    def due(self) -> int:
        """When what the subject concerns is evaluated at the latest, ms."""
        return (self.observation.seen + SOON_MS) // _TOGETHER_MS * _TOGETHER_MS


class _LastEvaluation(NamedTuple):
    """When findings were last detected, ms, and after how many changes."""

    at: int
    changes: int


class Changes(NamedTuple):
    """Findings that are new or replaced, and the keys of those withdrawn."""

    found: list[Finding]
    withdrawn: list[FindingKey]


class Evaluator:
    """The rules' state: the facts, the active findings, and when to evaluate what again.

    If a rule raises, its findings of that scope stay as they are.
    """

    def __init__(self, rules: Mapping[str, Rule], set_aside: SetAside = propagate) -> None:
        """rules: by their names in rules.toml."""
        self.facts = Facts()
        self._set_aside = set_aside
        self._rules = rules
        self._observers: dict[type[Observation], list[tuple[str, Rule]]] = {}
        self._revisits = Revisits(rules, self.facts, self._is_open, set_aside)
        self._tidy_at = LONG_AFTER
        self._active_findings: dict[Evaluation, dict[FindingKey, Finding]] = {}
        self._dependencies = Dependencies()
        self._dirty: dict[Evaluation, None] = {}
        self._again: dict[Evaluation, None] = {}
        self._unfollowed: dict[Evaluation, None] = {}
        self._evaluate_by = LONG_AFTER
        self._stale: dict[Subject, _Stale] = {}
        self._evaluated: dict[Evaluation, _LastEvaluation] = {}
        self._changes = 0
        self._timers: Timers[Evaluation] = Timers()
        self._soon: Timers[Evaluation] = Timers()
        self._soon_at = LONG_AGO
        self._fresh_until: dict[Evaluation, int] = {}

    @property
    def next_due(self) -> int:
        """When an evaluation is due at the latest, ms; LONG_AFTER if none is."""
        first_stale = next((stale.due for stale in self._stale.values()), LONG_AFTER)
        first_soon = max(self._soon.first, self._soon_at)
        return min(self._timers.first, self._evaluate_by, first_stale, first_soon, self._revisits.next_due)

    def absorb(self, observation: Observation) -> bool:
        """Take a fact in; return False if it is stale. What depends on it is evaluated by `evaluate`."""
        return self._absorb(observation)[0] is not Change.STALE

    def _absorb(self, observation: Observation) -> tuple[Change, bool]:
        """Take a fact in; return what it changed, and whether a rule looks into it."""
        try:
            if observation.is_event:
                observation = self.facts.in_order(observation)
            change = self.facts.absorb(observation)
        except Exception as error:  # noqa: BLE001 - a defect in one observation must not hide the others
            self._set_aside(f"observations of kind {observation.subject_kind}", error)
            return Change.STALE, False
        if change is not Change.CHANGED:
            return change, False
        self._revisits.add(observation.__class__, observation.seen)
        dirty, is_looked_into = self._dirty, False
        for name, rule in self._observers_of(type(observation)):
            try:
                for scope in rule.scopes(observation, self.facts):
                    evaluation = Evaluation(name, scope)
                    self._keep_fresh(evaluation, max(self.facts.now, observation.seen) + FINALIZATION_MS)
                    dirty[evaluation] = None
                    is_looked_into = True
            except Exception as error:  # noqa: BLE001 - a defect of one rule must not silence the others
                self._set_aside(f"rule {name}", error)
        if self._dependencies.dependents:
            self._mark_dependents(observation)
        if dirty or self._again or self._unfollowed:
            # A batch may span hours: what it touches is evaluated while histories still hold it.
            self._evaluate_by = min(self._evaluate_by, observation.seen + LATENESS_MS)
        return change, is_looked_into

    def absorb_columns(self, batch: ObservationBatch[Any]) -> None:
        """Take observations in; those that all rules ignore without an object for each. They span a second at most."""
        rules = [rule for _, rule in self._observers_of(batch.kind)]
        for rows in one_per_key(batch.numbers):
            remaining = batch if len(rows) == len(batch) else batch.select(rows)
            if isinstance(remaining, CommitBatch):
                remaining = absorb_ordinary(remaining, self.facts, rules, self._set_aside)
            elif isinstance(remaining, LogOffsetsBatch):
                remaining = absorb_growth(remaining, self.facts, rules, self._dependencies.dependents)
            if len(remaining) < len(rows):
                self._revisits.add(batch.kind, batch.latest)
            for observation in remaining:
                is_open = self.facts.is_open(observation.subject)
                _, is_looked_into = self._absorb(observation)
                if isinstance(observation, Commit) and not (
                    is_open or is_looked_into or self._is_depended_on(observation)
                ):
                    self.facts.close(self.facts.history_of(observation))

    def _is_depended_on(self, observation: Observation) -> bool:
        """Return whether an evaluation has read the subject, by itself or in an index."""
        dependents = self._dependencies.dependents
        return any(key in dependents for key in self.facts.dependency_keys(observation))

    def evaluate(self, now: int, *, everything: bool = False) -> Changes:
        """Evaluate what changed and what is due by that moment; everything: also what is due soon."""
        self.facts.now = now
        dirty, self._dirty, self._evaluate_by = self._dirty, {}, LONG_AFTER
        unfollowed, self._unfollowed = self._unfollowed, {}
        dirty.update(dict.fromkeys(self._timers.take_due(now)))
        for evaluation in self._due_soon(now, everything=everything):
            (unfollowed if self._is_final(evaluation) else dirty)[evaluation] = None
        if self._tidy_at <= now:
            self._tidy_at = LONG_AFTER
            self._tidy()
        self._tidy_at = min(self._tidy_at, next_time(_TIDY_MS, now))
        for found in self._revisits.look(now, everything=everything):
            dirty.update(dict.fromkeys(found))
        changes = Changes([], [])
        for evaluation in dirty | unfollowed:
            try:
                self._evaluate(evaluation, changes, detects=evaluation in dirty)
            except Exception as error:  # noqa: BLE001 - a defect of one rule must not silence the others
                self.facts.stop_recording()
                self._set_aside(f"rule {evaluation.rule}", error)
                if evaluation in self._active_findings or self._fresh_until.get(evaluation, LONG_AGO) > now:
                    self._timers.set(evaluation, now + SOON_MS)  # what was due may succeed then
        return changes

    def _due_soon(self, now: int, *, everything: bool) -> Iterator[Evaluation]:
        """Yield what is to be detected again, a part at a time; everything: all of it, due or not."""
        for evaluation in self._again:
            self._soon.set(evaluation, now)
        self._again.clear()
        while self._stale:
            subject, stale = next(iter(self._stale.items()))
            if stale.due > now and not everything:
                break
            del self._stale[subject]
            # Only now: what has been read meanwhile depends on the subject too.
            for key in self.facts.dependency_keys(stale.observation):
                for evaluation in self._dependencies.dependents.get(key, NO_EVALUATIONS):
                    evaluated = self._evaluated[evaluation]
                    if evaluated.changes < stale.changes:
                        self._soon.set(evaluation, evaluated.at + SOON_MS)
                        if evaluation in self._fresh_until:
                            self._timers.set(evaluation, now + _AT_THE_LATEST_MS)
        if everything:
            yield from self._soon.take_due(LONG_AFTER)
        elif now >= self._soon_at:
            for evaluation in islice(self._soon.take_due(now), _SOON_AT_ONCE):
                self._soon_at = now + _TOGETHER_MS
                yield evaluation

    def restore(self, evaluated: Iterable[Part]) -> None:
        """Take in what had been evaluated before a restart, columns a second at a time; `resume` follows."""
        tidy_at = LONG_AGO
        for part in evaluated:
            if isinstance(part, ObservationBatch):
                self.absorb_columns(part)
                self.facts.now = max(self.facts.now, part.latest)
            else:
                for observation in part:
                    if self.absorb(observation):
                        self.facts.now = max(self.facts.now, observation.seen)
            if self.facts.now >= tidy_at:
                tidy_at = next_time(_TIDY_MS, self.facts.now)
                self._dirty.clear()
                self._fresh_until = {
                    evaluation: until for evaluation, until in self._fresh_until.items() if until >= self.facts.now
                }
                self._close_unread()

    def resume(self, findings: Iterable[Finding]) -> None:
        """Continue after a restart with earlier findings, once the facts have been restored.

        What may still change is evaluated again with the next batch.
        """
        for finding in findings:
            if finding.rule in self._rules:
                try:
                    evaluation = Evaluation(finding.rule, _scope_of(finding, self._rules[finding.rule]))
                except Exception as error:  # noqa: BLE001 - another version may have stored another subject
                    self._set_aside(f"rule {finding.rule}", error)
                else:
                    self._active_findings.setdefault(evaluation, {})[finding.key] = finding
        self._dirty = dict.fromkeys([*self._active_findings, *self._fresh_until])

    def _observers_of(self, kind: type[Observation]) -> list[tuple[str, Rule]]:
        observers = self._observers.get(kind)
        if observers is None:
            observers = [(name, rule) for name, rule in self._rules.items() if issubclass(kind, rule.observes)]
            self._observers[kind] = observers
        return observers

    def _mark_dependents(self, observation: Observation) -> None:
        """Mark what read the subject.

        At once what may still change, soon what has settled, and what a frequent change is not about.
        """
        dependents_of, is_soon = self._dependencies.dependents, observation.is_frequent
        if not observation.is_frequent:
            for key in self.facts.dependency_keys(observation):
                for evaluation in dependents_of.get(key, NO_EVALUATIONS):
                    is_soon |= self._mark(evaluation, observation, self._dirty)
        elif self._active_findings:
            for evaluation in dependents_of.get(observation.subject, NO_EVALUATIONS):
                if evaluation in self._active_findings and _is_about(observation, evaluation.scope):
                    self._mark(evaluation, observation, self._again)
        self._changes += 1
        if is_soon:
            stale = self._stale.get(observation.subject)
            if stale is None:
                self._stale[observation.subject] = _Stale(observation, self._changes)
            else:
                stale.changes = self._changes

    def _mark(self, evaluation: Evaluation, observation: Observation, unsettled: dict[Evaluation, None]) -> bool:
        """Mark what is to be done after a change of what an evaluation read; return whether its findings have settled.

        They have SETTLING_MS after they could first be known. unsettled: where to mark it if they have not.
        """
        findings = self._active_findings.get(evaluation, {})
        settled_at = self._fresh_until.get(evaluation, LONG_AGO) - FINALIZATION_MS + SETTLING_MS
        is_settled = bool(findings) and observation.seen > settled_at
        if not is_settled:
            unsettled[evaluation] = None
        elif self._is_concerned(evaluation, observation):
            self._unfollowed[evaluation] = None
        return is_settled

    def _is_concerned(self, evaluation: Evaluation, observation: Observation) -> bool:
        """Return whether a change may decide at once that one of the evaluation's findings has recovered."""
        rule, findings = self._rules[evaluation.rule], self._active_findings[evaluation].values()
        try:
            return any(rule.concerns(finding, observation) for finding in findings)
        except Exception as error:  # noqa: BLE001 - a defect of one rule must not silence the others
            self._set_aside(f"rule {evaluation.rule}", error)
            return True

    def _is_final(self, evaluation: Evaluation) -> bool:
        """Return whether nothing about the evaluation's findings can change any more but their recovery."""
        findings = self._active_findings.get(evaluation, {}).values()
        is_known = all(finding.known_at <= self.facts.final_before for finding in findings)
        return evaluation not in self._fresh_until and is_known

    def _tidy(self) -> None:
        """Forget what is gone; keep the commits of series on which no evaluation depends in columns."""
        is_read = self._dependencies.dependents.__contains__
        self.facts.forget_gone(is_read)
        for histories in find_ended(self.facts):
            if not any(is_read(history.subject) for history in histories):
                for history in histories:
                    self.facts.forget(history)
        self._close_unread()

    def _close_unread(self) -> None:
        for history in self.facts.open_commits():
            if not self._is_depended_on(history.changes[-1]):
                self.facts.close(history)

    def _is_open(self, evaluation: Evaluation, known_by: int = LONG_AFTER) -> bool:
        """Return whether a finding that was known by then is open, so that the evaluation follows what it is about."""
        findings = self._active_findings.get(evaluation, {}).values()
        return any(finding.recovered_at is None and finding.known_at <= known_by for finding in findings)

    def _keep_fresh(self, evaluation: Evaluation, until: int) -> None:
        """Evaluate on every change until no fact can arrive late any more."""
        self._fresh_until[evaluation] = max(until, self._fresh_until.get(evaluation, until))

    def _evaluate(self, evaluation: Evaluation, changes: Changes, *, detects: bool) -> None:
        """Find out what has changed about the findings; detects: also whether there are others."""
        facts = self.facts
        reads = facts.record_reads()
        active = self._active_findings.get(evaluation, {})
        final_before = facts.final_before
        if is_taken := self._rules[evaluation.rule].is_single and self._is_open(evaluation, final_before):
            findings = dict(active)
        elif detects:
            self._timers.cancel(evaluation)  # detection sets it again
            findings = self._detected(evaluation, final_before)
            findings |= {key: finding for key, finding in active.items() if finding.known_at <= final_before}
        else:
            findings = dict(active)
            reads.update(self._dependencies.reads_of(evaluation))
        for key, finding in findings.items():
            if finding.is_open_at(final_before):
                findings[key] = self._followed(evaluation, reopened(finding))
                if is_taken and findings[key].recovered_at is not None:
                    self._timers.set(evaluation, facts.now)  # from then on there may be another one
        reconciled = self._rules[evaluation.rule].reconcile(list(findings.values()))
        findings = {finding.key: finding for finding in reconciled}
        changes.withdrawn.extend(key for key in active if key not in findings)
        changes.found.extend(finding for key, finding in findings.items() if finding != active.get(key))
        if detects or is_taken:
            self._soon.cancel(evaluation)
            self._evaluated[evaluation] = _LastEvaluation(facts.now, self._changes)
        self._keep(
            evaluation, [finding for finding in findings.values() if _followed_until(finding) > facts.now], reads
        )
        facts.stop_recording()

    def _detected(self, evaluation: Evaluation, final_before: int) -> dict[FindingKey, Finding]:
        """Return what the rule detects now and is not final yet; set a timer for what becomes known later."""
        now, findings = self.facts.now, {}
        for finding in self._rules[evaluation.rule].detect(evaluation.scope, self.facts):
            if finding.known_at > now:
                self._timers.set(evaluation, finding.known_at)
                self._keep_fresh(evaluation, finding.known_at + FINALIZATION_MS)
            elif finding.known_at > final_before:
                named = msgspec.structs.replace(finding, rule=evaluation.rule)
                findings[named.key] = named
        return findings

    def _followed(self, evaluation: Evaluation, finding: Finding) -> Finding:
        followed = self._rules[evaluation.rule].follow(finding, evaluation.scope, self.facts)
        if followed.recovered_at is None or followed.recovered_at <= self.facts.now:
            return followed
        self._timers.set(evaluation, followed.recovered_at)
        return reopened(followed)

    def _keep(self, evaluation: Evaluation, findings: list[Finding], reads: dict[DependencyKey, None]) -> None:
        """Keep what must be followed, and what the evaluation depends on while it may change anything."""
        if findings:
            self._active_findings[evaluation] = {finding.key: finding for finding in findings}
            self._timers.set(evaluation, min(map(_followed_until, findings)))
        else:
            self._active_findings.pop(evaluation, None)
        if (fresh_until := self._fresh_until.get(evaluation, LONG_AGO)) > self.facts.now:
            self._timers.set(evaluation, fresh_until)
        else:
            self._fresh_until.pop(evaluation, None)
        if evaluation in self._timers:
            self.facts.open_read()
            self._dependencies.replace(evaluation, reads)
        else:
            self._evaluated.pop(evaluation, None)
            self._soon.cancel(evaluation)
            self._dependencies.replace(evaluation, {})


def _is_about(observation: Observation, scope: Scope) -> bool:
    """Return whether the scope is about the very subject of the observation."""
    others = dict(scope.others)
    return all(getattr(observation, name) == getattr(scope, name, others.get(name)) for name in observation.key)


def _followed_until(finding: Finding) -> int:
    """Return when nothing about the finding can change any more, or it is abandoned."""
    if finding.recovered_at is None:
        return finding.known_at + ABANDONED_MS
    return max(finding.recovered_at, finding.known_at) + FINALIZATION_MS


def _scope_of(finding: Finding, rule: Rule) -> Scope:
    """Return the scope in which the rule found it; scopes of what checks found name no source."""
    subject = finding.subject
    left_out = {"others", "source"} if CheckFinding in rule.observes else {"others"}
    named = {name: subject[name] for name in Scope._fields if name in subject and name not in left_out}
    return Scope(**named, others=tuple((name, subject[name]) for name in rule.scope_keys if name in subject))
