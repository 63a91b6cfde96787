"""All that a review of one cluster is made from."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, Protocol, TypeVar

from agent.model.findings import Records, Severity
from spark_checks.reviews.availability import Outage
from spark_checks.reviews.changes import BrokerLosses, Rebalances
from spark_checks.reviews.incidents import Detected, Election, KindCount, RuleCount
from spark_checks.reviews.lags import GroupLag, LagPoint, Margin, Standstill
from spark_checks.reviews.periods import DAY_MS, Periods


class Weekly(Protocol):
    """What belongs to a week."""

    @property
    def week(self) -> int:
        """Return its week, 0 for the reviewed one."""


T = TypeVar("T", bound=Weekly)

_DAYS = 70
"""How many days a chart has at most: of longer times, the last."""

NEAR_SHARE = 0.2
"""A group whose margin is below this share of the log nearly lost records: the rule `retention_margin` warns here."""

_LOSSES = frozenset({"retention_margin", "retention_overrun"})
"""The kinds of rules about records that retention deletes or will delete unread."""

FREQUENT = 7
"""What happens so often in a week, once a day, is too much: incidents of a rule, losses of a broker."""

MUCH_LAG = 1_000
"""Records that are worth a task."""

MUCH_MORE = 2.0
"""How many times the usual number is worth a task."""

FLAPPING = 3
"""From so many losses in a week on, a broker may have a problem of its own; rolling restarts are fewer."""


class Day(NamedTuple):
    """The incidents of a day or an hour. since, length: ms. is_now: of the reviewed week; is_first: of any week."""

    since: int
    length: int
    critical: int
    warning: int
    is_now: bool
    is_first: bool


class Facts(NamedTuple):
    """What was measured. weeks: the weeks before that the journal covers from their beginning, such as (1, 2).

    label: the cluster's name, with that of the agent if others have such a cluster. has_incidents: whether the state
    file has incidents of this week; it has all from incidents_since on (ms). silent_rules: rules that have not fired in
    any week.
    """

    cluster: str
    label: str
    periods: Periods
    weeks: tuple[int, ...]
    has_incidents: bool
    incidents: Sequence[Detected]
    kinds: Sequence[KindCount]
    rules: Sequence[RuleCount]
    silent_rules: Sequence[str]
    lags: Sequence[GroupLag]
    points: Mapping[str, Sequence[LagPoint]]
    margins: Sequence[Margin]
    standstills: Sequence[Standstill]
    brokers: Sequence[BrokerLosses]
    elections: Sequence[Election]
    rebalances: Sequence[Rebalances]
    outages: Sequence[Outage]
    notes: Sequence[str] = ()
    incidents_since: int = 0

    def lacks_incidents(self, week: int = 0) -> bool:
        """Return whether the agent may have deleted incidents of a week."""
        return self.periods.bounds(week)[0] < self.incidents_since

    @property
    def incident_weeks(self) -> tuple[int, ...]:
        """The weeks before of which all incidents are known, as far as the journal covers them."""
        return tuple(week for week in self.weeks if not self.lacks_incidents(week))

    @property
    def near_misses(self) -> list[Margin]:
        """This week's margins below the limit, the smallest share first."""
        return [margin for margin in now(self.margins) if margin.share < NEAR_SHARE]

    def alarmed(self, week: int = 0) -> set[str]:
        """Return the groups that rules reported in a week as about to lose unread records, or as having lost them."""
        return {
            str(finding.subject["group"])
            for incident in of_week(self.incidents, week)
            for finding in incident.findings
            if finding.kind in _LOSSES and finding.subject.get("group") is not None
        }

    def near_loss(self, week: int = 0) -> set[str]:
        """Return the groups that nearly lost unread records in a week, as measured or as rules reported it."""
        measured = {margin.group for margin in of_week(self.margins, week) if margin.share < NEAR_SHARE}
        return measured | self.alarmed(week)

    @property
    def lost(self) -> set[str]:
        """The groups of which retention deleted unread records in this week."""
        return {margin.group for margin in now(self.margins) if margin.margin < 0}

    @property
    def still_open(self) -> list[Detected]:
        """The incidents that are open at the end, critical ones and the oldest first."""
        lasting = [incident for incident in self.incidents if incident.is_open]
        return sorted(lasting, key=lambda incident: (-incident.severity.rank, incident.opened_at, incident.id))

    @property
    def frequent_rules(self) -> list[RuleCount]:
        """The rules that fired too often in this week."""
        return [rule for rule in self.rules if rule.incidents >= FREQUENT]

    def is_flapping(self, broker: BrokerLosses) -> bool:
        """Return whether a broker drops out daily, or more often than it usually does."""
        usual = self.usual({row.week: row.losses for row in self.brokers if row.broker == broker.broker})
        is_unusual = broker.losses >= FLAPPING and (usual is None or broker.losses >= MUCH_MORE * usual)
        return is_unusual or broker.losses >= FREQUENT

    def incidents_by_day(self) -> list["Day"]:
        """Return the incidents per day of the weeks, counted back from the end; per hour if a week is a short time."""
        periods = self.periods
        length = DAY_MS if periods.length >= 2 * DAY_MS else DAY_MS // 24
        first = periods.bounds(max(self.incident_weeks, default=0))[0]
        number = min(_DAYS, -(-(periods.until - first) // length))
        days = []
        for index in range(number):
            since = periods.until - (number - index) * length
            severities = [
                incident.severity for incident in self.incidents if since <= incident.opened_at < since + length
            ]
            critical = severities.count(Severity.CRITICAL)
            is_labelled = (number - index) % (periods.length // length or 1) == 0
            is_now = since + length > periods.since
            days.append(Day(since, length, critical, len(severities) - critical, is_now, is_labelled))
        return days

    def records(self, week: int = 0) -> Records:
        """Return how many records the incidents of a week had reprocessed, lost or skipped."""
        return sum((incident.records for incident in of_week(self.incidents, week)), Records())

    def critical(self, week: int = 0) -> int:
        """Return how many critical incidents there were in a week."""
        return sum(incident.severity is Severity.CRITICAL for incident in of_week(self.incidents, week))

    def unseen(self, week: int = 0) -> int:
        """Return for how long the worst source could not read everything in a week, or the agent was away, ms."""
        return max((outage.lasted for outage in of_week(self.outages, week) if outage.is_whole), default=0)

    @property
    def is_blind(self) -> bool:
        """Whether nothing is known of this week, because the agent was away or could read nothing."""
        known = (
            *now(self.incidents), *now(self.lags), *now(self.margins),
            *now(self.brokers), *now(self.elections), *now(self.rebalances),
        )  # fmt: skip
        return not known and self.unseen() >= self.periods.length

    def usual(self, numbers: Mapping[int, float], weeks: Sequence[int] | None = None) -> float | None:
        """Return the median of a number by week, 0 where it is missing. weeks: None: the covered ones before."""
        compared = self.weeks if weeks is None else weeks
        return median(numbers.get(week, 0) for week in compared) if compared else None


def now(rows: Iterable[T]) -> list[T]:
    """Return the rows of this week."""
    return of_week(rows, 0)


def of_week(rows: Iterable[T], week: int) -> list[T]:
    """Return the rows of a week."""
    return [row for row in rows if row.week == week]
