"""Which Spark checks incidents request: by the causes and effects found so far, for what window, topics and groups.

Pure: the same findings make the same requests. The store keeps requests, the daemon runs the checks.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct

from agent.engine.correlation import Chain, Correlation, flatten, steps_before_checks
from agent.engine.grouping import GROUPING_MS
from agent.engine.history import FINALIZATION_MS
from agent.model.findings import Finding, FindingKey, Severity
from agent.model.observations.base import Observation

LOOKBACK_MS = 14 * 86_400_000
"""How much of the past before the root cause a check may compare with."""


class CheckRequest(Struct, frozen=True, kw_only=True):
    """An incident's request for a check that can explain or prove it. Durable: kept until it has a result.

    id: made from check and finding, so that the same request is made once. finding: the key of the root cause; the
    incident that contains it gets the result. since, until: the window to look at, event time, ms.
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
    """The result of a run. request: None for a scheduled run. observations: CheckFindings, then one CheckRun.

    lines: for the incident's thread, the most important first; plot: a PNG, or None.
    """

    request: CheckRequest | None
    observations: list[Observation]
    lines: tuple[str, ...] = ()
    plot: bytes | None = None


class _Candidate(NamedTuple):
    """One root cause worth a check: all findings of its chains, and those of the last step found."""

    root: Finding
    findings: dict[FindingKey, Finding]
    last: dict[FindingKey, Finding]


def request_checks(
    chains: Iterable[Chain], correlations: Mapping[str, Correlation], check_rules: Collection[str]
) -> list[CheckRequest]:
    """Return the requests of all chains, in time order of the root causes: each check once per root.

    Of two roots within a minute of each other that led to the same, only the first makes a request. check_rules: the
    rules whose findings come from checks; these request nothing more.
    """
    candidates: dict[tuple[str, FindingKey], _Candidate] = {}
    for name, steps in chains:
        correlation = correlations[name]
        found = steps[: steps_before_checks(correlation, check_rules)]
        for check in correlation.run_checks if found else ():
            root = found[0][0]
            candidate = candidates.setdefault((check, root.key), _Candidate(root, {}, {}))
            candidate.findings.update((finding.key, finding) for finding in flatten(found))
            last = next(findings for findings in reversed(found) if findings)
            candidate.last.update((finding.key, finding) for finding in last)
    requests: list[CheckRequest] = []
    made: dict[str, list[_Candidate]] = {}
    for (check, _), candidate in sorted(candidates.items(), key=lambda item: (item[1].root.at, item[0])):
        earlier = made.setdefault(check, [])
        if not any(_covers(other, candidate) for other in earlier):
            earlier.append(candidate)
            requests.append(_request(check, candidate))
    return requests


def _covers(earlier: _Candidate, later: _Candidate) -> bool:
    return later.root.at - earlier.root.at <= GROUPING_MS and later.last.keys() <= earlier.last.keys()


def _request(check: str, candidate: _Candidate) -> CheckRequest:
    """Return the request; while only causes are known, anything may be affected, so it is about everything."""
    root, findings = candidate.root, candidate.findings.values()
    effects = [finding for finding in candidate.last.values() if finding.severity is not Severity.INFO]
    return CheckRequest(
        id=blake2b(f"{check} {root.key}".encode(), digest_size=6).hexdigest(),
        check=check,
        cluster=str(root.subject.get("cluster", "")),
        finding=root.key,
        since=root.start - LOOKBACK_MS,
        until=max(max(finding.at, finding.known_at) for finding in findings) + FINALIZATION_MS,
        topics=_values("topic", effects),
        groups=_values("group", effects),
        due=max(root.known_at, min(finding.known_at for finding in candidate.last.values())),
    )


def _values(key: str, findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(sorted({str(finding.subject[key]) for finding in findings if finding.subject.get(key) is not None}))
