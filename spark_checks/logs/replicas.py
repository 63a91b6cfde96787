"""What the checks of logs read: the partitions and segments at `--path BROKER=DIR`, shared out to Spark's tasks.

Segments are decoded by `agent.kafka_log`; what is made of that is the checks' matter.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from pyarrow.fs import FileSelector
from pyspark.sql import SparkSession

from agent.kafka_log.digest import Digest, read_digest
from agent.kafka_log.log_directory import LogDirectoryError, Partition, Segment, list_partitions, open_file_system
from agent.kafka_log.segments import LocatedFault, read_segment
from spark_checks.options import Options

PATH = click.Option(
    ["--path", "paths"],
    multiple=True,
    metavar="BROKER=DIR",
    help="A broker's log directory, as a path or a URL, or a digest of it (*.parquet); repeatable.",
)
_TASKS_PER_CORE = 4
"""So that cores which are done early take over from others; a task of itself costs a few milliseconds."""


class Replicas(NamedTuple):
    """What was found. directories: as partitions of brokers' log directories; digests: files of `backflow digest`."""

    directories: tuple[Partition, ...]
    digests: tuple[Digest, ...]

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """All of them; those of digests come without segments."""
        return self.directories + tuple(one for digest in self.digests for one in digest.partitions)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of the directories."""
        return tuple(segment for one in self.directories for segment in one.segments)


class Written(dict[tuple[int, str], int]):
    """When a log file was last written, ms, by broker and path; of files in digests: when the digest was."""

    def __init__(self, found: Replicas) -> None:
        super().__init__({(one.broker, _stem(one.file)): one.mtime for one in found.segments})
        self._digests = {one.broker: Path(one.path).stat().st_mtime_ns // 1_000_000 for one in found.digests}

    def of(self, broker: int, file: str) -> int:
        """When it was; an index counts as its log does."""
        return self.get((broker, _stem(file)), self._digests.get(broker, 0))


def wrong_paths(options: Options) -> list[str]:
    """What is wrong with the paths given, a sentence each."""
    texts: Sequence[str] = options.own["paths"]
    mistakes = [] if texts else ["--path BROKER=DIR is missing: say whose log directories to look at."]
    for text in dict.fromkeys(texts):
        broker, _, place = text.partition("=")
        if not broker.isdecimal() or not place:
            mistakes.append(f"--path {text}: expected BROKER=DIR, with the broker's id: --path 2005=/var/kafka/logs.")
            continue
        try:
            _look(int(broker), place, options)
        except (LogDirectoryError, OSError) as error:
            mistakes.append(f"--path {text}: {error}.")
        if texts.count(text) > 1:
            mistakes.append(f"--path {text}: given {texts.count(text)} times.")
    return mistakes


def find(options: Options) -> Replicas:
    """What lies at the paths at this moment, of the topics wanted. Raises LogDirectoryError, OSError."""
    split = [text.partition("=") for text in options.own["paths"]]
    looks = [_look(int(broker), place, options) for broker, _, place in split]
    directories = tuple(one for look in looks if isinstance(look, list) for one in look)
    return Replicas(directories, tuple(look for look in looks if isinstance(look, Digest)))


def with_cleaning(one: Partition) -> Partition:
    """The partition with all but its active segment counted as compacted while its broker's cleaner is at work on it.

    The cleaner swaps segments in one after the other and notes how far it came when it is done with all of them
    (kafka.log.Cleaner, LogCleanerManager.doneCleaning); until then its files lie beside them.
    """
    if not one.segments:
        return one
    system, root = open_file_system(one.directory)
    folder = FileSelector(f"{root}/{one.topic}-{one.partition}", allow_not_found=True)
    if not any(file.base_name.endswith((".cleaned", ".swap")) for file in system.get_file_info(folder)):
        return one
    return one._replace(cleaned_up_to=one.segments[-1].base_offset)


def packs(segments: Iterable[Segment], cores: int) -> list[list[Segment]]:
    """The segments as work for tasks of about the same size, the largest first: small ones share a task."""
    ordered = sorted(segments, key=lambda one: (-one.size, one.broker, one.directory, one.file))
    shared: list[list[Segment]] = [[] for _ in range(min(len(ordered), cores * _TASKS_PER_CORE))]
    loads = [(0, number) for number in range(len(shared))]
    for segment in ordered:
        load, number = heapq.heappop(loads)
        shared[number].append(segment)
        heapq.heappush(loads, (load + segment.size, number))
    return shared


def faults(pack: Iterable[Segment]) -> Iterator[tuple[int, LocatedFault]]:
    """What is wrong in some segments, with their broker; what a task of log_segments does."""
    for segment in pack:
        found: list[LocatedFault] = []
        for _ in read_segment(segment, found.append):
            pass  # its entries are the matter of replica_divergence
        yield from ((segment.broker, one) for one in found)


def cores(spark: SparkSession) -> int:
    """How many tasks run at once."""
    return spark.sparkContext.defaultParallelism


def brokers(found: Iterable[Partition]) -> str:
    """The brokers of some partitions, as a sentence names them."""
    ids = [str(broker) for broker in sorted({one.broker for one in found})]
    return f"broker{'' if len(ids) == 1 else 's'} {', '.join(ids)}" if ids else "no broker"


def _look(broker: int, place: str, options: Options) -> list[Partition] | Digest:
    if not place.endswith(".parquet"):
        return list_partitions(broker, place, options.topics)
    digest = read_digest(place)
    if digest.broker != broker:
        msg = f"this is a digest of broker {digest.broker}"
        raise LogDirectoryError(msg)
    return digest._replace(
        partitions=[one for one in digest.partitions if options.wants_topic(one.topic)],
        found=[one for one in digest.found if options.wants_topic(one.topic)],
    )


def _stem(file: str) -> str:
    return file.rpartition(".")[0]
