"""Queries about Flink jobs: names, ends, leader changes, and jobs that came back from an old job graph."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agent.engine.condition_rule import Interval
from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, LONG_AFTER, History
from agent.model.name_filter import NameFilter
from agent.model.observations.base import Availability, Available, Unavailable
from agent.model.observations.flink import Checkpoints, FlinkJob, JobGraph, JobListing, JobManagerLeader
from agent.rules.queries.partitions import CLOCK_SLACK_MS, earliest

REST, ZOOKEEPER, STORAGE = "flink", "flink_zookeeper", "flink_storage"
"""The parts of a Flink source whose availability is observed on its own, by their `source` in Availability."""

DEFAULT_NAMES = NameFilter(
    include=[
        "Flink Streaming Job",
        "Flink Java Job at *",
        "Flink Batch Job",
        "insert-into_*",
        "collect",
        "DataStream Collect",
    ]
)
"""Names that Flink gives to jobs without one (StreamGraphGenerator, ExecutionEnvironment, TableEnvironment).

The last two are those of queries (TableEnvironment) and of executeAndCollect (DataStream).
"""

_MISSING_MS = 30_000


def job_name(facts: Facts, cluster: str, job: str, at: int) -> str | None:
    """Return the job's name as known at `at` or within the allowed lateness after it, or None."""
    history = facts.history(FlinkJob, cluster, job)
    state = history.as_of(at) or next(iter(history.between(at, at + LATENESS_MS)), None)
    return None if state is None else state.name


def job_subject(facts: Facts, cluster: str, job: str, at: int) -> dict[str, str]:
    """Return the finding's subject key `job_name`, or nothing while the name is unknown."""
    name = job_name(facts, cluster, job, at)
    return {} if name is None else {"job_name": name}


def describe_job(facts: Facts, cluster: str, job: str, at: int) -> str:
    """Return the job's name with the id that `flink cancel` takes."""
    name = job_name(facts, cluster, job, at)
    return f"job {job}" if name is None else f"job {name} ({job})"


def graph_znode(job: str, file: str | None, path: str | None = None) -> str:
    """Return the path of the job graph's znode, relative to the cluster's root where it was not observed.

    Flink 2.0 renamed job graphs to execution plans.
    """
    return path or f"{'execution-plans' if (file or '').startswith('submittedExecutionPlan') else 'jobgraphs'}/{job}"


def is_active(job: FlinkJob | None) -> bool:
    """Return whether the job runs, or is about to, on its JobManager."""
    return job is not None and not job.ended and job.state != "SUSPENDED"


def is_listed(facts: Facts, cluster: str, job: str, at: int) -> bool:
    """Return whether the listing at `at` contains the job; True before the first listing."""
    listing = facts.history(JobListing, cluster).as_of(at)
    return listing is None or job in listing.jobs


def has_state(checkpoints: Checkpoints) -> bool:
    """Return whether the job had anything to restore from."""
    return checkpoints.completed > 0 or checkpoints.last is not None or checkpoints.restored_id is not None


def ended_at(facts: Facts, cluster: str, job: str, after: int) -> int | None:
    """Return when the job ended, or was dropped from the listing for more than a minute; None while it goes on.

    A job that a new leader recovers is not listed for some seconds.
    """
    ends = (state.at for state in facts.history(FlinkJob, cluster, job).after(after) if state.ended)
    listings = facts.history(JobListing, cluster).after(after)
    drops = (
        listing.at
        for index, listing in enumerate(listings)
        if job not in listing.jobs
        and not any(job in later.jobs for later in listings[index:] if later.at <= listing.at + LATENESS_MS)
    )
    return earliest(next(ends, None), next(drops, None))


def confirmed_at(facts: Facts, cluster: str, interval: Interval, duration: int, sources: Iterable[str]) -> int | None:
    """Return when it is certain that the interval lasted for `duration`, or None while it is not.

    While one of the sources is unavailable, what it last observed may have changed already.
    """
    histories = [facts.history(Availability, source, cluster, None, None, None) for source in sources]
    previous, known_at = None, interval.known_at(duration, facts)
    while previous != known_at:
        previous, known_at = known_at, max(_visible_from(history, known_at) for history in histories)
    return known_at if known_at < LONG_AFTER and interval.reaches(known_at) else None


def _visible_from(history: History[Availability], at: int) -> int:
    """Return the first moment from `at` on by which the source, available again, has reported what changed."""
    availability = history.as_of(at)
    if isinstance(availability, Unavailable):
        availability = next((change for change in history.after(at) if isinstance(change, Available)), None)
        return LONG_AFTER if availability is None else max(at, availability.at + CLOCK_SLACK_MS)
    return at if availability is None else max(at, availability.at + CLOCK_SLACK_MS)


def leader_changes(history: History[JobManagerLeader]) -> Iterator[tuple[JobManagerLeader, JobManagerLeader]]:
    """Yield (old leader, new leader), oldest first; times without a leader are skipped.

    Leaders differ by the UUID of the leader session, or by address where both lack one: Flink 1.4 writes the address
    of the same leader differently to ZooKeeper and REST.
    """
    latest: dict[bool, JobManagerLeader] = {}
    for leader in history:
        if leader.address is None:
            continue
        has_id = leader.leader_id is not None
        old = latest.get(has_id)
        if old is not None and (old.leader_id if has_id else old.address) != (
            leader.leader_id if has_id else leader.address
        ):
            yield old, leader
            latest = {}
        latest[has_id] = leader


_ADDRESS = re.compile(r"(?:[\w.+-]+://)?(?:[^@/]*@)?([^@/]+)")


def short_address(address: str | None) -> str:
    """Return host:port of a JobManager's address, be it a URL of REST or an actor's of Flink 1.4 (Akka)."""
    found = None if address is None else _ADDRESS.match(address)
    return found[1] if found is not None else str(address)


class Resurrection(NamedTuple):
    """A job that had ended, or was not listed, became active again from a job graph older than the leadership.

    before: its last state (FlinkJob), or the listing that lacked it. active: the first state after its return.
    """

    before: FlinkJob | JobListing
    active: FlinkJob
    graph: JobGraph
    new_leader: JobManagerLeader
    known_at: int


def find_resurrections(facts: Facts, cluster: str, job: str) -> Iterator[Resurrection]:
    """Yield the job's returns from a job graph older than the leadership, oldest first."""
    changes = list(leader_changes(facts.history(JobManagerLeader, cluster)))
    last: FlinkJob | None = None
    for state in facts.history(FlinkJob, cluster, job):
        before, last = last, state
        is_new_execution = before is None or before.ended or before.started_at != state.started_at
        # The leader may be observed later than the job, by another source; a leader elected afterwards does not count.
        elected = [change for change in changes if change[1].start - CLOCK_SLACK_MS <= state.at]
        if not is_active(state) or not is_new_execution or not elected:
            continue
        _, new = elected[-1]
        graph = _recovered_graph(facts, cluster, job, state)
        if graph is None or (graph.made_at or 0) >= new.start:
            continue
        known_at = max(state.seen, new.seen, graph.seen)
        if before is not None and before.ended:
            if before.start <= new.at + CLOCK_SLACK_MS and new.at <= state.at + LATENESS_MS:
                yield Resurrection(before, state, graph, new, known_at)
            continue
        missing, certain_at = _missing_from(facts.history(JobListing, cluster), job, graph, new, state)
        if missing is not None and (before is None or before.at <= missing.at):
            yield Resurrection(missing, state, graph, new, max(known_at, certain_at))


def _recovered_graph(facts: Facts, cluster: str, job: str, active: FlinkJob) -> JobGraph | None:
    """Return the graph that the job was recovered from, which may be observed a little after the job."""
    history = facts.history(JobGraph, cluster, job)
    candidates = [history.as_of(active.at), *history.between(active.at, active.at + LATENESS_MS)]
    return next((graph for graph in candidates if graph is not None and graph.made_at is not None), None)


def _missing_from(
    listings: History[JobListing], job: str, graph: JobGraph, leader: JobManagerLeader, active: FlinkJob
) -> tuple[JobListing | None, int]:
    """Return the listing that had lacked the job for 30 s when the leader was elected, or None; and when that was sure.

    Unchanged listings are not repeated: only the next one shows until when the last was valid. A job that a leader
    recovers is not listed for some seconds (10 in 1.4).
    """
    listing = listings.as_of(leader.start - 1)
    following = listings.between(leader.start - 1, active.at + LATENESS_MS)
    if listing is None or job in listing.jobs or not following:
        return None, 0
    valid_until = min(following[0].start, leader.start)
    since = max(listing.at, graph.made_at or 0)
    return (listing if valid_until - since >= _MISSING_MS else None), following[0].seen


def count_restores(facts: Facts, cluster: str, job: str, resurrection: Resurrection) -> int | None:
    """Return how many times the job was restored within a minute of its return, or None if REST did not report it."""
    begin, end = resurrection.new_leader.start - 1, resurrection.active.at + LATENESS_MS
    readings = facts.history(Checkpoints, cluster, job).between(begin, end)
    return max((reading.restored or int(reading.restored_id is not None) for reading in readings), default=None)


def ran_alongside(facts: Facts, cluster: str, other: str, resurrection: Resurrection) -> bool:
    """Return whether the other job is active with the one that came back, or is listed again within a minute."""
    history, at = facts.history(FlinkJob, cluster, other), resurrection.active.at
    state = history.as_of(at)
    if state is not None and state.ended:
        return False
    listings = facts.history(JobListing, cluster).between(at, at + LATENESS_MS)
    if not is_listed(facts, cluster, other, at) and not any(other in listing.jobs for listing in listings):
        return False
    return is_active(state) or any(map(is_active, history.between(at, at + LATENESS_MS)))
