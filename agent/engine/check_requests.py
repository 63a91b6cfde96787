"""Which checks are asked for: by the causes and effects found so far, for what window, topics and groups.

Pure: the same findings ask the same. Who keeps the asks is the store, who runs the checks the daemon.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct

from agent.engine.correlation import GROUPING_MS, Chain, Correlation, before_checks, flat
from agent.engine.facts import SETTLED_MS
from agent.model.findings import Finding, FindingKey, Severity
from agent.model.observations import Observation

LOOKBACK_MS = 14 * 86_400_000
"""How much of the past before the root cause a check may compare with."""


class CheckRequest(Struct, frozen=True, kw_only=True):
    """An incident asks for a check that can explain or prove it. Durable: kept until it is answered.

    id: made from check and finding, so that the same question is asked once. finding: the root cause's, else the worst
    effect's key; the incident that holds it gets the answer. since, until: the window to look at, event time, ms.
    topics, groups: what it is about; empty: everything. due: not to be run before, ms.
    """

    id: str
    check: str
    cluster: str
    finding: FindingKey
    since: int
    until: int
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    due: int = 0


class CheckResult(NamedTuple):
    """What came of a run. ask: None where the schedule asked. observations: CheckFindings, then one CheckRun.

    lines: what to say in the incident's thread, the most important first; plot: a PNG, None where there is none.
    """

    ask: CheckRequest | None
    observations: list[Observation]
    lines: tuple[str, ...] = ()
    plot: bytes | None = None


class _Question(NamedTuple):
    """What one root cause makes worth checking: all that was found of its chains, and the last of it."""

    root: Finding
    chain: dict[FindingKey, Finding]
    outcome: dict[FindingKey, Finding]


def asks(
    chains: Iterable[Chain], correlations: Mapping[str, Correlation], checked: Collection[str]
) -> list[CheckRequest]:
    """What was followed asks for, in time order of the root causes: each check once per root.

    Of two roots within a minute of each other that led to the same, the later one asks nothing. checked: the rules
    whose findings come from checks; what they found asks nothing more.
    """
    questions: dict[tuple[str, FindingKey], _Question] = {}
    for name, steps in chains:
        correlation = correlations[name]
        found = steps[: before_checks(correlation, checked)]
        for check in correlation.run_checks if found else ():
            root = found[0][0]
            question = questions.setdefault((check, root.key), _Question(root, {}, {}))
            question.chain.update((one.key, one) for one in flat(found))
            question.outcome.update((one.key, one) for one in next(ones for ones in reversed(found) if ones))
    made: list[CheckRequest] = []
    told: dict[str, list[_Question]] = {}
    for (check, _), question in sorted(questions.items(), key=lambda item: (item[1].root.at, item[0])):
        earlier = told.setdefault(check, [])
        if not any(_covers(one, question) for one in earlier):
            earlier.append(question)
            made.append(_ask(check, question))
    return made


def _covers(earlier: _Question, later: _Question) -> bool:
    return later.root.at - earlier.root.at <= GROUPING_MS and later.outcome.keys() <= earlier.outcome.keys()


def _ask(check: str, question: _Question) -> CheckRequest:
    """Where nothing but causes is known yet, anything may have been struck: then the ask is about everything."""
    root, chain = question.root, question.chain.values()
    effects = [one for one in question.outcome.values() if one.severity is not Severity.INFO]
    return CheckRequest(
        id=blake2b(f"{check} {root.key}".encode(), digest_size=6).hexdigest(),
        check=check,
        cluster=str(root.subject.get("cluster", "")),
        finding=root.key,
        since=root.start - LOOKBACK_MS,
        until=max(max(one.at, one.known_at) for one in chain) + SETTLED_MS,
        topics=_named("topic", effects),
        groups=_named("group", effects),
        due=max(root.known_at, min(one.known_at for one in question.outcome.values())),
    )


def _named(key: str, findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(sorted({str(one.subject[key]) for one in findings if one.subject.get(key) is not None}))
