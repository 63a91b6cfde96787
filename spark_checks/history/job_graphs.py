"""Job graphs that nobody needs, as joins in Spark: in ZooKeeper of jobs that have ended, in storage of no job at all.

Both are told as of a cluster's last look: what stands there for a moment only, on the way in or out, is no finding.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from agent.model.observations import JobGraphFile, Observation, Subject, Unavailable
from agent.rules.queries.flink import REST, STORAGE, ZOOKEEPER
from spark_checks.history.jobs import queried


class Look(NamedTuple):
    """Until when the agent saw a Flink cluster (ms), and whether it saw what stands in ZooKeeper."""

    cluster: str
    at: int
    graphs: bool


class Kept(NamedTuple):
    """A job has ended, and its graph still stands in ZooKeeper. made_at: since when, ms; file: what it points to.

    locks: the sessions that own its lock nodes; session: the leader's, None where nobody leads or only REST tells.
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


class Orphan(NamedTuple):
    """A graph file to which no job graph points. job and what follows: whose it was, None where nobody saw that.

    gone_at: when the graph that pointed to it was seen to be gone. state: the job's last.
    """

    cluster: str
    file: str
    modified_at: int
    size: int
    job: str | None
    gone_at: int | None
    name: str | None
    state: str | None


def seen_until(spark: SparkSession, last: int, sights: Iterable[Observation]) -> list[Look]:
    """Each Flink cluster's last look: `last` (ms) or, where the source has not seen it since, when it went blind."""
    blind: dict[Subject, tuple[str, int]] = {}
    for one in sights:
        if isinstance(one, Unavailable) and one.source in (REST, ZOOKEEPER, STORAGE):
            blind.setdefault(one.subject, (one.cluster, one.at))
        else:
            blind.pop(one.subject, None)
    return [
        Look(
            row["cluster"],
            min([last, *(at for cluster, at in blind.values() if cluster == row["cluster"])]),
            row["graphs"],
        )
        for row in queried(spark, _CLUSTERS)
    ]


def kept(spark: SparkSession, looks: Iterable[Look]) -> list[Kept]:
    """The graphs that still stand a minute after their jobs have ended, by their ends.

    One that was made after the end is of the same job submitted again.
    """
    _view(spark, looks, {})
    return [Kept(**row.asDict()) for row in queried(spark, _LAST + _KEPT)]


def orphans(spark: SparkSession, looks: Iterable[Look], files: Mapping[str, Sequence[JobGraphFile]]) -> list[Orphan]:
    """The graph files to which no graph has pointed for a minute, by age.

    files: what lies in the storage directory of a cluster; of others the journal tells. Not judged: clusters whose
    ZooKeeper is not seen, or with a graph of which nobody knows the file; the file of a job that runs without a graph.
    """
    _view(spark, looks, files)
    return [Orphan(**row.asDict()) for row in queried(spark, _LAST + _ORPHANS)]


def _view(spark: SparkSession, looks: Iterable[Look], files: Mapping[str, Sequence[JobGraphFile]]) -> None:
    lying = [(one.cluster, one.file, one.modified_at, one.size) for ones in files.values() for one in ones]
    for name, values, columns in (
        ("looks", list(looks), "cluster string, `at` long, graphs boolean"),
        ("listed", lying, "cluster string, file string, modified_at long, size long"),
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

_KEPT = """
SELECT cluster, job, name, state AS ending, ended_at, made_at, locks, file, session
FROM standing JOIN jobs USING (cluster, job) JOIN looks USING (cluster) LEFT JOIN sessions USING (cluster)
WHERE state IN {ended} AND made_at <= ended_at AND ended_at + {late} <= looks.`at`
ORDER BY ended_at, cluster, job
"""

_ORPHANS = """
SELECT files.*, pointed.job, gone_at, jobs.name, jobs.state
FROM files JOIN looks USING (cluster)
    LEFT ANTI JOIN standing ON standing.cluster = files.cluster AND coalesce(standing.file, files.file) = files.file
    LEFT JOIN pointed ON pointed.cluster = files.cluster AND pointed.file = files.file
    LEFT JOIN jobs ON jobs.cluster = pointed.cluster AND jobs.job = pointed.job
    LEFT JOIN standing AS other ON other.cluster = pointed.cluster AND other.job = pointed.job
WHERE looks.graphs AND modified_at + {late} <= looks.`at` AND coalesce(gone_at, 0) + {late} <= looks.`at`
    AND NOT coalesce(
        other.job IS NULL AND jobs.state NOT IN {ended} AND jobs.`at` >= looks.`at` - {fresh}, false
    )
ORDER BY modified_at, files.cluster, files.file
"""
