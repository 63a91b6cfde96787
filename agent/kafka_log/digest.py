"""The digest of a broker's log directory: one Parquet file with a row for each batch, written on the broker's host.

The rows are those of `agent.kafka_log.segments`; comparing the rows of several brokers is up to the checks.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from agent.kafka_log.faults import Fault
from agent.kafka_log.log_directory import (
    LogDirectoryError,
    Partition,
    after_reading,
    list_partitions,
    open_file_system,
    with_cleaning,
)
from agent.kafka_log.segments import SCHEMA, LocatedFault, read_rows, unthrottled

VERSION = 1
_METADATA_KEY = b"backflow"


class Digest(NamedTuple):
    """A digest's metadata. partitions: with their checkpoints, but without segments. found: the faults."""

    path: str
    broker: int
    partitions: list[Partition]
    found: list[LocatedFault]

    def read_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, as agent.kafka_log.segments.read_rows does for the directory."""
        with pq.ParquetFile(self.path) as file:
            yield from file.iter_batches()

    def written_at(self) -> int:
        """Return when it was written, ms; 0 if its file system does not say. Raises LogDirectoryError, OSError."""
        system, path = open_file_system(self.path)
        written = system.get_file_info(path).mtime_ns
        return 0 if written is None else int(written) // 1_000_000


def write_digest(
    broker: int,
    directory: str,
    out: str | Path,
    *,
    bandwidth: int | None = None,
    topics: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Digest:
    """Write the digest of a log directory to `out` and return its metadata.

    The file gets its name when it is complete; the directory is only read. bandwidth: bytes per second at most; None:
    as fast as the disk allows. topics: shell patterns. progress: called with the number of segments done and their
    total. Raises LogDirectoryError.
    """
    out = Path(out)
    before = list_partitions(broker, directory, topics)
    segments = [segment for partition in before for segment in partition.segments]
    throttle = unthrottled if bandwidth is None else BandwidthLimit(bandwidth)
    found: list[LocatedFault] = []
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with pq.ParquetWriter(unfinished, SCHEMA, compression="zstd", write_page_checksum=True) as writer:
            for done, segment in enumerate(segments):
                progress(done, len(segments))
                for batch in read_rows(segment, found.append, throttle=throttle):
                    writer.write_batch(batch)
            progress(len(segments), len(segments))
            partitions = _covered_partitions(before, list_partitions(broker, directory, topics))
            writer.add_key_value_metadata({_METADATA_KEY: _encode_metadata(broker, partitions, found)})
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        unfinished.replace(out)
    except OSError as error:
        msg = f"{out}: the digest cannot be written: {error}"
        raise LogDirectoryError(msg) from error
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()
    return Digest(str(out), broker, partitions, found)


def read_digest(path: str | Path) -> Digest:
    """Return the metadata of a digest, whose rows are read on demand. Raises LogDirectoryError if it is none."""
    try:
        metadata = json.loads((pq.read_metadata(path).metadata or {})[_METADATA_KEY])
        if metadata["version"] != VERSION:
            msg = f"{path}: a digest of version {metadata['version']}, expected version {VERSION}: create it again"
            raise LogDirectoryError(msg)
        partitions = [
            Partition(
                **{**fields, "directory": str(path), "epochs": tuple(map(tuple, fields["epochs"])), "segments": ()}
            )
            for fields in metadata["partitions"]
        ]
        found = [LocatedFault(**{**fields, "fault": Fault(**fields["fault"])}) for fields in metadata["found"]]
        return Digest(str(path), metadata["broker"], partitions, found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path}: not a digest written by `backflow digest`: {error}"
        raise LogDirectoryError(msg) from error


def _covered_partitions(before: Sequence[Partition], after: Sequence[Partition]) -> list[Partition]:
    """Return the partitions with the offsets that the rows cover for certain.

    Retention may have deleted segments before they were read, and the cleaner may have compacted them. A partition that
    was deleted meanwhile is left out.
    """
    now = {(partition.topic, partition.partition): with_cleaning(partition) for partition in after}
    return [
        after_reading(partition, now[partition.topic, partition.partition])._replace(segments=())
        for partition in before
        if (partition.topic, partition.partition) in now
    ]


def _encode_metadata(broker: int, partitions: Sequence[Partition], found: Sequence[LocatedFault]) -> bytes:
    def to_dict(value: Any, **more: Any) -> dict[str, Any]:
        fields: dict[str, Any] = value._asdict()
        return {**fields, **more}

    return json.dumps(
        {
            "version": VERSION,
            "broker": broker,
            "partitions": [to_dict(partition) for partition in partitions],
            "found": [to_dict(located, fault=to_dict(located.fault)) for located in found],
        }
    ).encode()


class BandwidthLimit:
    """A Throttle that waits before bytes are read, so that at most `bandwidth` bytes per second are, one read ahead."""

    def __init__(
        self, bandwidth: int, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._bandwidth = bandwidth
        self._clock = clock
        self._wait = wait
        self._free_at = clock()

    def __call__(self, count: int) -> None:
        """Wait until `count` bytes may be read."""
        now = self._clock()
        if self._free_at > now:
            self._wait(self._free_at - now)
        self._free_at = max(self._free_at, now) + count / self._bandwidth
