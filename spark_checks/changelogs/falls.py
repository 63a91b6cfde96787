"""Values that fell in a changelog, per partition and key in offset order, and stretches of them. Spark does the work.

What stands around a stretch lives in `rebalances` and `dates`; words are found in `words`.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as sql

WORST = 5
"""How many keys of a stretch are named."""


class KeyFall(NamedTuple):
    """A key whose value fell: the values and offsets before and after."""

    key: bytes
    before: int
    before_offset: int
    after: int
    after_offset: int


class Stretch(NamedTuple):
    """The falls of a partition between two bounds. keys: how many fell, `restarted` of them to a value not above the
    first that the changelog holds of them (since their last tombstone); falls: how often; total: by how much together.

    first_at, last_at: the least and greatest timestamps of the records that fell (ms), which are their inputs'.
    standing: how many keys the partition holds; unwritten: those of them not written since the first of the falls.
    worst: those that fell deepest, the deepest first.
    """

    partition: int
    number: int
    keys: int
    restarted: int
    falls: int
    total: int
    first_offset: int
    last_offset: int
    first_at: int
    last_at: int
    standing: int
    unwritten: int
    worst: tuple[KeyFall, ...]

    @property
    def place(self) -> tuple[int, int]:
        """Which it is of its changelog's: partition, number."""
        return self.partition, self.number


def marked(records: DataFrame) -> DataFrame:
    """Of the records (partition, key, offset, timestamp, value) those that fell, and the last of each key that holds
    a value, with `before`, `before_offset`, `fell`, `restarted` and `last`.

    Sorted, not held: a key's records may be more than memory takes.
    """
    in_order = Window.partitionBy("partition", "key").orderBy("offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    value, before = sql.col("value"), sql.col("before")
    return (
        records.withColumns({
            "before": sql.lag("value").over(in_order),  # null after a tombstone: the key begins anew
            "before_offset": sql.lag("offset").over(in_order),
            "last": sql.lead("offset").over(in_order).isNull() & value.isNotNull(),
        })
        .withColumn("began", sql.last(sql.when(before.isNull(), value), ignorenulls=True).over(so_far))
        .withColumn("fell", sql.coalesce(value < before, sql.lit(False)))
        .where("fell or last")
        .withColumn("restarted", sql.col("fell") & (value <= sql.col("began")))
        .drop("began")
    )  # fmt: skip


def numbered(marks: DataFrame, bounds: Mapping[int, Sequence[int]]) -> DataFrame:
    """The marks that fell, with the number of their stretch: how many of the partition's bounds are at or before their
    offset.
    """
    known = [(partition, list(offsets)) for partition, offsets in bounds.items()]
    stretches = marks.sparkSession.createDataFrame(known, "partition int, bounds array<long>")
    passed = sql.coalesce(sql.size(sql.filter("bounds", lambda bound: bound <= sql.col("offset"))), sql.lit(0))
    return (
        marks.where("fell")
        .join(sql.broadcast(stretches), "partition", "left")
        .withColumn("number", sql.when(sql.col("bounds").isNull(), 0).otherwise(passed))
        .drop("bounds")
    )


def stretches(marks: DataFrame, fallen: DataFrame) -> list[Stretch]:
    """The stretches, by partition and offset. fallen: the marks that fell, numbered."""
    depth = sql.col("before").cast("decimal(20,0)") - sql.col("value")
    place = ["partition", "number"]
    sums = (
        fallen.groupBy(*place, "key")
        .agg(
            sql.count(sql.lit(1)).alias("falls"),
            sql.max("restarted").alias("restarted"),
            sql.sum(depth).alias("total"),
            *(sql.min(one).alias(f"first_{one}") for one in ("offset", "timestamp")),
            *(sql.max(one).alias(f"last_{one}") for one in ("offset", "timestamp")),
        )
        .groupBy(*place)
        .agg(
            sql.count(sql.lit(1)).alias("keys"),
            sql.count_if("restarted").alias("restarted"),
            sql.sum("falls").alias("falls"),
            sql.sum("total").alias("total"),
            *(sql.min(f"first_{one}").alias(f"first_{one}") for one in ("offset", "timestamp")),
            *(sql.max(f"last_{one}").alias(f"last_{one}") for one in ("offset", "timestamp")),
        )
        .collect()
    )
    if not sums:
        return []
    deepest = Window.partitionBy(*place).orderBy(depth.desc(), "offset")
    worst: dict[tuple[int, int], list[KeyFall]] = defaultdict(list)
    ranked = fallen.withColumn("rank", sql.row_number().over(deepest)).where(f"rank <= {WORST}")
    for row in ranked.orderBy(*place, "rank").collect():
        worst[row["partition"], row["number"]].append(_fall(row))
    found = sorted((row["partition"], row["number"], row) for row in sums)
    standing = _standing(marks, {(partition, row["first_offset"]) for partition, _, row in found})
    return [
        Stretch(
            partition=partition,
            number=number,
            keys=row["keys"],
            restarted=row["restarted"],
            falls=row["falls"],
            total=int(row["total"]),
            first_offset=row["first_offset"],
            last_offset=row["last_offset"],
            first_at=row["first_timestamp"],
            last_at=row["last_timestamp"],
            standing=standing[partition, row["first_offset"]][0],
            unwritten=standing[partition, row["first_offset"]][1],
            worst=tuple(worst[partition, number]),
        )
        for partition, number, row in found
    ]


def drawn(fallen: DataFrame, places: Collection[tuple[int, int]], most: int) -> Mapping[tuple[int, int], list[KeyFall]]:
    """So many falls of each of the stretches (partition, number), drawn by lot but the same each time."""
    lot = Window.partitionBy("partition", "number").orderBy(sql.xxhash64("key"), "offset")
    chosen = of_stretches(fallen, places).withColumn("lot", sql.row_number().over(lot)).where(f"lot <= {most}")
    found: dict[tuple[int, int], list[KeyFall]] = defaultdict(list)
    for row in chosen.collect():
        found[row["partition"], row["number"]].append(_fall(row))
    return found


def of_stretches(fallen: DataFrame, places: Collection[tuple[int, int]]) -> DataFrame:
    """The marks that fell in the stretches (partition, number)."""
    wanted = fallen.sparkSession.createDataFrame(sorted(places), "partition int, number int")
    return fallen.join(sql.broadcast(wanted), ["partition", "number"])


def with_last(fallen: DataFrame, marks: DataFrame) -> DataFrame:
    """Marks that fell with `last_value`: what the changelog holds of the key last, null where it is deleted."""
    last = marks.where("last").select("partition", "key", sql.col("value").alias("last_value"))
    return fallen.join(last, ["partition", "key"], "left")


def _fall(row: Row) -> KeyFall:
    return KeyFall(bytes(row["key"]), row["before"], row["before_offset"], row["value"], row["offset"])


def _standing(marks: DataFrame, places: set[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    """For each partition and offset, how many keys hold a value, and how many of them from before the offset."""
    firsts = marks.sparkSession.createDataFrame(sorted(places), "partition int, first long")
    counted = (
        marks.where("last")
        .join(sql.broadcast(firsts), "partition")
        .groupBy("partition", "first")
        .agg(sql.count(sql.lit(1)).alias("standing"), sql.count_if(sql.expr("offset < first")).alias("unwritten"))
    )
    found = {(row["partition"], row["first"]): (row["standing"], row["unwritten"]) for row in counted.collect()}
    return {place: found.get(place, (0, 0)) for place in places}
