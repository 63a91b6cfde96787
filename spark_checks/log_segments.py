"""log_segments: what is wrong in Kafka's log segments and indexes, byte by byte.

Each segment is read whole: checksums, the order of offsets, also inside compressed batches, and its indexes. Found
are offsets that go back (KAFKA-3919), corruption, torn tails and index entries that point wrong.
"""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from agent.findings import Finding, Severity
from agent.segments.rows import Found
from agent.wording import count
from spark_checks.logs import replicas
from spark_checks.logs.replicas import Replicas, Written
from spark_checks.options import Options, Progress, Report
from spark_checks.session import QUICK_START, stages_told

PARAMS = (replicas.PATH,)
CONF = QUICK_START  # the work is done in Python
# A torn tail is what a crash leaves and a start repairs; an index can be made again from its log.
WARNINGS = frozenset({"torn_tail", "index_wrong"})


def mistakes(options: Options) -> list[str]:
    """What is wrong with its own options."""
    return replicas.wrong_paths(options)


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Read the segments. Raises LogDirectoryError where there is nothing to read."""
    found = replicas.find(options)
    packs = replicas.packs(found.segments, replicas.cores(spark))
    faults = [(digest.broker, one) for digest in found.digests for one in digest.found]
    if packs:
        with stages_told(spark, progress, f"parts of {_read(found)}"):
            faults += spark.sparkContext.parallelize(packs, len(packs)).flatMap(replicas.faults).collect()
    written = Written(found)
    findings = [finding(options.cluster, broker, one, written.of(broker, one.file)) for broker, one in faults]
    findings.sort(key=lambda one: (one.subject["broker"], one.subject["file"], one.position or 0))
    return Report(findings, _summary(found, findings))


def finding(cluster: str, broker: int, found: Found, written: int) -> Finding:
    """A fault as a finding. written: when the file was last written, ms, for records that carry no time."""
    fault = found.fault
    at = fault.timestamp if fault.timestamp >= 0 else written
    return Finding(
        rule="log_segments",
        kind="log_segments",
        severity=Severity.WARNING if fault.label in WARNINGS else Severity.CRITICAL,
        at=at,
        known_at=at,
        subject={
            "cluster": cluster,
            "broker": broker,
            "topic": found.topic,
            "partition": found.partition,
            "file": found.file,
        },
        labels=(fault.label,),
        position=fault.position,
        previous=fault.previous,
        current=fault.current,
        detail=f"Broker {broker}, {found.file}, byte {fault.position:,}: {fault.detail}. {fault.kafka}",
    )


def _read(found: Replicas) -> str:
    segments = found.segments
    return f"{count(len(segments), 'segment')} ({sum(one.size for one in segments) / 1e6:,.1f} MB)"


def _summary(found: Replicas, findings: Sequence[Finding]) -> str:
    digests = f" and {count(len(found.digests), 'digest')}" if found.digests else ""
    files = len({(one.subject["broker"], one.subject["file"]) for one in findings})
    nothing = "nothing wrong" if found.partitions else "there was nothing to look at"
    result = f"{count(len(findings), 'fault')} in {count(files, 'file')}" if findings else nothing
    where = f"{count(len(found.partitions), 'partition')} on {replicas.brokers(found.partitions)}"
    return f"Read {_read(found)}{digests}, {where}: {result}."
