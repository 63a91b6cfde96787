"""Puts recorded observations in the order in which they were seen, in batches as a daemon takes them."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from agent.engine.engine import LEAST_COLUMNS
from agent.engine.history import LATENESS_MS, LONG_AFTER, LONG_AGO
from agent.model.batches import Chunk, Integers, ObservationBatch, Part, differ_from_before
from agent.model.observations.base import Observation, Subject, not_after_seen
from agent.model.observations.kafka import Commit

_SECOND_MS = 1_000


def moments(observations: Iterable[Observation]) -> Iterator[list[Observation]]:
    """Yield observations that one agent took in this order as `batches` does, those of each moment together."""
    return map(list, batches([[[list(observations)]]]))


def batches(recordings: Iterable[Iterable[Chunk]]) -> Iterator[Collection[Observation]]:
    """Yield the observations of several agents, each agent's in the order in which it took them.

    Those of each moment are a batch, by their subjects. Of a second with many log offsets or commits, these come last,
    as columns. Out of order by up to the allowed lateness is sorted; what is no event and older than the last of its
    subject is left out, as the agent has done. A subject may be a minute early and another a minute late.
    """
    reading = [_Recording(chunks) for chunks in recordings]
    seconds: dict[int, list[Part]] = {}
    while reading:
        behind = min(reading, key=lambda recording: recording.newest)
        parts = behind.read()
        if parts is None:
            reading.remove(behind)
        else:
            for part in parts:
                _sort(part, seconds)
        newest = min((recording.newest for recording in reading), default=LONG_AFTER)
        for second in sorted(second for second in seconds if (second + 1) * _SECOND_MS <= newest - 2 * LATENESS_MS):
            yield from _batches_of_second(seconds.pop(second))


def seconds_of(chunk: Iterable[Part]) -> Iterator[Collection[Observation]]:
    """Yield the observations of a chunk by when they were seen, those of each second as `batches` does."""
    seconds: dict[int, list[Part]] = {}
    for part in chunk:
        _sort(part, seconds)
    for second in sorted(seconds):
        yield from _batches_of_second(seconds[second])


def _sort(part: Part, seconds: dict[int, list[Part]]) -> None:
    """Add observations to what was seen in each second."""
    if isinstance(part, ObservationBatch):
        seen = part.seen
        if (np.diff(seen) < 0).any():
            order = np.argsort(seen, kind="stable")
            part, seen = part.select(order), seen[order]
        ends = (np.flatnonzero(np.diff(seen // _SECOND_MS)) + 1).tolist()
        for begin, end in zip([0, *ends], [*ends, len(part)], strict=True):
            seconds.setdefault(int(seen[begin]) // _SECOND_MS, []).append(part.select(slice(begin, end)))
    else:
        for second, several in groupby(part, key=lambda observation: observation.seen // _SECOND_MS):
            seconds.setdefault(second, []).append(list(several))


def _batches_of_second(parts: Sequence[Part]) -> Iterator[Collection[Observation]]:
    columns = [part for part in parts if isinstance(part, ObservationBatch) and len(part) >= LEAST_COLUMNS]
    others = [
        observation
        for part in parts
        if not isinstance(part, ObservationBatch) or len(part) < LEAST_COLUMNS
        for observation in part
    ]
    for _, several in groupby(sorted(others, key=attrgetter("seen")), key=attrgetter("seen")):
        moment = list(several)
        yield sorted(moment, key=lambda observation: repr(observation.subject)) if len(moment) > 1 else moment
    yield from sorted(columns, key=lambda batch: batch.kind is Commit)


def last_seen(part: Collection[Observation]) -> int:
    """Return when the last of these observations was seen, ms; LONG_AGO if there are none."""
    if isinstance(part, ObservationBatch):
        return part.latest
    return max((observation.seen for observation in part), default=LONG_AGO)


class _Recording:
    """What one agent took. newest: when the latest observation that was read was seen, ms."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self.newest = LONG_AGO
        self._chunks = iter(chunks)
        self._latest: dict[Subject, int] = {}

    def read(self) -> list[Part] | None:
        """Return the next observations, without those older than the latest of the same subject; None at the end."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return None
        parts = [self._without_late(part) for part in chunk]
        self.newest = max([self.newest, *map(last_seen, parts)])
        return parts

    def _without_late(self, part: Part) -> Part:
        if isinstance(part, ObservationBatch):
            part = part.not_after_seen()
            if self._is_in_order(part):
                return part
        kept: list[Observation] = []
        for observation in map(not_after_seen, part):
            subject = observation.subject
            if observation.is_event:  # facts put them in order
                kept.append(observation)
            elif observation.at >= self._latest.get(subject, observation.at):
                self._latest[subject] = observation.at
                kept.append(observation)
        return kept

    def _is_in_order(self, batch: ObservationBatch[Any]) -> bool:
        """Return whether none is older than the latest of its subject, and then remember the latest."""
        order = np.argsort(batch.numbers, kind="stable")
        numbers, at = batch.numbers[order], batch.at[order]
        is_first = differ_from_before(numbers)
        firsts: Integers = np.flatnonzero(is_first)
        if ((at[1:] < at[:-1]) & ~is_first[1:]).any():
            return False
        names = [(batch.kind.subject_kind, batch.cluster, *batch.keys[number]) for number in numbers[firsts].tolist()]
        latest = [self._latest.get(name, LONG_AGO) for name in names]
        if (at[firsts] < latest).any():
            return False
        lasts = np.append(firsts[1:], len(at)) - 1
        self._latest.update(zip(names, at[lasts].tolist(), strict=True))
        return True
