"""What brokers and consumer groups did: lost registrations and rebalances."""

from typing import NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_checks.reviews.periods import Periods
from spark_checks.reviews.tables import JournalTables


class BrokerLosses(NamedTuple):
    """How often a broker dropped out of the cluster in a week, and for how long (ms) it was down in all."""

    week: int
    broker: int
    losses: int
    down: int


class Rebalances(NamedTuple):
    """How often a group rebalanced in a week, and for how long (ms) in all."""

    week: int
    group: str
    times: int
    lasted: int


def find_broker_losses(tables: JournalTables, periods: Periods) -> list[BrokerLosses]:
    """Return the brokers that lost their registration, by week, the most frequent first.

    A loss is a broker without registration that had one, or with another session or epoch.
    """
    order = Window.partitionBy("broker").orderBy("at", "position")
    identity = sf.struct("session", "epoch")
    table = tables.read("broker_registration", ["broker", "session", "epoch"])
    table = table.select(
        "broker",
        "at",
        sf.col("epoch").isNull().alias("is_down"),
        sf.lag("epoch").over(order).isNotNull().alias("was_up"),
        (~identity.eqNullSafe(sf.lag(identity).over(order))).alias("changed"),
        sf.lead("at", 1, periods.until).over(order).alias("until"),
    )
    rows = (
        table.withColumn("week", periods.week_column(sf.col("at")))
        .groupBy("week", "broker")
        .agg(
            sf.count_if(sf.col("was_up") & sf.col("changed")).alias("losses"),
            sf.sum(sf.when(sf.col("is_down"), sf.col("until") - sf.col("at")).otherwise(0)).alias("down"),
        )
        .where("losses > 0")
        .orderBy("week", sf.desc("losses"), "broker")
        .collect()
    )
    return [BrokerLosses(**row.asDict()) for row in rows]


def find_rebalances(tables: JournalTables, periods: Periods) -> list[Rebalances]:
    """Return how often groups rebalanced, by week, the most frequent first.

    A rebalance is one that was observed, or another set of members between two states without one.
    """
    order = Window.partitionBy("group").orderBy("at", "position")
    table = tables.read("group_state", ["group", "state", "members"])
    states = table.select(
        "group",
        "at",
        "position",
        sf.contains("state", sf.lit("Rebalance")).alias("is_in"),
        sf.array_sort("members.id").alias("ids"),
        sf.lead("at", 1, periods.until).over(order).alias("until"),
    )
    states = states.withColumn("was_in", sf.lag("is_in").over(order)).withColumn("old_ids", sf.lag("ids").over(order))
    begins = sf.col("is_in") & ~sf.col("was_in")
    joined = ~sf.col("is_in") & ~sf.col("was_in") & (sf.size("ids") > 0) & (sf.col("ids") != sf.col("old_ids"))
    rows = (
        states.where("was_in IS NOT NULL")
        .withColumn("week", periods.week_column(sf.col("at")))
        .groupBy("week", "group")
        .agg(
            sf.count_if(begins | joined).alias("times"),
            sf.sum(sf.when(sf.col("is_in"), sf.col("until") - sf.col("at")).otherwise(0)).alias("lasted"),
        )
        .where("times > 0")
        .orderBy("week", sf.desc("times"), "group")
        .collect()
    )
    return [Rebalances(**row.asDict()) for row in rows]
