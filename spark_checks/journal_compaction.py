"""Small files of the journal's past dates made into few large ones. What the agent reads stays the same.

A merged file is named like any sealed segment, by its first and last position, and begins with its first part's
position: until that part is removed, the agent's readers take the parts. Safe beside a running agent, which reads back
minutes when it starts: today and yesterday are left alone.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from agent.journal import Journal, JournalError
from agent.journal.segments import DAY_MS, UNREADABLE, day_of, folders

MERGED_BYTES = 256 << 20
_ROW_GROUP = 65_536

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """A sealed segment. first, last: positions."""

    first: int
    last: int
    path: Path
    size: int


def compact(spark: SparkSession, directory: Path, now: int) -> int:
    """Merge what can be merged in dates before yesterday; now: ms. Returns how many files were merged away."""
    old = [folder for folder in folders(directory) if day_of(folder) < now // DAY_MS - 1]
    for folder in old:
        clear(folder)
    every = [group for folder in old for group in groups(parts(folder))]
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


def parts(folder: Path) -> list[Part]:
    """The sealed segments of a folder by first position."""
    named = [(path, path.stem.split("-")) for path in folder.glob("[0-9]*-[0-9]*.parquet")]
    return sorted(Part(int(first), int(last), path, path.stat().st_size) for path, (first, last) in named)


def clear(folder: Path) -> None:
    """Remove the parts of merged files that a crash left."""
    kept = -1
    for part in sorted(parts(folder), key=lambda one: (one.first, -one.last)):
        if part.last <= kept:
            part.path.unlink()
        kept = max(kept, part.last)


def groups(sealed: Sequence[Part]) -> Iterator[list[Part]]:
    """Consecutive parts, two or more, that make up to MERGED_BYTES together and have the same columns."""
    group: list[Part] = []
    for part in sealed:
        if group and (sum(one.size for one in group) + part.size > MERGED_BYTES or not _alike(group[-1], part)):
            yield from [group] if len(group) > 1 else []
            group = []
        group.append(part)
    yield from [group] if len(group) > 1 else []


def _alike(one: Part, other: Part) -> bool:
    """Whether both have the same columns: what an older version did not write must not become null."""
    try:
        return bool(parquet.read_schema(one.path).equals(parquet.read_schema(other.path)))
    except UNREADABLE:
        return False


def merge(group: Sequence[Part]) -> int:
    """Write one file in place of these, then remove them. Returns how many are gone; 0 where one cannot be read."""
    first, last = group[0].first, group[-1].last
    half = group[0].path.with_name(f"_{first:019d}.tmp")
    try:
        _write(half, [one.path for one in group])
    except UNREADABLE as error:
        half.unlink(missing_ok=True)
        log.warning("%s and what follows it stay as they are: %s", group[0].path, error)
        return 0
    half.rename(group[0].path.with_name(f"{first:019d}-{last:019d}.parquet"))
    _sync(half.parent)
    for one in group:
        one.path.unlink(missing_ok=True)
    _sync(half.parent)
    return len(group)


def _write(target: Path, paths: Sequence[Path]) -> None:
    """All rows of the files, in order, as the journal writes them."""
    schema = parquet.read_schema(paths[0])
    rising = [one.name for one in schema if one.type in (pa.int64(), pa.timestamp("ms", tz="UTC"))]
    with (
        target.open("wb") as file,
        parquet.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=[one.name for one in schema if one.type == pa.string()],
            column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        ) as writer,
    ):
        for table in _row_groups(paths, schema):
            writer.write_table(table, row_group_size=_ROW_GROUP)
        writer.close()
        file.flush()
        os.fsync(file.fileno())


def _row_groups(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The files' rows in row groups of _ROW_GROUP rows, small files joined."""
    waiting = schema.empty_table()
    for path in paths:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.metadata.num_row_groups):
                waiting = pa.concat_tables([waiting, file.read_row_group(number, use_threads=False)])
                while waiting.num_rows >= _ROW_GROUP:
                    yield waiting.slice(0, _ROW_GROUP)
                    waiting = waiting.slice(_ROW_GROUP)
    yield waiting


def _sync(folder: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
