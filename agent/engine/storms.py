"""Storms: more incidents of one cause in a minute than anybody reads are one incident."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent.engine.history import LATENESS_MS
from agent.model.findings import Finding, FindingKey, Severity

STORM_SIZE = 10
"""How many incidents may open in a minute for one cause and cluster; more are one incident."""

STORM_MS = LATENESS_MS
"""How close together the incidents of a storm open."""


def find_storms(
    clusters: Iterable[Sequence[Finding]], cause_of: Mapping[FindingKey, str]
) -> Iterator[tuple[FindingKey, ...]]:
    """Yield the findings that join clusters of which more than STORM_SIZE open within a minute.

    They have the same cluster, rule, severity and correlation, if any. cause_of: the correlation of each effect.
    """
    openings: dict[tuple[Any, ...], list[Finding]] = {}
    for findings in clusters:
        worst = min(findings, key=lambda finding: (-finding.severity.rank, finding.at, finding.key))
        if worst.severity is not Severity.INFO:
            kind = (worst.subject.get("cluster"), worst.rule, worst.severity, cause_of.get(worst.key))
            openings.setdefault(kind, []).append(worst)
    for opened in openings.values():
        opened.sort(key=lambda finding: (finding.at, finding.key))
        for index in range(len(opened) - STORM_SIZE):
            window = opened[index : index + STORM_SIZE + 1]
            if window[-1].at - window[0].at <= STORM_MS:
                yield tuple(finding.key for finding in window)
