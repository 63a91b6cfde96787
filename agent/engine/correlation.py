"""Which findings belong together: effects with their causes by the steps of rules.toml, the rest by rule and group.

Pure: findings in, clusters out; the same findings in any order give the same clusters.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from pydantic import Field

from agent.engine.facts import LATENESS_MS, SETTLED_MS
from agent.model.config_types import ConfigModel, Duration
from agent.model.findings import Finding, FindingKey, Severity

CLOCK_SLACK_MS = 5_000
"""By how much the interval of each finding is widened before its order is judged: the clocks of two sources differ."""

GROUPING_MS = LATENESS_MS
"""Findings of one rule and group this close together are one incident."""


GROUPED_MS = 600_000 + SETTLED_MS
"""How far apart in time two findings may become known and still be grouped."""

CHECKED_MS = 7_200_000
"""How much later than its causes a check's finding may become known and still join them: room for two long runs."""


class Step(ConfigModel):
    """One step of a correlation: findings of `rule`, or of `any` of several, that share the named keys with one of an
    earlier step.
    """

    rule: str | None = None
    any: list[str] = Field(default_factory=list)
    shares: list[str] = Field(default_factory=list)
    optional: bool = False

    @property
    def rules(self) -> list[str]:
        """The names of the rules whose findings this step takes."""
        return [self.rule] if self.rule is not None else self.any


class Correlation(ConfigModel):
    """Steps in the order of event time, the first the cause, the last the effect. The last takes no info finding.

    run_checks: the checks to be run once the steps are found; trailing steps that only checks can find need not be, yet.
    """

    steps: list[Step]
    run_checks: list[str] = Field(default_factory=list)
    within: Duration = 600_000
    severity: Severity | None = None
    title: str | None = None


class FindingCluster(NamedTuple):
    """Findings that are one incident. correlation: what joined them, None where they were merely grouped."""

    correlation: str | None
    causes: tuple[Finding, ...]
    effects: tuple[Finding, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, causes first."""
        return self.causes + self.effects


class Chain(NamedTuple):
    """What was found of a correlation's steps from one root cause. correlation: its name.

    steps: the findings of each step, as far as they lead; a step that is optional may have none.
    """

    correlation: str
    steps: Sequence[Sequence[Finding]]


class _CompleteChain(NamedTuple):
    """One root cause with all that follows from it."""

    correlation: str
    causes: frozenset[FindingKey]
    effects: frozenset[FindingKey]


def reach(correlation: Correlation, checked: Collection[str]) -> int:
    """How far apart in time its root and another finding may become known and still be joined, ms.

    checked: the rules whose findings come from checks, which are known only when their run has ended.
    """
    run = CHECKED_MS if any(rule in checked for step in correlation.steps for rule in step.rules) else 0
    return correlation.within + SETTLED_MS + run


def horizon(correlations: Mapping[str, Correlation], checked: Collection[str]) -> int:
    """How long after a finding another may still join it, ms: with room for its facts to come late."""
    return max([GROUPED_MS, *(reach(one, checked) for one in correlations.values())]) + 2 * SETTLED_MS


def together(
    findings: Iterable[Finding], correlations: Mapping[str, Correlation], chains: Iterable[Chain]
) -> list[FindingCluster]:
    """All findings, joined into incidents, in order of their first finding. chains: what was followed from them."""
    ordered = in_time(findings)
    by_key = {one.key: one for one in ordered}
    forest = _UnionFind(by_key)
    complete = [chain for one in chains if (chain := _complete(one, correlations)) is not None]
    for chain in complete:
        forest.join([*chain.causes, *chain.effects])
    taken = {key for chain in complete for key in chain.causes | chain.effects}
    for linked in _groups([one for one in ordered if one.key not in taken]):
        forest.join(linked)
    chain_of: dict[FindingKey, list[_CompleteChain]] = {}
    for chain in complete:
        chain_of.setdefault(forest.root(next(iter(chain.effects))), []).append(chain)
    return [
        _together([by_key[key] for key in keys], chain_of.get(root, []), correlations) for root, keys in forest.trees()
    ]


def in_time(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by event time; of one moment by key."""
    return sorted(findings, key=lambda one: (one.at, one.key))


def in_order(earlier: Finding, later: Finding, slack: int = 0) -> bool:
    """Whether `earlier` can have happened before `later`: their intervals, widened by the clocks' slack, permit it.

    slack: how much more `later` may be dated too early, ms. A check dates what it finds in a log by the records' own
    timestamps, and those are their producers' clocks.
    """
    return earlier.start - CLOCK_SLACK_MS <= later.at + CLOCK_SLACK_MS + slack


def _within_reach(one: Finding, other: Finding, span: int) -> bool:
    return abs(one.known_at - other.known_at) <= span


def _values(finding: Finding, key: str) -> tuple[Any, ...]:
    value = finding.subject.get(key)
    return (value,) if value is not None else tuple(finding.subject.get(f"{key}s", ()))


def _complete(followed: Chain, correlations: Mapping[str, Correlation]) -> _CompleteChain | None:
    """The chain from a root cause to an effect; None where it leads to none."""
    if len(followed.steps) < len(correlations[followed.correlation].steps):
        return None
    outcome = frozenset(one.key for one in followed.steps[-1])
    causes = frozenset(one.key for one in flat(followed.steps[:-1])) - outcome
    return _CompleteChain(followed.correlation, causes, outcome) if outcome and causes else None


def follow(
    findings: Iterable[Finding], correlations: Mapping[str, Correlation], checked: Collection[str] = ()
) -> list[Chain]:
    """The chains of all correlations that are complete, or lack nothing but what a check that they ask for can find.

    In the order of the correlations and their root causes in time. checked: as in `reach`.
    """
    ordered = in_time(findings)
    return [chain for name, one in correlations.items() for chain in _followed(name, one, ordered, checked)]


def before_checks(correlation: Correlation, checked: Collection[str]) -> int:
    """How many steps there are up to the last that something else than a check can find."""
    steps = correlation.steps
    return max((number for number, step in enumerate(steps, 1) if not set(step.rules) <= set(checked)), default=0)


def _followed(
    name: str, correlation: Correlation, findings: Sequence[Finding], checked: Collection[str]
) -> Iterator[Chain]:
    first, *rest = correlation.steps
    least = before_checks(correlation, checked) if correlation.run_checks else 0
    least = least or len(correlation.steps)
    roots = [one for one in findings if one.rule in first.rules]
    effects = [one for one in findings if one.rule in rest[-1].rules and one.severity is not Severity.INFO]
    if not roots or (least == len(correlation.steps) and not effects):
        return
    span = reach(correlation, checked)
    # An index a step, by the keys that it must share: a lost session has thousands of leader moves to look up.
    indexes = [_index(step, effects if step is rest[-1] else findings) for step in rest]
    for root in roots:
        found: list[list[Finding]] = [[root]]
        for step, index in zip(rest, indexes, strict=True):
            here = {
                one.key: one
                for earlier in flat(found)
                for values in product(*(_values(earlier, key) for key in step.shares))
                for one in index.get(values, ())
                if one.key != earlier.key
                and in_order(earlier, one, correlation.within if one.rule in checked else 0)
                and in_order(root, one, correlation.within if one.rule in checked else 0)
                and one.start - root.at <= correlation.within
                and _within_reach(root, one, span)
            }
            if not here and not step.optional:
                break
            found.append(list(here.values()))
        if len(found) >= least:
            yield Chain(name, found)


def flat(steps: Iterable[Sequence[Finding]]) -> list[Finding]:
    """The findings of all steps."""
    return [one for step in steps for one in step]


def _index(step: Step, findings: Iterable[Finding]) -> dict[tuple[Any, ...], list[Finding]]:
    index: dict[tuple[Any, ...], list[Finding]] = {}
    for one in findings:
        if one.rule in step.rules:
            for values in product(*(_values(one, key) for key in step.shares)):
                index.setdefault(values, []).append(one)
    return index


def _groups(findings: Sequence[Finding]) -> Iterator[tuple[FindingKey, FindingKey]]:
    """Pairs of findings of one rule within 60 s of each other: of one group (else job, broker or topic), or of one
    partition where one is about where a Flink job reads and the other about the group that it commits for.
    """
    latest: dict[tuple[Any, ...], Finding] = {}
    for one in findings:
        key = next((key for key in ("group", "job", "broker", "topic") if _values(one, key)), None)
        alike = [(key, value) for value in (_values(one, key) if key else (None,))]
        of_a_job, partition = "job" in one.subject, (one.subject.get("topic"), one.subject.get("partition"))
        twin = (partition, not of_a_job)
        for chain in (*alike, twin) if "partition" in one.subject else alike:
            before = latest.get((one.rule, one.subject.get("cluster"), *chain))
            if before is not None and one.start - before.at <= GROUPING_MS and _within_reach(before, one, GROUPED_MS):
                yield before.key, one.key
        for chain in (*alike, (partition, of_a_job)):
            latest[one.rule, one.subject.get("cluster"), *chain] = one


def _together(
    findings: list[Finding], chains: list[_CompleteChain], correlations: Mapping[str, Correlation]
) -> FindingCluster:
    if not chains:
        return FindingCluster(None, (), tuple(findings))
    names = list(correlations)
    chosen = min(
        {chain.correlation for chain in chains},
        key=lambda name: (-(correlations[name].severity or Severity.INFO).rank, names.index(name)),
    )
    outcome = {key for chain in chains for key in chain.effects}
    causes = {key for chain in chains if chain.correlation == chosen for key in chain.causes}
    causes |= {key for chain in chains for key in chain.causes} - outcome
    causes -= {key for chain in chains if chain.correlation == chosen for key in chain.effects}
    return FindingCluster(
        chosen,
        tuple(one for one in findings if one.key in causes),
        tuple(one for one in findings if one.key not in causes),
    )


class _UnionFind:
    """Union-find over findings; trees come out in order of their first finding."""

    def __init__(self, keys: Iterable[FindingKey]) -> None:
        self._parent = {key: key for key in keys}

    def root(self, key: FindingKey) -> FindingKey:
        while self._parent[key] != key:
            self._parent[key] = self._parent[self._parent[key]]
            key = self._parent[key]
        return key

    def join(self, keys: Iterable[FindingKey]) -> None:
        first, *rest = (self.root(key) for key in keys)
        for other in rest:
            self._parent[self.root(other)] = self.root(first)

    def trees(self) -> list[tuple[FindingKey, list[FindingKey]]]:
        trees: dict[FindingKey, list[FindingKey]] = {}
        for key in self._parent:
            trees.setdefault(self.root(key), []).append(key)
        return list(trees.items())
