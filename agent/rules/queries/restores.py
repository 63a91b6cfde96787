"""What Flink's checkpoints tell of a reader that went back: whether a restore explains it, whether any failed. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from agent.engine.facts import LATENESS_MS, Facts
from agent.model.observations import Checkpoints, Commit, Position
from agent.rules.queries.partitions import CLOCK_SLACK_MS
from agent.rules.queries.subjects import readers_of


class Around(NamedTuple):
    """The checkpoints of the jobs that read a partition: how many failed, and how many jobs were restored."""

    failed_checkpoints: int
    restores: int


def explained(facts: Facts, before: Commit | Position, after: Commit | Position) -> bool:
    """Whether a restore of a Flink job that reads the partition can have taken the reader back from one to the other.

    A savepoint or an older checkpoint takes back whatever it likes. The last completed checkpoint holds the offsets
    that Flink committed when it completed: it takes a position back to these, and no committed offset at all.
    """
    to, committed = after.offset or 0, before.committed if isinstance(before, Position) else None
    reader = after.job if isinstance(after, Position) else None
    for job, checkpoints in _jobs(facts, (after.cluster, after.topic, after.partition)):
        if reader not in (None, job):
            continue
        for one in checkpoints:
            restored_at = one.restored_at
            if restored_at is None or one.at > after.at + LATENESS_MS:
                continue
            near = before.start - CLOCK_SLACK_MS <= restored_at <= after.at + CLOCK_SLACK_MS
            below_the_last = reader is None or (committed is not None and to < committed)
            if near and not (below_the_last and _from_the_last(checkpoints, one)):
                return True
    return False


def around(facts: Facts, partition: tuple[str, str, int], begin: int, end: int) -> Around | None:
    """What became of the checkpoints of the partition's jobs in [begin, end]; None where no job is seen to read it."""
    found = None
    for _, histories in _jobs(facts, partition):
        before = next((one for one in reversed(histories) if one.at <= begin), None)
        within = [one for one in histories if begin < one.at <= end + LATENESS_MS]
        if before is None:
            continue
        failed = max([0, *(one.failed - before.failed for one in within)])
        restored = any(one.restored_at is not None and one.restored_at != before.restored_at for one in within)
        found = Around((found.failed_checkpoints if found else 0) + failed, (found.restores if found else 0) + restored)
    return found


def _jobs(facts: Facts, partition: tuple[str, str, int]) -> Iterator[tuple[str, list[Checkpoints]]]:
    """The jobs that have read the partition, each with what was seen of its checkpoints, oldest first."""
    for job in readers_of(facts, *partition):
        last = facts.history(Position, partition[0], job, *partition[1:]).last
        if last is not None:
            yield job, facts.history(Checkpoints, last.flink, job).changes


def _from_the_last(histories: list[Checkpoints], restored: Checkpoints) -> bool:
    """Whether the job was restored from the last checkpoint that was seen to be completed before."""
    if restored.restored_savepoint or restored.restored_at is None:
        return False
    known = [one.last for one in histories if one.at <= restored.restored_at and one.last is not None]
    return bool(known) and restored.restored_id is not None and restored.restored_id >= known[-1]
