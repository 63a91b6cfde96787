"""Reading the journal: observations in the order in which they were taken, even while it is written."""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import structlog

from agent.model.batches import Chunk, Integers, ObservationBatch, Part
from agent.model.observations import KINDS
from agent.model.observations.base import Observation
from agent.storage.journal.batch_rows import BATCHES, from_arrow
from agent.storage.journal.clock_steps import ClockStep, date_back, read_steps
from agent.storage.journal.columns import MISFITS, Columns
from agent.storage.journal.failures import system_failures
from agent.storage.journal.places import Place, find_segments
from agent.storage.journal.segments import DAY_MS, FOREVER, UNREADABLE, Segment, Unreadable, batches

COLUMNS = {name: Columns(kind) for name, kind in KINDS.items()}
"""The Arrow columns of each kind of observations, by its name."""


def warn(path: Path, reason: str) -> None:
    """Log what could not be read or written."""
    structlog.get_logger(__name__).warning("journal_left_out", path=str(path), reason=reason)


def entries(
    place: Place,
    since: int | None = None,
    until: int | None = None,
    kinds: Collection[str] | None = None,
    unreadable: Unreadable = warn,
    *,
    skips_failures: bool = True,
) -> Iterator[tuple[int, Observation]]:
    """Return positions and observations with since <= at < until (ms), in order of position, even during writes.

    Only the requested dates are read, a batch of each kind at a time. What cannot be read is passed to `unreadable` and
    skipped. If an agent's state was lost, positions begin again where its next journal begins. skips_failures: whether
    what the system cannot read is skipped too, as at the agent's start; else that raises ReadError.
    """
    since, until = -FOREVER if since is None else since, FOREVER if until is None else until
    days = range(since // DAY_MS, (until - 1) // DAY_MS + 1)
    segments = find_segments(place, COLUMNS if kinds is None else kinds, days)
    journals = groupby(segments, attrgetter("journal"))
    return chain.from_iterable(
        _merge(list(of_journal), since, until, unreadable, skips_failures=skips_failures) for _, of_journal in journals
    )


def _lanes(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Return lanes of consecutive segments, so that hardly more files are open at once than there are kinds."""
    lanes: list[list[Segment]] = []
    for segment in segments:
        lane = next((lane for lane in lanes if lane[-1].last is not None and lane[-1].last < segment.first), None)
        if lane is None:
            lanes.append([segment])
        else:
            lane.append(segment)
    return lanes


def _merge(
    segments: Iterable[Segment], since: int, until: int, unreadable: Unreadable, *, skips_failures: bool
) -> Iterator[tuple[int, Observation]]:
    def rows(lane: Iterable[Segment]) -> Iterator[tuple[int, Observation]]:
        for segment, batch in readable_batches(lane, since, until, unreadable, skips_failures=skips_failures):
            for entry in _readable_rows(segment, batch, unreadable):
                if since <= entry[1].at < until:
                    yield entry

    return heapq.merge(*map(rows, _lanes(segments)), key=itemgetter(0))


def readable_batches(
    segments: Iterable[Segment], since: int, until: int, unreadable: Unreadable, *, skips_failures: bool = True
) -> Iterator[tuple[Segment, pa.RecordBatch]]:
    """Yield what is read at once of segments, one after the other."""
    for segment in segments:
        try:
            with nullcontext() if skips_failures else system_failures(segment.path):
                for batch in batches(segment, since, until):
                    yield segment, batch
        except UNREADABLE as error:
            unreadable(segment.path, str(error))


def read(
    place: Place,
    since: int | None = None,
    until: int | None = None,
    kinds: Collection[str] | None = None,
    unreadable: Unreadable = warn,
    *,
    skips_failures: bool = True,
) -> Iterator[Observation]:
    """Return the observations of `entries` without their positions."""
    return map(itemgetter(1), entries(place, since, until, kinds, unreadable, skips_failures=skips_failures))


def chunks(place: Place, unreadable: Unreadable = warn) -> Iterator[Chunk]:
    """Return all observations, chunk by chunk in order of position; what can be as columns.

    What was observed while the agent's clock was ahead is dated back, so that it does not hide what follows. What
    cannot be read is passed to `unreadable` and skipped.
    """
    journals = groupby(find_segments(place, COLUMNS), attrgetter("journal"))
    return chain.from_iterable(_dated_chunks(list(of_journal), unreadable) for _, of_journal in journals)


def positioned_chunks(place: Place, since: int, unreadable: Unreadable = warn) -> Iterator[Sequence["Positioned"]]:
    """Return observations since about that time (ms) as `chunks` does, with positions, and dated as they were taken."""
    segments = find_segments(place, COLUMNS, range(since // DAY_MS, (FOREVER - 1) // DAY_MS + 1))
    journals = groupby(segments, attrgetter("journal"))
    return chain.from_iterable(_chunks(list(of_journal), unreadable, since) for _, of_journal in journals)


class Positioned(NamedTuple):
    """Observations of one kind, and their positions, both in order."""

    positions: Integers
    part: Part


def _dated_chunks(segments: Sequence[Segment], unreadable: Unreadable) -> Iterator[Chunk]:
    ticks = (segment for segment in segments if segment.kind == "tick")
    steps = read_steps(batch for _, batch in readable_batches(ticks, -FOREVER, FOREVER, lambda *_: None))
    for chunk in _chunks(segments, unreadable, -FOREVER, steps):
        yield [part for _, part in chunk]


def _chunks(
    segments: Sequence[Segment], unreadable: Unreadable, since: int, steps: Sequence[ClockStep] = ()
) -> Iterator[Sequence[Positioned]]:
    def blocks_of(lane: Iterable[Segment]) -> Iterator[list[Positioned]]:
        for segment, batch in readable_batches(lane, since, FOREVER, unreadable):
            if block := _block(segment, date_back(batch, steps), unreadable):
                yield block

    lanes = list(map(blocks_of, _lanes(segments)))
    blocks = {number: block for number, lane in enumerate(lanes) if (block := next(lane, []))}
    while blocks:
        until = _end_of_chunk(blocks.values())
        chunk: list[Positioned] = []
        for number, block in list(blocks.items()):
            rest = []
            for positions, part in block:
                count = len(positions) if positions[-1] <= until else int(positions.searchsorted(until, "right"))
                if count:
                    chunk.append(Positioned(positions[:count], rows_of(part, slice(count))))
                if count < len(positions):
                    rest.append(Positioned(positions[count:], rows_of(part, slice(count, None))))
            blocks[number] = rest or next(lanes[number], [])
            if not blocks[number]:
                del blocks[number]
        yield chunk


def _end_of_chunk(blocks: Collection[list[Positioned]]) -> int:
    """Return the position up to which all has been read, and a kind is in one block only: its rows stay in order.

    Dates are written to files of their own, and the first rows of a date may come before the last ones of another.
    """
    firsts: defaultdict[type[Observation], list[int]] = defaultdict(list)
    for block in blocks:
        firsts[_kind(block[0].part)].append(min(int(positions[0]) for positions, _ in block))
    others = (sorted(of_kind)[1] - 1 for of_kind in firsts.values() if len(of_kind) > 1)
    return min(*(max(int(positions[-1]) for positions, _ in block) for block in blocks), *others, FOREVER)


def _kind(part: Part) -> type[Observation]:
    return part.kind if isinstance(part, ObservationBatch) else type(part[0])


def rows_of(part: Part, rows: slice) -> Part:
    """Return these rows."""
    return part.select(rows) if isinstance(part, ObservationBatch) else part[rows]


def _block(segment: Segment, batch: pa.RecordBatch, unreadable: Unreadable) -> list[Positioned]:
    """Return a batch of a kind; its clusters apart where in columns."""
    kind = BATCHES.get(segment.kind)
    if kind is not None and batch.num_rows:
        try:
            return [Positioned(*found) for found in from_arrow(kind, batch)]
        except MISFITS:
            pass  # row by row, those that can be read
    rows = list(_readable_rows(segment, batch, unreadable))
    positions = np.array([position for position, _ in rows], np.int64)
    return [Positioned(positions, [observation for _, observation in rows])] if rows else []


def last_at(place: Place, until: int = FOREVER) -> int | None:
    """Return the time of the newest tick before `until` (ms): until then the writer was alive.

    Of the newest observation if there is no tick, as after a kill in the first second; None in an empty journal.
    """
    for kinds in (["tick"], None):
        days = {segment.day for segment in find_segments(place, kinds) if segment.day * DAY_MS < until}
        for day in sorted(days, reverse=True):
            observations = read(place, day * DAY_MS, min(until, (day + 1) * DAY_MS), kinds)
            newest = max((observation.at for observation in observations), default=None)
            if newest is not None:
                return newest
    return None


def _readable_rows(
    segment: Segment, batch: pa.RecordBatch, unreadable: Unreadable
) -> Iterable[tuple[int, Observation]]:
    """Return the rows of a batch that can be read; the others are reported as one."""
    columns = COLUMNS[segment.kind]
    try:
        return columns.rows(batch)
    except MISFITS:
        rows: list[tuple[int, Observation]] = []
        reasons = []
        for number in range(batch.num_rows):
            try:
                rows += columns.rows(batch.slice(number, 1))
            except MISFITS as error:
                reasons.append(str(error))
        unreadable(segment.path, f"{len(reasons)} of {batch.num_rows} rows cannot be read; the first: {reasons[0]}")
        return rows
