"""What ended so long ago that no rule looks back to it: Flink jobs and their graphs, logs and their lines. Pure."""

from collections.abc import Iterator
from typing import Any

from agent.engine.facts import GONE_MS, Facts
from agent.engine.history import History
from agent.model.observations.base import Observation
from agent.model.observations.flink import Checkpoints, FlinkJob, JobGraph, JobGraphFile, JobListing, Position
from agent.model.observations.logs import LogFile, LogLine

GONE_JOBS = 500
"""How many jobs that are no longer listed are remembered for longer, should another continue from their state."""

LINES_MS = 3_600_000
"""How long lines of logs are remembered after they were read."""


def find_ended(facts: Facts) -> Iterator[list[History[Any]]]:
    """Yield the histories to forget, those of one subject together."""
    gone_before = facts.now - GONE_MS
    for history in [*_of(facts, JobGraph), *_of(facts, JobGraphFile)]:
        if history.changes[-1].is_gone and history.confirmed < gone_before:
            yield [history]
    # A log that is followed has a heartbeat.
    yield from ([history] for history in _of(facts, LogFile) if history.confirmed < gone_before)
    # A line may be old when it is read, as after a pause.
    yield from ([history] for history in _of(facts, LogLine) if history.changes[-1].seen < facts.now - LINES_MS)
    yield from _find_ended_jobs(facts, gone_before)


def _find_ended_jobs(facts: Facts, gone_before: int) -> Iterator[list[History[Any]]]:
    """Yield jobs that have been missing from the listing since before that moment, but for the last ones."""
    listed = {history.subject[1]: history.changes[-1].jobs for history in _of(facts, JobListing)}
    graphs = {history.subject[1:] for history in _of(facts, JobGraph) if not history.changes[-1].is_gone}
    gone = {
        history.subject[1:]: history
        for history in sorted(_of(facts, FlinkJob), key=lambda history: history.confirmed)
        if history.confirmed < gone_before
        and history.subject[1] in listed
        and history.subject[2] not in listed[history.subject[1]]
        and history.subject[1:] not in graphs
    }
    for history in _of(facts, Position):
        last = history.changes[-1]
        if (last.flink, last.job) in gone:
            yield [history]
    checkpoints = {history.subject[1:]: history for history in _of(facts, Checkpoints)}
    for job in list(gone)[: max(len(gone) - GONE_JOBS, 0)]:
        yield [gone[job], *([checkpoints[job]] if job in checkpoints else [])]


def _of(facts: Facts, kind: type[Observation]) -> list[History[Any]]:
    return facts.open_histories((kind.subject_kind,))
