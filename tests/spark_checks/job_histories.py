"""Flink histories drawn by seed with the expected findings: each scenario has its own cluster."""

import random
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from agent.model.observations.base import Observation, Tick, Unavailable
from tests.spark_checks.job_clusters import BEGIN, END, POLL, Cluster, Expected, Job

CRITICAL, WARNING, INFO = "critical", "warning", "info"


def steady(cluster: Cluster) -> None:
    """Restore jobs at failovers and end them cleanly."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.fail_over()
    cluster.pass_minutes()
    cluster.end(job)


def resurrected(cluster: Cluster) -> None:
    """FLINK-10011: leave the graph behind, so that the next leader runs the job beside its successor without state."""
    job = back_from_the_dead(cluster)
    cluster.expect(
        job.job, CRITICAL, "came_back", "after_leader_change", "old_graph", "not_restored", "lineage_restarted"
    )
    cluster.pass_minutes()
    if cluster.chance.random() < 0.5:
        cluster.fail_over()
        cluster.pass_minutes()
    cluster.end(job)


def starved(cluster: Cluster) -> None:
    """Resurrect a job that gets no slots and completes no checkpoint."""
    job = back_from_the_dead(cluster)
    job.state = "RESTARTING"
    cluster.expect(job.job, CRITICAL, "came_back", "after_leader_change", "old_graph", "not_restored")
    cluster.pass_minutes()
    cluster.end(job)


def back_from_the_dead(cluster: Cluster) -> Job:
    """End a job but keep its graph; after a failover it runs beside its successor."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.end(job, graph=True)
    cluster.pass_minutes()
    cluster.submit("orders")
    cluster.pass_minutes()
    cluster.fail_over()
    cluster.start(job, None)
    return job


def came_and_went(cluster: Cluster) -> None:
    """Resurrect a job that fails between two polls; its graph stays."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.end(job, graph=True)
    cluster.pass_minutes()
    cluster.fail_over()
    cluster.start(job, None)
    job.state, job.ended_at = "FAILED", cluster.now - 100
    cluster.expect(job.job, CRITICAL, "came_back", "after_leader_change", "old_graph", "not_restored")
    cluster.expect(job.job, WARNING, "graph_of_ended_job", "foreign_lock")


def put_back(cluster: Cluster) -> None:
    """Write the graph again, so that the leader runs the job at once."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.end(job)
    cluster.pass_minutes()
    cluster.write_graph(job)
    cluster.start(job, None)
    cluster.expect(job.job, CRITICAL, "came_back", "new_graph", "not_restored", "lineage_restarted")
    cluster.pass_minutes()


def submitted_again(cluster: Cluster) -> None:
    """Stop a job with a savepoint and start it again under the same id."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    last = job.last or 0
    cluster.end(job)
    cluster.pass_minutes()
    cluster.write_graph(job)
    cluster.start(job, (last + 1, cluster.now, True))
    cluster.expect(job.job, INFO, "came_back", "new_graph", "savepoint_restore", "submitted_again")
    cluster.pass_minutes()


def suspended(cluster: Cluster) -> None:
    """Suspend a job at a leader change; the next leader takes it over."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    job.state = "SUSPENDED"
    cluster.until(cluster.now + 30_000)
    cluster.fail_over()
    cluster.pass_minutes()


def stale_job(cluster: Cluster) -> None:
    """Report an ended job as running once more, as a cache or another JobManager does."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.end(job)
    cluster.until(cluster.now + POLL)
    state, ended_at = job.state, job.ended_at
    job.state, job.ended_at = "RUNNING", None
    cluster.until(cluster.now + POLL)
    job.state, job.ended_at = state, ended_at


def graph_stays(cluster: Cluster) -> None:
    """Leave a graph behind, locked by the leader's session or a former one."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    labels = ["graph_of_ended_job"]
    if cluster.chance.random() < 0.5:
        cluster.fail_over()
        labels.append("foreign_lock")
    cluster.end(job, graph=True)
    cluster.expect(job.job, WARNING, *labels)


def graph_goes_late(cluster: Cluster) -> None:
    """Remove a graph late; another job ended too recently to report."""
    job, other = cluster.submit("orders"), cluster.submit("other")
    cluster.pass_minutes()
    cluster.end(job, graph=True)
    cluster.pass_minutes()
    cluster.remove(job)
    cluster.until(END - 40_000)
    cluster.end(other, graph=True)


def lineage_lost(cluster: Cluster) -> None:
    """Restore nothing at a failover, despite completed checkpoints."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.fail_over(job)
    cluster.expect(job.job, WARNING, "lineage_restarted", "after_leader_change", "not_restored")
    cluster.pass_minutes()


def taken_back(cluster: Cluster) -> None:
    """Restart from an older savepoint or checkpoint without reporting an end."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.pass_minutes()
    savepoint = cluster.chance.random() < 0.5
    cluster.start(job, (1, cluster.now, savepoint))
    cluster.expect(job.job, INFO, "lineage_restarted", "savepoint_restore" if savepoint else "checkpoint_restore")
    cluster.pass_minutes()


def stale_checkpoint(cluster: Cluster) -> None:
    """Report the previous checkpoint once more, as a cache does."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    completed, last, job.due = job.completed, job.last or 0, cluster.now + 3 * POLL
    job.completed, job.last = completed - 1, last - 1
    cluster.until(cluster.now + POLL)
    job.completed, job.last = completed, last
    cluster.pass_minutes()


def file_stays(cluster: Cluster) -> None:
    """Remove the graph but not its file."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.expect(cluster.file_of(job), WARNING, "graph_without_job")
    cluster.end(job, file=True)


def old_files(cluster: Cluster) -> None:
    """Leave old files behind; remove one in time; write one just before the end."""
    for _ in range(cluster.chance.randrange(1, 4)):
        file = cluster.write_file(BEGIN - cluster.chance.randrange(90 * 86_400_000))
        cluster.expect(file, WARNING, "graph_without_job")
    removed = cluster.write_file(BEGIN - 5_000)
    cluster.pass_minutes()
    cluster.remove_file(removed)
    cluster.until(END - 40_000)
    cluster.write_file(cluster.now)


def graph_replaced(cluster: Cluster) -> None:
    """Write the graph again to another file; the old file stays."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.expect(cluster.file_of(job), WARNING, "graph_without_job")
    cluster.write_graph(job)


def graph_missing(cluster: Cluster) -> None:
    """Run a job without a graph: its file must not be reported."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.remove(job, file=True)


def file_unknown(cluster: Cluster) -> None:
    """Hide which file a graph points to: it may be any."""
    job = cluster.submit("orders")
    cluster.graphs[job.job] = replace(cluster.graphs[job.job], file=None)


def unavailable(cluster: Cluster) -> None:
    """Make the cluster unavailable just after a job ended."""
    job = cluster.submit("orders")
    cluster.pass_minutes()
    cluster.end(job, graph=True)
    cluster.until(cluster.now + 30_000)
    cluster.observations.append(Unavailable(at=cluster.now, source="flink", cluster=cluster.name, reason="it hangs"))
    cluster.available = False


SCENARIOS: tuple[Callable[[Cluster], None], ...] = (
    steady, resurrected, starved, came_and_went, put_back, submitted_again, suspended, stale_job, graph_stays,
    graph_goes_late, lineage_lost, taken_back, stale_checkpoint, file_stays, old_files, graph_replaced, graph_missing,
    file_unknown, unavailable,
)  # fmt: skip


class History(NamedTuple):
    """Clusters and their observations, in order of arrival."""

    clusters: list[Cluster]
    observations: list[Observation]

    @property
    def expected(self) -> list[Expected]:
        """Return the expected findings."""
        return [expected_finding for cluster in self.clusters for expected_finding in cluster.expected]


def drawn(seed: int, times: int = 2) -> History:
    """Return every scenario `times` times, and stray files of a cluster without ZooKeeper, which are unknowable."""
    chance = random.Random(seed)  # noqa: S311 - drawn by seed so that a run can be repeated
    clusters = []
    for number in range(times):
        for scenario in SCENARIOS:
            cluster = Cluster(chance, f"{scenario.__name__}-{number}")
            scenario(cluster)
            cluster.until(END)
            clusters.append(cluster)
    hidden = Cluster(chance, "without-zookeeper", zookeeper=False)
    old_files(hidden)
    hidden.until(END)
    hidden.expected.clear()
    clusters.append(hidden)
    ticks = (Tick(at=at) for at in range(BEGIN, END, 5_000))
    observations = [*ticks, *(observation for cluster in clusters for observation in cluster.observations)]
    return History(clusters, sorted(observations, key=lambda observation: observation.at))
