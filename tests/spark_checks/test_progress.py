"""Progress of stages: from the event log of classic Spark, and as a Spark Connect server reports it."""

import json
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from spark_checks.progress import StageCounts, report_stages
from spark_checks.shares import run_shares

# PySpark leaves the socket of a result to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Stage(NamedTuple):
    """A stage as Spark Connect's client reports it."""

    stage_id: int
    num_tasks: int
    num_completed_tasks: int


def task(stage: int, reason: str = "Success") -> dict[str, Any]:
    """Return the event of a task that ended."""
    return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task End Reason": {"Reason": reason}}


def test_stages_of_a_job_count_from_its_start() -> None:
    lines: list[str] = []
    counts = StageCounts(lines.append, "parts")
    stages = [{"Stage ID": number, "Number of Tasks": 4} for number in (1, 2)]
    counts.report()
    events = [
        {"Event": "SparkListenerJobStart", "Stage Infos": stages},
        task(1),
        task(1, "ExceptionFailure"),
        {"Event": "SparkListenerStageCompleted", "Stage Info": stages[0]},
        {"Event": "SparkListenerEnvironmentUpdate"},
    ]
    for event in events:
        counts.take_event(event)
        counts.report()
    assert lines == ["0/8 parts", "1/8 parts", "4/8 parts"]


def test_stages_of_a_connect_server_are_added_up() -> None:
    lines: list[str] = []
    counts = StageCounts(lines.append, "parts")
    counts.take_stages(None, 0, "operation", done=False)
    counts.take_stages([Stage(1, 4, 1)], 2, "operation", done=False)
    counts.take_stages([Stage(1, 4, 4), Stage(2, 2, 0)], 2, "operation", done=False)
    counts.take_stages([Stage(2, 2, 2)], 0, "operation", done=True)
    assert lines == ["1/4 parts", "4/6 parts", "6/6 parts"]


@pytest.mark.parametrize(("written", "counted"), [(0, 8), (20, 5), (-1, 5), (1000, 5)])
def test_event_that_is_being_written_when_the_body_starts_is_skipped(
    spark: SparkSession, tmp_path: Path, written: int, counted: int
) -> None:
    def line(tasks: int) -> str:
        stage = {"Stage ID": tasks, "Number of Tasks": tasks}
        return json.dumps({"Event": "SparkListenerJobStart", "Stage Infos": [stage]}) + "\n"

    lines: list[str] = []
    reported = threading.Event()

    def progress(text: str) -> None:
        lines.append(text)
        reported.set()

    before = line(3)
    folder = spark.conf.get("spark.backflow.events")
    assert folder is not None
    spark.conf.set("spark.backflow.events", str(tmp_path))
    try:
        with (tmp_path / "events").open("w") as log:
            log.write(line(2) + before[:written])
            log.flush()
            with report_stages(spark, progress, "parts", every=0.01):
                log.write(before[written:] + line(5))
                log.flush()
                assert reported.wait(60)
    finally:
        spark.conf.set("spark.backflow.events", folder)
    assert lines == [f"0/{counted} parts"]


def test_running_stages_report_their_finished_tasks(spark: SparkSession) -> None:
    lines: list[str] = []
    with report_stages(spark, lines.append, "parts", every=0.01):
        while not lines:
            run_shares(spark, list(range(8)), lambda number: number**1_000_000 % 7)
    assert all(line.endswith(" parts") for line in lines)


def test_progress_never_decreases(spark: SparkSession) -> None:
    lines: list[str] = []
    with report_stages(spark, lines.append, "parts", every=0.01):
        while len(lines) < 4:
            run_shares(spark, list(range(6)), lambda number: number**400_000 % 7)
            spark.range(0, 100, 1, 5).groupBy(sql.col("id") % 3).count().collect()
    figures = [tuple(map(int, line.split()[0].split("/"))) for line in lines]
    assert figures == sorted(figures)
    assert [total for _, total in figures] == sorted(total for _, total in figures)
    assert all(done <= total for done, total in figures)
