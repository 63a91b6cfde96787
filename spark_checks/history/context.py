"""What the journal tells of the partitions and times around falls and leaps: range joins in Spark.

What brokers and sources tell lives in `journal_events`; what follows from all of it is judged in `offset_verdicts`.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from agent.model.observations import PartitionState
from agent.rules.queries.partitions import CLOCK_SLACK_MS
from agent.storage.journal.segments import Unreadable
from spark_checks.history.events import States
from spark_checks.history.files import Piece, pieces, scan


class Place(NamedTuple):
    """A partition and a time at which, or a stretch in which, something of it is wanted."""

    number: int
    topic: str
    partition: int
    begin: int
    end: int


class Reading(NamedTuple):
    """The log's start and end as last read."""

    log_start: int
    log_end: int


class Truncation(NamedTuple):
    """A log's end fell and was still lower 5 s later. since: when the old end was read, ms."""

    since: int
    at: int
    old: int
    new: int


class Journal(NamedTuple):
    """Where the history lies and which part of it is read. since, until: ms."""

    spark: SparkSession
    directory: Path
    cluster: str
    since: int
    until: int
    unreadable: Unreadable

    def pieces(self, kind: str, since: int | None = None, until: int | None = None) -> list[Piece]:
        """The pieces of a kind, of all of that part or of less."""
        begin, end = self.since if since is None else since, self.until if until is None else until
        return pieces(self.directory, kind, begin, end, self.unreadable)

    def _scan(self, kind: str, places: Sequence[Place], schema: str, names: Sequence[str]) -> DataFrame:
        """What is told of the places' partitions in their stretches, with the number of the place."""
        begin, end = min(one.begin for one in places), max(one.end for one in places) + 1
        topics = sorted({one.topic for one in places})
        stretches = sorted((one.begin, one.end) for one in places)
        wanted = [
            one
            for one in self.pieces(kind, begin, end)
            if any(one.low <= last and one.high >= first for first, last in stretches)
        ]
        only = {"cluster": [self.cluster], "topic": topics}
        told = scan(self.spark, wanted, schema, names, since=begin, until=end, only=only)
        around = self.spark.createDataFrame(
            list(places), "number int, topic string, partition long, first long, last long"
        )
        return told.join(sql.broadcast(around), ["topic", "partition"]).where("`at` between first and last")

    def readings(self, places: Sequence[Place]) -> dict[int, Reading]:
        """For each place, by its number, the log as last read in its stretch."""
        if not places:
            return {}
        names = ("topic", "partition", "at", "position", "log_start", "log_end")
        told = self._scan("log_offsets", places, _LOGS, names)
        last = told.groupBy("number").agg(
            sql.max_by(sql.struct("log_start", "log_end"), sql.struct("at", "position")).alias("log")
        )
        return {row["number"]: Reading(*row["log"]) for row in last.collect()}

    def truncations(self, places: Sequence[Place]) -> dict[tuple[str, int], list[Truncation]]:
        """The truncations in the stretches of the places, by partition."""
        if not places:
            return {}
        names = ("topic", "partition", "at", "position", "log_start", "log_end")
        told = self._scan("log_offsets", places, _LOGS, names)
        told.drop("number", "first", "last").distinct().createOrReplaceTempView("readings")
        fallen = self.spark.sql(_FALLS.format(steady=CLOCK_SLACK_MS))
        found = defaultdict(list)
        for row in fallen.collect():
            found[row["topic"], row["partition"]].append(Truncation(row["since"], row["at"], row["old"], row["new"]))
        return found

    def states(self, places: Sequence[Place]) -> States:
        """The changes of the partitions in their stretches, and what held before."""
        if not places:
            return States(())
        names = (
            "topic",
            "partition",
            "at",
            "since",
            "position",
            "leader",
            "leader_epoch",
            "replicas",
            "isr",
            "topic_id",
        )
        told = self._scan("partition_state", places, _STATES, names)
        told.drop("number", "first", "last").distinct().createOrReplaceTempView("states")
        return States(
            PartitionState(
                cluster=self.cluster,
                **{name: row[name] for name in names if name not in ("position", "replicas", "isr")},
                replicas=tuple(row["replicas"]),
                isr=tuple(row["isr"]),
            )
            for row in self.spark.sql(_CHANGES).collect()
        )


_LOGS = "topic string, partition long, `at` long, position long, log_start long, log_end long"
_STATES = (
    "topic string, partition long, `at` long, since long, position long, leader long, leader_epoch long,"
    " replicas array<long>, isr array<long>, topic_id string"
)
_FALLS = """
SELECT topic, partition, since, `at`, old, log_end AS new FROM (
    SELECT *, lag(log_end) OVER (PARTITION BY topic, partition ORDER BY `at`, position) AS old,
        lag(`at`) OVER (PARTITION BY topic, partition ORDER BY `at`, position) AS since,
        max(log_end) OVER (
            PARTITION BY topic, partition ORDER BY `at` RANGE BETWEEN CURRENT ROW AND {steady} FOLLOWING
        ) AS regained
    FROM readings
) WHERE regained < old ORDER BY `at`
"""
_CHANGES = """
SELECT * FROM (
    SELECT *, lag(struct(leader, leader_epoch, replicas, isr, topic_id)) OVER (
        PARTITION BY topic, partition ORDER BY `at`, position
    ) AS old
    FROM states
) WHERE NOT old <=> struct(leader, leader_epoch, replicas, isr, topic_id)
ORDER BY topic, partition, `at`, position
"""
