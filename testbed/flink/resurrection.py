"""Jobs that come back from the dead: FLINK-10011 as it was reported, and by hand on versions that have it fixed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from testbed.faults import Progress
from testbed.flink.cluster import FlinkCluster
from testbed.flink.dialects import Checkpoints, Job
from testbed.flink.programs import Program
from testbed.flink.znodes import Leadership
from testbed.waiting import wait_until


class Resurrection(NamedTuple):
    """What `resurrect` did. leaders: the first, whose session keeps its lock; the second, which dies; the third.

    ended: the dead job as it was cancelled; back: as it ran again; restored: what it began with, which is nothing.
    lost: the checkpoints of its successor before the failover; starved: the successor beside the dead job.
    """

    job: str
    successor: str
    leaders: tuple[Leadership, Leadership, Leadership]
    ended: Job
    back: Job
    restored: Checkpoints
    lost: Checkpoints
    starved: Job


def resurrect(
    cluster: FlinkCluster,
    old: Program,
    new: Program,
    *,
    checkpoints: int = 3,
    progress: Progress = lambda _: None,
    before_failover: Callable[[], None] = lambda: None,
) -> Resurrection:
    """Bring a cancelled job back at a failover, in the place of its successor (FLINK-10011, Flink 1.4.2).

    The cluster needs two JobManagers and two TaskManagers. `new`, a job of the same name, must take all slots, `old`
    no more than one TaskManager has. checkpoints: so many the successor completes. before_failover: called when all is
    ready for the dead job to come back. Each step waits for its effect. Raises TimeoutError.
    """
    job = cluster.submit(old)
    cluster.wait_until_running(job)
    cluster.wait_for_checkpoints(job, 2)
    first = cluster.wait_for_leader()
    progress(f"JobManager {first.job_manager} leads, session {first.session}; job {job} runs and completes checkpoints")

    cluster.cut_link(first.job_manager)
    second = cluster.wait_for_leader(other_than=first)
    progress(
        f"its link to ZooKeeper was cut for 1.5 s: JobManager {second.job_manager} leads, session {second.session}"
    )
    cluster.wait_until_running(job)
    progress(f"job {job} runs on; the locks on its job graph are of {_owners(cluster, job)}")
    cluster.cancel(job)
    ended = cluster.wait_until_in_state(job, "CANCELED")
    if _owners(cluster, job) != [first.session]:
        msg = (
            f"Job {job} is {ended.state}, and the locks on its job graph are of {_owners(cluster, job)}, not of the "
            f"former leader's session {first.session} alone: this Flink has FLINK-10011 fixed."
        )
        raise RuntimeError(msg)
    progress(f"job {job} is {ended.state}; its job graph is still there, with the lock of {first.session}")

    successor = cluster.submit(new)
    cluster.wait_until_running(successor)
    lost = cluster.wait_for_checkpoints(successor, checkpoints)
    progress(f"its successor {successor} runs and has completed {lost.completed} checkpoints")

    before_failover()
    # Of two jobs that recover at the same time either may get the slots. As a host dies, with the JobManager and one of
    # the TaskManagers, there are slots for the old job alone at first; and once it has them, never enough for the new.
    cluster.kill(second.job_manager)
    cluster.kill_task_manager(2)
    progress(f"JobManager {second.job_manager} and a TaskManager die together")
    third = cluster.wait_for_leader(other_than=second)
    progress(f"JobManager {third.job_manager} leads, session {third.session}")
    back = cluster.wait_until_running(job)
    progress(f"the cancelled job {job} runs again")
    restored = cluster.wait_for_checkpoints(job, 1)
    progress(f"it has restored {restored.restored} checkpoints, and completed one with id {restored.latest}")
    cluster.start_task_manager(2)
    starved = cluster.wait_until_in_state(successor, "RESTARTING")
    progress(f"its successor {successor} gets no slots beside it and is {starved.state}")
    return Resurrection(job, successor, (first, second, third), ended, back, restored, lost, starved)


def _owners(cluster: FlinkCluster, job: str) -> list[str]:
    """The sessions whose locks hang on a job's graph, the oldest first; none where there is no such graph."""
    graph = cluster.job_graphs().get(job)
    return sorted(graph.locks.values()) if graph else []


class Kept(NamedTuple):
    """All that makes a job run, as it was kept by `keep`: its znode's content, and a copy of the HA storage."""

    job: str
    graph: bytes
    locks: bytes
    storage: Path


def keep(cluster: FlinkCluster, job: str) -> Kept:
    """Copy what makes a running job run, for `put_back`. Flink 1.20 and 2.x."""
    storage = cluster.workdir / f"kept-{job}"
    shutil.copytree(cluster.storage_dir / cluster.name, storage)
    path = cluster.graph_path(job)
    return Kept(job, cluster.zookeeper_client.get(path)[0], cluster.zookeeper_client.get(f"{path}/locks")[0], storage)


def put_back(cluster: FlinkCluster, kept: Kept) -> None:
    """Put back what `keep` has kept of a job that has ended: the leader runs it again at once, or the next one does.

    Nothing of its checkpoints comes back, so that it starts from nothing.
    """
    wait_until(lambda: kept.job not in cluster.job_graphs(), f"the job graph of {kept.job} to go")
    for file in (one for one in kept.storage.rglob("*") if one.is_file()):
        if not file.name.startswith("completedCheckpoint"):
            place = cluster.storage_dir / cluster.name / file.relative_to(kept.storage)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    path = cluster.graph_path(kept.job)
    change = cluster.zookeeper_client.transaction()  # a job graph without its locks node would be read as broken
    change.create(path, kept.graph)
    change.create(f"{path}/locks", kept.locks)
    refused = [one for one in change.commit() if isinstance(one, Exception)]
    if refused:
        msg = f"The job graph of {kept.job} could not be put back: {refused}."
        raise RuntimeError(msg)
