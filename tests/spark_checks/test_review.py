"""The review of simulated weeks has the numbers that DuckDB and plain Python find in the same journal."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from agent.model.findings import Incident, Severity
from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState, LogOffsets, TopicSettings
from spark_checks.journal.files import DamagedFiles, JournalWindow
from spark_checks.reviews.facts import Facts
from spark_checks.reviews.incidents import read_incidents
from spark_checks.reviews.measure import Subject, measure
from spark_checks.reviews.page import page
from spark_checks.reviews.periods import Periods
from tests.spark_checks.simulated_weeks import BEGAN_AT, Cluster, Weeks, simulate

HOUR, STEP = 3_600_000, 900_000
PERIODS = Periods(BEGAN_AT + 6 * HOUR, BEGAN_AT + 8 * HOUR, 3)
CLUSTERS = {"main": 9, "payments": 6}
IDLE = HOUR // 2

QUERY = """
WITH commits AS (
    SELECT *, (epoch_ms("at") - {first}) // {length} AS period, (epoch_ms("at") - {first}) % {length} // {step} AS step
    FROM read_parquet('{journal}/commit/*/*.parquet') WHERE cluster = '{cluster}'
    QUALIFY row_number() OVER (PARTITION BY period, step, "group", topic, partition ORDER BY "at" DESC, position DESC)
        = 1
), logs AS (
    SELECT *, (epoch_ms("at") - {first}) // {length} AS period, (epoch_ms("at") - {first}) % {length} // {step} AS step
    FROM read_parquet('{journal}/log_offsets/*/*.parquet') WHERE cluster = '{cluster}'
    QUALIFY row_number() OVER (PARTITION BY period, step, topic, partition ORDER BY "at" DESC, position DESC) = 1
), lags AS (
    SELECT period, step, "group", sum(greatest(log_end - "offset", 0)) AS lag
    FROM commits JOIN logs USING (period, step, topic, partition)
    WHERE "offset" IS NOT NULL AND period BETWEEN 0 AND 3 GROUP BY ALL
)
SELECT (3 - period)::INT, "group", quantile_cont(lag, 0.5), quantile_cont(lag, 0.95), max(lag)::BIGINT, count(*),
    arg_max(lag, step)::BIGINT
FROM lags GROUP BY ALL
"""


@pytest.fixture(scope="module")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Weeks:
    return simulate(tmp_path_factory.mktemp("weeks"), CLUSTERS, hours=8, faults=10)


@pytest.fixture(scope="module", params=CLUSTERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(weeks: Weeks, name: str) -> Cluster:
    return weeks.clusters[name]


@pytest.fixture(scope="module")
def facts(spark: SparkSession, weeks: Weeks, name: str) -> Facts:
    window = JournalWindow(spark, weeks.journal, name, PERIODS.first, PERIODS.until, DamagedFiles())
    subject = Subject(read_incidents(weeks.state, {name}), ["rewind", "never"], IDLE, lambda *_: True)
    return measure(window, PERIODS, subject)


def of_kind(cluster: Cluster, kind: type[Any]) -> list[Any]:
    """Return the observations of a kind within the weeks, by time; of the same time in the order of arrival."""
    found = (fact for fact in cluster.observations if isinstance(fact, kind) and week_of(fact.at) is not None)
    return sorted(found, key=lambda fact: fact.at)


def week_of(at: int) -> int | None:
    return 3 - (at - BEGAN_AT) // (2 * HOUR) if 0 <= at - BEGAN_AT < 8 * HOUR else None


def by(facts: Iterable[Observation], *names: str) -> dict[tuple[Any, ...], list[Any]]:
    found = defaultdict(list)
    for fact in facts:
        found[tuple(getattr(fact, name) for name in names)].append(fact)
    return found


def test_lag_percentiles_are_those_of_duckdb(facts: Facts, weeks: Weeks, name: str) -> None:
    query = QUERY.format(first=BEGAN_AT, length=2 * HOUR, step=STEP, journal=weeks.journal, cluster=name)
    with duckdb.connect() as oracle:
        rows = sorted(oracle.execute(query).fetchall())
    ours = sorted(tuple(lag) for lag in facts.lags)
    assert len(ours) > 50
    assert [row[:2] + row[4:] for row in ours] == [row[:2] + row[4:] for row in rows]
    for mine, theirs in zip(ours, rows, strict=True):
        assert mine[2:4] == pytest.approx(theirs[2:4])


def of_log(readings: list[LogOffsets], step: int) -> list[LogOffsets]:
    """Return the readings of the log that was there in a step: a topic that is created again begins another one."""
    logs: list[list[LogOffsets]] = []
    for reading in readings:
        if not logs or reading.log_start < logs[-1][-1].log_start:
            logs.append([])
        logs[-1].append(reading)
    return next(log for log in logs if any((reading.at - BEGAN_AT) // STEP == step for reading in log))


def test_margins_are_those_of_plain_python(facts: Facts, cluster: Cluster) -> None:
    commits: dict[Any, int | None] = {}
    logs: dict[Any, LogOffsets] = {}
    starts: dict[Any, list[LogOffsets]] = defaultdict(list)
    for fact in of_kind(cluster, Commit):
        commits[week_of(fact.at), (fact.at - BEGAN_AT) // STEP, fact.group, fact.topic, fact.partition] = fact.offset
    for fact in of_kind(cluster, LogOffsets):
        logs[(fact.at - BEGAN_AT) // STEP, fact.topic, fact.partition] = fact
        step_end = starts[week_of(fact.at), fact.topic, fact.partition]
        if step_end and (step_end[-1].at - BEGAN_AT) // STEP == (fact.at - BEGAN_AT) // STEP:
            step_end.pop()
        step_end.append(fact)
    settings = {fact.topic: fact for fact in of_kind(cluster, TopicSettings)}
    smallest: dict[Any, tuple[float, int, str, int, int, int]] = {}
    for (week, step, group, topic, partition), offset in commits.items():
        log = logs.get((step, topic, partition))
        known = settings.get(topic)
        is_endless = known is not None and (
            "delete" not in known.cleanup_policy or (known.retention_ms, known.retention_bytes) == (-1, -1)
        )
        if offset is None or log is None or is_endless or log.log_end <= max(offset, log.log_start):
            continue
        if len({fact.log_start for fact in of_log(starts[week, topic, partition], step)}) < 2:
            continue
        margin, kept = offset - log.log_start, log.log_end - log.log_start
        found = (margin / kept, step, topic, partition, margin, kept)
        smallest[week, group] = min(smallest.get((week, group), found), found)
    assert {
        (margin.week, margin.group): (margin.topic, margin.partition, margin.margin, margin.kept)
        for margin in facts.margins
    } == {key: found[2:] for key, found in smallest.items()}
    for row in facts.margins:
        known_logs = of_log(starts[row.week, row.topic, row.partition], (row.at - 1 - BEGAN_AT) // STEP)
        log_starts, times = [fact.log_start for fact in known_logs], [fact.at for fact in known_logs]
        assert (row.rise, row.observed) == (max(log_starts) - min(log_starts), max(times) - min(times))


def test_broker_losses_are_those_of_plain_python(facts: Facts, cluster: Cluster) -> None:
    losses: Counter[tuple[int | None, int]] = Counter()
    down: Counter[tuple[int | None, int]] = Counter()
    for (broker,), states in by(of_kind(cluster, BrokerRegistration), "broker").items():
        for old, new in pairwise(states):
            if old.epoch is not None and (old.session, old.epoch) != (new.session, new.epoch):
                losses[week_of(new.at), broker] += 1
            if old.epoch is None:
                down[week_of(old.at), broker] += new.at - old.at
        if states[-1].epoch is None:
            down[week_of(states[-1].at), broker] += PERIODS.until - states[-1].at
    assert {(row.week, row.broker): (row.losses, row.down) for row in facts.brokers} == {
        key: (number, down[key]) for key, number in losses.items()
    }
    assert losses


def test_rebalances_are_those_of_plain_python(facts: Facts, cluster: Cluster) -> None:
    times: Counter[tuple[int | None, str]] = Counter()
    lasted: Counter[tuple[int | None, str]] = Counter()
    for (group,), states in by(of_kind(cluster, GroupState), "group").items():
        for index, (old, new) in enumerate(pairwise(states), 1):
            was_in, is_in = ("Rebalance" in state.state for state in (old, new))
            ids = [sorted(member.id for member in state.members) for state in (old, new)]
            if (is_in and not was_in) or (not is_in and not was_in and ids[1] and ids[0] != ids[1]):
                times[week_of(new.at), group] += 1
            if is_in:
                end = states[index + 1].at if index + 1 < len(states) else PERIODS.until
                lasted[week_of(new.at), group] += end - new.at
    assert {(row.week, row.group): (row.times, row.lasted) for row in facts.rebalances} == {
        key: (number, lasted[key]) for key, number in times.items()
    }
    assert times


def test_outages_are_those_of_plain_python(facts: Facts, cluster: Cluster, weeks: Weeks) -> None:
    last = max(
        fact.at for each in weeks.clusters.values() for fact in each.observations
        if type(fact).__name__ == "Tick" and fact.at < PERIODS.until
    )  # fmt: skip
    outages: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    began: dict[Any, int] = {}
    for fact in [fact for fact in cluster.observations if isinstance(fact, Available | Unavailable)]:
        key = (fact.source, fact.group, fact.topic, fact.partition)
        if week_of(fact.at) is None:
            continue
        if isinstance(fact, Unavailable):
            began.setdefault(key, fact.at)
        elif key in began:
            outages[key[0], key[1:] == (None, None, None)].append((began.pop(key), fact.at))
    for key, at in began.items():
        outages[key[0], key[1:] == (None, None, None)].append((at, last))
    expected = {}
    for week in range(4):
        begin, end = PERIODS.bounds(week)
        for key, spans in outages.items():
            within = [(max(since, begin), min(to, end)) for since, to in spans if since < end and to > begin]
            seconds = union(within)
            if seconds:
                expected[week, *key] = (len(within), seconds)
    assert {
        (outage.week, outage.source, outage.is_whole): (outage.times, outage.lasted)
        for outage in facts.outages
        if outage.source != "the agent"
    } == expected


def union(spans: Iterable[tuple[int, int]]) -> int:
    """Return the length of all spans together, overlaps counted once."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def posted(incidents: Iterable[Incident], week: int) -> Iterator[Incident]:
    for incident in incidents:
        if week_of(incident.opened_at) == week and incident.severity is not Severity.INFO:
            yield incident


def test_incidents_are_counted_by_kind_week_and_severity(facts: Facts, cluster: Cluster, weeks: Weeks) -> None:
    for week in range(4):
        expected = Counter(incident.severity for incident in posted(cluster.incidents, week))
        ours = Counter(incident.severity for incident in facts.incidents if incident.week == week)
        assert ours == expected
    assert sum(kind.total for kind in facts.kinds) == len(list(posted(cluster.incidents, 0)))
    assert [sum(kinds) for kinds in zip(*(kind.before for kind in facts.kinds), strict=True)] <= [
        len(list(posted(cluster.incidents, week))) for week in (1, 2, 3)
    ]
    stored = read_incidents(weeks.state, {incident.cluster or "" for incident in cluster.incidents})
    taken = {incident.id for incident in stored if incident.acknowledged is not None}
    assert {found.id for found in facts.incidents if found.acknowledged_by == "ana"} == {
        found.id for found in facts.incidents if found.id in taken
    }
    for kind in facts.kinds:
        alike = [found for found in facts.incidents if found.week == 0 and found.kind == kind.kind]
        assert kind.lasted == int(median(found.lasted for found in alike))


def test_usual_numbers_are_the_median_of_the_weeks_before(facts: Facts) -> None:
    numbers = {week: sum(row.times for row in facts.rebalances if row.week == week) for week in facts.weeks}
    assert facts.weeks == (1, 2, 3)
    assert facts.usual({week: float(number) for week, number in numbers.items()}) == median(numbers.values())


def test_rules_that_never_fired_are_named(facts: Facts, cluster: Cluster) -> None:
    fired = {
        finding.rule for incident in cluster.incidents if week_of(incident.opened_at) is not None
        for finding in incident.causes + incident.findings
    }  # fmt: skip
    assert facts.silent_rules == sorted({"rewind", "never"} - fired)


def test_page_is_one_file_without_anything_external(facts: Facts) -> None:
    html = page(facts)
    assert not [word for word in ("http://", "https://", "src=", "<link", "<script", "url(", "@import") if word in html]
    assert 'name="viewport"' in html
    assert len(html) < 200_000
