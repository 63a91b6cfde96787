"""What several rules ask of the facts about Flink: who came to lead, what has lasted, what is over. Rules judge."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from agent.engine.facts import LATENESS_MS, LONG_AFTER, Facts, History
from agent.model.observations import (
    Availability,
    Available,
    Checkpoints,
    FlinkJob,
    JobListing,
    JobManagerLeader,
    Observation,
    Unavailable,
)
from agent.rules.queries.partitions import CLOCK_SLACK_MS, earliest

REST, ZOOKEEPER, STORAGE = "flink", "flink_zookeeper", "flink_storage"
"""What the source of a Flink cluster sees or not, as it names its sights."""


class Spell(NamedTuple):
    """Something held from `begin`, the last of the changes that made it hold, to `end`, None while it lasts."""

    begin: Observation
    end: int | None

    def lasted(self, duration: int) -> bool:
        """Whether it held for so long, as far as is known."""
        return self.end is None or self.end >= self.begin.at + duration

    def known_at(self, duration: int) -> int:
        """When it could be known that it has held for so long."""
        return max(self.begin.at + duration, self.begin.seen)


def lasting(histories: Iterable[History[Any]], condition: Callable[[int], Hashable | None]) -> Iterator[Spell]:
    """The spells in which what `condition` says of a moment stays the same and is not None, oldest first.

    It is asked at each change of the histories, so it must follow from them alone.
    """
    moments: dict[int, Observation] = {}
    for history in histories:
        for one in history:
            moments[one.at] = max(moments.get(one.at, one), one, key=lambda each: (each.seen, -each.start))
    begin: Observation | None = None
    held: Hashable | None = None
    for at, change in sorted(moments.items()):
        holds = condition(at)
        if holds == held:
            continue
        if begin is not None:
            yield Spell(begin, at)
        begin, held = (None if holds is None else change), holds
    if begin is not None:
        yield Spell(begin, None)


def leader_changes(history: History[JobManagerLeader]) -> Iterator[tuple[JobManagerLeader, JobManagerLeader]]:
    """(the leader before, the new one), oldest first; a time without a leader in between is skipped.

    Told by the leader session's UUID, or by the address where neither has one: ZooKeeper and REST name the same leader
    otherwise in 1.4.
    """
    known: dict[bool, JobManagerLeader] = {}
    for one in history:
        if one.address is None:
            continue
        with_id = one.leader_id is not None
        old = known.get(with_id)
        if old is not None and (old.leader_id, old.address)[not with_id] != (one.leader_id, one.address)[not with_id]:
            yield old, one
            known = {}
        known[with_id] = one


def lives(job: FlinkJob | None) -> bool:
    """Whether the job runs or is about to on its JobManager."""
    return job is not None and not job.ended and job.state != "SUSPENDED"


def listed(facts: Facts, cluster: str, job: str, at: int) -> bool:
    """Whether the jobs listed at that moment name it, or none had been listed yet."""
    listing = facts.history(JobListing, cluster).as_of(at)
    return listing is None or job in listing.jobs


def over(facts: Facts, cluster: str, job: str, after: int) -> int | None:
    """When the job was seen to end, or was listed no more and not again within a minute; None while it goes on.

    A job that a new leader recovers is not listed for some seconds.
    """
    ended = (one.at for one in facts.history(FlinkJob, cluster, job).after(after) if one.ended)
    listings = facts.history(JobListing, cluster).after(after)
    gone = (
        one.at
        for number, one in enumerate(listings)
        if job not in one.jobs
        and not any(job in later.jobs for later in listings[number:] if later.at <= one.at + LATENESS_MS)
    )
    return earliest(ended, next(gone, None))


def name_of(facts: Facts, cluster: str, job: str, by: int) -> str | None:
    """The job's name as known at that moment or within the minute after it."""
    history = facts.history(FlinkJob, cluster, job)
    known = history.as_of(by) or next(iter(history.between(by, by + LATENESS_MS)), None)
    return None if known is None else known.name


def named(facts: Facts, cluster: str, job: str, by: int) -> dict[str, str]:
    """The subject's `job_name`, where it is known."""
    name = name_of(facts, cluster, job, by)
    return {} if name is None else {"job_name": name}


def spoken(facts: Facts, cluster: str, job: str, by: int) -> str:
    """The job in a sentence: its name, and its id by which it is cancelled."""
    name = name_of(facts, cluster, job, by)
    return f"job {job}" if name is None else f"job {name} ({job})"


def had_state(checkpoints: Checkpoints) -> bool:
    """Whether there was something to restore from then on."""
    return checkpoints.completed > 0 or checkpoints.last is not None or checkpoints.restored_id is not None


def told_at(facts: Facts, cluster: str, spell: Spell, duration: int, sources: Iterable[str]) -> int | None:
    """When it can be told that the spell has lasted so long: while a source is blind, what it last saw may be over.

    None where it has not lasted until then, or cannot be told yet.
    """
    sights = [facts.history(Availability, source, cluster, None, None, None) for source in sources]
    told, known_at = None, spell.known_at(duration)
    while told != known_at:
        told, known_at = known_at, max(_seen_from(sight, known_at) for sight in sights)
    return known_at if known_at < LONG_AFTER and spell.lasted(known_at - spell.begin.at) else None


def _seen_from(sights: History[Availability], at: int) -> int:
    """The moment, or the next one by which the source, blind until then, has told what is new."""
    here = sights.as_of(at)
    if isinstance(here, Unavailable):
        here = next((one for one in sights.after(at) if isinstance(one, Available)), None)
        return LONG_AFTER if here is None else max(at, here.at + CLOCK_SLACK_MS)
    return at if here is None else max(at, here.at + CLOCK_SLACK_MS)


def graph_znode(job: str, file: str | None, path: str | None = None) -> str:
    """The job graph's znode; where its path is not known, what is below the cluster's root. From 2.0 on it is called an
    execution plan.
    """
    return path or f"{'execution-plans' if (file or '').startswith('submittedExecutionPlan') else 'jobgraphs'}/{job}"
