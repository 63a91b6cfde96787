"""log_segments: faults in Kafka's log segments and indexes, byte by byte.

Reads each segment whole: checksums, the order of offsets, also inside compressed batches, and its indexes. Finds
decreasing offsets (KAFKA-3919), corruption, torn tails and wrong index entries.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from agent.clock import now_ms
from agent.kafka_log.log_directory import LogDirectoryError, Segment
from agent.kafka_log.segments import LocatedFault
from agent.model.findings import Finding, Severity
from agent.model.text import count
from spark_checks.logs.replicas import (
    PATH,
    Replicas,
    WriteTimes,
    check_paths,
    find_replicas,
    list_brokers,
    pack,
    read_faults,
)
from spark_checks.options import WHOLE_LOGS, Options, Progress, Report
from spark_checks.progress import report_stages
from spark_checks.session import QUICK_START
from spark_checks.shares import cores, run_shares

PARAMS = (PATH,)
WITHOUT = WHOLE_LOGS
CONF = QUICK_START  # the work is done in Python
# A crash leaves a torn tail and a start repairs it; an index can be rebuilt from its log.
WARNINGS = frozenset({"torn_tail", "index_wrong"})


class PackResult(NamedTuple):
    """What a task read. faults: with their broker; unread: the file of each unreadable segment, and the reason."""

    faults: list[tuple[int, LocatedFault]]
    unread: list[str]


def mistakes(options: Options) -> list[str]:
    """Return the mistakes in its own options."""
    return check_paths(options)


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Read the segments. Raises LogDirectoryError if nothing can be listed."""
    found = find_replicas(options)
    packs = pack(found.segments, cores(spark))
    faults = [(digest.broker, fault) for digest in found.digests for fault in digest.found]
    unread: list[str] = []
    if packs:
        with report_stages(spark, progress, f"parts of {_size(found)} read"):
            for read in run_shares(spark, packs, _read_pack):
                faults += read.faults
                unread += read.unread
    written = WriteTimes(found, now_ms())
    findings = [make_finding(options.cluster, broker, fault, written) for broker, fault in faults]
    findings.sort(key=lambda finding: (finding.subject["broker"], finding.subject["file"], finding.position or 0))
    return Report(findings, _summary(found, findings, len(unread)), unread=sorted(unread))


def _read_pack(segments: Sequence[Segment]) -> PackResult:
    result = PackResult([], [])
    for segment in segments:
        try:
            result.faults.extend(read_faults([segment]))
        except LogDirectoryError as error:
            cause = error.__cause__
            # The file system's own error would repeat the file.
            known = isinstance(cause, OSError) and cause.errno
            result.unread.append(f"{str(error).partition(': ')[0]}: {os.strerror(known)}" if known else str(error))
    return result


def make_finding(cluster: str, broker: int, found: LocatedFault, written: WriteTimes) -> Finding:
    """Return the finding about a fault, dated by when its records were written."""
    fault = found.fault
    at = written.date(broker, found.file, fault.timestamp)
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


def _size(found: Replicas) -> str:
    segments = found.segments
    return f"{count(len(segments), 'segment')} ({sum(segment.size for segment in segments) / 1e6:,.1f} MB)"


def _summary(found: Replicas, findings: Sequence[Finding], unread: int) -> str:
    digests = f" and {count(len(found.digests), 'digest')}" if found.digests else ""
    files = len({(finding.subject["broker"], finding.subject["file"]) for finding in findings})
    nothing = "no fault" if found.partitions else "nothing to read"
    result = f"{count(len(findings), 'fault')} in {count(files, 'file')}" if findings else nothing
    where = f"{count(len(found.partitions), 'partition')} on {list_brokers(found.partitions)}"
    more = f"; {count(unread, 'file')} not readable" if unread else ""
    return f"Read {_size(found)}{digests}, {where}: {result}{more}."
