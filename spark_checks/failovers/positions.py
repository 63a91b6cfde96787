"""Where a group stood on the cluster that it left, and where it continued: the commits around a move."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

from spark_checks.failovers.tenures import Move

_KEY = ("cluster", "group", "topic", "partition")
_PLACES = (
    "number int, role string, cluster string, group string, seen long, certain long, until long, mirrored_since long"
)


class Origin(NamedTuple):
    """The position on the cluster that the group left: at least `low`, at most `high`. at: of its last commit, ms."""

    topic: str
    partition: int
    low: int
    high: int
    at: int


class Target(NamedTuple):
    """Where the group continued: at or after `low`, at or before `high`.

    low: None if it did not begin at a committed offset. at: when it first committed there; of a move that has not
    happened, when the offset there last changed, ms.
    """

    topic: str
    partition: int
    low: int | None
    high: int
    at: int


class Log(NamedTuple):
    """A partition on a cluster."""

    cluster: str
    topic: str
    partition: int


class Comparison(NamedTuple):
    """A move of a group on a partition."""

    move: Move
    origin: Origin
    target: Target

    @property
    def logs(self) -> tuple[Log, Log]:
        """Return the logs of the origin and of the target."""
        move, left, began = self
        return Log(move.origin, left.topic, left.partition), Log(move.target, began.topic, began.partition)


def read_comparisons(commits: DataFrame, moves: Sequence[Move], prefixes: Mapping[str, str]) -> list[Comparison]:
    """Return the partitions on which each group has offsets on both clusters.

    commits: columns cluster, group, topic, partition, at, position, offset. prefixes: of the names of mirrored topics,
    by the cluster that they come from.
    """
    if not moves:
        return []
    in_order = Window.partitionBy(*_KEY).orderBy("at", "position")
    changes = commits.withColumn("old", sf.lag("offset", 1, -2).over(in_order)).where("NOT offset <=> old")
    places = commits.sparkSession.createDataFrame(list(_places(moves)), _PLACES)
    order = sf.struct("at", "position")
    before, during = sf.col("at") <= sf.col("seen"), sf.col("at") <= sf.col("certain")
    own = ~during & (sf.col("at") <= sf.col("until"))
    doubtful = ~before & during
    rows = (
        changes.join(sf.broadcast(places), ["cluster", "group"])
        .groupBy("number", "role", "topic", "partition")
        .agg(
            _last(before, order).alias("before"),
            sf.min(sf.when(doubtful, sf.col("offset"))).alias("low"),
            sf.max(sf.when(doubtful, sf.col("offset"))).alias("high"),
            sf.max(sf.when(doubtful, sf.col("at"))).alias("doubtful_at"),
            sf.min_by(sf.struct("offset", "at"), sf.when(own & sf.col("offset").isNotNull(), order)).alias("first"),
            sf.count_distinct(sf.when(during & (sf.col("at") > sf.col("mirrored_since")), sf.col("offset"))).alias(
                "values"
            ),
        )
        .collect()
    )
    sides: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        sides.setdefault((row["number"], row["role"]), []).append(row)
    return [
        Comparison(move, origin, target)
        for number, move in enumerate(moves)
        for origin, target in _pairs(
            move,
            list(filter(None, map(_origin, sides.get((number, "origin"), ())))),
            list(filter(None, map(partial(_target, move), sides.get((number, "target"), ())))),
            prefixes,
        )
    ]


def _places(moves: Iterable[Move]) -> Iterator[tuple[int, str, str, str, int, int, int, int]]:
    for number, move in enumerate(moves):
        yield number, "origin", move.origin, move.group, move.origin_seen, move.origin_end, move.origin_end, 0
        yield (
            *(number, "target", move.target, move.group),
            *(move.target_seen, move.joined, move.until, move.mirrored_since),
        )


def _last(condition: Column, order: Column) -> Column:
    return sf.max_by(sf.struct("offset", "at"), sf.when(condition, order))


def _origin(row: Row) -> Origin | None:
    before = row["before"]
    known = [before["offset"]] if before is not None and before["offset"] is not None else []
    high = max([*known, *([row["high"]] if row["high"] is not None else [])], default=None)
    if high is None:
        return None
    at = row["doubtful_at"] if row["doubtful_at"] is not None else before["at"]
    return Origin(row["topic"], row["partition"], known[0] if known else row["low"], high, at)


def _target(move: Move, row: Row) -> Target | None:
    """Return where the group continued, None if it does not read there or nothing is known about it."""
    before, first = row["before"], row["first"]
    known = [before["offset"]] if before is not None and before["offset"] is not None else []
    if move.is_projected:
        # An offset that never changed is no mirror's, but left from earlier.
        if not known or row["values"] < 2:
            return None
        return Target(row["topic"], row["partition"], known[0], known[0], before["at"])
    known += [row[name] for name in ("low", "high") if row[name] is not None]
    if first is None:
        return None
    if not known:
        return Target(row["topic"], row["partition"], None, first["offset"], first["at"])
    # Its first commit is not before where it began: a lower one shows that it did not begin at the committed offset.
    is_lower = first["offset"] < min(known)
    low, high = (None, first["offset"]) if is_lower else (min(known), min(max(known), first["offset"]))
    return Target(row["topic"], row["partition"], low, high, first["at"])


def _pairs(
    move: Move, origins: Sequence[Origin], targets: Sequence[Target], prefixes: Mapping[str, str]
) -> Iterator[tuple[Origin, Target]]:
    """Yield the partitions of a topic and of its mirror. A topic of the same name counts if none has the prefix."""
    by_place = {(target.topic, target.partition): target for target in targets}
    topics = {target.topic for target in targets}
    for origin in origins:
        mirrored = f"{prefixes[move.origin]}{origin.topic}"
        original = origin.topic.removeprefix(prefixes[move.target])
        for topic in (mirrored, original) if original != origin.topic else (mirrored, origin.topic):
            if topic in topics:
                if (topic, origin.partition) in by_place:
                    yield origin, by_place[topic, origin.partition]
                break
