"""A broker's log directory: the partitions and segments it holds, and its checkpoints.

Layout as in kafka.log.LogManager and UnifiedLog (0.8 to 4.1). Lists and opens files; `agent.kafka_log.segments` reads
what is in them. Everything returned can be pickled, so that another process can open it.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")
_LOG = re.compile(r"(?P<base>\d{20})\.log")
_CHUNK = 1 << 16
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class LogDirectoryError(Exception):
    """A log directory cannot be read; the message is for an operator."""


class Segment(NamedTuple):
    """A segment of a partition's log.

    directory: as the operator named it. file: the path of its log in that directory. next_base: the base offset of the
    next segment; None for the last, active one. size: bytes when it was listed (an active one may have grown since).
    mtime: ms.
    """

    broker: int
    directory: str
    topic: str
    partition: int
    file: str
    base_offset: int
    next_base: int | None
    size: int
    mtime: int

    @property
    def active(self) -> bool:
        """Whether it is the last segment of its log, the one a broker appends to."""
        return self.next_base is None


class Partition(NamedTuple):
    """A replica's log.

    high_watermark, log_start, cleaned_up_to: from the broker's checkpoints, None if they do not name the partition
    (log_start: never below the first segment's base offset); nothing after cleaned_up_to is compacted. epochs: leader
    epochs with their start offsets, from `leader-epoch-checkpoint`; empty below 0.11. segments: by base offset; empty
    if the partition comes from a digest.
    """

    broker: int
    directory: str
    topic: str
    partition: int
    high_watermark: int | None
    log_start: int | None
    cleaned_up_to: int | None
    epochs: tuple[tuple[int, int], ...]
    segments: tuple[Segment, ...]


def open_file_system(directory: str) -> tuple[FileSystem, str]:
    """Return the file system of a local path or a pyarrow.fs URL, and the path in it. Raises LogDirectoryError."""
    if not _URL.match(directory):
        return LocalFileSystem(), str(Path(directory).absolute())
    try:
        system, path = FileSystem.from_uri(directory)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        msg = f"{directory}: cannot be opened: {error}"
        raise LogDirectoryError(msg) from error
    return system, path.rstrip("/")


def list_partitions(broker: int, directory: str, topics: Sequence[str] = ()) -> list[Partition]:
    """Return the partitions in a broker's log directory by topic and number.

    topics: shell patterns; none means all. Left out: folders that a broker is deleting, moving in or does not use
    (`-delete`, `-future`, `-stray`), files being deleted, cleaned or swapped in, and what is deleted meanwhile.
    A directory that holds neither partitions nor checkpoints is most likely the wrong one. Raises LogDirectoryError.
    """
    system, root = open_file_system(directory)
    entries = _list_files(system, root, directory)
    if entries is None:
        msg = f"{directory}: no such directory; give one of the broker's log.dirs"
        raise LogDirectoryError(msg)
    names = {entry.base_name for entry in entries}
    owner = _read_broker_id(system, f"{root}/meta.properties") if "meta.properties" in names else None
    if owner not in (None, broker):
        msg = f"{directory}: the log directory of broker {owner}, not of {broker} (meta.properties)"
        raise LogDirectoryError(msg)
    # High watermarks are read before the logs: by then, the logs hold every offset below them.
    high_watermarks, log_starts, cleaned = (
        _read_checkpoint(system, f"{root}/{name}") if name in names else {}
        for name in ("replication-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint")
    )
    partitions = []
    folders = 0
    for entry in entries:
        match = _FOLDER.fullmatch(entry.base_name)
        if match is None or entry.type != FileType.Directory:
            continue
        folders += 1
        key = topic, number = match["topic"], int(match["partition"])
        if topics and not any(fnmatchcase(topic, pattern) for pattern in topics):
            continue
        files = _list_files(system, entry.path, directory)
        if files is None:
            continue
        segments = _to_segments(broker, directory, topic, number, files)
        log_start_candidates = [segment.base_offset for segment in segments[:1]]
        if key in log_starts:
            log_start_candidates.append(log_starts[key])
        partitions.append(
            Partition(
                broker=broker,
                directory=directory,
                topic=topic,
                partition=number,
                high_watermark=high_watermarks.get(key),
                log_start=max(log_start_candidates, default=None),
                cleaned_up_to=cleaned.get(key),
                epochs=_read_epochs(system, entry.path, files),
                segments=segments,
            )
        )
    if not folders and not high_watermarks and "meta.properties" not in names:
        msg = f"{directory}: no partitions; give one of the broker's log.dirs, not the directory of a partition"
        raise LogDirectoryError(msg)
    return sorted(partitions, key=lambda partition: (partition.topic, partition.partition))


def with_cleaning(partition: Partition) -> Partition:
    """Return the partition with all but its active segment counted as compacted if the cleaner is at work on it.

    The cleaner swaps in one segment after the other and writes its checkpoint after all of them (kafka.log.Cleaner,
    LogCleanerManager.doneCleaning); until then its files lie beside them.
    """
    if not partition.segments:
        return partition
    system, root = open_file_system(partition.directory)
    files = _list_files(system, f"{root}/{partition.topic}-{partition.partition}", partition.directory) or ()
    if not any(file.base_name.endswith((".cleaned", ".swap")) for file in files):
        return partition
    return partition._replace(cleaned_up_to=partition.segments[-1].base_offset)


def after_reading(before: Partition, now: Partition) -> Partition:
    """Return the partition with the offsets that were in it for certain while it was read, between two listings.

    Up to the high watermark from before, and from the starts from after: retention and compaction only raise them.
    """
    files = {segment.file: segment for segment in now.segments}
    cleaned = [before.cleaned_up_to, now.cleaned_up_to]
    # A sealed segment that has changed was cleaned: the checkpoint is written only after all of them are.
    cleaned += [
        segment.next_base
        for segment in before.segments
        if segment.file not in files or files[segment.file].size != segment.size
    ]
    starts = (before.log_start, now.log_start)
    return before._replace(
        log_start=max((start for start in starts if start is not None), default=None),
        cleaned_up_to=max((offset for offset in cleaned if offset is not None), default=None),
    )


def _read_broker_id(system: FileSystem, path: str) -> int | None:
    """Return the id of a log directory's broker from its meta.properties: `broker.id`, under KRaft `node.id`."""
    content = _read_file(system, path) or b""
    match = re.search(rb"^(?:broker|node)\.id=(\d{1,9})\s*$", content, re.MULTILINE)
    return None if match is None else int(match[1])


def read_index(segment: Segment, suffix: str) -> bytes | None:
    """Return the index next to a segment's log, or None if there is none. Raises LogDirectoryError.

    An active index is preallocated with log.index.size.max.bytes (10 MiB) of zeros and is read until these begin.
    """
    system, root = open_file_system(segment.directory)
    return _read_file(system, f"{root}/{segment.file.removesuffix('.log')}{suffix}", to_zeros=segment.active)


def open_log(segment: Segment) -> Any:
    """Open a segment's log as a pyarrow NativeFile; None if it is gone. Raises LogDirectoryError."""
    system, root = open_file_system(segment.directory)
    return _open_file(system, f"{root}/{segment.file}")


def file_exists(directory: str, file: str) -> bool:
    """Return whether a file of a log directory exists now."""
    system, root = open_file_system(directory)
    return bool(system.get_file_info(f"{root}/{file}").type == FileType.File)


def sibling_log(segment: Segment, base_offset: int) -> str:
    """Return the path, in the log directory, of the log with another base offset next to a segment's."""
    return f"{segment.file.rpartition('/')[0]}/{base_offset:020d}.log"


def _list_files(system: FileSystem, path: str, directory: str) -> list[FileInfo] | None:
    """Return what a directory holds, or None if it does not exist."""
    try:
        infos: list[FileInfo] = system.get_file_info(FileSelector(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        msg = f"{directory}: {path} cannot be listed: {error}"
        raise LogDirectoryError(msg) from error
    return infos


def _read_file(system: FileSystem, path: str, *, to_zeros: bool = False) -> bytes | None:
    file = _open_file(system, path)
    if file is None:
        return None
    with file:
        chunks = []
        try:
            while (chunk := file.read(_CHUNK)) and not (to_zeros and not chunk.strip(b"\0")):
                chunks.append(chunk)
        except OSError as error:
            msg = f"{path}: cannot be read: {error}"
            raise LogDirectoryError(msg) from error
    return b"".join(chunks)


def _open_file(system: FileSystem, path: str) -> Any:
    try:
        return system.open_input_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"{path}: cannot be opened: {error}"
        raise LogDirectoryError(msg) from error


def _to_segments(
    broker: int, directory: str, topic: str, number: int, files: Sequence[FileInfo]
) -> tuple[Segment, ...]:
    logs = sorted(
        (int(match["base"]), file.base_name, file)
        for file in files
        if file.type == FileType.File and (match := _LOG.fullmatch(file.base_name))
    )
    bases = [base for base, _, _ in logs]
    next_bases = dict(pairwise(bases))
    return tuple(
        Segment(
            broker=broker,
            directory=directory,
            topic=topic,
            partition=number,
            file=f"{topic}-{number}/{file.base_name}",
            base_offset=base,
            next_base=next_bases.get(base),
            size=file.size,
            mtime=(file.mtime_ns or 0) // 1_000_000,
        )
        for base, _, file in logs
    )


def _parse_checkpoint(text: bytes | None, columns: int) -> list[list[str]]:
    """Return the rows of a checkpoint: a version, the number of rows, the rows (OffsetCheckpointFile).

    Rows that are incomplete, because the file was being written, are left out.
    """
    lines = [line.strip() for line in (text or b"").decode("utf-8", "replace").split("\n")]
    if len(lines) < 2 or lines[0] not in {"0", "1"} or not _INTEGER.fullmatch(lines[1]):
        return []
    rows = [line.split() for line in lines[2 : 2 + int(lines[1])]]
    return [row for row in rows if len(row) == columns and all(map(_INTEGER.fullmatch, row[-2:]))]


def _read_checkpoint(system: FileSystem, path: str) -> dict[tuple[str, int], int]:
    rows = _parse_checkpoint(_read_file(system, path), 3)
    return {(topic, int(number)): int(offset) for topic, number, offset in rows}


def _read_epochs(system: FileSystem, folder: str, files: Sequence[FileInfo]) -> tuple[tuple[int, int], ...]:
    if not any(file.base_name == "leader-epoch-checkpoint" for file in files):
        return ()
    rows = _parse_checkpoint(_read_file(system, f"{folder}/leader-epoch-checkpoint"), 2)
    return tuple((int(epoch), int(start)) for epoch, start in rows)
