"""log_segments: what is wrong in Kafka's log segments and indexes, byte by byte.

Each segment is read whole: checksums, the order of offsets, also inside compressed batches, and its indexes. Found
are offsets that go back (KAFKA-3919), corruption, torn tails and index entries that point wrong.
"""

import os
from collections.abc import Iterator, Sequence

from pyspark.sql import SparkSession

from agent.kafka_log.log_directory import LogDirectoryError, Segment
from agent.kafka_log.segments import LocatedFault
from agent.model.findings import Finding, Severity
from agent.model.text import count
from spark_checks.logs import replicas
from spark_checks.logs.replicas import Replicas, Written
from spark_checks.options import WHOLE_LOGS, Options, Progress, Report
from spark_checks.session import QUICK_START, stages_told

PARAMS = (replicas.PATH,)
WITHOUT = WHOLE_LOGS
CONF = QUICK_START  # the work is done in Python
# A torn tail is what a crash leaves and a start repairs; an index can be made again from its log.
WARNINGS = frozenset({"torn_tail", "index_wrong"})


def mistakes(options: Options) -> list[str]:
    """What is wrong with its own options."""
    return replicas.wrong_paths(options)


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Read the segments. Raises LogDirectoryError where nothing can be listed."""
    found = replicas.find(options)
    packs = replicas.packs(found.segments, replicas.cores(spark))
    faults = [(digest.broker, one) for digest in found.digests for one in digest.found]
    unread: list[str] = []
    if packs:
        with stages_told(spark, progress, f"parts of {_read(found)}"):
            for one in spark.sparkContext.parallelize(packs, len(packs)).flatMap(looked_at).collect():
                if isinstance(one, str):
                    unread.append(one)
                else:
                    faults.append(one)
    written = Written(found)
    findings = [finding(options.cluster, broker, one, written.of(broker, one.file)) for broker, one in faults]
    findings.sort(key=lambda one: (one.subject["broker"], one.subject["file"], one.position or 0))
    return Report(findings, _summary(found, findings, len(unread)), unread=sorted(unread))


def looked_at(pack: Sequence[Segment]) -> Iterator[tuple[int, LocatedFault] | str]:
    """What is wrong in some segments, with their broker; of one that the disk does not give, which file and why."""
    for segment in pack:
        try:
            yield from replicas.faults([segment])
        except LogDirectoryError as error:
            yield _unread(error)


def _unread(error: LogDirectoryError) -> str:
    """The file and the reason; what the file system's own error says of it would name the file once more."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno:
        return f"{str(error).partition(': ')[0]}: {os.strerror(cause.errno)}"
    return str(error)


def finding(cluster: str, broker: int, found: LocatedFault, written: int) -> Finding:
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


def _summary(found: Replicas, findings: Sequence[Finding], unread: int) -> str:
    digests = f" and {count(len(found.digests), 'digest')}" if found.digests else ""
    files = len({(one.subject["broker"], one.subject["file"]) for one in findings})
    nothing = "nothing wrong" if found.partitions else "there was nothing to look at"
    result = f"{count(len(findings), 'fault')} in {count(files, 'file')}" if findings else nothing
    where = f"{count(len(found.partitions), 'partition')} on {replicas.brokers(found.partitions)}"
    more = f"; {count(unread, 'file')} could not be read" if unread else ""
    return f"Read {_read(found)}{digests}, {where}: {result}{more}."
