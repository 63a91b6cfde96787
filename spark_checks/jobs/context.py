"""What the journal says around a job or graph: leader changes, checkpoints, its graph, other jobs. Joins in Spark."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from spark_checks.jobs.runs import run_query


class Occurrence(NamedTuple):
    """An interval (ms) of a job, at the end of which something happened to it. job: empty for no job at all."""

    cluster: str
    job: str
    begin: int
    at: int


class LeaderChange(NamedTuple):
    """Leadership changed. old, new: addresses, the same if one JobManager lost and regained it."""

    at: int
    old: str
    new: str


class OtherJob(NamedTuple):
    """Another job at that time. first_at: when it was first observed, ms; last: its last checkpoint."""

    job: str
    name: str
    state: str
    first_at: int
    last: int | None


class Lineage(NamedTuple):
    """A job's checkpoints: the last id before the interval, the first after it, and what it was restored from.

    seen: whether its checkpoints were observed after the interval. restored_id: None if nothing was restored.
    """

    old: int | None
    new: int | None
    seen: bool
    restored_id: int | None
    restored_savepoint: bool
    restored_path: str | None


class Context(NamedTuple):
    """What happened around an occurrence. changes: oldest first; made_at: when the job's graph of then was created."""

    changes: Sequence[LeaderChange]
    others: Sequence[OtherJob]
    lineage: Lineage
    made_at: int | None


def read_context(spark: SparkSession, occurrences: Sequence[Occurrence]) -> list[Context]:
    """Return the context of each occurrence."""
    if not occurrences:
        return []
    numbered = [(number, *occurrence) for number, occurrence in enumerate(occurrences)]
    schema = "number int, cluster string, job string, begin long, `at` long"
    spark.createDataFrame(numbered, schema).createOrReplaceTempView("occurrences")
    changes: dict[int, list[LeaderChange]] = defaultdict(list)
    for row in run_query(spark, _LEADER_CHANGES):
        changes[row["number"]].append(LeaderChange(row["at"], row["old"], row["new"]))
    others: dict[int, list[OtherJob]] = defaultdict(list)
    for row in run_query(spark, _OTHER_JOBS):
        others[row["number"]].append(OtherJob(row["job"], row["name"], row["state"], row["first_at"], row["last"]))
    lineages = {
        row["number"]: Lineage(row["old"], row["new"], row["seen"], *(row["restored"] or (None, False, None)))
        for row in run_query(spark, _LINEAGES)
    }
    graphs = {row["number"]: row["made_at"] for row in run_query(spark, _GRAPHS)}
    return [
        Context(changes[number], others[number], lineages[number], graphs.get(number))
        for number in range(len(occurrences))
    ]


# ZooKeeper and REST may give one leader two addresses: if there are ids, only observations with an id are compared.
_LEADER_CHANGES = """
WITH leaders AS (
    SELECT *, max(leader_id IS NOT NULL) OVER (PARTITION BY cluster) AS with_ids
    FROM job_manager_leader WHERE address IS NOT NULL
), changes AS (
    SELECT *, lag(struct(address, leader_id)) OVER (PARTITION BY cluster ORDER BY position) AS before
    FROM leaders WHERE with_ids = (leader_id IS NOT NULL)
)
SELECT number, changes.`at`, before.address AS old, address AS new
FROM occurrences JOIN changes
ON changes.cluster = occurrences.cluster AND changes.`at` BETWEEN occurrences.begin AND occurrences.`at` + {late}
    AND (CASE WHEN with_ids THEN before.leader_id <> leader_id ELSE before.address <> address END)
ORDER BY number, changes.position
"""

# A job that has not been observed for long disappeared unnoticed.
_OTHER_JOBS = """
WITH others AS (
    SELECT number, flink_job.cluster, flink_job.job, min(flink_job.`at`) AS first_at,
        max_by(struct(name, state, flink_job.`at`), position) AS last
    FROM occurrences JOIN flink_job ON flink_job.cluster = occurrences.cluster AND flink_job.job <> occurrences.job
        AND flink_job.`at` <= occurrences.`at` + {late}
    GROUP BY number, flink_job.cluster, flink_job.job
), checkpointed AS (
    SELECT number, checkpoints.cluster, checkpoints.job, max_by(last, position) AS last
    FROM occurrences JOIN checkpoints ON checkpoints.cluster = occurrences.cluster AND last IS NOT NULL
        AND checkpoints.`at` <= occurrences.`at`
    GROUP BY number, checkpoints.cluster, checkpoints.job
)
SELECT others.number, others.job, others.last.name, others.last.state, first_at, checkpointed.last
FROM others JOIN occurrences ON occurrences.number = others.number
    LEFT JOIN checkpointed
    ON checkpointed.number = others.number AND checkpointed.cluster = others.cluster AND checkpointed.job = others.job
WHERE others.last.state NOT IN {ended} AND others.last.state <> 'SUSPENDED'
    AND others.last.`at` >= occurrences.`at` - {fresh}
ORDER BY others.number, first_at DESC, others.job
"""

# What was restored shows a while after the start, and stays: the first reading with a checkpoint counts.
_LINEAGES = """
SELECT number,
    max_by(last, position) FILTER (WHERE last IS NOT NULL AND read_at <= begin) AS old,
    min_by(last, position) FILTER (WHERE last IS NOT NULL AND read_at >= occurrences.`at`) AS new,
    min_by(struct(restored_id, restored_savepoint, restored_path), position) FILTER (
        WHERE read_at >= occurrences.`at` AND (last IS NOT NULL OR restored_id IS NOT NULL)
    ) AS restored,
    coalesce(bool_or(read_at >= occurrences.`at`), false) AS seen
FROM occurrences LEFT JOIN (SELECT *, `at` AS read_at FROM checkpoints) AS checkpoints
    ON checkpoints.cluster = occurrences.cluster AND checkpoints.job = occurrences.job
GROUP BY number
"""

_GRAPHS = """
SELECT number, max_by(struct(made_at), position).made_at AS made_at
FROM occurrences JOIN job_graph ON job_graph.cluster = occurrences.cluster AND job_graph.job = occurrences.job
    AND job_graph.`at` <= occurrences.`at` + {late}
GROUP BY number
"""
