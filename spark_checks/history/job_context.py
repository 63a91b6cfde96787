"""What stood around what became of a job: leader changes, its checkpoints and graph, other jobs. Joins in Spark."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from spark_checks.history.jobs import queried


class Moment(NamedTuple):
    """A stretch of time (ms) of a job, at the end of which something had become of it. job: empty for no job at all."""

    cluster: str
    job: str
    begin: int
    at: int


class Change(NamedTuple):
    """The leader changed by others. old, new: addresses, the same where one lost and regained its leadership."""

    at: int
    old: str
    new: str


class Beside(NamedTuple):
    """Another job that was there at the moment. first_at: when it was first seen; last: its last checkpoint others."""

    job: str
    name: str
    state: str
    first_at: int
    last: int | None


class Lineage(NamedTuple):
    """A job's checkpoints: the last id before the stretch, the first one after it, and what it was restored from.

    seen: whether anything was told of its checkpoints after the stretch. restored_id: None where it was not restored.
    """

    old: int | None
    new: int | None
    seen: bool
    restored_id: int | None
    restored_savepoint: bool
    restored_path: str | None


class Around(NamedTuple):
    """All of it. changes: oldest first; made_at: when the job's graph that then stood was made, None where none did."""

    changes: Sequence[Change]
    beside: Sequence[Beside]
    lineage: Lineage
    made_at: int | None


def around(spark: SparkSession, moments: Sequence[Moment]) -> list[Around]:
    """What stood around each of the moments."""
    if not moments:
        return []
    numbered = [(number, *one) for number, one in enumerate(moments)]
    schema = "number int, cluster string, job string, begin long, `at` long"
    spark.createDataFrame(numbered, schema).createOrReplaceTempView("moments")
    changes: dict[int, list[Change]] = defaultdict(list)
    for row in queried(spark, _CHANGES):
        changes[row["number"]].append(Change(row["at"], row["old"], row["new"]))
    beside: dict[int, list[Beside]] = defaultdict(list)
    for row in queried(spark, _BESIDE):
        beside[row["number"]].append(Beside(row["job"], row["name"], row["state"], row["first_at"], row["last"]))
    lineages = {
        row["number"]: Lineage(row["old"], row["new"], row["seen"], *(row["restored"] or (None, False, None)))
        for row in queried(spark, _LINEAGES)
    }
    graphs = {row["number"]: row["made_at"] for row in queried(spark, _GRAPHS)}
    return [
        Around(changes[number], beside[number], lineages[number], graphs.get(number)) for number in range(len(moments))
    ]


# ZooKeeper and REST may name one leader by two addresses: where there are ids, only what bears one is compared.
_CHANGES = """
WITH leaders AS (
    SELECT *, max(leader_id IS NOT NULL) OVER (PARTITION BY cluster) AS with_ids
    FROM job_manager_leader WHERE address IS NOT NULL
), changes AS (
    SELECT *, lag(struct(address, leader_id)) OVER (PARTITION BY cluster ORDER BY position) AS before
    FROM leaders WHERE with_ids = (leader_id IS NOT NULL)
)
SELECT number, changes.`at`, before.address AS old, address AS new
FROM moments JOIN changes
ON changes.cluster = moments.cluster AND changes.`at` BETWEEN moments.begin AND moments.`at` + {late}
    AND (CASE WHEN with_ids THEN before.leader_id <> leader_id ELSE before.address <> address END)
ORDER BY number, changes.position
"""

# A job of which nothing has been told for long had gone without a word.
_BESIDE = """
WITH others AS (
    SELECT number, flink_job.cluster, flink_job.job, min(flink_job.`at`) AS first_at,
        max_by(struct(name, state, flink_job.`at`), position) AS last
    FROM moments JOIN flink_job ON flink_job.cluster = moments.cluster AND flink_job.job <> moments.job
        AND flink_job.`at` <= moments.`at` + {late}
    GROUP BY number, flink_job.cluster, flink_job.job
), checkpointed AS (
    SELECT number, checkpoints.cluster, checkpoints.job, max_by(last, position) AS last
    FROM moments JOIN checkpoints ON checkpoints.cluster = moments.cluster AND last IS NOT NULL
        AND checkpoints.`at` <= moments.`at`
    GROUP BY number, checkpoints.cluster, checkpoints.job
)
SELECT others.number, others.job, others.last.name, others.last.state, first_at, checkpointed.last
FROM others JOIN moments ON moments.number = others.number
    LEFT JOIN checkpointed
    ON checkpointed.number = others.number AND checkpointed.cluster = others.cluster AND checkpointed.job = others.job
WHERE others.last.state NOT IN {ended} AND others.last.state <> 'SUSPENDED'
    AND others.last.`at` >= moments.`at` - {fresh}
ORDER BY others.number, first_at DESC, others.job
"""

# What is restored shows a while after the start, and stays: the first reading that tells of a checkpoint counts.
_LINEAGES = """
SELECT number,
    max_by(last, position) FILTER (WHERE last IS NOT NULL AND told <= begin) AS old,
    min_by(last, position) FILTER (WHERE last IS NOT NULL AND told >= moments.`at`) AS new,
    min_by(struct(restored_id, restored_savepoint, restored_path), position) FILTER (
        WHERE told >= moments.`at` AND (last IS NOT NULL OR restored_id IS NOT NULL)
    ) AS restored,
    coalesce(bool_or(told >= moments.`at`), false) AS seen
FROM moments LEFT JOIN (SELECT *, `at` AS told FROM checkpoints) AS checkpoints
    ON checkpoints.cluster = moments.cluster AND checkpoints.job = moments.job
GROUP BY number
"""

_GRAPHS = """
SELECT number, max_by(struct(made_at), position).made_at AS made_at
FROM moments JOIN job_graph ON job_graph.cluster = moments.cluster AND job_graph.job = moments.job
    AND job_graph.`at` <= moments.`at` + {late}
GROUP BY number
"""
