"""Values that decreased in a changelog, per partition and key in offset order, grouped into episodes. Joins in Spark.

Also the Parquet file that lists their keys, from which they can be repaired.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as sql

from agent.sources.streams.changelog_values import key_text

WORST = 5
"""How many keys of an episode are named."""

SCHEMA = pa.schema([
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("key", pa.binary()),
    ("key_text", pa.string()),
    ("before", pa.int64()),
    ("before_offset", pa.int64()),
    ("after", pa.int64()),
    ("after_offset", pa.int64()),
    ("after_timestamp", pa.timestamp("ms", tz="UTC")),
    ("restarted", pa.bool_()),
    ("last", pa.int64()),
])  # fmt: skip
"""A row for each decrease. after_timestamp: the record's, which is its input's. restarted: the value is at or below the
first that the changelog has of the key. last: the key's last value, null if it is deleted.
"""

_BATCH_ROWS = 16_384


class KeyDecrease(NamedTuple):
    """A key whose value decreased: values and offsets before and after."""

    key: bytes
    before: int
    before_offset: int
    after: int
    after_offset: int


class Episode(NamedTuple):
    """The decreases of a partition between two bounds.

    keys: how many decreased; restarted: how many of them to a value at or below the first that the changelog has of
    them (since their last tombstone); decreases: how often; total: by how much together. first_at, last_at: the least
    and greatest timestamps of these records, which are their inputs' (ms). live_keys: keys in the partition that hold a
    value; unwritten: those not written since the first decrease. worst: those that lost most, most first.
    """

    partition: int
    number: int
    keys: int
    restarted: int
    decreases: int
    total: int
    first_offset: int
    last_offset: int
    first_at: int
    last_at: int
    live_keys: int
    unwritten: int
    worst: tuple[KeyDecrease, ...]

    @property
    def place(self) -> tuple[int, int]:
        """Return its id in the changelog: partition, number."""
        return self.partition, self.number


def mark(records: DataFrame) -> DataFrame:
    """Return the records that decreased and the last of each key that holds a value.

    records: partition, key, offset, timestamp, value. Adds `before`, `before_offset`, `decreased`, `restarted` and
    `last`. Sorts instead of holding keys: a key's records may exceed memory. Keys of counts and sums that were lost and
    have no lower value since are not found.
    """
    in_order = Window.partitionBy("partition", "key").orderBy("offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    value, before = sql.col("value"), sql.col("before")
    return (
        records.withColumns({
            "before": sql.lag("value").over(in_order),  # null after a tombstone: the key starts again
            "before_offset": sql.lag("offset").over(in_order),
            "last": sql.lead("offset").over(in_order).isNull() & value.isNotNull(),
        })
        .withColumn("first", sql.last(sql.when(before.isNull(), value), ignorenulls=True).over(so_far))
        .withColumn("decreased", sql.coalesce(value < before, sql.lit(False)))
        .where("decreased or last")
        .withColumn("restarted", sql.col("decreased") & (value <= sql.col("first")))
        .drop("first")
    )  # fmt: skip


def number_episodes(marks: DataFrame, bounds: Mapping[int, Sequence[int]]) -> DataFrame:
    """Return the decreases with the number of their episode: the partition's bounds at or before their offset."""
    known = [(partition, list(offsets)) for partition, offsets in bounds.items()]
    by_partition = marks.sparkSession.createDataFrame(known, "partition int, bounds array<long>")
    passed = sql.coalesce(sql.size(sql.filter("bounds", lambda bound: bound <= sql.col("offset"))), sql.lit(0))
    return (
        marks.where("decreased")
        .join(sql.broadcast(by_partition), "partition", "left")
        .withColumn("number", sql.when(sql.col("bounds").isNull(), 0).otherwise(passed))
        .drop("bounds")
    )


def find_episodes(marks: DataFrame, decreases: DataFrame) -> list[Episode]:
    """Return the episodes by partition and offset. decreases: numbered."""
    depth = sql.col("before").cast("decimal(20,0)") - sql.col("value")
    place = ["partition", "number"]
    sums = (
        decreases.groupBy(*place, "key")
        .agg(
            sql.count(sql.lit(1)).alias("decreases"),
            sql.max("restarted").alias("restarted"),
            sql.sum(depth).alias("total"),
            *(sql.min(name).alias(f"first_{name}") for name in ("offset", "timestamp")),
            *(sql.max(name).alias(f"last_{name}") for name in ("offset", "timestamp")),
        )
        .groupBy(*place)
        .agg(
            sql.count(sql.lit(1)).alias("keys"),
            sql.count_if("restarted").alias("restarted"),
            sql.sum("decreases").alias("decreases"),
            sql.sum("total").alias("total"),
            *(sql.min(f"first_{name}").alias(f"first_{name}") for name in ("offset", "timestamp")),
            *(sql.max(f"last_{name}").alias(f"last_{name}") for name in ("offset", "timestamp")),
        )
        .collect()
    )
    if not sums:
        return []
    deepest = Window.partitionBy(*place).orderBy(depth.desc(), "offset")
    worst: dict[tuple[int, int], list[KeyDecrease]] = defaultdict(list)
    ranked = decreases.withColumn("rank", sql.row_number().over(deepest)).where(f"rank <= {WORST}")
    for row in ranked.orderBy(*place, "rank").collect():
        worst[row["partition"], row["number"]].append(_decrease(row))
    found = sorted((row["partition"], row["number"], row) for row in sums)
    live_keys = _count_live_keys(marks, {(partition, row["first_offset"]) for partition, _, row in found})
    return [
        Episode(
            partition=partition,
            number=number,
            keys=row["keys"],
            restarted=row["restarted"],
            decreases=row["decreases"],
            total=int(row["total"]),
            first_offset=row["first_offset"],
            last_offset=row["last_offset"],
            first_at=row["first_timestamp"],
            last_at=row["last_timestamp"],
            live_keys=live_keys[partition, row["first_offset"]][0],
            unwritten=live_keys[partition, row["first_offset"]][1],
            worst=tuple(worst[partition, number]),
        )
        for partition, number, row in found
    ]


def sample_decreases(
    decreases: DataFrame, places: Collection[tuple[int, int]], most: int
) -> Mapping[tuple[int, int], list[KeyDecrease]]:
    """Return up to `most` decreases of each episode (partition, number), a random sample that is always the same."""
    shuffled = Window.partitionBy("partition", "number").orderBy(sql.xxhash64("key"), "offset")
    chosen = select_episodes(decreases, places).withColumn("rank", sql.row_number().over(shuffled))
    found: dict[tuple[int, int], list[KeyDecrease]] = defaultdict(list)
    for row in chosen.where(f"rank <= {most}").collect():
        found[row["partition"], row["number"]].append(_decrease(row))
    return found


def select_episodes(decreases: DataFrame, places: Collection[tuple[int, int]]) -> DataFrame:
    """Return the decreases of the episodes (partition, number)."""
    wanted = decreases.sparkSession.createDataFrame(sorted(places), "partition int, number int")
    return decreases.join(sql.broadcast(wanted), ["partition", "number"])


def with_last_value(decreases: DataFrame, marks: DataFrame) -> DataFrame:
    """Return the decreases with `last_value`: the key's last value in the changelog, null if it is deleted."""
    last = marks.where("last").select("partition", "key", sql.col("value").alias("last_value"))
    return decreases.join(last, ["partition", "key"], "left")


def _decrease(row: Row) -> KeyDecrease:
    return KeyDecrease(bytes(row["key"]), row["before"], row["before_offset"], row["value"], row["offset"])


def _count_live_keys(marks: DataFrame, places: set[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return for each partition and offset how many keys hold a value, and how many of them from before the offset."""
    firsts = marks.sparkSession.createDataFrame(sorted(places), "partition int, first long")
    counted = (
        marks.where("last")
        .join(sql.broadcast(firsts), "partition")
        .groupBy("partition", "first")
        .agg(sql.count(sql.lit(1)).alias("live_keys"), sql.count_if(sql.expr("offset < first")).alias("unwritten"))
    )
    found = {(row["partition"], row["first"]): (row["live_keys"], row["unwritten"]) for row in counted.collect()}
    return {place: found.get(place, (0, 0)) for place in places}


class KeyFile:
    """The Parquet file of keys, created with the first decrease; complete or absent. A context manager.

    path: None if none is wanted. rows: how many decreases were added.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows = 0
        self._writer: parquet.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None or self.path is None:
            return
        self._writer.close()
        if kind is None:
            _unfinished(self.path).replace(self.path)
        else:
            _unfinished(self.path).unlink(missing_ok=True)

    def add(self, topic: str, decreases: DataFrame) -> None:
        """Write decreases of a topic, with their last values, in batches. Raises OSError."""
        if self.path is None:
            return
        rows = decreases.orderBy("partition", "offset").toLocalIterator()
        while batch := list(islice(rows, _BATCH_ROWS)):
            if self._writer is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = parquet.ParquetWriter(_unfinished(self.path), SCHEMA, compression="zstd")
            self._writer.write_table(_table(topic, batch))
            self.rows += len(batch)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


def _table(topic: str, rows: list[Any]) -> pa.Table:
    names = {"after": "value", "after_offset": "offset", "after_timestamp": "timestamp", "last": "last_value"}
    keys = [bytes(row["key"]) for row in rows]
    special = {"topic": [topic] * len(rows), "key": keys, "key_text": [key_text(key) for key in keys]}
    columns = {name: special.get(name) or [row[names.get(name, name)] for row in rows] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)
