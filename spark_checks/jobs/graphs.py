"""Job graphs that no job needs, as joins in Spark: in ZooKeeper of ended jobs, in storage of no job at all.

Both are as of the last time a cluster was observed. What exists only for a moment, on the way in or out, is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from agent.model.observations.base import Observation, Subject, Unavailable
from agent.model.observations.flink import JobGraphFile
from agent.rules.queries.flink import REST, STORAGE, ZOOKEEPER
from spark_checks.jobs.runs import run_query


class LastSeen(NamedTuple):
    """Until when the agent observed a Flink cluster (ms), and whether that includes its graphs in ZooKeeper."""

    cluster: str
    at: int
    graphs: bool


class LeftoverGraph(NamedTuple):
    """A job graph still in ZooKeeper although its job has ended. made_at: its creation, ms; file: what it points to.

    locks: the sessions that own its lock nodes. session: the leader's; None without a leader or from REST only.
    """

    cluster: str
    job: str
    name: str
    ending: str
    ended_at: int
    made_at: int
    locks: Sequence[str]
    file: str | None
    session: str | None


class StrayFile(NamedTuple):
    """A graph file that no job graph points to. job, name, state: of its last known job, None if unknown.

    gone_at: when the graph that pointed to it was removed, ms.
    """

    cluster: str
    file: str
    modified_at: int
    size: int
    job: str | None
    gone_at: int | None
    name: str | None
    state: str | None


def find_last_seen(spark: SparkSession, last: int, availability: Iterable[Observation]) -> list[LastSeen]:
    """Return when each Flink cluster was last observed: at `last` (ms), or when it became unavailable."""
    unavailable: dict[Subject, tuple[str, int]] = {}
    for change in availability:
        if isinstance(change, Unavailable) and change.source in (REST, ZOOKEEPER, STORAGE):
            unavailable.setdefault(change.subject, (change.cluster, change.at))
        else:
            unavailable.pop(change.subject, None)
    return [
        LastSeen(
            row["cluster"],
            min([last, *(at for cluster, at in unavailable.values() if cluster == row["cluster"])]),
            row["graphs"],
        )
        for row in run_query(spark, _CLUSTERS)
    ]


def find_leftover_graphs(spark: SparkSession, seen: Iterable[LastSeen]) -> list[LeftoverGraph]:
    """Return the graphs that are still there a minute after their jobs ended, by that time.

    A graph created after the end belongs to the same job submitted again.
    """
    _create_views(spark, seen, {})
    return [LeftoverGraph(**row.asDict()) for row in run_query(spark, _LAST + _LEFTOVER_GRAPHS)]


def find_stray_files(
    spark: SparkSession, seen: Iterable[LastSeen], files: Mapping[str, Sequence[JobGraphFile]]
) -> list[StrayFile]:
    """Return the graph files that no graph has pointed to for a minute, by age.

    files: what is in the storage directory of a cluster; for other clusters the journal says. Left out: clusters whose
    ZooKeeper is not observed, or with a graph whose file is unknown; the file of a job that runs without a graph.
    """
    _create_views(spark, seen, files)
    return [StrayFile(**row.asDict()) for row in run_query(spark, _LAST + _STRAY_FILES)]


def _create_views(spark: SparkSession, seen: Iterable[LastSeen], files: Mapping[str, Sequence[JobGraphFile]]) -> None:
    listed = [
        (file.cluster, file.file, file.modified_at, file.size) for of_cluster in files.values() for file in of_cluster
    ]
    for name, values, columns in (
        ("seen", list(seen), "cluster string, `at` long, graphs boolean"),
        ("listed", listed, "cluster string, file string, modified_at long, size long"),
        ("storages", [(cluster,) for cluster in files], "cluster string"),
    ):
        spark.createDataFrame(values, columns).createOrReplaceTempView(name)


_CLUSTERS = """
SELECT cluster, bool_or(graphs) AS graphs FROM (
    SELECT cluster, false AS graphs FROM flink_job
    UNION ALL SELECT cluster, session IS NOT NULL FROM job_manager_leader
    UNION ALL SELECT cluster, true FROM job_graph
    UNION ALL SELECT cluster, false FROM job_graph_file
) GROUP BY cluster ORDER BY cluster
"""

_LAST = """
WITH jobs AS (
    SELECT cluster, job, last.* FROM (
        SELECT cluster, job, max_by(struct(name, state, coalesce(ended_at, `at`) AS ended_at, `at`), position) AS last
        FROM flink_job GROUP BY cluster, job
    )
), standing AS (
    SELECT cluster, job, last.* FROM (
        SELECT cluster, job, max_by(struct(made_at, locks, file), position) AS last
        FROM job_graph GROUP BY cluster, job
    ) WHERE last.made_at IS NOT NULL
), pointed AS (
    SELECT cluster, file, last.* FROM (
        SELECT cluster, file, max_by(struct(job, gone_at), position) AS last FROM (
            SELECT *, lead(`at`) OVER (PARTITION BY cluster, job ORDER BY position) AS gone_at FROM job_graph
        ) WHERE made_at IS NOT NULL AND file IS NOT NULL GROUP BY cluster, file
    )
), files AS (
    SELECT * FROM listed
    UNION ALL
    SELECT cluster, file, last.* FROM (
        SELECT cluster, file, max_by(struct(modified_at, size), position) AS last
        FROM job_graph_file GROUP BY cluster, file
    ) LEFT ANTI JOIN storages USING (cluster) WHERE last.modified_at IS NOT NULL
), sessions AS (
    SELECT cluster, max_by(struct(session), position).session AS session FROM job_manager_leader GROUP BY cluster
)
"""

_LEFTOVER_GRAPHS = """
SELECT cluster, job, name, state AS ending, ended_at, made_at, locks, file, session
FROM standing JOIN jobs USING (cluster, job) JOIN seen USING (cluster) LEFT JOIN sessions USING (cluster)
WHERE state IN {ended} AND made_at <= ended_at AND ended_at + {late} <= seen.`at`
ORDER BY ended_at, cluster, job
"""

_STRAY_FILES = """
SELECT files.*, pointed.job, gone_at, jobs.name, jobs.state
FROM files JOIN seen USING (cluster)
    LEFT ANTI JOIN standing ON standing.cluster = files.cluster AND coalesce(standing.file, files.file) = files.file
    LEFT JOIN pointed ON pointed.cluster = files.cluster AND pointed.file = files.file
    LEFT JOIN jobs ON jobs.cluster = pointed.cluster AND jobs.job = pointed.job
    LEFT JOIN standing AS other ON other.cluster = pointed.cluster AND other.job = pointed.job
WHERE seen.graphs AND modified_at + {late} <= seen.`at` AND coalesce(gone_at, 0) + {late} <= seen.`at`
    AND NOT coalesce(
        other.job IS NULL AND jobs.state NOT IN {ended} AND jobs.`at` >= seen.`at` - {fresh}, false
    )
ORDER BY modified_at, files.cluster, files.file
"""
