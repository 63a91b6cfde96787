"""When offsets of a changelog were written, by what the journal tells of its log's end; timestamps are the input's.

A range join in Spark; there may be millions of readings.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from spark_checks.history.context import Journal
from spark_checks.history.files import scan


class Written(NamedTuple):
    """When a record was written: after since, at the latest at `at` (ms). None: the journal does not tell."""

    since: int | None
    at: int | None


class LogEnds:
    """The ends of a topic's logs as the journal tells them. A context: what was read is kept until its end."""

    def __init__(self, journal: Journal, topic: str) -> None:
        read = scan(
            journal.spark,
            journal.pieces("log_offsets"),
            "partition long, `at` long, log_end long",
            ("partition", "at", "log_end"),
            since=journal.since,
            until=journal.until,
            only={"cluster": [journal.cluster], "topic": [topic]},
        )
        self._read: DataFrame = read.persist(StorageLevel.DISK_ONLY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._read.unpersist()

    def at(self, moments: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """For each (partition, time in ms) the log's end as last read until then; without those never read before."""
        asked = self._read.sparkSession.createDataFrame(sorted(set(moments)), "partition long, moment long")
        last = (
            self._read.join(sql.broadcast(asked), "partition")
            .where("`at` <= moment")
            .groupBy("partition", "moment")
            .agg(sql.max_by("log_end", "at").alias("log_end"))
        )
        return {(row["partition"], row["moment"]): row["log_end"] for row in last.collect()}

    def written(self, offsets: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], Written]:
        """For each (partition, offset) when the log's end passed it, for the last time: a topic may have been made
        anew.
        """
        asked = self._read.sparkSession.createDataFrame(sorted(set(offsets)), "partition long, offset long")
        read = self._read.join(sql.broadcast(asked), "partition")
        below = read.groupBy("partition", "offset").agg(
            sql.max(sql.when(sql.col("log_end") <= sql.col("offset"), sql.col("at"))).alias("since")
        )
        found = (
            read.join(sql.broadcast(below), ["partition", "offset"])
            .groupBy("partition", "offset", "since")
            .agg(sql.min(sql.when(sql.expr("since IS NULL OR `at` > since"), sql.col("at"))).alias("at"))
        )
        dates = {(row["partition"], row["offset"]): Written(row["since"], row["at"]) for row in found.collect()}
        return {place: dates.get(place, Written(None, None)) for place in offsets}
