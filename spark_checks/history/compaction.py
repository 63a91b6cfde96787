"""Small files of the journal's past dates made into few large ones. What the agent reads stays the same.

A merged file is named like any sealed segment, by its first and last position; from the moment it is there, readers
take it in place of its parts (agent.journal.segments.find). Today and yesterday are left alone, so that it is safe
beside a running agent, which reads back minutes when it starts.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from agent.storage.journal import Journal, JournalError
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

MERGED_BYTES = 256 << 20

log = logging.getLogger(__name__)


def compact(spark: SparkSession, directory: Path, now: int) -> int:
    """Merge what can be merged in dates before yesterday; now: ms. Returns how many files were merged away."""
    old = [folder for folder in folders(directory) if day_of(folder) < now // DAY_MS - 1]
    for folder in old:
        clear(folder)
    every = [group for folder in old for group in groups(sealed(folder))]
    if not every:
        return 0
    return sum(spark.sparkContext.parallelize(every, len(every)).map(merge).collect())


def retain(directory: Path, days: int, now: int) -> bool:
    """Remove the dates more than so many days before now (ms); False where a running agent does that itself."""
    try:
        journal = Journal(directory)
    except JournalError as error:
        log.info("retention is the running agent's: %s", error)
        return False
    try:
        journal.retain(days, now)
    finally:
        journal.close()
    return True


def sealed(folder: Path) -> list[Segment]:
    """The sealed segments of a folder by first position."""
    return [one for one in segments_in(folder) if one.last is not None]


def clear(folder: Path) -> None:
    """Remove the parts of merged files that a crash left."""
    for segment in apart(sealed(folder))[1]:
        segment.path.unlink()


def groups(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Consecutive segments, two or more, that make up to MERGED_BYTES together and have the same columns."""
    group: list[Segment] = []
    size = 0
    for one in segments:
        more = one.path.stat().st_size
        if group and (size + more > MERGED_BYTES or not _alike(group[-1], one)):
            yield from [group] if len(group) > 1 else []
            group, size = [], 0
        group.append(one)
        size += more
    yield from [group] if len(group) > 1 else []


def _alike(one: Segment, other: Segment) -> bool:
    """Whether both have the same columns: what an older version did not write must not become null."""
    try:
        return bool(parquet.read_schema(one.path).equals(parquet.read_schema(other.path)))
    except UNREADABLE:
        return False


def merge(group: Sequence[Segment]) -> int:
    """Write one file in place of these, then remove them. Returns how many are gone; 0 where one cannot be read."""
    first, last = group[0].first, group[-1].last
    half = group[0].path.with_name(f"_{first:019d}.tmp")
    try:
        schema = parquet.read_schema(group[0].path)
        write(half, schema, _row_groups([one.path for one in group], schema))
        half.rename(half.with_name(f"{first:019d}-{last:019d}.parquet"))
    except UNREADABLE as error:
        half.unlink(missing_ok=True)
        log.warning("%s and what follows it stay as they are: %s", group[0].path, error)
        return 0
    sync(half.parent)
    for one in group:
        one.path.unlink(missing_ok=True)
    sync(half.parent)
    return len(group)


def _row_groups(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The files' rows in row groups of ROW_GROUP rows, small files joined."""
    waiting = schema.empty_table()
    for path in paths:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.metadata.num_row_groups):
                waiting = pa.concat_tables([waiting, file.read_row_group(number, use_threads=False)])
                while waiting.num_rows >= ROW_GROUP:
                    yield waiting.slice(0, ROW_GROUP)
                    waiting = waiting.slice(ROW_GROUP)
    yield waiting
