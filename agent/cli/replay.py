"""Recorded observations through the core: JSON lines read, order restored. Nothing is kept.

Ticks that lines lack are not missed: the core looks by itself at every moment that it waits for.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from agent.engine.engine import Engine
from agent.engine.facts import LATENESS_MS, LONG_AGO
from agent.model.findings import Incident
from agent.model.observations import Observation, Subject, from_json
from agent.storage import journal


class LinesError(Exception):
    """Lines that are no observations; `problems` are sentences with file and line number."""

    def __init__(self, problems: list[str]) -> None:
        """problems: one sentence each."""
        super().__init__("\n".join(problems))
        self.problems = problems


def read(path: Path) -> Iterable[Observation]:
    """The observations of a journal directory or a file of JSON lines. Raises LinesError, OSError."""
    return journal.read(path) if path.is_dir() else read_lines(path)


def read_lines(path: Path) -> list[Observation]:
    """The observations of JSON lines, blank lines left out. Raises LinesError with every bad line, OSError."""
    observations: list[Observation] = []
    problems: list[str] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    observations.append(from_json(line))
                except ValueError as error:
                    problems.append(f"{path}:{number}: {error}")
    if problems:
        raise LinesError(problems)
    return observations


def replay(observations: Iterable[Observation], watch: Engine) -> list[Incident]:
    """All incidents that the observations make, in order of opening, as they stand at the last of them."""
    incidents: dict[str, Incident] = {}
    for batch in batches(observations):
        incidents.update((one.id, one) for one in watch.take(batch))
    incidents.update((one.id, one) for one in watch.catch_up())
    told = [one for one in incidents.values() if one.merged_into is not None or one.causes or one.findings]
    return sorted(told, key=lambda one: (one.opened_at, one.id))


def batches(observations: Iterable[Observation]) -> Iterator[list[Observation]]:
    """The observations of each moment, moments in order; what comes out of order by up to the lateness is sorted in."""
    for _, batch in groupby(in_order(news(observations)), key=lambda one: one.at):
        yield list(batch)


def news(observations: Iterable[Observation]) -> Iterator[Observation]:
    """The observations without those older than the last of their own subject: that is history."""
    latest: dict[Subject, int] = {}
    for one in observations:
        if one.at >= latest.get(one.subject, one.at):
            latest[one.subject] = one.at
            yield one


def in_order(observations: Iterable[Observation]) -> Iterator[Observation]:
    """The observations by `at`, each subject's own order kept; those of one moment by subject, however they came.

    One subject may come a minute early and another a minute late.
    """
    waiting: list[tuple[int, str, int, Observation]] = []
    newest = LONG_AGO
    for number, one in enumerate(observations):
        newest = max(newest, one.at)
        heapq.heappush(waiting, (one.at, repr(one.subject), number, one))
        while waiting[0][0] < newest - 2 * LATENESS_MS:
            yield heapq.heappop(waiting)[-1]
    while waiting:
        yield heapq.heappop(waiting)[-1]
