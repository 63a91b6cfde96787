"""Small files of the journal's past dates merged into few large ones. What the agent reads stays the same.

A merged file is named like any sealed segment, by its first and last position; as soon as it is there, readers use it
in place of its parts (agent.storage.journal.segments.find). Today and yesterday are left alone, so merging is safe
while the agent runs: it reads back minutes when it starts.
"""

import fcntl
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from agent.storage.journal.places import read_id
from agent.storage.journal.segments import (
    DAY_MS,
    ROW_GROUP,
    UNREADABLE,
    Segment,
    apart,
    day_of,
    folders,
    segments_in,
    sync,
    write,
)
from agent.storage.journal.writer import Journal, JournalError
from spark_checks.shares import run_shares

MERGED_BYTES = 256 << 20

_LOCK = "compaction.lock"

log = logging.getLogger(__name__)


def compact(spark: SparkSession, directory: Path, now: int) -> int:
    """Merge files of dates before yesterday and return how many were merged: none while another run does. now: ms."""
    with (directory / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("compaction_left_to_another_run journal=%s", directory)
            return 0
        past = [folder for folder in folders(directory) if day_of(folder) < now // DAY_MS - 1]
        for folder in past:
            remove_merged_parts(folder)
        groups = [group for folder in past for group in group_by_size(segments_in(folder))]
        return sum(run_shares(spark, groups, merge)) if groups else 0


def apply_retention(directory: Path, days: int, now: int) -> bool:
    """Remove dates older than `days` before now (ms); return False if that is left to the agent.

    It is while the agent runs, and if the journal is archived: only the agent knows what is in the archive.
    """
    if read_id(directory):
        log.info("retention_left_to_agent reason=the journal %s is archived", directory)
        return False
    try:
        journal = Journal(directory)
    except JournalError as error:
        log.info("retention_left_to_agent reason=%s", error)
        return False
    try:
        journal.retain(days, now)
    finally:
        journal.close()
    return True


def find_sealed(folder: Path) -> list[Segment]:
    """Return the sealed segments of a folder by first position."""
    return [segment for segment in segments_in(folder) if segment.last is not None]


def remove_merged_parts(folder: Path) -> None:
    """Remove parts of merged files that a crash left behind."""
    for segment in apart(find_sealed(folder))[1]:
        segment.path.unlink()


def group_by_size(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield two or more consecutive sealed segments with the same columns, up to MERGED_BYTES together.

    segments: of a folder. A merged file across an open segment would be read in its place.
    """
    group: list[Segment] = []
    size = 0
    for segment in apart(segments)[0]:
        more = segment.path.stat().st_size
        if group and (size + more > MERGED_BYTES or not _may_be_joined(group[-1], segment)):
            yield from [group] if len(group) > 1 else []
            group, size = [], 0
        if segment.last is not None:
            group.append(segment)
            size += more
    yield from [group] if len(group) > 1 else []


def _may_be_joined(left: Segment, right: Segment) -> bool:
    # A column that an older version did not write must not become null.
    try:
        return right.last is not None and bool(parquet.read_schema(left.path).equals(parquet.read_schema(right.path)))
    except UNREADABLE:
        return False


def merge(group: Sequence[Segment]) -> int:
    """Write one file in place of these and return how many were removed: 0 if one of them cannot be read."""
    first, last = group[0].first, group[-1].last
    unfinished = group[0].path.with_name(f"_{first:019d}.tmp")
    try:
        schema = parquet.read_schema(group[0].path)
        write(unfinished, schema, _row_groups([segment.path for segment in group], schema))
        unfinished.rename(unfinished.with_name(f"{first:019d}-{last:019d}.parquet"))
    except UNREADABLE as error:
        unfinished.unlink(missing_ok=True)
        log.warning("journal_files_not_merged first=%s reason=%s", group[0].path, error)
        return 0
    sync(unfinished.parent)
    for segment in group:
        segment.path.unlink(missing_ok=True)
    sync(unfinished.parent)
    return len(group)


def _row_groups(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the files' rows in row groups of ROW_GROUP rows, small files joined."""
    waiting = schema.empty_table()
    for path in paths:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.metadata.num_row_groups):
                waiting = pa.concat_tables([waiting, file.read_row_group(number, use_threads=False)])
                while waiting.num_rows >= ROW_GROUP:
                    yield waiting.slice(0, ROW_GROUP)
                    waiting = waiting.slice(ROW_GROUP)
    yield waiting
