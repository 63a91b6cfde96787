"""Queries about the state that a Flink job was restored from: which execution it continues, and how old the state is.

Checkpoint ids increase along all executions that continue one another: a restored job counts on from the checkpoint
that it was restored from. REST reports when a completed checkpoint was triggered, but not for the restored one.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from agent.engine.facts import Facts
from agent.engine.history import FLOOR
from agent.model.observations.flink import Checkpoints, FlinkJob
from agent.rules.queries.flink import DEFAULT_NAMES, has_state, is_active, is_listed, job_name
from agent.rules.queries.subjects import jobs_in


class State(NamedTuple):
    """A checkpoint or savepoint. at: when it was triggered, ms; is_exact: whether that was observed, not estimated."""

    id: int
    at: int
    path: str | None
    is_savepoint: bool
    is_exact: bool = True


class Restore(NamedTuple):
    """A restore of a job that continues a known execution.

    reading: the first that shows the restore. earlier: those of the job's executions before, and of the job that it
    continues if its id is new, oldest first.
    """

    reading: Checkpoints
    earlier: list[Checkpoints]

    @property
    def before(self) -> Checkpoints:
        """The last reading of the execution that is continued."""
        return self.earlier[-1]

    @property
    def newest(self) -> State | None:
        """The newest state that could have been restored, or None."""
        return self._newest_in(self.before)

    def count_failures(self, newest: State) -> int:
        """Return how many checkpoints had failed in a row since the newest state when the job was restored."""
        readings = [before for before in self.earlier if (state := self._newest_in(before)) and state.id == newest.id]
        return sum(max(after.failed - before.failed, 0) for before, after in pairwise(readings))

    def _newest_in(self, before: Checkpoints) -> State | None:
        # To recover, a job does not use savepoints that were taken of it while it ran (from 1.15 on, FLINK-25191).
        is_recovery = self.before.job == self.reading.job and not self.reading.restored_savepoint
        return _newest_state(before, with_savepoint=not is_recovery)


def find_restores(facts: Facts, cluster: str, job: str) -> Iterator[Restore]:
    """Yield the job's restores that continue a known execution, oldest first."""
    earlier: list[Checkpoints] = []
    restored_at: int | None = None
    for reading in facts.history(Checkpoints, cluster, job):
        if reading.restored_at is not None and reading.restored_at != restored_at:
            restored_at = reading.restored_at
            known = _with_state(earlier, reading) or _with_state(_readings_of_predecessor(facts, reading), reading)
            if known:
                yield Restore(reading, known)
        earlier.append(reading)


def _newest_state(checkpoints: Checkpoints, *, with_savepoint: bool) -> State | None:
    """Return the newest state that the execution had completed or was itself restored from, or None."""
    states = (
        (checkpoints.last, checkpoints.last_triggered_at, checkpoints.last_path, False),
        (checkpoints.savepoint if with_savepoint else None, checkpoints.savepoint_triggered_at, None, True),
        (
            checkpoints.restored_id,
            checkpoints.restored_at,
            checkpoints.restored_path,
            checkpoints.restored_savepoint,
        ),
    )
    known = [
        State(number, at or checkpoints.at, path, is_savepoint)
        for number, at, path, is_savepoint in states
        if number is not None
    ]
    return max(known, key=lambda state: state.id, default=None)


def restored_state(facts: Facts, restore: Restore, newest: State) -> State | None:
    """Return what was restored, with its time as the earlier readings show or imply it; None if they do not.

    A time that was not observed is estimated from how far apart the checkpoints were.
    """
    reading = restore.reading
    if reading.restored_id is None:
        return None
    state = State(reading.restored_id, 0, reading.restored_path, reading.restored_savepoint)
    for before in reversed(restore.earlier):
        for number, at in (
            (before.last, before.last_triggered_at),
            (before.savepoint, before.savepoint_triggered_at),
        ):
            if number == state.id and at is not None:
                return state._replace(at=at)
    # What an earlier execution was restored from had been completed by then.
    times = [
        before.restored_at
        for before in restore.earlier
        if before.restored_at is not None and (before.restored_id or 0) >= state.id
    ]
    intervals = (_checkpoint_interval(facts, before) for before in reversed(restore.earlier))
    interval = next((known for known in intervals if known is not None), None)
    if interval is not None:
        times.append(round(newest.at - (newest.id - state.id) * interval))
    return state._replace(at=min(times), is_exact=False) if times else None


def _with_state(readings: Iterable[Checkpoints], restored: Checkpoints) -> list[Checkpoints]:
    """Return the last readings from before the restore that show state; the next execution's begin without any."""
    known = [reading for reading in readings if reading.at <= (restored.restored_at or 0) and has_state(reading)]
    return known[-FLOOR:]


def _checkpoint_interval(facts: Facts, checkpoints: Checkpoints) -> float | None:
    """Return how far apart the execution's checkpoints were on average, ms; None before the first.

    Failed checkpoints use up ids too.
    """
    state = facts.history(FlinkJob, checkpoints.cluster, checkpoints.job).as_of(checkpoints.at)
    number = checkpoints.completed + checkpoints.failed
    if state is None or not number:
        return None
    return (checkpoints.at - state.started_at) / number


# Which job a new one continues


def _readings_of_predecessor(facts: Facts, reading: Checkpoints) -> list[Checkpoints]:
    """Return the readings of the job that the restored one, submitted with its state, continues; empty if unknown.

    A job whose checkpoint or savepoint was restored, or one that continued it; else one of the same name. It must have
    ended: from the state of a job that runs on, another one was forked.
    """
    cluster, at = reading.cluster, reading.at
    others = {
        other: last
        for other in jobs_in(facts, cluster)
        if other != reading.job and (last := facts.history(Checkpoints, cluster, other).as_of(at)) is not None
    }
    family = _find_family(reading, others)
    name = job_name(facts, cluster, reading.job, at)
    if not family and name is not None and not DEFAULT_NAMES.match(name):
        family = {other for other in others if job_name(facts, cluster, other, at) == name}
    if not family or any(_is_running(facts, cluster, other, at) for other in family):
        return []
    latest = max(family, key=lambda other: (others[other].at, other))
    return [known for known in facts.history(Checkpoints, cluster, latest) if known.at <= at]


def _find_family(reading: Checkpoints, others: dict[str, Checkpoints]) -> set[str]:
    """Return the jobs of whose executions the restored state comes, and those that continued them, by their paths."""
    path = reading.restored_path
    if path is None:
        return set()
    family = {other for other, last in others.items() if last.restored_path == path or _is_of(path, other)}
    while True:
        heirs = {
            other
            for other, last in others.items()
            if other not in family and any(_is_of(last.restored_path or "", member) for member in family)
        }
        if not heirs:
            return family
        family |= heirs


def _is_of(path: str, job: str) -> bool:
    """Return whether the path is that of a checkpoint or savepoint of the job: JOB/chk-7, savepoint-JOB6-1a2b."""
    return f"/{job}/" in path or f"savepoint-{job[:6]}-" in path


def _is_running(facts: Facts, cluster: str, job: str, at: int) -> bool:
    return is_active(facts.history(FlinkJob, cluster, job).as_of(at)) and is_listed(facts, cluster, job, at)
