"""A Spark session that outlives a check: those of later checks share its JVM, each with settings of SQL of its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from spark_checks.command import OpenSession, progress, settings_of
from spark_checks.jars import packages
from spark_checks.options import SESSION_SETTINGS, Check, Options
from spark_checks.session import JVM_OPTIONS, session


class UnsuitedSessionError(Exception):
    """A check needs settings that the session does not have."""


@contextmanager
def kept_session(first: Check | None, options: Options) -> Iterator[OpenSession]:
    """Start Spark, with settings for the first check, and provide sessions that share its JVM."""
    progress("starting Spark")
    conf = dict(options.conf) if first is None else settings_of(first, options)
    own = {key for key in conf if key.startswith(SESSION_SETTINGS) and key not in options.conf}
    with session("checks", options.master, {key: value for key, value in conf.items() if key not in own}) as spark:

        @contextmanager
        def derive(name: str, check: Check, options: Options) -> Iterator[SparkSession]:
            needed = settings_of(check, options)
            if not suits(conf, needed):
                msg = f"the session that is kept lacks settings of {name}"
                raise UnsuitedSessionError(msg)
            derived = spark.newSession()
            for key in needed:
                if key.startswith(SESSION_SETTINGS) and key not in options.conf:
                    derived.conf.set(key, needed[key])
            try:
                yield derived
            finally:
                derived.catalog.clearCache()  # shared by all sessions of a JVM

        yield derive


def suits(conf: Mapping[str, str], needed: Mapping[str, str]) -> bool:
    """Return whether a check with settings of its own runs as well in a JVM that was started with `conf`.

    It does without QUICK_START, which a check has for the sake of the start only.
    """
    has_packages = set(packages(needed)) <= set(packages(conf))
    return has_packages and conf.get(JVM_OPTIONS) in (None, needed.get(JVM_OPTIONS))
