"""A broker's log directory: which partitions and segments it holds, and what its checkpoints say of them.

Layout as in kafka.log.LogManager and UnifiedLog (0.8 to 4.1). Lists and opens files; what stands in a segment is the
matter of `agent.kafka_log.scan`. Everything returned can be pickled, so that another process may open it.
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
_PIECE = 1 << 16
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class LogDirectoryError(Exception):
    """A log directory cannot be read; a sentence for an operator."""


class Segment(NamedTuple):
    """One segment of a partition's log. directory: as the operator named it; file: the path of its log within that.

    next_base: the base offset of the segment behind it; None for the last one, the active one. size: bytes when it was
    listed (an active one may have grown since). mtime: ms.
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
        """Whether it is the last of its log: the one a broker appends to, or did when it stopped."""
        return self.next_base is None


class Partition(NamedTuple):
    """A replica's log. high_watermark, log_start, cleaned_up_to: from the broker's checkpoints, None where they do not
    name it (log_start: never below the first segment's base offset); behind cleaned_up_to nothing is compacted.

    epochs: leader epochs with the offset at which each began, from `leader-epoch-checkpoint`; empty below 0.11.
    segments: by base offset; empty where the partition comes from a digest.
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


def opened(directory: str) -> tuple[FileSystem, str]:
    """The file system of a local path or of a URL known to pyarrow.fs, and the path in it. Raises LogDirectoryError."""
    if not _URL.match(directory):
        return LocalFileSystem(), str(Path(directory).absolute())
    try:
        system, path = FileSystem.from_uri(directory)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        msg = f"{directory}: cannot be opened: {error}"
        raise LogDirectoryError(msg) from error
    return system, path.rstrip("/")


def partitions(broker: int, directory: str, topics: Sequence[str] = ()) -> list[Partition]:
    """The partitions in a broker's log directory, by topic and number. topics: shell patterns; none means all.

    Left out: folders that a broker is deleting, moving in or has no use for (`-delete`, `-future`, `-stray`), files
    being deleted, cleaned or swapped in. What vanishes while it is listed is left out too. A directory that holds
    neither partitions nor checkpoints is most likely the wrong one. Raises LogDirectoryError.
    """
    system, root = opened(directory)
    entries = _listed(system, root, directory)
    if entries is None:
        msg = f"{directory}: there is no such directory; give the broker's log.dirs (several: one by one)"
        raise LogDirectoryError(msg)
    names = {entry.base_name for entry in entries}
    owner = _owner(system, f"{root}/meta.properties") if "meta.properties" in names else None
    if owner not in (None, broker):
        msg = f"{directory}: is the log directory of broker {owner}, not of {broker} (meta.properties)"
        raise LogDirectoryError(msg)
    # The high watermark is read before anything it vouches for: what it names is in the log by then.
    high_watermarks, log_starts, cleaned = (
        _checkpoint(system, f"{root}/{name}") if name in names else {}
        for name in ("replication-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint")
    )
    found = []
    folders = 0
    for entry in entries:
        match = _FOLDER.fullmatch(entry.base_name)
        if match is None or entry.type != FileType.Directory:
            continue
        folders += 1
        topic, number = match["topic"], int(match["partition"])
        if topics and not any(fnmatchcase(topic, pattern) for pattern in topics):
            continue
        files = _listed(system, entry.path, directory)
        if files is None:
            continue
        segments = _segments(broker, directory, topic, number, files)
        base = [segments[0].base_offset] if segments else []
        starts = [*base, log_starts[topic, number]] if (topic, number) in log_starts else base
        found.append(
            Partition(
                broker=broker,
                directory=directory,
                topic=topic,
                partition=number,
                high_watermark=high_watermarks.get((topic, number)),
                log_start=max(starts, default=None),
                cleaned_up_to=cleaned.get((topic, number)),
                epochs=_epochs(system, entry.path, files),
                segments=segments,
            )
        )
    if not folders and not high_watermarks and "meta.properties" not in names:
        msg = f"{directory}: holds no partitions; give the broker's log.dirs (several: one by one), not a partition's"
        raise LogDirectoryError(msg)
    return sorted(found, key=lambda one: (one.topic, one.partition))


def _owner(system: FileSystem, path: str) -> int | None:
    """The broker that a log directory is of, as its meta.properties says: `broker.id`, under KRaft `node.id`."""
    content = _read(system, path) or b""
    found = re.search(rb"^(?:broker|node)\.id=(\d+)\s*$", content, re.MULTILINE)
    return None if found is None else int(found[1])


def read_index(segment: Segment, suffix: str) -> bytes | None:
    """An index beside a segment's log; None where there is none. Raises LogDirectoryError.

    An active one is preallocated with log.index.size.max.bytes (10 MiB) of zeros: it is read until these begin.
    """
    system, root = opened(segment.directory)
    return _read(system, f"{root}/{segment.file.removesuffix('.log')}{suffix}", to_zeros=segment.active)


def open_log(segment: Segment) -> Any:
    """A segment's log as a NativeFile with its size of now; None where it is gone. Raises LogDirectoryError."""
    system, root = opened(segment.directory)
    return _open(system, f"{root}/{segment.file}")


def is_there(directory: str, file: str) -> bool:
    """Whether a file of a log directory exists at this moment."""
    system, root = opened(directory)
    return bool(system.get_file_info(f"{root}/{file}").type == FileType.File)


def log_of(segment: Segment, base_offset: int) -> str:
    """The path, in its directory, of the log with another base offset beside a segment."""
    return f"{segment.file.rpartition('/')[0]}/{base_offset:020d}.log"


def _listed(system: FileSystem, path: str, directory: str) -> list[FileInfo] | None:
    """What a directory holds; None where it does not exist."""
    try:
        infos: list[FileInfo] = system.get_file_info(FileSelector(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        msg = f"{directory}: {path} cannot be listed: {error}"
        raise LogDirectoryError(msg) from error
    return infos


def _read(system: FileSystem, path: str, *, to_zeros: bool = False) -> bytes | None:
    file = _open(system, path)
    if file is None:
        return None
    with file:
        pieces = []
        try:
            while (piece := file.read(_PIECE)) and not (to_zeros and not piece.strip(b"\0")):
                pieces.append(piece)
        except OSError as error:
            msg = f"{path}: cannot be read: {error}"
            raise LogDirectoryError(msg) from error
    return b"".join(pieces)


def _open(system: FileSystem, path: str) -> Any:
    try:
        return system.open_input_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"{path}: cannot be opened: {error}"
        raise LogDirectoryError(msg) from error


def _segments(broker: int, directory: str, topic: str, number: int, files: Sequence[FileInfo]) -> tuple[Segment, ...]:
    logs = sorted(
        (int(match["base"]), file.base_name, file)
        for file in files
        if file.type == FileType.File and (match := _LOG.fullmatch(file.base_name))
    )
    bases = [base for base, _, _ in logs]
    following = dict(pairwise(bases))
    return tuple(
        Segment(
            broker=broker,
            directory=directory,
            topic=topic,
            partition=number,
            file=f"{topic}-{number}/{file.base_name}",
            base_offset=base,
            next_base=following.get(base),
            size=file.size,
            mtime=(file.mtime_ns or 0) // 1_000_000,
        )
        for base, _, file in logs
    )


def _lines(text: bytes | None, columns: int) -> list[list[str]]:
    """The rows of a checkpoint: a version, the number of rows, the rows (OffsetCheckpointFile). Half-written: none."""
    lines = (text or b"").decode("utf-8", "replace").split("\n")
    if len(lines) < 2 or lines[0].strip() not in {"0", "1"} or not lines[1].strip().isdigit():
        return []
    rows = [line.split() for line in lines[2 : 2 + int(lines[1])]]
    return [row for row in rows if len(row) == columns and all(cell.lstrip("-").isdigit() for cell in row[-2:])]


def _checkpoint(system: FileSystem, path: str) -> dict[tuple[str, int], int]:
    return {(topic, int(number)): int(offset) for topic, number, offset in _lines(_read(system, path), 3)}


def _epochs(system: FileSystem, folder: str, files: Sequence[FileInfo]) -> tuple[tuple[int, int], ...]:
    if not any(file.base_name == "leader-epoch-checkpoint" for file in files):
        return ()
    return tuple(
        (int(epoch), int(start)) for epoch, start in _lines(_read(system, f"{folder}/leader-epoch-checkpoint"), 2)
    )
