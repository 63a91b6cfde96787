"""The page, the summary and the picture of a review stay readable: long names, many groups, none, weeks with gaps."""

import re

import pytest

from agent.model.findings import Finding, Records, Severity
from spark_checks.reviews.availability import AGENT, Outage
from spark_checks.reviews.changes import BrokerLosses, Rebalances
from spark_checks.reviews.facts import Facts
from spark_checks.reviews.incidents import Detected, Election, KindCount, RuleCount
from spark_checks.reviews.lags import GroupLag, LagPoint, Margin, Standstill
from spark_checks.reviews.page import page
from spark_checks.reviews.periods import DAY_MS, STEP_MS, Periods
from spark_checks.reviews.picture import picture
from spark_checks.reviews.summary import summary
from tests.spark_checks.simulated_weeks import BEGAN_AT

HOUR = 3_600_000
PERIODS = Periods(BEGAN_AT, BEGAN_AT + 7 * DAY_MS, 3)
LONG = "team-checkout." + "very-long-name-of-a-group." * 7 + "tail"
QUIET = Facts(
    cluster="main", label="main", periods=PERIODS, weeks=(1, 2, 3), has_incidents=True, incidents=(), kinds=(),
    rules=(), silent_rules=(), lags=(), points={}, margins=(), standstills=(), brokers=(), elections=(),
    rebalances=(), outages=(),
)  # fmt: skip


def incident(number: int, group: str, *, is_open: bool = False) -> Detected:
    at = BEGAN_AT + number * 5 * HOUR
    return Detected(
        week=0, id=f"INC-{number:08X}", title=f"{group} lost 4,000 unread records on orders[3] to retention",
        kind="retention_overrun", rules=("overrun",), severity=Severity.CRITICAL if number % 3 else Severity.WARNING,
        opened_at=at, ended_at=None if is_open else at + HOUR // 3, lasted=2 * DAY_MS if is_open else HOUR // 3,
        acknowledged_by=None, findings=(), records=Records(lost=4_000),
    )  # fmt: skip


def busy(groups: int, prefix: str = "") -> Facts:
    """A week in which something happened to each group."""
    names = [f"{prefix}group-{number}" for number in range(groups)]
    topic = f"{prefix}orders"
    lags = [GroupLag(week, name, 100.0, 5_000.0, 9_000, 672, 8_000) for week in range(4) for name in names]
    return QUIET._replace(
        incidents=[incident(number, name, is_open=number < 3) for number, name in enumerate(names[:30])],
        kinds=[KindCount("retention_overrun", 20, 10, HOUR // 3, 30, 0, 3, (1, 0, 2))],
        rules=[RuleCount("overrun", 30, 12, 30, (1, 0, 2))],
        silent_rules=[f"rule_{number}" for number in range(40)],
        lags=lags,
        points={name: [LagPoint(name, BEGAN_AT + step * STEP_MS, step % 96) for step in range(672)]
                for name in names[:10]},
        margins=[Margin(0, name, topic, 3, BEGAN_AT + DAY_MS, 100, 90 - number, 10 + number, 400, 5_000, 7 * DAY_MS)
                 for number, name in enumerate(names)],
        standstills=[Standstill(name, 2, 500, BEGAN_AT + DAY_MS, True, number % 2)
                     for number, name in enumerate(names)],
        brokers=[BrokerLosses(0, number, 5, HOUR) for number in range(3)],
        elections=[Election(0, BEGAN_AT + DAY_MS, topic, 1, f"{topic}[1]: leader changed 1 -> 2, unclean")],
        rebalances=[Rebalances(0, name, 40, HOUR) for name in names],
        outages=[Outage(0, AGENT, True, 2, 2 * DAY_MS, "the agent was stopped or suspended")],
    )  # fmt: skip


def test_500_groups_fit_a_page_and_a_message() -> None:
    facts = busy(500)
    html = page(facts)
    assert len(html) < 200_000
    assert html.count("and 490 more groups") == 4
    assert html.count("Critical, and over") == 1
    assert len(summary(facts, "/review/main.html")) < 2_500
    assert picture(facts).startswith(b"\x89PNG")


def test_long_names_are_whole_in_tables_and_brief_in_sentences() -> None:
    facts = busy(12, LONG)
    html, text = page(facts), summary(facts, None)
    assert f"<b>{LONG}group-0</b>" in html
    assert LONG not in text
    assert "team-checkout." in text
    assert all(len(line) < 400 for line in text.splitlines())
    tasks = html[html.index('<ol class="tasks">') : html.index("</ol>")]
    assert LONG not in tasks


def test_quiet_week_has_nothing_to_do() -> None:
    html = page(QUIET)
    assert "A quiet week: nothing to do." in html
    assert summary(QUIET, None).splitlines()[0] == (
        "Review of main, 23 to 29 November 2026: 0 incidents, 0 critical; no group near data loss"
    )
    assert picture(QUIET).startswith(b"\x89PNG")
    assert not re.search(r"\b(nan|None|inf)\b", html.replace("None.", ""))


@pytest.mark.parametrize("facts", [QUIET._replace(weeks=()), busy(3)._replace(weeks=())])
def test_first_review_compares_nothing(facts: Facts) -> None:
    html = page(facts)
    assert "nothing is compared" in html
    assert "usual" not in summary(facts, None).lower()


def test_alarms_of_retention_count_as_near_data_loss() -> None:
    alarm = Finding(
        rule="margin", kind="retention_margin", severity=Severity.WARNING, at=BEGAN_AT,
        subject={"cluster": "main", "group": "billing", "topic": "orders", "partition": 3}, detail="",
    )  # fmt: skip
    facts = QUIET._replace(incidents=[incident(1, "billing")._replace(findings=(alarm,))])
    told = "Rules reported unread records that retention deletes: billing."
    assert "1 group near data loss" in summary(facts, None)
    assert f"{told}\n" in summary(facts, None)
    assert f"{told} See the incidents." in page(facts)


def test_week_without_the_agent_is_not_called_quiet() -> None:
    away = QUIET._replace(outages=[Outage(0, AGENT, True, 1, 7 * DAY_MS, "the agent was stopped or suspended")])
    title, *lines = summary(away, "/review/main.html").splitlines()
    assert title == "Review of main, 23 to 29 November 2026: nothing was observed for 7 d"
    assert lines[:2] == ["Full page: /review/main.html", "Do now:"]
    assert "The agent observed nothing for 7 d" in lines[2]


def test_counts_are_compared_digit_by_digit() -> None:
    rebalances = [Rebalances(week, "billing", times, HOUR) for week, times in enumerate((11_373, 11_391, 11_402, 0))]
    assert "11,373 rebalances (usually 11,391)." in summary(QUIET._replace(rebalances=rebalances), None)


def test_a_loss_is_told_apart_from_a_near_one() -> None:
    margins = [
        Margin(0, name, "orders", 3, BEGAN_AT + DAY_MS, 100, 100 - margin, margin, 400, 5_000, 7 * DAY_MS)
        for name, margin in (("billing", -50), ("audit", 10))
    ]
    both, lost = QUIET._replace(margins=margins), QUIET._replace(margins=margins[:1])
    assert "1 group lost unread records, 1 group near data loss\n" in summary(both, None)
    assert "1 group lost unread records\n" in summary(lost, None)
    assert "By Tue 24 Nov 00:00: 50 unread records already deleted." in page(lost)
    assert "Lost to retention: billing on orders[3], 50 unread records already deleted.\n" in summary(lost, None)


def test_a_group_at_the_log_start_is_said_to_be_there() -> None:
    margin = Margin(0, "billing", "orders", 3, BEGAN_AT + DAY_MS, 100, 100, 0, 400, 5_000, 0)
    assert "Closest to data loss: billing on orders[3], at the log start (0.0 % of the log)." in summary(
        QUIET._replace(margins=[margin]), None
    )


def test_a_single_day_is_named_once() -> None:
    facts = QUIET._replace(periods=Periods(BEGAN_AT, BEGAN_AT + DAY_MS, 3))
    assert summary(facts, None).startswith("Review of main, 23 November 2026: ")


@pytest.mark.parametrize(
    ("losses", "before", "is_flapping"), [(2, 0, False), (5, 5, False), (6, 3, True), (7, 7, True)]
)
def test_broker_is_flapping(losses: int, before: int, *, is_flapping: bool) -> None:
    rows = [BrokerLosses(week, 1, before if week else losses, HOUR) for week in range(4)]
    facts = QUIET._replace(brokers=rows)
    assert ("dropped out of the cluster" in page(facts)) is is_flapping


@pytest.mark.parametrize(("last", "is_task"), [(100, False), (50_000, True)])
def test_lag_that_is_over_is_no_task(last: int, *, is_task: bool) -> None:
    lags = [GroupLag(week, "billing", 10.0, 20.0 if week else 9e6, 10**7, 672, last) for week in range(4)]
    assert ("The lag of billing has grown" in page(QUIET._replace(lags=lags))) is is_task


GONE = "ncidents before 2026-11-23 12:00 UTC are no longer known, as the agent has deleted them"


def test_week_whose_incidents_were_deleted_is_not_called_quiet() -> None:
    since = BEGAN_AT + DAY_MS // 2
    assert "A quiet week: nothing to do." in page(QUIET)
    partly = QUIET._replace(incidents_since=since)
    assert (GONE in summary(partly, None), "A quiet week" in page(partly)) == (True, False)
    assert f"None is known. I{GONE}." in page(partly)
    unknown = partly._replace(has_incidents=False)
    assert "incidents unknown" in summary(unknown, None)
    assert page(unknown).count(f"I{GONE}.") >= 2
    assert "no state file" not in page(unknown)


def test_weeks_whose_incidents_were_deleted_are_left_out_of_the_median() -> None:
    found = [incident(number, "g")._replace(week=1) for number in range(8)]
    known = QUIET._replace(incidents=found, incidents_since=BEGAN_AT - 8 * DAY_MS)
    assert (known.incident_weeks, known.lacks_incidents()) == ((1,), False)
    assert "Incidents: 0 (usually 8)" in summary(known, None)
    assert "Incidents: 0 (usually 0)" in summary(known._replace(incidents_since=0), None)
    assert "Incidents: 0;" in summary(known._replace(incidents_since=BEGAN_AT - 1), None)
    assert "no longer known" not in summary(known, None)
    assert "no longer known" in page(known)
