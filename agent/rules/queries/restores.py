"""Queries about Flink restores: whether one explains a rewind, and whether checkpoints failed around it."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS
from agent.model.observations.flink import Checkpoints, Position
from agent.model.observations.kafka import Commit, GroupState
from agent.rules.queries.partitions import CLOCK_SLACK_MS


class RestoreContext(NamedTuple):
    """How many checkpoints of the jobs that read a partition failed, and how many of the jobs were restored.

    The names are those of the finding's `current` JSON fields.
    """

    failed_checkpoints: int
    restores: int


def find_restores_behind(facts: Facts, before: Commit | Position, after: Commit | Position) -> list[dict[str, Any]]:
    """Return the restores that may have moved the reader backwards, of Flink jobs that read the partition.

    Each as JSON fields of a finding: `cluster` (Flink's), `job` and `restored_at`.

    A savepoint or an older checkpoint may hold any older offset. The last completed checkpoint holds the offsets that
    Flink committed when it completed: restoring it moves a position to these, and no committed offset at all. Nor that
    of a group with members: Flink commits for groups that have none.
    """
    if isinstance(after, Commit) and has_members(facts, after):
        return []
    restores: list[dict[str, Any]] = []
    new, committed = after.offset or 0, before.committed if isinstance(before, Position) else None
    reader = (after.flink, after.job) if isinstance(after, Position) else None
    for flink, job, history in _find_jobs(facts, (after.cluster, after.topic, after.partition)):
        if reader not in (None, (flink, job)):
            continue
        for checkpoints in history:
            restored_at = checkpoints.restored_at
            if restored_at is None or checkpoints.at > after.at + LATENESS_MS:
                continue
            is_near = before.start - CLOCK_SLACK_MS <= restored_at <= after.at + CLOCK_SLACK_MS
            is_below_last = reader is None or (committed is not None and new < committed)
            if is_near and not (is_below_last and _is_from_last_checkpoint(history, checkpoints)):
                restores.append({"cluster": checkpoints.cluster, "job": job, "restored_at": restored_at})
                break
    return restores


def has_members(facts: Facts, commit: Commit) -> bool:
    """Return whether the group had members when the commit was made."""
    state = facts.history(GroupState, commit.cluster, commit.group).as_of(commit.at)
    return state is not None and bool(state.members)


def find_restore_context(facts: Facts, partition: tuple[str, str, int], begin: int, end: int) -> RestoreContext | None:
    """Return what happened to the checkpoints of the partition's jobs in [begin, end], or None if no job reads it."""
    total: RestoreContext | None = None
    for _, _, history in _find_jobs(facts, partition):
        before = next((checkpoints for checkpoints in reversed(history) if checkpoints.at <= begin), None)
        if before is None:
            continue
        within = [checkpoints for checkpoints in history if begin < checkpoints.at <= end + LATENESS_MS]
        failed = max([0, *(checkpoints.failed - before.failed for checkpoints in within)])
        restored = any(later.restored_at is not None and later.restored_at != before.restored_at for later in within)
        known = total or RestoreContext(0, 0)
        total = RestoreContext(known.failed_checkpoints + failed, known.restores + restored)
    return total


def _find_jobs(facts: Facts, partition: tuple[str, str, int]) -> Iterator[tuple[str, str, Sequence[Checkpoints]]]:
    """Yield (Flink cluster, job, its checkpoint observations, oldest first) of the jobs that read the partition."""
    cluster, topic, number = partition
    for history in facts.histories(Position, cluster=cluster, topic=topic, partition=number):
        last = history.changes[-1]
        yield last.flink, last.job, facts.history(Checkpoints, last.flink, last.job).changes


def _is_from_last_checkpoint(history: Sequence[Checkpoints], restored: Checkpoints) -> bool:
    """Return whether the job was restored from the last checkpoint that had been seen to complete before."""
    if restored.restored_savepoint or restored.restored_at is None:
        return False
    known = [
        checkpoints.last
        for checkpoints in history
        if checkpoints.at <= restored.restored_at and checkpoints.last is not None
    ]
    return bool(known) and restored.restored_id is not None and restored.restored_id >= known[-1]
