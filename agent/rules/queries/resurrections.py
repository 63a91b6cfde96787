"""When a Flink job that was over lives again from a job graph older than the leadership. What to say is the rule's."""

from collections.abc import Iterator
from typing import NamedTuple

from agent.engine.facts import LATENESS_MS, Facts, History
from agent.model.observations import Checkpoints, FlinkJob, JobGraph, JobListing, JobManagerLeader, clock
from agent.rules.queries.flink import leader_changes, listed, lives
from agent.rules.queries.partitions import CLOCK_SLACK_MS

_MISSING_MS = 30_000


class Return(NamedTuple):
    """A job that was over lives again. before: what it was, in words; back: the first that is seen of it."""

    before: str
    back: FlinkJob
    graph: JobGraph
    old: JobManagerLeader
    new: JobManagerLeader
    known_at: int


def returns(cluster: str, job: str, facts: Facts) -> Iterator[Return]:
    """The returns of the job from a graph older than the leadership, oldest first."""
    moves = list(leader_changes(facts.history(JobManagerLeader, cluster)))
    last: FlinkJob | None = None
    for one in facts.history(FlinkJob, cluster, job):
        before, last = last, one
        anew = before is None or before.ended or before.started_at != one.started_at
        # A leader that is seen late, by another way than the job, counts; a leader that came later does not.
        made = [move for move in moves if move[1].start - CLOCK_SLACK_MS <= one.at]
        if not lives(one) or not anew or not made:
            continue
        old, new = made[-1]
        graph = _graph(cluster, job, one, facts)
        if graph is None or (graph.made_at or 0) >= new.start:
            continue
        known_at = max(one.seen, new.seen, graph.seen)
        if before is not None and before.ended:
            if before.start <= new.at + CLOCK_SLACK_MS and new.at <= one.at + LATENESS_MS:
                yield Return(f"was {before.state} at {clock(before.at)} UTC", one, graph, old, new, known_at)
            continue
        missing, sure = _missing(job, facts.history(JobListing, cluster), graph, new, one)
        if missing is not None and (before is None or before.at <= missing.at):
            words = f"had not been listed since {clock(missing.at)} UTC"
            yield Return(words, one, graph, old, new, max(known_at, sure))


def _graph(cluster: str, job: str, back: FlinkJob, facts: Facts) -> JobGraph | None:
    """The graph that the job was recovered from: as it stood then, or as it was first seen soon after."""
    history = facts.history(JobGraph, cluster, job)
    held = history.as_of(back.at)
    later = history.between(back.at, back.at + LATENESS_MS)
    return next((one for one in [held, *later] if one is not None and one.made_at is not None), None)


def _missing(
    job: str, listings: History[JobListing], graph: JobGraph, new: JobManagerLeader, back: FlinkJob
) -> tuple[JobListing | None, int]:
    """The listing that lacks the job, where it had been missing for long enough when another came to lead, and when
    that was sure.

    Only the listing after it tells when an unchanged one was last read. A job that a leader recovers is not listed for
    some seconds (10 in 1.4).
    """
    held = listings.as_of(new.start - 1)
    following = listings.between(new.start - 1, back.at + LATENESS_MS)
    if held is None or job in held.jobs or not following:
        return None, 0
    read_at = min(following[0].start, new.start)
    since = max(held.at, graph.made_at or 0)
    return (held if read_at - since >= _MISSING_MS else None), following[0].seen


def restored(cluster: str, job: str, one: Return, facts: Facts) -> int | None:
    """How many times the job was restored within the minute; None where REST did not tell."""
    seen = facts.history(Checkpoints, cluster, job).between(one.new.start - 1, one.back.at + LATENESS_MS)
    return max((each.restored or int(each.restored_id is not None) for each in seen), default=None)


def beside(cluster: str, other: str, one: Return, facts: Facts) -> bool:
    """Whether the other job lives beside the one that came back, or is listed again with it within the minute."""
    history, by = facts.history(FlinkJob, cluster, other), one.back.at + LATENESS_MS
    held = history.as_of(one.back.at)
    if held is not None and held.ended:
        return False
    there = listed(facts, cluster, other, one.back.at) or any(
        other in listing.jobs for listing in facts.history(JobListing, cluster).between(one.back.at, by)
    )
    return there and (lives(held) or any(lives(each) for each in history.between(one.back.at, by)))
