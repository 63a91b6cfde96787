"""Replicas at `--path BROKER=DIR`: partitions and segments, shared out to Spark's tasks, and their entries.

`agent.kafka_log` decodes segments; `agent.kafka_log.segments` defines the columns of an entry.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import click
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from agent.kafka_log.digest import Digest, read_digest
from agent.kafka_log.log_directory import LogDirectoryError, Partition, Segment, list_partitions
from agent.kafka_log.segments import SCHEMA, LocatedFault, read_rows, read_segment
from spark_checks.options import Options
from spark_checks.shares import TASKS_PER_CORE, cores, map_shares

PATH = click.Option(
    ["--path", "paths"],
    multiple=True,
    metavar="BROKER=DIR",
    help="A broker's log directory, as a path or a URL, or a digest of it (*.parquet); repeatable.",
)
_SEGMENT_MS = 7 * 86_400_000
"""For how long a broker writes to a segment by default (`segment.ms`)."""

# Spark has no unsigned integers: a CRC takes the next larger type, as when Spark reads a digest.
_ARROW = pa.schema([field.with_type(pa.int64()) if field.type == pa.uint32() else field for field in SCHEMA])
# A property of the reader: with Spark Connect, Hadoop's properties in a session's settings would have no effect.
_VERIFY = {"parquet.page.verify-checksum.enabled": "true"}


class Replicas(NamedTuple):
    """Replicas that were found. directories: those in brokers' log directories; digests: files of `backflow digest`."""

    directories: tuple[Partition, ...]
    digests: tuple[Digest, ...]

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return all replicas; those of digests have no segments."""
        return self.directories + tuple(partition for digest in self.digests for partition in digest.partitions)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return the segments of the directories."""
        return tuple(segment for partition in self.directories for segment in partition.segments)


class WriteTimes:
    """When log files were written, ms; those in digests before their digest was. An index counts as its log."""

    def __init__(self, found: Replicas, now: int) -> None:
        """now: ms, what is dated later or not at all was written by then."""
        self._files = {
            (segment.broker, _stem(segment.file)): min(segment.mtime or now, now) for segment in found.segments
        }
        self._digests = {digest.broker: min(digest.written_at() or now, now) for digest in found.digests}

    def date(self, broker: int, file: str, timestamp: int) -> int:
        """Return when records of a file were written: at their timestamp if that can be, else by its last write.

        A timestamp is data of a producer, which may write old records, or in another unit. -1 if there is none.
        """
        last = self._files.get((broker, _stem(file)))
        earliest, latest = (0, self._digests[broker]) if last is None else (last - _SEGMENT_MS, last)
        return timestamp if earliest <= timestamp <= latest else latest


def check_paths(options: Options) -> list[str]:
    """Return the mistakes in the paths given."""
    texts: Sequence[str] = options.own["paths"]
    mistakes = [] if texts else ["--path BROKER=DIR is missing: name the log directories to read."]
    places: dict[tuple[int, str, int], str] = {}
    for text in dict.fromkeys(texts):
        broker, _, place = text.partition("=")
        if not broker.isdecimal() or not place:
            mistakes.append(f"--path {text}: expected BROKER=DIR, with the broker's id: --path 2005=/var/kafka/logs.")
            continue
        try:
            found = _list(int(broker), place, options)
        except (LogDirectoryError, OSError) as error:
            mistakes.append(f"--path {text}: {error}.")
            found = []
        listed = found.partitions if isinstance(found, Digest) else found
        replicas = [(partition.broker, partition.topic, partition.partition) for partition in listed]
        twice = next((replica for replica in replicas if replica in places), None)
        if twice is not None:
            also, (_, topic, number) = places[twice], twice
            mistakes.append(f"--path {text}: holds the same {topic}[{number}] as --path {also}; give it once.")
        places.update(dict.fromkeys(replicas, text))
        if texts.count(text) > 1:
            mistakes.append(f"--path {text}: given {texts.count(text)} times.")
    return mistakes


def find_replicas(options: Options) -> Replicas:
    """Return what is at the paths now, of the topics wanted. Raises LogDirectoryError, OSError."""
    split = [text.partition("=") for text in options.own["paths"]]
    found = [_list(int(broker), place, options) for broker, _, place in split]
    directories = tuple(partition for listed in found if isinstance(listed, list) for partition in listed)
    return Replicas(directories, tuple(digest for digest in found if isinstance(digest, Digest)))


def _list(broker: int, place: str, options: Options) -> list[Partition] | Digest:
    if not place.endswith(".parquet"):
        return list_partitions(broker, place, options.topics)
    digest = read_digest(place)
    if digest.broker != broker:
        msg = f"this is a digest of broker {digest.broker}"
        raise LogDirectoryError(msg)
    return digest._replace(
        partitions=[partition for partition in digest.partitions if options.wants_topic(partition.topic)],
        found=[fault for fault in digest.found if options.wants_topic(fault.topic)],
    )


def pack(segments: Iterable[Segment], cores: int) -> list[list[Segment]]:
    """Return the segments as tasks of about the same size, the largest first; small segments share a task."""
    ordered = sorted(segments, key=lambda segment: (-segment.size, segment.broker, segment.directory, segment.file))
    packs: list[list[Segment]] = [[] for _ in range(min(len(ordered), cores * TASKS_PER_CORE))]
    loads = [(0, number) for number in range(len(packs))]
    for segment in ordered:
        load, number = heapq.heappop(loads)
        packs[number].append(segment)
        heapq.heappush(loads, (load + segment.size, number))
    return packs


def read_faults(segments: Iterable[Segment]) -> list[tuple[int, LocatedFault]]:
    """Return the faults in some segments, with their broker."""
    faults: list[tuple[int, LocatedFault]] = []
    for segment in segments:
        found: list[LocatedFault] = []
        for _ in read_segment(segment, found.append):
            pass  # replica_divergence reads the entries
        faults += ((segment.broker, fault) for fault in found)
    return faults


def list_brokers(found: Iterable[Partition]) -> str:
    """Return the brokers of some partitions as text."""
    ids = [str(broker) for broker in sorted({partition.broker for partition in found})]
    return f"broker{'' if len(ids) == 1 else 's'} {', '.join(ids)}" if ids else "no broker"


def _stem(file: str) -> str:
    return file.rpartition(".")[0]


def read_entries(spark: SparkSession, found: Replicas, segments: Sequence[Segment]) -> DataFrame:
    """Return the entries of these segments and of all digests, without their faults."""
    frames = [map_shares(spark, pack(segments, cores(spark)), _read_pack, _ARROW)]
    for digest in found.digests:
        path = digest.path if "://" in digest.path else Path(digest.path).absolute().as_uri()
        frames.append(spark.read.options(**_VERIFY).parquet(path).select(*_ARROW.names))
    return reduce(DataFrame.unionByName, frames)


def _read_pack(segments: Sequence[Segment]) -> Iterator[pa.RecordBatch]:
    for segment in segments:
        for batch in read_rows(segment, lambda _fault: None):
            yield batch.cast(_ARROW)
