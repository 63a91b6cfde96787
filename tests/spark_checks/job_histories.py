"""Histories of Flink clusters, drawn by seed, and what must be found in them: each scenario has its own cluster."""

import random
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from agent.model.observations import Observation, Tick, Unavailable
from tests.spark_checks.job_clusters import BEGIN, END, POLL, Cluster, Expected, Job

CRITICAL, WARNING, INFO = "critical", "warning", "info"


def calm(cluster: Cluster) -> None:
    """Jobs are restored at failovers, and end as they should."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.fail_over()
    cluster.some()
    cluster.end(job)


def resurrected(cluster: Cluster) -> None:
    """FLINK-10011: its graph outlives it, and the next leader runs it beside its successor, from nothing."""
    job = back_from_the_dead(cluster)
    cluster.expect(
        job.job, CRITICAL, "came_back", "after_leader_change", "old_graph", "not_restored", "lineage_restarted"
    )
    cluster.some()
    if cluster.chance.random() < 0.5:
        cluster.fail_over()
        cluster.some()
    cluster.end(job)


def starved(cluster: Cluster) -> None:
    """Likewise, but it gets no slots and completes no checkpoint."""
    job = back_from_the_dead(cluster)
    job.state = "RESTARTING"
    cluster.expect(job.job, CRITICAL, "came_back", "after_leader_change", "old_graph", "not_restored")
    cluster.some()
    cluster.end(job)


def back_from_the_dead(cluster: Cluster) -> Job:
    """A job ends and keeps its graph, its successor runs, and at a failover both do."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.end(job, graph=True)
    cluster.some()
    cluster.submit("orders")
    cluster.some()
    cluster.fail_over()
    cluster.start(job, None)
    return job


def came_and_went(cluster: Cluster) -> None:
    """It ran again between two polls only, and failed; its graph stays."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.end(job, graph=True)
    cluster.some()
    cluster.fail_over()
    cluster.start(job, None)
    job.state, job.ended_at = "FAILED", cluster.now - 100
    cluster.expect(job.job, CRITICAL, "came_back", "after_leader_change", "old_graph", "not_restored")
    cluster.expect(job.job, WARNING, "graph_of_ended_job", "foreign_lock")


def put_back(cluster: Cluster) -> None:
    """Somebody put its graph back, and the leader runs it at once."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.end(job)
    cluster.some()
    cluster.write_graph(job)
    cluster.start(job, None)
    cluster.expect(job.job, CRITICAL, "came_back", "new_graph", "not_restored", "lineage_restarted")
    cluster.some()


def submitted_again(cluster: Cluster) -> None:
    """A fixed job id: it is stopped with a savepoint and started again from it."""
    job = cluster.submit("orders")
    cluster.some()
    last = job.last or 0
    cluster.end(job)
    cluster.some()
    cluster.write_graph(job)
    cluster.start(job, (last + 1, cluster.now, True))
    cluster.expect(job.job, INFO, "came_back", "new_graph", "savepoint_restore", "submitted_again")
    cluster.some()


def suspended(cluster: Cluster) -> None:
    """A leader that goes suspends it; the next one takes it over."""
    job = cluster.submit("orders")
    cluster.some()
    job.state = "SUSPENDED"
    cluster.until(cluster.now + 30_000)
    cluster.fail_over()
    cluster.some()


def stale_job(cluster: Cluster) -> None:
    """A cache, or another JobManager, tells once more that it runs."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.end(job)
    cluster.until(cluster.now + POLL)
    state, ended_at = job.state, job.ended_at
    job.state, job.ended_at = "RUNNING", None
    cluster.until(cluster.now + POLL)
    job.state, job.ended_at = state, ended_at


def graph_stays(cluster: Cluster) -> None:
    """Its graph stays, with a lock of the leader's session or of a former one."""
    job = cluster.submit("orders")
    cluster.some()
    labels = ["graph_of_ended_job"]
    if cluster.chance.random() < 0.5:
        cluster.fail_over()
        labels.append("foreign_lock")
    cluster.end(job, graph=True)
    cluster.expect(job.job, WARNING, *labels)


def graph_goes_late(cluster: Cluster) -> None:
    """Its graph stays for a while, and another one's end is too fresh."""
    job, other = cluster.submit("orders"), cluster.submit("other")
    cluster.some()
    cluster.end(job, graph=True)
    cluster.some()
    cluster.remove(job)
    cluster.until(END - 40_000)
    cluster.end(other, graph=True)


def lineage_lost(cluster: Cluster) -> None:
    """A failover restores nothing, though it had completed checkpoints."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.fail_over(job)
    cluster.expect(job.job, WARNING, "lineage_restarted", "after_leader_change", "not_restored")
    cluster.some()


def taken_back(cluster: Cluster) -> None:
    """It is started again from an older savepoint, or an older checkpoint, without a word of its end."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.some()
    savepoint = cluster.chance.random() < 0.5
    cluster.start(job, (1, cluster.now, savepoint))
    cluster.expect(job.job, INFO, "lineage_restarted", "savepoint_restore" if savepoint else "checkpoint_restore")
    cluster.some()


def stale_checkpoint(cluster: Cluster) -> None:
    """A cache tells of the checkpoint before."""
    job = cluster.submit("orders")
    cluster.some()
    completed, last, job.due = job.completed, job.last or 0, cluster.now + 3 * POLL
    job.completed, job.last = completed - 1, last - 1
    cluster.until(cluster.now + POLL)
    job.completed, job.last = completed, last
    cluster.some()


def file_stays(cluster: Cluster) -> None:
    """Its graph goes, the file stays."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.expect(cluster.file_of(job), WARNING, "graph_without_job")
    cluster.end(job, file=True)


def old_files(cluster: Cluster) -> None:
    """Files from before anybody looked; one that is removed in time; one that has only just been written."""
    for _ in range(cluster.chance.randrange(1, 4)):
        file = cluster.write_file(BEGIN - cluster.chance.randrange(90 * 86_400_000))
        cluster.expect(file, WARNING, "graph_without_job")
    removed = cluster.write_file(BEGIN - 5_000)
    cluster.some()
    cluster.remove_file(removed)
    cluster.until(END - 40_000)
    cluster.write_file(cluster.now)


def graph_replaced(cluster: Cluster) -> None:
    """Its graph is written anew, to another file; the old one stays."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.expect(cluster.file_of(job), WARNING, "graph_without_job")
    cluster.write_graph(job)


def graph_missing(cluster: Cluster) -> None:
    """It runs without graph: its file is not anybody's to delete."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.remove(job, file=True)


def file_unknown(cluster: Cluster) -> None:
    """Nobody knows which file a graph points to: it may be any."""
    job = cluster.submit("orders")
    cluster.graphs[job.job] = replace(cluster.graphs[job.job], file=None)


def out_of_sight(cluster: Cluster) -> None:
    """A job has just ended, and nothing is seen of the cluster any more."""
    job = cluster.submit("orders")
    cluster.some()
    cluster.end(job, graph=True)
    cluster.until(cluster.now + 30_000)
    cluster.observations.append(Unavailable(at=cluster.now, source="flink", cluster=cluster.name, reason="it hangs"))
    cluster.sighted = False


SCENARIOS: tuple[Callable[[Cluster], None], ...] = (
    calm, resurrected, starved, came_and_went, put_back, submitted_again, suspended, stale_job, graph_stays,
    graph_goes_late, lineage_lost, taken_back, stale_checkpoint, file_stays, old_files, graph_replaced, graph_missing,
    file_unknown, out_of_sight,
)  # fmt: skip


class History(NamedTuple):
    """Clusters, and all that is told of them, in order of arrival."""

    clusters: list[Cluster]
    observations: list[Observation]

    @property
    def expected(self) -> list[Expected]:
        """What must be found."""
        return [one for cluster in self.clusters for one in cluster.expected]


def drawn(seed: int, times: int = 2) -> History:
    """Every scenario so many times, and once what stray files are where no ZooKeeper is seen: nobody knows."""
    chance = random.Random(seed)  # noqa: S311 - drawn by seed so that a run can be repeated
    clusters = []
    for number in range(times):
        for scenario in SCENARIOS:
            cluster = Cluster(chance, f"{scenario.__name__}-{number}")
            scenario(cluster)
            cluster.until(END)
            clusters.append(cluster)
    blind = Cluster(chance, "without-zookeeper", zookeeper=False)
    old_files(blind)
    blind.until(END)
    blind.expected.clear()
    clusters.append(blind)
    ticks = (Tick(at=at) for at in range(BEGIN, END, 5_000))
    told = [*ticks, *(one for cluster in clusters for one in cluster.observations)]
    return History(clusters, sorted(told, key=lambda one: one.at))
