"""Spark sessions: one per process, merged settings, nothing but data frames."""

import re
import sys
from pathlib import Path
from socketserver import StreamRequestHandler

import pyspark
import pytest
from pyspark.sql import SparkSession

import spark_checks
from spark_checks.session import _AccumulatorServer, merge_settings, session, session_settings
from spark_checks.shares import run_shares


def test_a_second_session_is_refused_and_leaves_the_first_alone(spark: SparkSession) -> None:
    with pytest.raises(RuntimeError, match="already has a Spark session"), session("second", "local[1]"):
        pass
    assert spark.range(3).count() == 3


def test_packages_of_a_check_and_given_ones_are_combined() -> None:
    own = {"spark.jars.packages": "a:b:1", "spark.x": "1"}
    assert merge_settings(own, {}) == own
    assert merge_settings(own, {"spark.jars.packages": "c:d:2", "spark.x": "2"}) == {
        "spark.jars.packages": "a:b:1,c:d:2",
        "spark.x": "2",
    }
    assert merge_settings(own, {"spark.jars.packages": ""}) == {"spark.jars.packages": "", "spark.x": "1"}
    assert merge_settings({}, {"spark.jars.packages": "c:d:2"}) == {"spark.jars.packages": "c:d:2"}


def test_a_running_spark_takes_settings_of_sql_only() -> None:
    given = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "4"}
    assert session_settings(given) == {
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
    }


def test_checks_use_data_frames_only() -> None:
    """Spark Connect has neither SparkContext nor RDD."""
    package = Path(spark_checks.__file__).parent
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    banned = re.compile(
        r"sparkContext|SparkContext\b|\bRDD\b|\.rdd\b|_accumulatorServer|addPyFile|\._jvm|\._jsc|\._sc\b"
    )
    assert {path.name: banned.findall(text) for path, text in sources.items() if banned.search(text)} == {}


def test_workers_import_pyspark_from_where_it_is_installed(spark: SparkSession) -> None:

    def seen(_: int) -> tuple[str, list[str]]:
        return pyspark.__file__, [place for place in sys.path if place.endswith((".zip", ".jar"))]

    assert run_shares(spark, [0], seen) == [(pyspark.__file__, [])]


def test_session_stops_without_waiting_for_pyspark() -> None:
    """PySpark's own server of accumulators needs up to a second, in which its thread asks for updates."""
    with _AccumulatorServer(("127.0.0.1", 0), StreamRequestHandler, "") as server:
        server.shutdown()  # before it serves, PySpark's would wait for ever
        assert server.server_shutdown
