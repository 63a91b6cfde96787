"""The review of small journals made by hand: near misses, standstills, damage, hostile names."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit, LogOffsets, TopicSettings
from agent.storage.journal.writer import Journal
from spark_checks import review
from spark_checks.journal.given import given_clusters
from spark_checks.options import Options
from tests.spark_checks.simulated_weeks import BEGAN_AT

HOUR, DAY = 3_600_000, 86_400_000
END = BEGAN_AT + 14 * DAY
HOSTILE = '<script>alert("x")</script>&amp;\n$a_b$'


def log(at: int, topic: str, start: int, end: int) -> LogOffsets:
    return LogOffsets(at=at, cluster="main", topic=topic, partition=0, log_start=start, log_end=end)


def commit(at: int, group: str, topic: str, offset: int | None) -> Commit:
    return Commit(at=at, cluster="main", group=group, topic=topic, partition=0, offset=offset)


def history(group: str = "billing") -> list[Observation]:
    """Two weeks: the log start rises by 1,000 an hour, and the group stops reading for the last ten hours.

    In the week before it is in the middle of a log of 10,000 records; at the end it has 1,000 of 20,000 left.
    """
    facts: list[Observation] = []
    for hour in range(14 * 24):
        at = BEGAN_AT + hour * HOUR
        start, size = 1_000 * hour, 10_000 if hour < 7 * 24 else 20_000
        facts += [Tick(at=at), log(at, "orders", start, start + size)]
        last = 1_000 * (14 * 24 - 1) + 1_000
        offset = start + 5_000 if hour < 7 * 24 else min(start + 11_000, last)
        facts.append(commit(at, group, "orders", offset))
        facts += [log(at, "endless", start, start + 10), commit(at, "purger", "endless", start + 1)]
        facts += [log(at, "idle", 0, 500), commit(at, "sleeper", "idle", 100 if hour > 24 else 50)]
        facts.append(commit(at, "reader", "idle", 500))
    settings = TopicSettings(at=BEGAN_AT, cluster="main", topic="endless", cleanup_policy="delete", retention_ms=-1)
    return [settings, *facts]


def write(directory: Path, facts: list[Observation]) -> None:
    with closing(Journal(directory)) as journal:
        for fact in facts:
            journal.append([fact])
        journal.flush()


def options(journal: Path, **own: Any) -> Options:
    defaults = {"store": None, "weeks_before": 1, "idle": "1d", "flink": (), "rules": (), "out": None}
    return Options(
        own={"journal": str(journal)} | defaults | own,
        report=journal.parent / "report",
        since=BEGAN_AT + 7 * DAY,
        until=END,
    )


@pytest.fixture(scope="module")
def hostile(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    journal = tmp_path_factory.mktemp("hostile") / "journal"
    write(journal, history(HOSTILE))
    found = review.run(spark, options(journal), lambda _: None)
    return found, (journal.parent / "report" / "review.html").read_text(encoding="utf-8")


def test_near_miss_is_a_finding_with_its_numbers(hostile: tuple[Any, str]) -> None:
    (finding,) = hostile[0].findings
    assert (finding.subject["topic"], finding.labels, finding.severity) == ("orders", ("near_miss",), "info")
    assert finding.current == {"offset": 336_000, "log_start": 335_000}
    assert "1,000 records or about 1 h from the log start (5.0 % of the log)" in finding.detail
    assert finding.at == END - 45 * 60_000


@pytest.mark.parametrize("deletes", [False, True])
def test_topic_that_was_created_again_is_no_near_miss(spark: SparkSession, tmp_path: Path, *, deletes: bool) -> None:
    """Its log start falls to 0. Unless retention deletes from the new log too, the group there can lose nothing."""
    facts: list[Observation] = []
    for hour in range(14 * 24):
        at, new = BEGAN_AT + hour * HOUR, hour - 10 * 24
        start = 1_000 * hour if new < 0 else 10 * new * deletes
        offset = start + 5_000 if new < 0 else start + 5
        facts += [Tick(at=at), log(at, "orders", start, start + 10_000), commit(at, "billing", "orders", offset)]
    write(tmp_path / "journal", facts)
    found = review.run(spark, options(tmp_path / "journal"), lambda _: None).findings
    assert [finding.labels for finding in found] == [("near_miss",)] * deletes
    assert all(finding.current["log_start"] < 1_000 for finding in found)


def test_group_that_stands_still_is_named_with_its_last_commit(hostile: tuple[Any, str]) -> None:
    _, html = hostile
    assert "Restart or delete sleeper: unread records, but no commits" in html
    assert "sleeper last committed on Tue 24 Nov 01:00 and has 400 unread records." in html
    assert "reader</b>" not in html


def test_topic_without_retention_loses_nothing(hostile: tuple[Any, str]) -> None:
    assert "purger</b><br>" not in hostile[1]


def test_names_are_text_on_the_page_and_in_the_summary(hostile: tuple[Any, str]) -> None:
    found, html = hostile
    assert "<script" not in html
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;amp;\\n$a_b$" in html
    assert set(re.findall(r"<(\w+)", html)) <= {
        *(
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "main",
            "h1",
            "h2",
            "h3",
            "p",
            "div",
            "section",
            "ol",
            "li",
        ),
        *("b", "span", "a", "code", "br", "table", "thead", "tbody", "tr", "th", "td", "i", "svg", "g", "rect", "text"),
        *("polygon", "polyline", "footer", "details", "summary", "ul"),
    }
    assert len(found.summary.splitlines()) < 20
    assert found.plot.startswith(b"\x89PNG")


def test_summary_has_title_facts_and_tasks(hostile: tuple[Any, str]) -> None:
    title, *lines = hostile[0].summary.splitlines()
    assert title == "Review of main, 30 November to 6 December 2026: incidents unknown; 1 group near data loss"
    tasks = lines[lines.index("Do now:") + 1 :]
    assert "nearly lost unread records of orders[0] to retention. Raise `retention.ms`" in tasks[0]
    assert len(tasks) == 4
    assert tasks[-1] == "And 1 more task: see the page."


def test_deleted_records_are_an_overrun(spark: SparkSession, tmp_path: Path) -> None:
    facts = [
        *history(),
        log(END - HOUR // 2, "orders", 340_000, 350_000),
        commit(END - HOUR // 2, "billing", "orders", 336_000),
    ]
    write(tmp_path / "journal", facts)
    (finding,) = review.run(spark, options(tmp_path / "journal"), lambda _: None).findings
    assert (finding.labels, finding.records.lost) == (("overrun",), 4_000)
    assert "retention had deleted 4,000 unread records of " in finding.detail


def test_open_segments_are_read_too(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(history())
    journal.flush()
    try:
        (finding,) = review.run(spark, options(tmp_path / "journal"), lambda _: None).findings
    finally:
        journal.close()
    assert finding.labels == ("near_miss",)


def test_damaged_file_is_left_out_and_named(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "journal", history())
    (path,) = (tmp_path / "journal" / "commit").glob("date=2026-12-06/*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 40] = bytes(40)
    path.write_bytes(content)
    found = review.run(spark, options(tmp_path / "journal"), lambda _: None)
    assert "1 damaged journal file skipped" in found.summary
    assert not found.findings


def test_without_state_file_incidents_are_not_claimed_to_be_none(hostile: tuple[Any, str]) -> None:
    assert hostile[1].count("Unknown, because no state file of the agent was read") == 2
    assert "of them critical" not in hostile[1]
    assert ": incidents unknown; 1 group near data loss" in hostile[0].summary.splitlines()[0]


def test_default_window_is_the_last_week_of_the_journal(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "journal", history())
    chosen = options(tmp_path / "journal")._replace(since=None, until=None)
    summary = review.run(spark, chosen, lambda _: None).summary
    assert summary.startswith("Review of main, 29 November 23:00 to 6 December 2026 23:00 UTC: ")


def test_wrong_options_are_named_before_spark_starts(tmp_path: Path) -> None:
    write(tmp_path / "journal", [commit(BEGAN_AT, "g", "t", 1)])
    wrong = options(tmp_path / "journal", store=str(tmp_path / "none"), idle="soon")
    assert len(review.mistakes(wrong)) == 2
    (other,) = review.mistakes(options(tmp_path / "journal")._replace(cluster="prod"))
    assert other == f"--cluster prod: not in the journal {tmp_path}/journal. Clusters in it: main."
    assert not review.mistakes(options(tmp_path / "journal"))


def test_window_that_begins_after_the_journal_ends_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that over an empty journal: a window that ended with the journal would have a negative length."""
    write(tmp_path / "journal", [Tick(at=BEGAN_AT), commit(BEGAN_AT, "g", "t", 1)])
    now = BEGAN_AT + 3 * DAY
    monkeypatch.setattr(review, "now_ms", lambda: now)
    for since, until in ((BEGAN_AT - HOUR, BEGAN_AT + 1), (BEGAN_AT + HOUR, now)):
        chosen = options(tmp_path / "journal")._replace(since=since, until=None)
        assert not review.mistakes(chosen)
        periods = review._periods(chosen, given_clusters(chosen))
        assert (periods.since, periods.until) == (since, until)
    (mistake,) = review.mistakes(options(tmp_path / "journal")._replace(since=now, until=None))
    assert mistake == "--from is later than now and than the end of the journal."


def test_time_after_the_last_tick_is_unobserved(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "journal", history())
    later = options(tmp_path / "journal")._replace(since=BEGAN_AT + 9 * DAY, until=END + 2 * DAY)
    assert "Backflow could not see everything for 7 d." in review.run(spark, later, lambda _: None).summary
