"""The entries of logs as a DataFrame: of directories read by Python workers, of digests as they are.

A row is what `agent.kafka_log.segments` says. Faults are not told here: they are the matter of log_segments.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from agent.kafka_log.log_directory import Segment
from agent.kafka_log.segments import SCHEMA, read_rows
from spark_checks.logs.replicas import Replicas, cores, packs

_SPARK_TYPES = {pa.string(): "string", pa.int8(): "tinyint", pa.int32(): "int", pa.int64(): "bigint"}
# Spark knows no unsigned numbers: a CRC takes the next larger type, as it does when Spark reads a digest.
_ARROW = pa.schema([field.with_type(pa.int64()) if field.type == pa.uint32() else field for field in SCHEMA])
_COLUMNS = [f"{field.name} {_SPARK_TYPES[field.type]}" for field in _ARROW]


class SegmentSource(DataSource):
    """Segments as a data source of Spark's; option `packs`: what each task reads, as JSON."""

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` takes."""
        return "backflow_segments"

    def schema(self) -> str:
        """The columns, as DDL."""
        return ", ".join(_COLUMNS)

    def reader(self, schema: StructType) -> "SegmentReader":  # noqa: ARG002  # it is the one told above
        """What reads them."""
        return SegmentReader(self.options["packs"])


class SegmentReader(DataSourceReader):
    """Reads segments, a pack of them a task."""

    def __init__(self, packed: str) -> None:
        self._packed = packed

    def partitions(self) -> Sequence[InputPartition]:
        """One for each pack."""
        return [InputPartition(pack) for pack in msgspec.json.decode(self._packed, type=list[list[Segment]])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of a pack, a bounded number at a time."""
        for segment in partition.value:
            for batch in read_rows(segment, lambda _found: None):
                yield batch.cast(_ARROW)


def entries(spark: SparkSession, found: Replicas, segments: Sequence[Segment]) -> DataFrame:
    """The entries of these segments and of all digests."""
    frames: list[DataFrame] = []
    if segments:
        spark.dataSource.register(SegmentSource)
        packed = msgspec.json.encode(packs(segments, cores(spark))).decode()
        frames.append(spark.read.format(SegmentSource.name()).option("packs", packed).load())
    for digest in found.digests:
        path = digest.path if "://" in digest.path else Path(digest.path).absolute().as_uri()
        frames.append(spark.read.parquet(path).select(*_ARROW.names))
    return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], ", ".join(_COLUMNS))
