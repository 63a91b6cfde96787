"""Committed records of changelog topics, read with Spark's Kafka connector."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

from agent.model.declared_stores import DeclaredStore
from spark_checks.jars import CONNECTOR
from spark_checks.shares import cores

_CAUSE = re.compile(r"org\.apache\.kafka\.(?:common|clients)\.[\w.]*?(\w+)(?:Exception|Error): (.+)")
_NO_CONNECTOR = "Failed to find data source: kafka"
_MISSING = "UnknownTopicOrPartition"


class KafkaError(Exception):
    """A changelog cannot be read."""


class MissingTopicError(KafkaError):
    """The topic does not exist."""


class RecordCounts:
    """How many records a topic has, and how many values are not numbers; known once it is read."""

    def __init__(self) -> None:
        self.observed = Observation()

    @property
    def records(self) -> int:
        """Return the records read."""
        return int(self.observed.get.get("records", 0))

    @property
    def unreadable(self) -> int:
        """Return the records skipped because their value is not of the declared form."""
        return int(self.observed.get.get("unreadable", 0))


def read_changelog(
    spark: SparkSession,
    store: DeclaredStore,
    bootstrap_servers: str,
    properties: Mapping[str, str],
    counts: RecordCounts,
) -> DataFrame:
    """Return a changelog up to its last stable offset: partition, key, offset, timestamp (ms), value.

    value: the number in it, null for a tombstone. properties: for Java's client.
    """
    options = {
        "kafka.default.api.timeout.ms": "30000",
        **{f"kafka.{name}": value for name, value in properties.items()},
        "kafka.bootstrap.servers": bootstrap_servers,
        # What a crashed instance did not commit is no decrease when the next one writes it again.
        "kafka.isolation.level": "read_committed",
        "subscribe": store.changelog,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        # Windowed stores delete old records while they are read.
        "failOnDataLoss": "false",
        "fetchOffset.numRetries": "1",
        "minPartitions": str(cores(spark)),
    }
    readable = sql.col("bytes").isNull() | sql.col("value").isNotNull()
    return (
        spark.read.format("kafka")
        .options(**options)
        .load()
        .select(
            "partition",
            sql.coalesce("key", sql.lit(b"")).alias("key"),
            "offset",
            sql.unix_millis("timestamp").alias("timestamp"),
            sql.col("value").alias("bytes"),
            parse_number(sql.col("value"), store.value).alias("value"),
        )
        .observe(counts.observed, sql.count(sql.lit(1)).alias("records"), sql.count_if(~readable).alias("unreadable"))
        .where(readable)
        .drop("bytes")
    )


def parse_number(value: Column, form: str) -> Column:
    """Return the number in a binary value of this form (see DeclaredStore.value), null if it is none."""
    if form.startswith("json:"):
        field = sql.get_json_object(value.cast("string"), f"$.{form.removeprefix('json:')}")
        real = field.try_cast("double")  # 5.0 and 1e3 are whole too
        whole = (real == sql.floor(real)) & (sql.abs(real) < 2.0**63)  # beyond that Spark would return 2**63 - 1
        return sql.coalesce(field.try_cast("bigint"), sql.when(whole, real.try_cast("bigint")))
    width = {"long": 8, "int": 4}[form]
    unsigned = sql.conv(sql.hex(value), 16, -10).cast("bigint")  # conv makes eight bytes signed
    shift = 64 - 8 * width
    return sql.when(sql.octet_length(value) == width, sql.shiftright(sql.shiftleft(unsigned, shift), shift))


@contextmanager
def kafka_errors(store: DeclaredStore) -> Iterator[None]:
    """Raise KafkaError if Kafka's client fails while the body reads a changelog."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        if _NO_CONNECTOR in str(error):
            # Sent with a session, it would work for the first one only: it registers its settings once in a JVM.
            msg = f"Spark has no Kafka connector: start its server, or spark-submit, with --packages {CONNECTOR}"
            raise KafkaError(msg) from error
        causes = _CAUSE.findall(str(error))
        if not causes:
            raise
        if any(name == _MISSING for name, _ in causes):
            msg = f"topic {store.changelog} does not exist"
            raise MissingTopicError(msg) from error
        msg = f"cannot read {store.changelog}: {causes[-1][1].strip()}"
        raise KafkaError(msg) from error
