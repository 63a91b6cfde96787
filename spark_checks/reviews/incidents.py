"""What was detected: the incidents in the agent's state file, counted by week, kind and rule."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from agent.engine.impact_and_root_cause import worst_first
from agent.model.findings import Finding, Handling, Incident, Records, Severity, Status, handled
from agent.storage.database import StorageError
from spark_checks.reviews.periods import Periods

_INCIDENT = msgspec.json.Decoder(Incident)
_HANDLING = msgspec.json.Decoder(Handling)

UNCLEAN_ELECTION = "unclean_election"

SHORT_MS = 300_000
"""An incident shorter than this was over before somebody could act on it."""


class Detected(NamedTuple):
    """An incident of a week that was posted: warning or critical. kind: of its worst finding.

    week: one beyond the weeks before if it opened earlier and is still open. ended_at: when it recovered or an operator
    closed it, None if it is open. lasted: until then, or until the end of the review, ms.
    """

    week: int
    id: str
    title: str
    kind: str
    rules: tuple[str, ...]
    severity: Severity
    opened_at: int
    ended_at: int | None
    lasted: int
    acknowledged_by: str | None
    findings: tuple[Finding, ...]
    records: Records

    @property
    def is_open(self) -> bool:
        """Whether it is open, by the state file: what ended after the review is no task any more."""
        return self.ended_at is None


class KindCount(NamedTuple):
    """The incidents of a kind in this week, and how many there were in each week before, the latest first.

    lasted: the median, ms. unacknowledged: those that somebody did not acknowledge. short: over within five minutes.
    """

    kind: str
    critical: int
    warning: int
    lasted: int
    unacknowledged: int
    short: int
    still_open: int
    before: tuple[int, ...]

    @property
    def total(self) -> int:
        """How many there were in this week."""
        return self.critical + self.warning


class RuleCount(NamedTuple):
    """In how many incidents of this week a rule had a finding, of any severity, and in how many of each week before."""

    rule: str
    incidents: int
    short: int
    unacknowledged: int
    before: tuple[int, ...]


class Election(NamedTuple):
    """An unclean leader election that the rules found, whether it was posted or not. at: ms."""

    week: int
    at: int
    topic: str
    partition: int
    detail: str


def read_incidents(path: Path, clusters: Collection[str]) -> list[Incident]:
    """Return the incidents of these clusters with what operators decided, by opening time. Raises StorageError."""
    query = (
        "SELECT incidents.body, handling.body FROM incidents LEFT JOIN handling ON incident = id ORDER BY opened_at, id"
    )
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            rows = [(str(body), handling) for body, handling in database.execute(query)]
        incidents = [
            handled(_INCIDENT.decode(body), Handling() if handling is None else _HANDLING.decode(handling))
            for body, handling in rows
        ]
    except (sqlite3.Error, msgspec.DecodeError) as error:
        msg = f"{path}: cannot read the agent's state: {error}"
        raise StorageError(msg) from error
    return [incident for incident in incidents if incident.cluster in clusters]


def detected(incidents: Iterable[Incident], periods: Periods) -> list[Detected]:
    """Return the incidents that were posted and opened in one of the weeks, or are still open, by opening time."""
    found = []
    for incident in incidents:
        is_posted = incident.merged_into is None and bool(incident.findings) and incident.severity is not Severity.INFO
        ended_at, is_recent = _end(incident), incident.opened_at >= periods.first
        if incident.opened_at >= periods.until or not is_posted or not (is_recent or ended_at is None):
            continue
        worst = worst_first(incident.findings)[0]
        found.append(
            Detected(
                week=(periods.until - 1 - incident.opened_at) // periods.length,
                id=incident.id,
                title=incident.title,
                kind=worst.kind,
                rules=tuple(sorted({finding.rule for finding in incident.causes + incident.findings})),
                severity=incident.severity,
                opened_at=incident.opened_at,
                ended_at=ended_at,
                lasted=max(0, (periods.until if ended_at is None else ended_at) - incident.opened_at),
                acknowledged_by=None if incident.acknowledged is None else incident.acknowledged.by,
                findings=incident.findings,
                records=incident.records,
            )
        )
    return found


def count_kinds(incidents: Sequence[Detected], periods: Periods) -> list[KindCount]:
    """Return the kinds of this week's incidents, those with critical incidents and the most frequent first."""
    before = _by_week(((incident.kind, incident.week) for incident in incidents), periods)
    found = []
    for kind in {incident.kind for incident in incidents if incident.week == 0}:
        alike = [incident for incident in incidents if incident.week == 0 and incident.kind == kind]
        critical = sum(incident.severity is Severity.CRITICAL for incident in alike)
        found.append(
            KindCount(
                kind=kind,
                critical=critical,
                warning=len(alike) - critical,
                lasted=int(median(incident.lasted for incident in alike)),
                unacknowledged=sum(incident.acknowledged_by is None for incident in alike),
                short=sum(_is_short(incident) for incident in alike),
                still_open=sum(incident.is_open for incident in alike),
                before=before(kind),
            )
        )
    return sorted(found, key=lambda counted: (-counted.critical, -counted.total, counted.kind))


def count_rules(incidents: Sequence[Detected], periods: Periods) -> list[RuleCount]:
    """Return the rules of this week's incidents, the most frequent first."""
    of_rules = [(rule, incident) for incident in incidents for rule in incident.rules]
    before = _by_week(((rule, incident.week) for rule, incident in of_rules), periods)
    found = []
    for name in {rule for rule, incident in of_rules if incident.week == 0}:
        alike = [incident for rule, incident in of_rules if rule == name and incident.week == 0]
        found.append(
            RuleCount(
                name,
                len(alike),
                sum(_is_short(incident) for incident in alike),
                sum(incident.acknowledged_by is None for incident in alike),
                before(name),
            )
        )
    return sorted(found, key=lambda counted: (-counted.incidents, counted.rule))


def silent_rules(rules: Iterable[str], incidents: Sequence[Incident], periods: Periods) -> list[str]:
    """Return the rules without any finding in any of the weeks, in incidents of any severity."""
    fired = {
        finding.rule
        for incident in incidents
        if periods.week_of(incident.opened_at) is not None
        for finding in incident.causes + incident.findings
    }
    return sorted(set(rules) - fired)


def unclean_elections(incidents: Iterable[Incident], periods: Periods) -> list[Election]:
    """Return the unclean leader elections of all weeks, oldest first; those that only caused something too."""
    found = {}
    for incident in incidents:
        for finding in incident.causes + incident.findings if incident.merged_into is None else ():
            week = periods.week_of(finding.at)
            if finding.kind == UNCLEAN_ELECTION and week is not None:
                subject = finding.subject
                found[finding.key] = Election(
                    week, finding.at, str(subject["topic"]), int(subject["partition"]), finding.detail
                )
    return sorted(found.values())


def _by_week(names: Iterable[tuple[str, int]], periods: Periods) -> "_Counts":
    return _Counts(Counter(names), periods)


class _Counts:
    """How often each name occurred in the weeks before, the latest first."""

    def __init__(self, counter: Counter[tuple[str, int]], periods: Periods) -> None:
        self._counter, self._periods = counter, periods

    def __call__(self, name: str) -> tuple[int, ...]:
        return tuple(self._counter[name, week] for week in range(1, self._periods.before + 1))


def _is_short(incident: Detected) -> bool:
    return not incident.is_open and incident.lasted < SHORT_MS


def _end(incident: Incident) -> int | None:
    """Return when the incident was over, ms, or None."""
    if incident.status is Status.OPEN:
        return None
    ends = [incident.recovered_at, None if incident.closed is None else incident.closed.at]
    return min((at for at in ends if at is not None), default=incident.updated_at)
