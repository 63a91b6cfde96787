"""replica_divergence: replicas of a partition that hold different records at the same offsets (KAFKA-3919).

Matches batches by offsets, checksum and leader epoch, wherever segments roll on each broker. Resolves batches without
an exact twin to offset ranges, between the later log start offset (and the offset up to which either replica was
compacted) and the lower high watermark.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, groupby

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sql

from agent.clock import now_ms
from agent.kafka_log.log_directory import Partition, Segment, after_reading, with_cleaning
from agent.kafka_log.segments import LocatedFault
from agent.model.findings import Finding
from agent.model.text import count
from spark_checks.logs.divergence import (
    ReplicaPair,
    UnmatchedBatch,
    add_faults,
    differing_offsets,
    make_finding,
    resolve,
)
from spark_checks.logs.replicas import (
    PATH,
    Replicas,
    WriteTimes,
    check_paths,
    find_replicas,
    list_brokers,
    pack,
    read_entries,
    read_faults,
)
from spark_checks.options import WHOLE_LOGS, Options, Progress, Report
from spark_checks.progress import report_stages
from spark_checks.shares import cores, run_shares

PARAMS = (PATH,)
WITHOUT = WHOLE_LOGS


def mistakes(options: Options) -> list[str]:
    """Return the mistakes in its own options."""
    mistakes = check_paths(options)
    brokers = {path.partition("=")[0] for path in options.own["paths"]}
    if not mistakes and len(brokers) == 1:
        mistakes.append(f"--path: give replicas of at least two brokers; all paths are of broker {brokers.pop()}.")
    return mistakes


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Compare the replicas. Raises OSError if a disk cannot be read."""
    found = find_replicas(options)
    pairs = find_pairs(found.partitions)
    needed = _needed_segments(found.segments, pairs)
    unmatched = _unmatched_batches(read_entries(spark, found, needed), spark, pairs).persist()
    with report_stages(spark, progress, f"parts of {count(len(pairs), 'pair')} of replicas compared"):
        differing = unmatched.count()
    findings: list[Finding] = []
    if differing:
        progress(f"{differing:,} batches differ; resolving them to offset ranges")
        # Retention and compaction went on meanwhile: what they have reached by now is not compared.
        now = [with_cleaning(partition) for partition in find_replicas(options).partitions]
        bounds = {pair[:4]: pair for pair in find_pairs(found.partitions, now)}
        findings = list(_findings(unmatched, bounds, WriteTimes(found, now_ms()), options.cluster))
        findings = add_faults(findings, _decreasing_offsets(spark, found, findings))
    unmatched.unpersist()
    return Report(findings, _summary(found.partitions, pairs, findings))


def _needed_segments(segments: Sequence[Segment], pairs: Sequence[ReplicaPair]) -> list[Segment]:
    """Return the segments that hold what is compared.

    Includes those above the high watermark: they are few, and if offsets decrease they may hold lower offsets.
    """
    lowest: dict[tuple[str, int], int] = {}
    for pair in pairs:
        place = (pair.topic, pair.partition)
        lowest[place] = min(lowest.get(place, pair.lower), pair.lower)
    return [
        segment
        for segment in segments
        if (lower := lowest.get((segment.topic, segment.partition))) is not None
        and (segment.next_base is None or segment.next_base > lower)
    ]


def find_pairs(partitions: Sequence[Partition], now: Sequence[Partition] | None = None) -> list[ReplicaPair]:
    """Return every two replicas of a partition that share offsets below both high watermarks.

    now: the same partitions, listed again after their segments were read.
    """
    later = {(replica.topic, replica.partition, replica.broker): replica for replica in now or ()}
    read = [
        after_reading(replica, later.get((replica.topic, replica.partition, replica.broker), replica))
        for replica in partitions
    ]
    pairs = []
    by_partition = groupby(
        sorted(read, key=lambda replica: (replica.topic, replica.partition, replica.broker)),
        key=lambda replica: (replica.topic, replica.partition),
    )
    for (topic, number), replicas in by_partition:
        for a, b in combinations(replicas, 2):
            if a.broker == b.broker or a.high_watermark is None or b.high_watermark is None:
                continue
            starts = (a.log_start, a.cleaned_up_to, b.log_start, b.cleaned_up_to)
            lower = max((start for start in starts if start is not None), default=0)
            upper = min(a.high_watermark, b.high_watermark)
            if lower < upper:
                pairs.append(ReplicaPair(topic, number, a.broker, b.broker, lower, upper))
    return pairs


def _unmatched_batches(entries: DataFrame, spark: SparkSession, pairs: Sequence[ReplicaPair]) -> DataFrame:
    """Return the batches that only one replica of a pair holds, by pair and offset."""
    content = ["topic", "partition", "first_offset", "last_offset", "records", "magic", "crc"]
    held = entries.groupBy(*content, "leader_epoch").agg(
        sql.collect_list(sql.struct("broker", "timestamp", "file", "position")).alias("held")
    )
    schema = "topic string, partition int, a int, b int, lower bigint, upper bigint"
    sides = held.join(sql.broadcast(spark.createDataFrame(pairs, schema)), ["topic", "partition"]).where(
        "last_offset >= lower and first_offset < upper"
    )
    sides = sides.where("exists(held, copy -> copy.broker = a) != exists(held, copy -> copy.broker = b)")
    sides = sides.withColumn("copy", sql.expr("filter(held, copy -> copy.broker = a or copy.broker = b)[0]"))
    same_content = Window.partitionBy("a", "b", *content)
    return sides.select(
        *("topic", "partition", "a", "b", "first_offset", "last_offset", "records"),
        *(sql.col(f"copy.{name}") for name in ("broker", "timestamp", "file", "position")),
        (sql.min("copy.broker").over(same_content) != sql.max("copy.broker").over(same_content)).alias("other_epoch"),
    ).orderBy("topic", "partition", "a", "b", "first_offset", "last_offset", "broker")


def _findings(
    unmatched: DataFrame, bounds: Mapping[tuple[str, int, int, int], ReplicaPair], written: WriteTimes, cluster: str
) -> Iterator[Finding]:
    """Yield a finding for each pair that differs within its bounds, one after the other to bound memory."""
    for place, rows in groupby(unmatched.toLocalIterator(), key=lambda row: (row.topic, row.partition, row.a, row.b)):
        pair = bounds.get(place)
        divergence = None if pair is None else resolve(map(_batch, rows), pair.lower, pair.upper)
        if pair is not None and divergence is not None:
            yield make_finding(pair, divergence, written, cluster)


def _batch(row: Row) -> UnmatchedBatch:
    return UnmatchedBatch(
        row.broker,
        row.first_offset,
        row.last_offset,
        row.records,
        row.timestamp,
        row.file,
        row.position,
        row.other_epoch,
    )


def _decreasing_offsets(
    spark: SparkSession, found: Replicas, findings: Sequence[Finding]
) -> list[tuple[int, LocatedFault]]:
    """Return where offsets decrease in the logs that differ, with the broker. Reads their differing segments again."""
    segments = [segment for segment in found.segments if any(_is_within(segment, finding) for finding in findings)]
    faults = [(digest.broker, fault) for digest in found.digests for fault in digest.found]
    if segments:
        faults += chain.from_iterable(run_shares(spark, pack(segments, cores(spark)), read_faults))
    return [(broker, fault) for broker, fault in faults if fault.fault.label == "offsets_went_back"]


def _is_within(segment: Segment, finding: Finding) -> bool:
    """Return whether the segment holds offsets that differ."""
    first, last = differing_offsets(finding)
    return (
        segment.broker in finding.subject["brokers"]
        and (segment.topic, segment.partition) == (finding.subject["topic"], finding.subject["partition"])
        and segment.base_offset <= last
        and (segment.next_base is None or segment.next_base > first)
    )


def _summary(partitions: Sequence[Partition], pairs: Sequence[ReplicaPair], findings: Sequence[Finding]) -> str:
    compared = {(pair.topic, pair.partition) for pair in pairs}
    skipped = len({(replica.topic, replica.partition) for replica in partitions} - compared)
    where = list_brokers(partitions)
    if not pairs:
        without = list_brokers(replica for replica in partitions if replica.high_watermark is None)
        return (
            f"Nothing compared on {where}: no two replicas of {count(skipped, 'partition')} share offsets below their"
            f" high watermarks; no high watermark in replication-offset-checkpoint of {without}."
        )
    result = count(len(findings), "difference") if findings else "no difference"
    what = f"{count(len(pairs), 'pair')} of replicas of {count(len(compared), 'partition')}"
    more = f"; {count(skipped, 'partition')} skipped: only one replica or no common offsets" if skipped else ""
    return f"Compared {what} on {where}, below the high watermark: {result}{more}."
