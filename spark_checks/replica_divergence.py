"""replica_divergence: replicas of a partition that hold different records at the same offsets (KAFKA-3919).

Batches are matched by their offsets, checksum and leader epoch, wherever segments roll on each broker. What has no
exact twin on the other side is resolved to ranges of offsets, as far as both replicas vouch for them: from the later
log start (and the offset up to which either was compacted) to the lower high watermark.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from agent.kafka_log.log_directory import Partition, Segment
from agent.kafka_log.segments import LocatedFault
from agent.model.findings import Finding
from agent.model.text import count
from spark_checks.logs import replicas
from spark_checks.logs.divergence import Pair, finding, reach, with_faults
from spark_checks.logs.entries import entries
from spark_checks.logs.ranges import Piece, resolve
from spark_checks.logs.replicas import Replicas, Written
from spark_checks.options import WHOLE_LOGS, Options, Progress, Report
from spark_checks.session import stages_told

PARAMS = (replicas.PATH,)
WITHOUT = WHOLE_LOGS


def mistakes(options: Options) -> list[str]:
    """What is wrong with its own options."""
    mistakes = replicas.wrong_paths(options)
    brokers = {path.partition("=")[0] for path in options.own["paths"]}
    if not mistakes and len(brokers) == 1:
        mistakes.append(
            f"--path: replicas of two brokers or more are compared; all paths given are of {brokers.pop()}."
        )
    return mistakes


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Compare the replicas. Raises OSError where a disk cannot be read."""
    found = replicas.find(options)
    wanted = pairs(found.partitions)
    needed = _needed(found.segments, wanted)
    alone = _alone(entries(spark, found, needed), spark, wanted).persist()
    with stages_told(spark, progress, f"parts, comparing {count(len(wanted), 'pair')} of replicas"):
        differing = alone.count()
    findings: list[Finding] = []
    if differing:
        progress(f"{differing:,} batches without a twin, resolving them to ranges")
        # Retention and compaction went on meanwhile: what they have reached by now is not compared.
        now = [replicas.with_cleaning(one) for one in replicas.find(options).partitions]
        bounds = {one[:4]: one for one in pairs(found.partitions, now)}
        findings = list(_findings(alone, bounds, Written(found), options.cluster))
        findings = with_faults(findings, _falls(spark, found, findings))
    alone.unpersist()
    return Report(findings, _summary(found.partitions, wanted, findings))


def _needed(segments: Sequence[Segment], wanted: Sequence[Pair]) -> list[Segment]:
    """The segments that hold what is compared. Those above are few, and after a dip they may hold offsets below."""
    lowest: dict[tuple[str, int], int] = {}
    for one in wanted:
        place = (one.topic, one.partition)
        lowest[place] = min(lowest.get(place, one.lower), one.lower)
    return [
        one
        for one in segments
        if (lower := lowest.get((one.topic, one.partition))) is not None
        and (one.next_base is None or one.next_base > lower)
    ]


def pairs(partitions: Sequence[Partition], now: Sequence[Partition] | None = None) -> list[Pair]:
    """Every two replicas of a partition that share offsets below both high watermarks.

    now: the same partitions, looked at again after their segments were read. High watermarks are taken from before,
    as they vouch for what was in the logs by then; starts from after, as retention and compaction only raise them.
    """
    later = {(one.topic, one.partition, one.broker): one for one in now or ()}
    made = []
    for (topic, number), replicas_of in groupby(sorted(partitions, key=_by_partition), key=lambda one: one[2:4]):
        for one, other in combinations(replicas_of, 2):
            if one.broker == other.broker or one.high_watermark is None or other.high_watermark is None:
                continue
            lower = max(_start(each, later.get((topic, number, each.broker))) for each in (one, other))
            upper = min(one.high_watermark, other.high_watermark)
            if lower < upper:
                made.append(Pair(topic, number, one.broker, other.broker, lower, upper))
    return made


def _by_partition(one: Partition) -> tuple[str, int, int]:
    return one.topic, one.partition, one.broker


def _start(before: Partition, now: Partition | None) -> int:
    """From where on a replica can be compared."""
    starts = [before.log_start, before.cleaned_up_to]
    if now is not None:
        starts += [now.log_start, now.cleaned_up_to]
        files = {one.file: one for one in now.segments}
        # A sealed segment that has become another was cleaned: the checkpoint says so only when all of them are.
        starts += [
            one.next_base
            for one in before.segments
            if not one.active and (one.file not in files or files[one.file].size != one.size)
        ]
    return max((start for start in starts if start is not None), default=0)


def _alone(held_by: DataFrame, spark: SparkSession, wanted: Sequence[Pair]) -> DataFrame:
    """The batches that one of a pair holds and the other does not, in the order of the pair and their offsets."""
    bytes_of = ["topic", "partition", "first_offset", "last_offset", "records", "magic", "crc"]
    held = held_by.groupBy(*bytes_of, "leader_epoch").agg(
        F.collect_list(F.struct("broker", "timestamp", "file", "position")).alias("held")
    )
    schema = "topic string, partition int, a int, b int, lower bigint, upper bigint"
    sides = held.join(F.broadcast(spark.createDataFrame(wanted, schema)), ["topic", "partition"]).where(
        "last_offset >= lower and first_offset < upper"
    )
    sides = sides.where("exists(held, one -> one.broker = a) != exists(held, one -> one.broker = b)")
    sides = sides.withColumn("one", F.expr("filter(held, one -> one.broker = a or one.broker = b)[0]"))
    same_bytes = Window.partitionBy("a", "b", *bytes_of)
    return sides.select(
        *("topic", "partition", "a", "b", "first_offset", "last_offset", "records"),
        F.col("one.broker"),
        F.col("one.timestamp"),
        F.col("one.file"),
        F.col("one.position"),
        (F.min("one.broker").over(same_bytes) != F.max("one.broker").over(same_bytes)).alias("other_epoch"),
    ).orderBy("topic", "partition", "a", "b", "first_offset", "last_offset", "broker")


def _findings(
    alone: DataFrame, bounds: Mapping[tuple[str, int, int, int], Pair], written: Written, cluster: str
) -> Iterator[Finding]:
    """A finding for each pair that differs within its bounds. One after the other, so that memory stays bounded."""
    for place, rows in groupby(alone.toLocalIterator(), key=lambda row: (row.topic, row.partition, row.a, row.b)):
        pair = bounds.get(place)
        found = None if pair is None else resolve(map(_piece, rows), pair.lower, pair.upper)
        if pair is not None and found is not None:
            yield finding(pair, found, written, cluster)


def _piece(row: Row) -> Piece:
    return Piece(
        row.broker,
        row.first_offset,
        row.last_offset,
        row.records,
        row.timestamp,
        row.file,
        row.position,
        row.other_epoch,
    )


def _falls(spark: SparkSession, found: Replicas, findings: Sequence[Finding]) -> list[tuple[int, LocatedFault]]:
    """Where offsets go back in the logs that differ, with the broker: the segments that differ are read once more."""
    wanted = [
        segment
        for segment in found.segments
        if any(
            segment.broker in one.subject["brokers"]
            and (segment.topic, segment.partition) == (one.subject["topic"], one.subject["partition"])
            and segment.base_offset <= reach(one)[1]
            and (segment.next_base is None or segment.next_base > reach(one)[0])
            for one in findings
        )
    ]
    faults = [(digest.broker, one) for digest in found.digests for one in digest.found]
    if wanted:
        packs = replicas.packs(wanted, replicas.cores(spark))
        faults += spark.sparkContext.parallelize(packs, len(packs)).flatMap(replicas.faults).collect()
    return [(broker, one) for broker, one in faults if one.fault.label == "offsets_went_back"]


def _summary(partitions: Sequence[Partition], wanted: Sequence[Pair], findings: Sequence[Finding]) -> str:
    compared = {(one.topic, one.partition) for one in wanted}
    left_out = len({(one.topic, one.partition) for one in partitions} - compared)
    where = replicas.brokers(partitions)
    unvouched = replicas.brokers([one for one in partitions if one.high_watermark is None])
    if not wanted:
        return (
            f"Nothing was compared on {where}: {count(left_out, 'partition')}, none of which has two replicas with"
            " offsets that both vouch for; without a high watermark in replication-offset-checkpoint: "
            + unvouched
            + "."
        )
    result = count(len(findings), "difference") if findings else "no difference"
    what = f"{count(len(wanted), 'pair')} of replicas of {count(len(compared), 'partition')}"
    more = (
        f"; {count(left_out, 'partition')} had nothing to compare: one replica only, or no offsets that both vouch for"
        if left_out
        else ""
    )
    return f"Compared {what} on {where}, below the high watermark: {result}{more}."
