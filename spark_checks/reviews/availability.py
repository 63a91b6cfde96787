"""For how long sources could not read something, and the agent itself observed nothing."""

from itertools import pairwise
from typing import NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_checks.reviews.periods import DAY_MS, Periods
from spark_checks.reviews.tables import JournalTables

GAP_MS = 60_000
"""The shortest time without ticks that counts: on a loaded machine they may be seconds late."""

AGENT = "the agent"
"""What observed nothing at all."""

_SUBJECT = ("source", "group", "topic", "partition")


class Outage(NamedTuple):
    """For how long (ms) a source could not read all or parts of a cluster in a week.

    times: how often; overlapping outages of several parts last only once. reason: of the longest.
    """

    week: int
    source: str
    is_whole: bool
    times: int
    lasted: int
    reason: str


def find_outages(tables: JournalTables, periods: Periods) -> list[Outage]:
    """Return the outages of sources and of the agent, by week, the longest first."""
    found = [*_source_outages(tables, periods), *_agent_outages(tables, periods)]
    return sorted(found, key=lambda outage: (outage.week, -outage.lasted, outage.source, outage.is_whole))


def _source_outages(tables: JournalTables, periods: Periods) -> list[Outage]:
    lost = tables.read("blind", [*_SUBJECT, "reason"]).withColumn("is_lost", sf.lit(True))
    seen = tables.read("sighted", [*_SUBJECT]).withColumns({"reason": sf.lit(None), "is_lost": sf.lit(False)})
    order = Window.partitionBy(*_SUBJECT).orderBy("at", "position")
    later = order.rowsBetween(1, Window.unboundedFollowing)
    is_first = sf.col("is_lost") & ~sf.coalesce(sf.lag("is_lost").over(order), sf.lit(False))
    end = sf.first(sf.when(~sf.col("is_lost"), sf.col("at")), ignorenulls=True).over(later)
    last_tick = tables.read("tick", []).agg(sf.max("at").alias("at")).first()
    last = periods.until if last_tick is None or last_tick["at"] is None else last_tick["at"]
    outages = (
        lost.unionByName(seen)
        .select(*_SUBJECT, "reason", "at", is_first.alias("is_first"), sf.coalesce(end, sf.lit(last)).alias("end"))
        .where("is_first")
        .withColumn("is_whole", sf.coalesce("group", "topic").isNull())
    )
    spark = tables.window.spark
    bounds = [(week, *periods.bounds(week)) for week in range(periods.before + 1)]
    weeks = spark.createDataFrame(bounds, "week int, week_begin long, week_end long")
    clipped = (
        outages.join(sf.broadcast(weeks), (sf.col("at") < sf.col("week_end")) & (sf.col("end") > sf.col("week_begin")))
        .withColumn("begin", sf.greatest("at", "week_begin"))
        .withColumn("end", sf.least("end", "week_end"))
    )
    # Of outages that overlap only what is added to the earlier ones counts.
    before = (
        Window.partitionBy("week", "source", "is_whole")
        .orderBy("begin", "end")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    covered = sf.coalesce(sf.max("end").over(before), sf.col("begin"))
    added = sf.greatest(sf.col("end") - sf.greatest("begin", covered), sf.lit(0))
    rows = (
        clipped.withColumn("added", added)
        .groupBy("week", "source", "is_whole")
        .agg(
            sf.count("*").alias("times"),
            sf.sum("added").alias("lasted"),
            sf.max_by("reason", sf.col("end") - sf.col("begin")).alias("reason"),
        )
        .where("lasted > 0")
        .collect()
    )
    return [Outage(**row.asDict()) for row in rows]


def _agent_outages(tables: JournalTables, periods: Periods) -> list[Outage]:
    """Return when there were no ticks. Within a date Spark finds them; from one date to the next, this does.

    Before the first tick and after the last, only the reviewed week counts: others are not compared then.
    """
    day = sf.floor(sf.col("at") / DAY_MS).alias("day")
    ticks = tables.read("tick", []).select("at", day)
    before = sf.lag("at").over(Window.partitionBy("day").orderBy("at"))
    gaps = ticks.select("at", before.alias("begin")).where(sf.col("at") - sf.col("begin") > GAP_MS).collect()
    days = ticks.groupBy("day").agg(sf.min("at").alias("first"), sf.max("at").alias("last")).orderBy("day").collect()
    spans = [(row["begin"], row["at"]) for row in gaps]
    spans += [(row["last"], following["first"]) for row, following in pairwise(days)]
    first, last = (days[0]["first"], days[-1]["last"]) if days else (periods.until, periods.until)
    spans += [(periods.since, first), (max(last, periods.since), periods.until)]
    found = []
    for week in range(periods.before + 1):
        begin, end = periods.bounds(week)
        lasted = [min(to, end) - max(since, begin) for since, to in spans if to - since > GAP_MS]
        within = [length for length in lasted if length > 0]
        if within:
            found.append(
                Outage(
                    week,
                    AGENT,
                    True,
                    len(within),
                    sum(within),
                    "the agent was stopped or suspended, or its journal is gone",
                )
            )
    return found
