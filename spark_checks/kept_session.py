"""A Spark session that outlives a check: those of later checks share its JVM, each with settings of SQL of its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_checks.command import OpenSession, progress, settings_of
from spark_checks.jars import packages
from spark_checks.options import SESSION_SETTINGS, Check, Options
from spark_checks.session import JVM_OPTIONS, session
from spark_checks.shares import map_shares

_TIDY = {"spark.cleaner.periodicGC.interval": "1min"}
"""Spark removes the shuffle files of a check that has ended when the JVM collects garbage; by default in 30 minutes."""

_REHEARSED = pa.schema({"number": pa.int64()})


class UnsuitedSessionError(Exception):
    """A check needs settings that the session does not have."""


@contextmanager
def kept_session(first: Check | None, options: Options) -> Iterator[OpenSession]:
    """Start Spark, with settings for the first check, and provide sessions that share its JVM."""
    progress("starting Spark")
    conf = dict(options.conf) if first is None else settings_of(first, options)
    own = sql_settings(conf, options.conf)
    shared = {key: value for key, value in conf.items() if key not in own}
    with session("checks", options.master, {**_TIDY, **shared}) as spark:
        rehearse(spark)

        @contextmanager
        def derive(name: str, check: Check, options: Options) -> Iterator[SparkSession]:
            needed = settings_of(check, options)
            if not suits(conf, needed):
                msg = f"the session that is kept lacks settings of {name}"
                raise UnsuitedSessionError(msg)
            derived = spark.newSession()
            for key, value in sql_settings(needed, options.conf).items():
                derived.conf.set(key, value)
            try:
                yield derived
            finally:
                derived.catalog.clearCache()  # all sessions of a JVM share it

        yield derive


def sql_settings(conf: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of SQL in `conf` that are a check's own, not given for all."""
    return {key: value for key, value in conf.items() if key.startswith(SESSION_SETTINGS) and key not in given}


def suits(conf: Mapping[str, str], needed: Mapping[str, str]) -> bool:
    """Return whether a check with settings of its own runs as well in a JVM that was started with `conf`.

    It does without QUICK_START, which a check has for the sake of the start only.
    """
    has_packages = set(packages(needed)) <= set(packages(conf))
    return has_packages and conf.get(JVM_OPTIONS) in (None, needed.get(JVM_OPTIONS))


def rehearse(spark: SparkSession) -> None:
    """Do once what all checks do: Spark loads most of its code, and starts Python workers, when it is first used."""

    def read(number: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([number])], schema=_REHEARSED)

    frame = map_shares(spark, range(2), read, _REHEARSED)
    frame.createOrReplaceTempView("numbers")
    spark.sql("SELECT number, count(*) AS many FROM numbers GROUP BY number ORDER BY number").toArrow()
    frame.groupBy("number").applyInArrow(lambda table: table, frame.schema).toArrow()
    spark.catalog.dropTempView("numbers")
