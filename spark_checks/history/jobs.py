"""What the journal tells of Flink's jobs, as windows in Spark: jobs that ended and came back, checkpoint ids that fell.

Job graphs and their files live in `job_graphs`; what stood around all this in `job_context`, sentences in `job_words`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Row, SparkSession

from agent.engine.facts import LATENESS_MS
from agent.rules.queries.flink import REST, STORAGE, ZOOKEEPER
from agent.sources.base import HEARTBEAT_MS
from agent.storage.journal.segments import FOREVER, UNREADABLE
from spark_checks.history.files import Piece, pieces, read, scan

COLUMNS: Mapping[str, str] = {
    "flink_job": "name string, state string, started_at long, ended_at long, job string",
    "checkpoints": "last long, restored_id long, restored_savepoint boolean, restored_path string, job string",
    "job_manager_leader": "address string, leader_id string, session string",
    "job_graph": "made_at long, locks array<string>, file string, job string",
    "job_graph_file": "file string, modified_at long, size long",
}
"""The kinds of observations that are read, each a view of its name, and the columns besides those of all of them."""

_FIGURES: Mapping[str, str | int] = {
    "ended": "('FINISHED', 'CANCELED', 'FAILED')",
    "late": LATENESS_MS,
    "fresh": 2 * HEARTBEAT_MS,
}
"""What queries name in braces. ended: the states from which a job does not go on by itself. late: how far facts of two
subjects may come apart, and so how long what should go at once may stay. fresh: a job of which nothing was told for so
long runs no more, whatever was told last. ms.
"""

_ALL = "cluster string, `at` long, since long, position long"


class Return(NamedTuple):
    """A job that had ended ran again. at: when that was seen; since: when it was last seen to have ended.

    ending: its state then; ended_at: when it had ended, noticed_at: when that was first seen. All times in ms.
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


class Restart(NamedTuple):
    """A job's last completed checkpoint, `new`, has a lower id than the one before it, `old`, in another execution.

    at, since: when the two were seen, ms. restored_id and what follows: what the execution was restored from, None
    where it was not. name: None where the journal does not tell it.
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


def clusters(directory: Path) -> Iterator[str]:
    """The Flink clusters that a journal names, as they are come across, again and again: of each kind the newest first.

    Those that the agent has never reached are among them. What cannot be read names none.
    """
    for kind in (*COLUMNS, "job_listing", "blind", "sighted"):
        names = ["cluster"] if kind not in ("blind", "sighted") else ["cluster", "source"]
        for piece in reversed(pieces(directory, kind, -FOREVER, FOREVER, lambda *_: None)):
            with suppress(*UNREADABLE):
                table = read(piece, names)
                for cluster, *source in set(zip(*(table[name].to_pylist() for name in names), strict=True)):
                    if not source or source[0] in (REST, ZOOKEEPER, STORAGE):
                        yield cluster


@contextmanager
def views(spark: SparkSession, every: Sequence[Piece], wanted: Sequence[str], since: int, until: int) -> Iterator[None]:
    """While the body runs, each kind of COLUMNS is a view: what was seen of the wanted Flink clusters (none: of all).

    since, until: ms; what was observed before or later is not in it.
    """
    frames = []
    for kind, columns in COLUMNS.items():
        schema = f"{_ALL}, {columns}"
        names = [column.split()[0].strip("`") for column in schema.split(", ")]
        only: dict[str, Sequence[Any]] = {"cluster": wanted} if wanted else {}
        told = [one for one in every if one.kind == kind]
        frame = scan(spark, told, schema, names, since=since, until=until, only=only)
        frame = frame.coalesce(spark.sparkContext.defaultParallelism).persist()
        frame.createOrReplaceTempView(kind)
        frames.append(frame)
    try:
        yield
    finally:
        for kind, frame in zip(COLUMNS, frames, strict=True):
            spark.catalog.dropTempView(kind)
            frame.unpersist()


def queried(spark: SparkSession, query: str) -> list[Row]:
    """What a query over the views yields."""
    return spark.sql(query.format(**_FIGURES)).collect()


def returns(spark: SparkSession) -> list[Return]:
    """The jobs that had ended and ran again under the same id, oldest first: each return once.

    A later execution has a later start: a JobManager that still tells of the one before makes no return.
    """
    return [Return(**row.asDict()) for row in queried(spark, _RETURNS)]


def restarts(spark: SparkSession) -> list[Restart]:
    """Where checkpoint ids fell from one execution of a job to the next, oldest first."""
    return [Restart(**row.asDict()) for row in queried(spark, _RESTARTS)]


# Facts of one subject come in order, whatever the agent's clock does: a job's windows go by position.
_RETURNS = """
WITH told AS (
    SELECT *, last_value(
        IF(state IN {ended}, struct(state, started_at, coalesce(ended_at, `at`) AS ended_at, `at`), NULL), true
    ) OVER (
        PARTITION BY cluster, job ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS ending
    FROM flink_job
), again AS (
    SELECT cluster, job, min_by(struct(name, state, `at`, since, started_at, ending), position) AS back
    FROM told WHERE started_at > ending.started_at AND state <> 'SUSPENDED'
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

# Of two readings in one execution the lower one is an old one, from another JobManager or its cache.
_RESTARTS = """
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
