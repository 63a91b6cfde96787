"""Runs of Flink jobs in the journal, as windows in Spark: jobs that came back, checkpoint ids that decreased."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from pyspark.sql import Row, SparkSession

from agent.engine.history import LATENESS_MS
from agent.rules.queries.flink import REST, STORAGE, ZOOKEEPER
from agent.sources.base import HEARTBEAT_MS
from agent.storage.journal.places import Place
from agent.storage.journal.segments import FOREVER, UNREADABLE
from spark_checks.journal.files import DamagedFiles, Piece, find_pieces, read, scan
from spark_checks.shares import cores

COLUMNS: Mapping[str, Sequence[str]] = {
    "flink_job": ("name", "state", "started_at", "ended_at", "job"),
    "checkpoints": ("last", "restored_id", "restored_savepoint", "restored_path", "job"),
    "job_manager_leader": ("address", "leader_id", "session"),
    "job_graph": ("made_at", "locks", "file", "job"),
    "job_graph_file": ("file", "modified_at", "size"),
}
"""The kinds of observations that are read, each a view of its name, with its columns besides those of all of them."""

_FIGURES: Mapping[str, str | int] = {
    "ended": "('FINISHED', 'CANCELED', 'FAILED')",
    "late": LATENESS_MS,
    "fresh": 2 * HEARTBEAT_MS,
}
"""Values for the braces in queries, times in ms.

ended: the states that a job does not leave by itself. late: the allowed lateness between two subjects, and so how long
something may stay that should be removed at once. fresh: a job not observed for so long no longer runs.
"""

_ALL = ("cluster", "at", "since", "position")


class Resurrection(NamedTuple):
    """A job that had ended and ran again, observed at `at`; last observed as ended at `since`. Times in ms.

    ending: its final state; ended_at: when it ended; noticed_at: when that was first observed.
    """

    cluster: str
    job: str
    name: str
    state: str
    at: int
    since: int | None
    started_at: int
    ending: str
    ended_at: int
    noticed_at: int


class LineageRestart(NamedTuple):
    """A job's last completed checkpoint, `new`, has a lower id than `old`, the one before, in another execution.

    at, since: when the two were observed, ms. restored_*: what the execution was restored from, None if from nothing.
    name: None if the journal does not have it.
    """

    cluster: str
    job: str
    name: str | None
    at: int
    since: int
    old: int
    new: int
    restored_id: int | None
    restored_savepoint: bool
    restored_path: str | None


def clusters(journal: Place) -> Iterator[str]:
    """Yield the Flink clusters named in a journal as they are found, with repetitions, of each kind the newest first.

    Includes clusters that the agent has never reached. Skips what cannot be read.
    """
    for kind in (*COLUMNS, "job_listing", "blind", "sighted"):
        names = ["cluster"] if kind not in ("blind", "sighted") else ["cluster", "source"]
        for piece in reversed(find_pieces(journal, kind, -FOREVER, FOREVER, lambda *_: None)):
            with suppress(*UNREADABLE):
                table = read(piece, names)
                for cluster, *source in set(zip(*(table[name].to_pylist() for name in names), strict=True)):
                    if not source or source[0] in (REST, ZOOKEEPER, STORAGE):
                        yield cluster


@contextmanager
def create_views(
    spark: SparkSession,
    pieces: Sequence[Piece],
    wanted: Sequence[str],
    since: int,
    until: int,
    *,
    damaged: DamagedFiles,
) -> Iterator[None]:
    """Provide a view of each kind in COLUMNS while the body runs, of the wanted Flink clusters (none: of all).

    since, until: bounds of the observations, ms. damaged: files that are left out.
    """
    frames = []
    for kind, columns in COLUMNS.items():
        only: dict[str, Sequence[Any]] = {"cluster": wanted} if wanted else {}
        of_kind = [piece for piece in pieces if piece.kind == kind]
        names = (*_ALL, *columns)
        frame = scan(spark, kind, of_kind, names, since=since, until=until, only=only, damaged=damaged)
        frame = frame.coalesce(cores(spark)).persist()
        frame.createOrReplaceTempView(kind)
        frames.append(frame)
    try:
        yield
    finally:
        for kind, frame in zip(COLUMNS, frames, strict=True):
            spark.catalog.dropTempView(kind)
            frame.unpersist()


def run_query(spark: SparkSession, query: str) -> list[Row]:
    """Return the rows of a query over the views."""
    return spark.sql(query.format(**_FIGURES)).collect()


def find_resurrections(spark: SparkSession) -> list[Resurrection]:
    """Return the jobs that had ended and ran again under the same id, oldest first, each once.

    A later execution has a later start: a JobManager that still reports the one before does not count.
    """
    return [Resurrection(**row.asDict()) for row in run_query(spark, _RESURRECTIONS)]


def find_lineage_restarts(spark: SparkSession) -> list[LineageRestart]:
    """Return where checkpoint ids decreased from one execution of a job to the next, oldest first."""
    return [LineageRestart(**row.asDict()) for row in run_query(spark, _LINEAGE_RESTARTS)]


# Observations of one subject arrive in order, whatever the agent's clock does: a job's windows go by position.
_RESURRECTIONS = """
WITH runs AS (
    SELECT *, last_value(
        IF(state IN {ended}, struct(state, started_at, coalesce(ended_at, `at`) AS ended_at, `at`), NULL), true
    ) OVER (
        PARTITION BY cluster, job ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS ending
    FROM flink_job
), again AS (
    SELECT cluster, job, min_by(struct(name, state, `at`, since, started_at, ending), position) AS back
    FROM runs WHERE started_at > ending.started_at AND state <> 'SUSPENDED'
    GROUP BY cluster, job, ending.started_at
), noticed AS (
    SELECT cluster, job, started_at, min(`at`) AS noticed_at FROM flink_job WHERE state IN {ended}
    GROUP BY cluster, job, started_at
)
SELECT again.cluster, again.job, back.name, back.state, back.`at`, back.since, back.started_at,
    back.ending.state AS ending, back.ending.ended_at, noticed_at
FROM again JOIN noticed ON noticed.cluster = again.cluster AND noticed.job = again.job
    AND noticed.started_at = back.ending.started_at
ORDER BY back.`at`, again.cluster, again.job
"""

# Of two readings in one execution the lower one is outdated, from another JobManager or its cache.
_LINEAGE_RESTARTS = """
WITH executions AS (
    SELECT cluster, job, `at`, position, started_at, name, NULL AS reading FROM flink_job
    UNION ALL
    SELECT cluster, job, `at`, position, NULL, NULL, struct(last, restored_id, restored_savepoint, restored_path)
    FROM checkpoints WHERE last IS NOT NULL
), timed AS (
    SELECT *,
        max(started_at) OVER (PARTITION BY cluster, job ORDER BY `at`) AS started_before,
        max(started_at) OVER (
            PARTITION BY cluster, job ORDER BY `at` RANGE BETWEEN UNBOUNDED PRECEDING AND {late} FOLLOWING
        ) AS started_by,
        max_by(name, IF(name IS NULL, NULL, position)) OVER (PARTITION BY cluster, job) AS job_name
    FROM executions
), readings AS (
    SELECT *, lag(struct(`at`, reading.last, started_before)) OVER (
        PARTITION BY cluster, job ORDER BY position
    ) AS before
    FROM timed WHERE reading IS NOT NULL
)
SELECT cluster, job, job_name AS name, `at`, before.`at` AS since, before.last AS old, reading.last AS new,
    reading.restored_id, reading.restored_savepoint, reading.restored_path
FROM readings WHERE reading.last < before.last AND coalesce(started_by > before.started_before, true)
ORDER BY `at`, cluster, job
"""
