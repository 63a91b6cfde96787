"""Which findings belong together: causes and effects by the steps of rules.toml, the rest as agent/engine/grouping.py.

Pure: findings in, clusters out; the same findings in any order give the same clusters.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace
from pydantic import Field

from agent.engine.grouping import GROUPING_REACH_MS, RECURRENCE_MS, find_groups, is_habit, key_values, reader_of
from agent.engine.history import FINALIZATION_MS
from agent.engine.precedence import (
    CLOCK_LEAD_MS,
    before_effects,
    can_precede,
    is_cleared,
    is_dated_ahead,
    is_dated_by_source,
    may_be_effect,
    sort_by_time,
)
from agent.engine.storms import find_storms
from agent.model.config_types import ConfigModel, Duration
from agent.model.findings import Finding, FindingKey, Severity

_HABIT = 2
"""How often a reader has done something without a cause if it does not take one."""

LASTING_REACH_MS = CHECK_REACH_MS = 7_200_000
"""How much later than its causes a finding may become known: what must last before it is known, or two long checks."""


class Step(ConfigModel):
    """One step of a correlation; it takes the findings of one rule or of any of several."""

    rule: str | None = None
    """Name of the rule. Exactly one of `rule` and `any` is required."""
    any: list[str] = Field(default_factory=list)
    """Names of several rules."""
    shares: list[str] = Field(default_factory=list)
    """Keys that a finding must have in common with a finding of an earlier step.

    `cluster`, `group`, `topic`, `partition`, `broker`, `source`, `job`, `log`, or `coordinator`: the partition of
    `__consumer_offsets` that holds a group's offsets. Required in all steps but the first.
    """
    optional: bool = False
    """Whether the correlation also holds without this step. Not for the first and the last step."""

    @property
    def rules(self) -> list[str]:
        """The names of the rules whose findings this step takes."""
        return [self.rule] if self.rule is not None else self.any


class Correlation(ConfigModel):
    """Findings that belong to one incident: they occur in the order of the steps and share keys.

    The first step is the cause and the last one the effect. The last step ignores findings of severity info.

    A finding about a partition causes no movement of a reader that read on normally in between. A leader change causes
    none if a check of the movement rules it out. If a reader did the same twice before without a cause, no cause is
    given for the next time either. If several correlations match, the first in the file names the incident.
    """

    steps: list[Step]
    """Two or more steps in the order of event time."""
    run_checks: list[str] = Field(default_factory=list)
    """Spark checks that can explain or prove the incident; their results appear in its thread.

    They run once all steps are found that do not themselves depend on a check.
    """
    within: Duration = 600_000
    """Maximum time from the first to the last finding."""
    severity: Severity | None = None
    """Severity of the incident. Default: the highest of its findings. Of several correlations the highest counts."""
    title: str | None = None
    """Title of the incident. Default: the title of its worst finding.

    Placeholders: `{cluster}`, `{group}`, `{topic}`, `{partition}`, `{broker}`, `{source}`, `{job}`, `{log}`,
    `{job_name}`, `{reader}` (the group or the name of the job), `{records}` (reprocessed), `{rule}` and `{line}` (the
    message of a log line).
    """


class FindingCluster(NamedTuple):
    """Findings that form one incident. correlation: what joined them, None if they were only grouped."""

    correlation: str | None
    causes: tuple[Finding, ...]
    effects: tuple[Finding, ...]
    severity: Severity = Severity.INFO

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, causes first."""
        return self.causes + self.effects


class Chain(NamedTuple):
    """What was found of a correlation's steps from one root cause; an optional step may have no findings."""

    correlation: str
    steps: Sequence[Sequence[Finding]]


class _CompleteChain(NamedTuple):
    correlation: str
    causes: frozenset[FindingKey]
    effects: frozenset[FindingKey]


def has_only_ended(old: Finding, new: Finding) -> bool:
    """Return whether all that changed about an info finding is when its subject recovered.

    Outside of a complete chain it joins what it joined before (`find_groups`).
    """
    return new.severity is Severity.INFO and replace(new, recovered_at=old.recovered_at) == old


def flatten(steps: Iterable[Sequence[Finding]]) -> list[Finding]:
    """Return the findings of all steps."""
    return [finding for step in steps for finding in step]


def reach(correlation: Correlation, check_rules: Collection[str]) -> int:
    """Return how far apart in time its root and another finding may become known and still be joined, ms.

    check_rules: the rules whose findings come from checks, which are known only when their run has ended.
    """
    has_check = any(rule in check_rules for step in correlation.steps for rule in step.rules)
    return correlation.within + FINALIZATION_MS + (CHECK_REACH_MS if has_check else 0)


def horizon(correlations: Mapping[str, Correlation], check_rules: Collection[str]) -> int:
    """Return how long after a finding another may still join it, ms, with room for facts that arrive late."""
    reaches = (reach(correlation, check_rules) for correlation in correlations.values())
    return max([GROUPING_REACH_MS, RECURRENCE_MS, LASTING_REACH_MS, *reaches]) + 2 * FINALIZATION_MS


def cluster_findings(
    findings: Iterable[Finding],
    correlations: Mapping[str, Correlation],
    chains: Iterable[Chain],
    check_rules: Collection[str] = (),
    delay_rules: Collection[str] = (),
) -> list[FindingCluster]:
    """Join all findings into clusters, in order of their first finding.

    chains: what `find_chains` found of them. check_rules: as in `reach`. delay_rules: as in `find_groups`.
    """
    ordered = sort_by_time(findings)
    by_key = {finding.key: finding for finding in ordered}
    sets = _UnionFind(by_key)
    complete = [found for chain in chains if (found := _complete(chain, correlations)) is not None]
    complete = list(_without_habits(complete, by_key))
    for chain in complete:
        sets.join([*chain.causes, *chain.effects])
    effects = {key for chain in complete for key in chain.effects}
    chained = effects.union(*(chain.causes for chain in complete))
    for pair in find_groups(ordered, chained, effects, check_rules, delay_rules):
        sets.join(pair)
    cause_of = {key: chain.correlation for chain in complete for key in chain.effects}
    for keys in find_storms([[by_key[key] for key in keys] for _, keys in sets.members()], cause_of):
        sets.join(keys)
    chains_of: dict[FindingKey, list[_CompleteChain]] = {}
    for chain in complete:
        chains_of.setdefault(sets.root(next(iter(chain.effects))), []).append(chain)
    return [
        _cluster([by_key[key] for key in keys], chains_of.get(root, []), correlations) for root, keys in sets.members()
    ]


def find_chains(
    findings: Iterable[Finding],
    correlations: Mapping[str, Correlation],
    check_rules: Collection[str] = (),
    lasting_rules: Collection[str] = (),
) -> list[Chain]:
    """Return the chains of all correlations that are complete, or lack only what a check that they run can find.

    In the order of the correlations and of their root causes in time. check_rules: as in `reach`. lasting_rules: the
    rules whose findings are about what lasts, so they may be known long after it began.
    """
    index = _StepIndex(findings)
    return [
        chain
        for name, correlation in correlations.items()
        for chain in _chains(name, correlation, index, check_rules, lasting_rules)
    ]


def steps_before_checks(correlation: Correlation, check_rules: Collection[str]) -> int:
    """Return the number of steps up to the last that something other than a check can find."""
    live = (number for number, step in enumerate(correlation.steps, 1) if not set(step.rules) <= set(check_rules))
    return max(live, default=0)


def _complete(chain: Chain, correlations: Mapping[str, Correlation]) -> _CompleteChain | None:
    """Return the chain from a root cause to an effect, or None if it leads to none."""
    if len(chain.steps) < len(correlations[chain.correlation].steps):
        return None
    effects = frozenset(finding.key for finding in chain.steps[-1])
    causes = frozenset(finding.key for finding in flatten(chain.steps[:-1])) - effects
    return _CompleteChain(chain.correlation, causes, effects) if effects and causes else None


def _without_habits(chains: Sequence[_CompleteChain], by_key: Mapping[FindingKey, Finding]) -> Iterator[_CompleteChain]:
    """Yield the chains without what a reader had done _HABIT times or more before the chain's causes, without any."""
    if not chains:
        return
    explained = {key for chain in chains for key in chain.effects}
    unexplained: dict[tuple[Any, ...], list[Finding]] = {}
    for key, finding in by_key.items():
        if key not in explained and may_be_effect(finding) and reader_of(finding) is not None:
            unexplained.setdefault((finding.rule, reader_of(finding)), []).append(finding)
    for chain in chains:
        root = min((by_key[key] for key in chain.causes), key=attrgetter("start"))
        effects = frozenset(
            key
            for key in chain.effects
            for finding in [by_key[key]]
            for before in [unexplained.get((finding.rule, reader_of(finding)), [])]
            if sum(not can_precede(root, other) and is_habit(other, finding) for other in before) < _HABIT
        )
        if effects:
            yield chain._replace(effects=effects)


def _chains(
    name: str,
    correlation: Correlation,
    index: "_StepIndex",
    check_rules: Collection[str],
    lasting_rules: Collection[str],
) -> Iterator[Chain]:
    first, *rest = correlation.steps
    required = steps_before_checks(correlation, check_rules) if correlation.run_checks else 0
    required = required or len(correlation.steps)
    roots = index.findings_of(first)
    if roots and required == len(correlation.steps):
        effects = list(filter(may_be_effect, index.findings_of(rest[-1])))
        roots = list(before_effects(roots, effects, correlation.within))
    if not roots:
        return
    span = reach(correlation, check_rules)
    long_span = max(span, LASTING_REACH_MS)
    # An index a step, by the keys that it must share: one expired session has thousands of leader changes to look up.
    by_keys = [index.by_keys(step, is_effect=step is rest[-1]) for step in rest]
    for root in roots:
        found: list[list[Finding]] = [[root]]
        for step, members in zip(rest, by_keys, strict=True):
            matches = {
                finding.key: finding
                for earlier in flatten(found)
                for values in product(*(key_values(earlier, key) for key in step.shares))
                for finding in members.get(values, ())
                if finding.start - root.at <= correlation.within
                and finding.key != earlier.key
                and abs(root.known_at - finding.known_at) <= (long_span if finding.rule in lasting_rules else span)
                and not is_cleared(earlier, finding)
                for slack in [_slack(root, earlier, finding, correlation, check_rules)]
                if can_precede(earlier, finding, slack) and can_precede(root, finding, slack)
            }
            if not matches and not step.optional:
                break
            found.append(list(matches.values()))
        if len(found) >= required:
            yield Chain(name, found)


def _slack(
    root: Finding, cause: Finding, effect: Finding, correlation: Correlation, check_rules: Collection[str]
) -> int:
    """Return how much earlier than its causes the effect may be dated, ms.

    One fact seen in the millisecond in which it happened is chance; of several the clock is ahead, unknown how far.
    """
    if effect.rule in check_rules:
        return correlation.within
    is_ahead = root.key != cause.key and is_dated_ahead(root) and is_dated_ahead(cause)
    return CLOCK_LEAD_MS if is_ahead and not is_dated_by_source(effect) else 0


class _StepIndex:
    """Findings by the rules of a step, and by the keys that a step shares; correlations have many steps in common."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._of_rule: dict[str, list[Finding]] = {}
        self._by_keys: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Finding]]] = {}
        for finding in sort_by_time(findings):
            self._of_rule.setdefault(finding.rule, []).append(finding)

    def findings_of(self, step: Step) -> list[Finding]:
        """Return the findings that the step takes, by time."""
        if step.rule is not None:
            return self._of_rule.get(step.rule, [])
        return sort_by_time(finding for rule in set(step.any) for finding in self._of_rule.get(rule, ()))

    def by_keys(self, step: Step, *, is_effect: bool) -> dict[tuple[Any, ...], list[Finding]]:
        """Return the findings that the step takes by the values of the shared keys; as effects, what may be one."""
        kind = (*step.rules, "shares", *step.shares, is_effect)
        if kind not in self._by_keys:
            index = self._by_keys[kind] = {}
            for finding in self.findings_of(step):
                if not is_effect or may_be_effect(finding):
                    for values in product(*(key_values(finding, key) for key in step.shares)):
                        index.setdefault(values, []).append(finding)
        return self._by_keys[kind]


def _cluster(
    findings: list[Finding], chains: list[_CompleteChain], correlations: Mapping[str, Correlation]
) -> FindingCluster:
    severity = _severity(findings, chains, correlations)
    if not chains:
        return FindingCluster(None, (), tuple(findings), severity)
    first = min((chain.correlation for chain in chains), key=list(correlations).index)
    effects = {key for chain in chains for key in chain.effects}
    causes = {key for chain in chains if chain.correlation == first for key in chain.causes}
    causes |= {key for chain in chains for key in chain.causes} - effects
    causes -= {key for chain in chains if chain.correlation == first for key in chain.effects}
    return FindingCluster(
        first,
        tuple(finding for finding in findings if finding.key in causes),
        tuple(finding for finding in findings if finding.key not in causes),
        severity,
    )


def _severity(
    findings: Iterable[Finding], chains: Iterable[_CompleteChain], correlations: Mapping[str, Correlation]
) -> Severity:
    """Return the highest severity of the correlations that set one, and of the findings that none of those covers."""
    fixed = [(severity, chain) for chain in chains if (severity := correlations[chain.correlation].severity)]
    covered = {key for _, chain in fixed for key in chain.causes | chain.effects}
    severities = [
        *(severity for severity, _ in fixed),
        *(finding.severity for finding in findings if finding.key not in covered),
    ]
    return max(severities, key=lambda severity: severity.rank)


class _UnionFind:
    """Disjoint sets of findings, in order of their first finding."""

    def __init__(self, keys: Iterable[FindingKey]) -> None:
        self._parent = {key: key for key in keys}

    def root(self, key: FindingKey) -> FindingKey:
        while self._parent[key] != key:
            self._parent[key] = self._parent[self._parent[key]]
            key = self._parent[key]
        return key

    def join(self, keys: Iterable[FindingKey]) -> None:
        first, *rest = map(self.root, keys)
        for other in rest:
            self._parent[self.root(other)] = self.root(first)

    def members(self) -> list[tuple[FindingKey, list[FindingKey]]]:
        sets: dict[FindingKey, list[FindingKey]] = {}
        for key in self._parent:
            sets.setdefault(self.root(key), []).append(key)
        return list(sets.items())
