"""When groups got and lost their members, further back than a restart restores all observations."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet

from agent.model.batches import Flags, Integers, differ_from_before
from agent.model.observations.kafka import GroupState
from agent.storage.journal.columns import INSTANT, MISFITS, column_of
from agent.storage.journal.reader import COLUMNS, readable_batches, warn
from agent.storage.journal.segments import DAY_MS, FOREVER, UNREADABLE, Segment, Unreadable, find

_KIND = "group_state"

MOST_ROWS = 4_000_000
"""How many rows of sealed files are read, the newest first: with very many groups that is less than asked for."""


class _Rows(NamedTuple):
    """What counts of the rows of a batch, as arrays: whose state it is, whether there are members, and when.

    numbers: of the groups in `groups`. presence: 0 with members, 1 without, 2 if the group no longer exists.
    """

    groups: list[str]
    numbers: Integers
    presence: Integers
    at: Integers


def membership_changes(directory: Path, since: int, until: int, unreadable: Unreadable = warn) -> Iterator[GroupState]:
    """Yield the states with which groups got or lost their members between these times (ms), in order.

    Of groups that have been observed from `until` on. Rebalances and heartbeats are left out. What cannot be read is
    passed to `unreadable` and skipped.
    """
    segments = find(directory, [_KIND], range(since // DAY_MS, (FOREVER - 1) // DAY_MS + 1))
    present = _groups_since(segments, until, unreadable)
    last: dict[str, int] = {}
    for segment, batch in readable_batches(_newest(segments), since, until, unreadable):
        try:
            rows = _read(batch)
            changed = _find_changes(rows, (since <= rows.at) & (rows.at < until), present, last)
            states = [state for _, state in COLUMNS[_KIND].rows(batch.take(pa.array(changed)))]
        except MISFITS as error:
            unreadable(segment.path, str(error))
            continue
        yield from (state for state in states if isinstance(state, GroupState))


def _groups_since(segments: Iterable[Segment], since: int, unreadable: Unreadable) -> set[str]:
    found: set[str] = set()
    recent = [segment for segment in segments if segment.day >= since // DAY_MS]
    for segment, batch in readable_batches(recent, since, FOREVER, unreadable):
        try:
            rows = _read(batch)
        except MISFITS as error:
            unreadable(segment.path, str(error))
            continue
        found.update(rows.groups[number] for number in np.unique(rows.numbers[rows.at >= since]).tolist())
    return found


def _newest(segments: list[Segment]) -> list[Segment]:
    """Return the newest segments with MOST_ROWS together, in their order."""
    left, newest = MOST_ROWS, list[Segment]()
    for segment in reversed(segments):
        if segment.last is not None:
            with suppress(*UNREADABLE):  # merged or removed since it was listed, or damaged: reading it says so
                left -= parquet.read_metadata(segment.path).num_rows
        if left < 0:
            break
        newest.append(segment)
    return newest[::-1]


def _read(batch: pa.RecordBatch) -> _Rows:
    """Return the rows of a batch. Raises one of MISFITS."""
    names = compute.binary_join_element_wise(
        column_of(batch, "cluster", pa.string()), column_of(batch, "group", pa.string()), "\0"
    ).dictionary_encode()
    state = column_of(batch, "state", pa.string())
    members = compute.fill_null(compute.list_value_length(batch.column("members")), 0)
    is_empty = compute.and_(compute.equal(state, "Empty"), compute.equal(members, 0))
    is_gone = np.asarray(compute.and_(compute.equal(state, "Dead"), compute.equal(members, 0)))
    at = column_of(batch, "at", INSTANT).view(pa.int64())
    return _Rows(
        names.dictionary.to_pylist(),
        np.asarray(names.indices, np.int64),
        np.where(is_gone, 2, np.asarray(is_empty).astype(np.int64)),
        np.asarray(at),
    )


def _find_changes(rows: _Rows, is_asked: Flags, present: set[str], last: dict[str, int]) -> Integers:
    """Return the rows that differ from the one of their group before, and note each group's last one in `last`."""
    known = np.array([group in present for group in rows.groups], np.bool_)
    chosen = np.flatnonzero(is_asked & known[rows.numbers]) if len(known) else np.zeros(0, np.int64)
    chosen = chosen[np.argsort(rows.numbers[chosen], kind="stable")]
    numbers, presence = rows.numbers[chosen], rows.presence[chosen]
    is_first = differ_from_before(numbers)
    changed = is_first | differ_from_before(presence)
    for index in np.flatnonzero(is_first).tolist():
        changed[index] = last.get(rows.groups[numbers[index]]) != presence[index]
    for index in np.flatnonzero(np.append(is_first[1:], True))[: len(numbers)].tolist():
        last[rows.groups[numbers[index]]] = int(presence[index])
    return np.sort(chosen[changed])
