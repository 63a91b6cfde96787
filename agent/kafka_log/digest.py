"""The digest of a broker's log directory: one Parquet file with a row for each entry of its logs, made on its host.

What a row is, is the matter of `agent.kafka_log.rows`; what the rows of several brokers say, that of the checks.
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

from agent.kafka_log import Fault
from agent.kafka_log.log_directory import LogDirectoryError, Partition, partitions
from agent.kafka_log.rows import SCHEMA, Found, rows, unpaced

VERSION = 1
_KEY = b"backflow"


class Digest(NamedTuple):
    """A digest that was read. partitions: with their checkpoints, and without segments. found: the faults."""

    path: str
    broker: int
    partitions: list[Partition]
    found: list[Found]

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Its rows, as agent.segments.rows.rows gives them of the directory."""
        with pq.ParquetFile(self.path) as file:
            yield from file.iter_batches()


def digest(
    broker: int,
    directory: str,
    out: str | Path,
    *,
    bandwidth: int | None = None,
    topics: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Digest:
    """Write the digest of a log directory to `out`, which takes its name when it is whole, and give back its head.

    bandwidth: bytes read in a second, at most; None: as fast as the disk can. topics: shell patterns. progress: called
    with the segments done and their number. The directory is only read. Raises LogDirectoryError.
    """
    out = Path(out)
    before = partitions(broker, directory, topics)
    segments = [segment for partition in before for segment in partition.segments]
    paced = unpaced if bandwidth is None else Pace(bandwidth)
    found: list[Found] = []
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with pq.ParquetWriter(unfinished, SCHEMA, compression="zstd", write_page_checksum=True) as writer:
            for done, segment in enumerate(segments):
                progress(done, len(segments))
                for batch in rows(segment, found.append, paced=paced):
                    writer.write_batch(batch)
            progress(len(segments), len(segments))
            held = _held(before, partitions(broker, directory, topics))
            writer.add_key_value_metadata({_KEY: _head(broker, held, found)})
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        unfinished.replace(out)
    except OSError as error:
        msg = f"{out}: the digest cannot be written: {error}"
        raise LogDirectoryError(msg) from error
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()
    return Digest(str(out), broker, held, found)


def read_digest(path: str | Path) -> Digest:
    """The head of a digest; its rows are read on demand. Raises LogDirectoryError where it is none."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
        head = json.loads(metadata[_KEY])
        if head["version"] != VERSION:
            msg = f"{path}: a digest of version {head['version']}, this is version {VERSION}: make it again"
            raise LogDirectoryError(msg)
        held = [
            Partition(**{**one, "directory": str(path), "epochs": tuple(map(tuple, one["epochs"])), "segments": ()})
            for one in head["partitions"]
        ]
        found = [Found(**{**one, "fault": Fault(**one["fault"])}) for one in head["found"]]
        return Digest(str(path), head["broker"], held, found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path}: no digest that `backflow digest` made: {error}"
        raise LogDirectoryError(msg) from error


def _held(before: Sequence[Partition], after: Sequence[Partition]) -> list[Partition]:
    """What the rows vouch for: up to the high watermark of before they were read, from the log start of afterwards.

    Retention may have deleted segments before they were read. A partition that vanished meanwhile is left out.
    """
    starts = {(one.topic, one.partition): one.log_start for one in after}
    return [
        one._replace(log_start=starts[one.topic, one.partition], segments=())
        for one in before
        if (one.topic, one.partition) in starts
    ]


def _head(broker: int, held: Sequence[Partition], found: Sequence[Found]) -> bytes:
    def plain(one: Any, **more: Any) -> dict[str, Any]:
        fields: dict[str, Any] = one._asdict()
        return {**fields, **more}

    return json.dumps(
        {
            "version": VERSION,
            "broker": broker,
            "partitions": [plain(one) for one in held],
            "found": [plain(one, fault=plain(one.fault)) for one in found],
        }
    ).encode()


class Pace:
    """Waits before bytes are read, so that no more than `bandwidth` bytes a second are read, one read ahead."""

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
