"""Lag, retention margin and standstill of consumer groups, from samples of commits and log offsets.

A sample is a committed offset and the log offsets of its partition, each as last observed in a step.
"""

from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from spark_checks.reviews.periods import STEP_MS, Periods
from spark_checks.reviews.tables import JournalTables

_KEY = ("group", "topic", "partition")
_NO_LIMIT = -1
_RECENT_STEPS = 4
"""How many steps before the end a partition was last sampled at most: what was deleted before stands still rightly."""


class GroupLag(NamedTuple):
    """The lag of a group, records of all its partitions together: percentiles, the largest and the last sample."""

    week: int
    group: str
    p50: float
    p95: float
    largest: int
    samples: int
    last: int


class Margin(NamedTuple):
    """Where a group came closest to the log start while it had unread records.

    margin: records between them, negative if unread records were deleted. kept: records in the log. rise: records by
    which the log start rose in the week, during `observed` ms, without those of a topic that was created again. at:
    when the sample's step ended, ms.
    """

    week: int
    group: str
    topic: str
    partition: int
    at: int
    offset: int
    log_start: int
    margin: int
    kept: int
    rise: int
    observed: int

    @property
    def share(self) -> float:
        """The margin as a share of the log."""
        return self.margin / self.kept

    @property
    def time_left(self) -> int:
        """How long the margin would have lasted at the speed at which the log start rose in the week, ms."""
        return max(0, self.margin) * self.observed // self.rise


class Standstill(NamedTuple):
    """Partitions of a group that have unread records and on which it has committed nothing new for long.

    partitions: how many. unread: records on them. since: when the first of them was last committed to, ms. is_bound:
    it may be longer ago, as the journal does not reach back further. others: its partitions that moved meanwhile.
    """

    group: str
    partitions: int
    unread: int
    since: int
    is_bound: bool
    others: int


class LagPoint(NamedTuple):
    """The total lag of a group at the end of a step, ms."""

    group: str
    at: int
    lag: int


class Samples:
    """The samples of all weeks of a cluster's groups. Used once, then closed."""

    def __init__(self, tables: JournalTables, periods: Periods) -> None:
        self._periods, self._tables = periods, tables
        self._commits = _last_in_step(tables.read("commit", [*_KEY, "offset"]), periods, [*_KEY], ["offset"])
        logs = tables.read("log_offsets", ["topic", "partition", "log_start", "log_end"])
        self._logs = _with_log(_last_in_step(logs, periods, ["topic", "partition"], ["log_start", "log_end"]))
        joined = self._commits.join(self._logs, ["week", "step", "topic", "partition"]).where("offset IS NOT NULL")
        self._samples = joined.withColumn("lag", sf.greatest(joined["log_end"] - joined["offset"], sf.lit(0))).cache()
        self._by_group = self._samples.groupBy("week", "step", "group").agg(sf.sum("lag").alias("lag")).cache()

    def close(self) -> None:
        """Free the memory."""
        self._samples.unpersist()
        self._by_group.unpersist()

    def lags(self) -> list[GroupLag]:
        """Return the lag of each group in each week, this week's largest p95 first."""
        rows = (
            self._by_group.groupBy("week", "group")
            .agg(
                sf.expr("percentile(lag, array(0.5, 0.95))").alias("percentiles"),
                sf.max("lag").alias("largest"),
                sf.count("*").alias("samples"),
                sf.max_by("lag", "step").alias("last"),
            )
            .orderBy("week", sf.col("percentiles")[1].desc(), "group")
            .collect()
        )
        return [
            GroupLag(row["week"], row["group"], p50, p95, row["largest"], row["samples"], row["last"])
            for row in rows
            for p50, p95 in [row["percentiles"]]
        ]

    def points(self, groups: list[str]) -> list[LagPoint]:
        """Return the lag of these groups over this week, by time."""
        wanted = (sf.col("week") == 0) & sf.col("group").isin(groups)
        rows = self._by_group.where(wanted).orderBy("group", "step").collect()
        return [LagPoint(row["group"], self._periods.time_of_step(0, row["step"]), row["lag"]) for row in rows]

    def margins(self) -> list[Margin]:
        """Return each group's smallest margin in each week, the smallest share first.

        Only on topics whose records retention deletes: its log start rose in that week. A topic that was created again
        has a new log, and each log counts for itself.
        """
        rise = self._logs.groupBy("week", "topic", "partition", "log").agg(
            (sf.max("log_start") - sf.min("log_start")).alias("rise"),
            (sf.max("at") - sf.min("at")).alias("observed"),
        )
        samples = self._samples.join(rise.where("rise > 0"), ["week", "topic", "partition", "log"]).where(
            "lag > 0 AND log_end > log_start"
        )
        samples = samples.join(self._endless_topics(), "topic", "left_anti")
        margin = sf.col("offset") - sf.col("log_start")
        share = margin / (sf.col("log_end") - sf.col("log_start"))
        order = Window.partitionBy("week", "group").orderBy("share", "step", "topic", "partition")
        rows = (
            samples.withColumn("share", share)
            .withColumn("number", sf.row_number().over(order))
            .where("number = 1")
            .orderBy("week", "share", "group")
            .collect()
        )
        return [
            Margin(
                row["week"],
                row["group"],
                row["topic"],
                row["partition"],
                self._periods.time_of_step(row["week"], row["step"]),
                row["offset"],
                row["log_start"],
                row["offset"] - row["log_start"],
                row["log_end"] - row["log_start"],
                row["rise"],
                row["observed"],
            )
            for row in rows
        ]

    def standstills(self, longer_than: int) -> list[Standstill]:
        """Return the groups that stand still at the end of this week, for longer than so long (ms), longest first."""
        steps = Window.partitionBy(*_KEY).orderBy(sf.col("week").desc(), "step")
        moved = sf.col("offset") != sf.lag("offset").over(steps)
        began = sf.row_number().over(steps) == 1
        changes = (
            self._commits.where("offset IS NOT NULL")
            .select(*_KEY, "at", began.alias("began"), (began | moved).alias("moved"))
            .where("moved")
            .groupBy(*_KEY)
            .agg(sf.max("at").alias("since"), sf.max_by("began", "at").alias("is_bound"))
        )
        until = self._periods.until
        last = (
            self._samples.where("week = 0")
            .groupBy(*_KEY)
            .agg(sf.max_by("lag", "step").alias("lag"), sf.max("step").alias("step"))
        )
        recent = last.where(sf.col("step") >= sf.lit((self._periods.length - 1) // STEP_MS - _RECENT_STEPS))
        stands = (sf.lit(until) - sf.col("since") > longer_than) & (sf.col("lag") > 0)
        rows = (
            recent.join(changes, list(_KEY))
            .groupBy("group")
            .agg(
                sf.count_if(stands).alias("partitions"),
                sf.sum(sf.when(stands, sf.col("lag"))).alias("unread"),
                sf.min(sf.when(stands, sf.col("since"))).alias("since"),
                sf.min_by("is_bound", sf.when(stands, sf.col("since"))).alias("is_bound"),
                sf.count_if(sf.lit(until) - sf.col("since") <= longer_than).alias("others"),
            )
            .where("partitions > 0")
            .orderBy("since", "group")
            .collect()
        )
        return [Standstill(**row.asDict()) for row in rows]

    def _endless_topics(self) -> DataFrame:
        """Return the topics from which retention deletes nothing, as far as their settings are known."""
        settings = self._tables.read("topic_settings", ["topic", "cleanup_policy", "retention_ms", "retention_bytes"])
        last = settings.groupBy("topic").agg(
            sf.max_by(sf.struct("cleanup_policy", "retention_ms", "retention_bytes"), "position").alias("last")
        )
        unlimited = (sf.col("last.retention_ms") == _NO_LIMIT) & (
            sf.coalesce(sf.col("last.retention_bytes"), sf.lit(_NO_LIMIT)) == _NO_LIMIT
        )
        return last.where(unlimited | ~sf.contains(sf.col("last.cleanup_policy"), sf.lit("delete"))).select("topic")


def _last_in_step(table: DataFrame, periods: Periods, key: list[str], values: list[str]) -> DataFrame:
    """Return the last values of each subject in each step, and when they were observed (`at`)."""
    at = sf.col("at")
    steps = table.withColumn("week", periods.week_column(at)).withColumn("step", periods.step_column(at))
    last = sf.max_by(sf.struct(*values, "at"), sf.struct("at", "position")).alias("last")
    return steps.groupBy("week", "step", *key).agg(last).select("week", "step", *key, "last.*")


def _with_log(logs: DataFrame) -> DataFrame:
    """Add `log`: the number of the log of a partition in a week, a new one where the log start decreases."""
    steps = Window.partitionBy("week", "topic", "partition").orderBy("step")
    is_new = sf.col("log_start") < sf.lag("log_start").over(steps)
    numbered = logs.withColumn("is_new", sf.coalesce(is_new.cast("int"), sf.lit(0)))
    return numbered.withColumn("log", sf.sum("is_new").over(steps)).drop("is_new")
