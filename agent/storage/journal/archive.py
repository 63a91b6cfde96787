"""The archive: sealed segments of the journals of several agents, in an object store or on another file system.

`<URL>/<kind>/date=YYYY-MM-DD/agent=<name>/journal=<id>/<first>-<last>.parquet`: partitions as in Hive, so that Spark,
Trino and DuckDB read them. Positions are those of one journal; a new id begins where a state directory was lost or
restored. A file never changes once it is there.
"""

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from agent.storage.journal.failures import ArchivedFile, ArchiveError
from agent.storage.journal.segments import Segment, by_first_position, day_of, is_date, positions_in

_CHUNK = 8 << 20
_CONNECT_S, _REQUEST_S, _ATTEMPTS = 10, 30, 3
_MOST_LISTINGS = 64
"""Dates of an agent that are listed one by one; of more, all dates and agents of a kind are listed at once."""

OBJECT_STORES = frozenset({"s3", "gcs"})
"""File systems on which a file appears only when all of it is there."""


class LocalFileError(OSError):
    """A file or folder of the journal on the local disk cannot be read: nothing is wrong with the archive."""


class Content(NamedTuple):
    """What a file contains. size: bytes. digest: its SHA-256."""

    size: int
    digest: str


class Archive:
    """An archive by its URL. It connects when it is first used; all methods raise OSError."""

    def __init__(self, url: str, variables: Mapping[str, str] = os.environ) -> None:
        """url: with the scheme s3, hdfs, gs or file. variables: AWS's environment variables, for s3."""
        self.url = url.rstrip("/")
        self._variables = variables

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        return connect(self.url, self._variables)

    @property
    def files(self) -> fs.FileSystem:
        """The file system."""
        return self._place[0]

    @property
    def root(self) -> str:
        """The archive's path on the file system."""
        return self._place[1].rstrip("/")

    def folder(self, folder: Path, agent: str, journal: str) -> str:
        """Return where a local folder of a kind and a date is archived."""
        return f"{self.root}/{folder.parent.name}/{folder.name}/agent={agent}/journal={journal}"

    def kinds(self) -> list[str]:
        """Return the kinds of observations in the archive."""
        return sorted(found.base_name for found in self._list(self.root) if found.type is fs.FileType.Directory)

    def agents(self, patterns: Sequence[str] = ()) -> dict[str, set[str]]:
        """Return the ids of the journals of each agent. patterns: of the agents' names; none: all.

        Ticks, which all agents write each second, name the agents; without any all kinds do.
        """
        agents: dict[str, set[str]] = {}
        found = list(self._segments("tick", [f"{self.root}/tick"]))
        if not found:
            found = [entry for kind in self.kinds() for entry in self._segments(kind, [f"{self.root}/{kind}"])]
        for agent, segment in found:
            if not patterns or any(fnmatchcase(agent, pattern) for pattern in patterns):
                agents.setdefault(agent, set()).add(segment.journal)
        return agents

    def find(self, kinds: Collection[str] | None, days: range | None, agent: str) -> list[Segment]:
        """Return the agent's segments of these kinds and days."""
        found: list[Segment] = []
        for kind in self.kinds() if kinds is None else kinds:
            dates = None if days is None else self._dates(kind, days)
            folders = [f"{self.root}/{kind}"]
            if dates is not None and len(dates) <= _MOST_LISTINGS:
                folders = [f"{date}/agent={agent}" for date in dates]
            found += (segment for owner, segment in self._segments(kind, folders) if owner == agent)
        return [segment for segment in found if days is None or segment.day in days]

    def find_in(self, folder: str) -> dict[tuple[int, int], int]:
        """Return the sizes of the files in a folder by their first and last position."""
        sizes: dict[tuple[int, int], int] = {}
        for found in self._list(folder):
            positions = positions_in(found.base_name)
            if positions is not None and positions[1] is not None:
                sizes[positions[0], positions[1]] = found.size
        return sizes

    def put(self, source: Path, content: Content, target: str) -> None:
        """Copy a local file to a path of the archive, and return when what can be read there is the same.

        Raises LocalFileError if it is the local file that cannot be read.
        """
        is_store = self.files.type_name in OBJECT_STORES
        path = target if is_store else _unfinished(target)
        if not is_store:
            self.files.create_dir(target.rpartition("/")[0], recursive=True)
        with self.files.open_output_stream(path) as sink:
            for chunk in _read(source):
                sink.write(chunk)
        with self.files.open_input_stream(path) as stream:
            archived = measure(stream)
        if archived != content:
            msg = f"{self.url}: {path} is not what was written: {archived.size:,} of {content.size:,} bytes, or others"
            raise OSError(msg)
        if not is_store:
            self._delete(target)
            self.files.move(path, target)

    def discard(self, target: str) -> None:
        """Remove what an unfinished `put` may have left of a file."""
        self._delete(target)
        if self.files.type_name not in OBJECT_STORES:
            self._delete(_unfinished(target))

    def remove_before(self, day: int, agent: str, known: set[str]) -> int:
        """Remove the agent's files of dates before this day and return how many dates of a kind had any.

        known: the paths of dates that have none, to which this adds.
        """
        removed = 0
        for kind in self.kinds():
            for path in self._dates(kind, range(-1 << 31, day)):
                if path in known:
                    continue
                folder = f"{path}/agent={agent}"
                if self.files.get_file_info(folder).type is fs.FileType.Directory:
                    self.files.delete_dir(folder)
                    removed += 1
                known.add(path)
        return removed

    def url_of(self, segment: Segment) -> str:
        """Return the URL of an archived segment."""
        return f"{self.url}{str(segment.path).removeprefix(self.root)}"

    def _dates(self, kind: str, days: range) -> list[str]:
        found = (entry for entry in self._list(f"{self.root}/{kind}") if is_date(entry.base_name))
        return [entry.path for entry in found if day_of(Path(entry.path)) in days]

    def _segments(self, kind: str, folders: Iterable[str]) -> Iterator[tuple[str, Segment]]:
        """Yield the agent and the segment of each file of a kind below these folders."""
        for folder in folders:
            yield from filter(None, (self._segment(kind, found) for found in self._list(folder, recursive=True)))

    def _segment(self, kind: str, found: fs.FileInfo) -> tuple[str, Segment] | None:
        date, agent, journal, name = (*found.path.removeprefix(f"{self.root}/{kind}/").split("/"), "", "", "", "")[:4]
        positions = positions_in(name)
        if positions is None or positions[1] is None or not is_date(date):
            return None
        if not agent.startswith("agent=") or not journal.startswith("journal="):
            return None
        path, owner = Path(found.path), agent.removeprefix("agent=")
        day, of = day_of(Path(date)), journal.removeprefix("journal=")
        return owner, Segment(kind, day, *positions, path, of, self.files)

    def _delete(self, path: str) -> None:
        if self.files.get_file_info(path).type is fs.FileType.File:
            self.files.delete_file(path)

    def _list(self, path: str, *, recursive: bool = False) -> list[Any]:
        selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        return list(self.files.get_file_info(selector))


def _unfinished(target: str) -> str:
    """Return the path of a file while it is written: readers ignore names that begin with an underscore."""
    folder, _, name = target.rpartition("/")
    return f"{folder}/_{name}.tmp"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise LocalFileError in place of the system's errors with this path, but for FileNotFoundError.

    Arrow's errors about what a file contains have no errno.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, FileNotFoundError | LocalFileError):
            raise
        raise LocalFileError(error.errno, os.strerror(error.errno), str(path)) from error


def _read(path: Path) -> Iterator[bytes]:
    """Yield the content of a local file. Raises LocalFileError."""
    with reading(path), path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def measure(stream: Any) -> Content:
    """Return what a stream contains from here on. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return Content(size, digest.hexdigest())


def connect(url: str, variables: Mapping[str, str] = os.environ) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path on it. Raises OSError."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "s3":
            return _s3(parts.netloc, variables), f"{parts.netloc}{parts.path}"
        if parts.scheme == "file":
            return fs.LocalFileSystem(), parts.path
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(url)
        return found
    except pa.ArrowException as error:
        msg = f"{url}: {error}"
        raise OSError(msg) from error


def _s3(bucket: str, variables: Mapping[str, str]) -> fs.S3FileSystem:
    endpoint = urlsplit(variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL") or "")
    region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
    if not region:  # servers other than AWS's ignore it
        region = "us-east-1" if endpoint.netloc else fs.resolve_s3_region(bucket)
    keys = {}
    if "AWS_ACCESS_KEY_ID" in variables and "AWS_SECRET_ACCESS_KEY" in variables:
        keys = {
            "access_key": variables["AWS_ACCESS_KEY_ID"],
            "secret_key": variables["AWS_SECRET_ACCESS_KEY"],
            "session_token": variables.get("AWS_SESSION_TOKEN"),
        }
    return fs.S3FileSystem(
        region=region,
        scheme=endpoint.scheme or "https",
        endpoint_override=endpoint.netloc or None,
        connect_timeout=_CONNECT_S,
        request_timeout=_REQUEST_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        background_writes=False,  # which would hold a whole file in memory while the server is slow
        **keys,
    )


def open_url(url: str) -> ArchivedFile:
    """Open a file of an archive by its URL, with the credentials of this process.

    Raises FileNotFoundError, and ArchiveError if the archive cannot be reached.
    """
    parts = urlsplit(url)
    path = f"{parts.netloc}{parts.path}" if parts.scheme in ("s3", "gs") else parts.path
    return ArchivedFile(_connected(f"{parts.scheme}://{parts.netloc}"), path, url)


@cache
def _connected(server: str) -> fs.FileSystem:
    try:
        return connect(f"{server}/")[0]
    except OSError as error:
        msg = f"{server} cannot be reached: {error}"
        raise ArchiveError(msg) from error


def together(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments of one journal, local and archived, each row once: the largest segments count, local first.

    They are in order of journals and positions.
    """
    counted: list[Segment] = []
    # Local segments precede archived ones of the same name, because sorting keeps the order of what is equal.
    ordered = sorted(segments, key=lambda segment: (segment.files is not None, *by_first_position(segment)))
    ordered.sort(key=lambda segment: (segment.journal, segment.kind, segment.day, *by_first_position(segment)))
    for segment in ordered:
        last = counted[-1] if counted else segment
        is_same = (last.journal, last.kind, last.day) == (segment.journal, segment.kind, segment.day)
        if last is segment or not is_same or not last.holds(segment):
            counted.append(segment)
    return sorted(counted, key=lambda segment: (segment.journal, segment.first))
