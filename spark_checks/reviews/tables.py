"""The journal's kinds as Spark reads them: sealed segments as Parquet, open ones by way of Arrow.

A damaged file makes a query fail. `set_aside_damaged` then finds it, and the query is repeated without it.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from agent.storage.journal.reader import COLUMNS
from agent.storage.journal.segments import FOREVER, UNREADABLE, Segment, batches
from spark_checks.journal.files import JournalWindow, Piece


class JournalTables:
    """The kinds of a journal as tables, for one cluster and a window of time."""

    def __init__(self, window: JournalWindow) -> None:
        self.window = window
        self._read: set[Path] = set()
        self._damaged: set[Path] = set()

    def read(self, kind: str, columns: Sequence[str]) -> DataFrame:
        """Return the columns of a kind, and `position` and `at` (ms), of the cluster and in the window."""
        schema = COLUMNS[kind].schema
        by_path = {Path(piece.path): piece for piece in self.window.pieces(kind)}
        pieces = [piece for path, piece in by_path.items() if path not in self._damaged]
        self._read.update(Path(piece.path) for piece in pieces)
        sealed = [piece.path for piece in pieces if piece.last is not None]
        spark, spark_schema = self.window.spark, _spark_schema(schema)
        tables = [
            spark.createDataFrame(_read_open(piece, schema), spark_schema) for piece in pieces if piece.last is None
        ]
        if sealed or not tables:
            reader = spark.read.schema(spark_schema)
            tables.append(reader.parquet(*sealed) if sealed else spark.createDataFrame([], spark_schema))
        table = tables[0]
        for other in tables[1:]:
            table = table.unionByName(other)
        table = table.withColumn("at", sf.unix_millis("at"))
        wanted = (table["at"] >= self.window.since) & (table["at"] < self.window.until)
        if "cluster" in schema.names:
            wanted &= table["cluster"] == self.window.cluster
        return table.where(wanted).select("position", "at", *columns)

    def set_aside_damaged(self) -> bool:
        """Read all files in full, leave damaged ones out from now on, and return whether there are any."""
        found = False
        for path in sorted(self._read - self._damaged):
            reason = _find_damage(path)
            if reason is not None:
                self.window.unreadable(path, reason)
                self._damaged.add(path)
                found = True
        return found


def _spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema)


def _read_open(piece: Piece, schema: pa.Schema) -> pa.Table:
    segment = Segment(piece.kind, 0, piece.first, None, Path(piece.path))
    found = pa.Table.from_batches(list(batches(segment, -FOREVER, FOREVER)))
    columns = [
        found.column(field.name) if field.name in found.column_names else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _find_damage(path: Path) -> str | None:
    """Return why a sealed file cannot be read in full, or None. A file that was merged or removed is no damage."""
    if path.suffix != ".parquet":
        return None
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.metadata.num_row_groups):
                file.read_row_group(group, use_threads=False)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        return str(error)
    return None
