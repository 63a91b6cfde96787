"""The keys whose values went back, as a Parquet file from which they can be repaired."""

from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame

from agent.sources.streams.changelog_values import key_text

SCHEMA = pa.schema([
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("key", pa.binary()),
    ("key_text", pa.string()),
    ("before", pa.int64()),
    ("before_offset", pa.int64()),
    ("after", pa.int64()),
    ("after_offset", pa.int64()),
    ("after_timestamp", pa.timestamp("ms", tz="UTC")),
    ("restarted", pa.bool_()),
    ("last", pa.int64()),
])  # fmt: skip
"""A row for each fall. after_timestamp: the record's, which is its input's. restarted: the value is not above the first
that the changelog holds of the key. last: the key's last value, null where it is deleted.
"""

_ROWS = 16_384


class KeyFile:
    """The Parquet file of keys, made with the first fall; a context manager. It is there whole, or not at all.

    path: None where none is wanted. rows: how many falls were added.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows = 0
        self._writer: parquet.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None or self.path is None:
            return
        self._writer.close()
        if kind is None:
            _unfinished(self.path).replace(self.path)
        else:
            _unfinished(self.path).unlink(missing_ok=True)

    def add(self, topic: str, fallen: DataFrame) -> None:
        """Write falls of a topic, a few at a time: marks as `falls.with_last` makes them. Raises OSError."""
        if self.path is None:
            return
        rows = fallen.orderBy("partition", "offset").toLocalIterator()
        while some := list(islice(rows, _ROWS)):
            if self._writer is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = parquet.ParquetWriter(_unfinished(self.path), SCHEMA, compression="zstd")
            self._writer.write_table(_table(topic, some))
            self.rows += len(some)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


def _table(topic: str, rows: list[Any]) -> pa.Table:
    keys = [bytes(row["key"]) for row in rows]
    columns = {
        "topic": [topic] * len(rows),
        "partition": [row["partition"] for row in rows],
        "key": keys,
        "key_text": [key_text(key) for key in keys],
        "before": [row["before"] for row in rows],
        "before_offset": [row["before_offset"] for row in rows],
        "after": [row["value"] for row in rows],
        "after_offset": [row["offset"] for row in rows],
        "after_timestamp": [row["timestamp"] for row in rows],
        "restarted": [row["restarted"] for row in rows],
        "last": [row["last_value"] for row in rows],
    }
    return pa.table(columns, schema=SCHEMA)
