"""The journal returns each observation once and in order."""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby, pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import parquet

from agent.model.batches import UNKNOWN, CommitBatch, CommitKey, CommitKeys
from agent.model.observations import KINDS
from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit, GroupState, Member
from agent.model.times import millis
from agent.storage.journal.columns import Columns
from agent.storage.journal.reader import chunks, entries, last_at, read
from agent.storage.journal.segments import DAY_MS, in_groups
from agent.storage.journal.writer import Journal, JournalError
from tests.storage.journals import MIDNIGHT, NOON, Unreadable, commit


def values(hint: Any) -> st.SearchStrategy[Any]:
    if hint is int:
        return st.integers(-(1 << 63), (1 << 63) - 1)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return st.builds(hint, **{field.name: values(field.type) for field in msgspec.structs.fields(hint)})
    if get_origin(hint) in (Union, UnionType):
        return st.one_of([st.none() if member is NoneType else values(member) for member in get_args(hint)])
    if get_origin(hint) is tuple:
        items = get_args(hint)
        if items[-1] is ...:
            return st.lists(values(items[0]), max_size=4).map(tuple)
        return st.tuples(*map(values, items))
    return st.from_type(hint)


def samples_of_commits() -> st.SearchStrategy[Observation]:
    """Return commits of one cluster around midnight."""
    times, offsets = st.integers(MIDNIGHT - 5, MIDNIGHT + 5), st.one_of(st.none(), st.integers(0, 1 << 60))
    return st.builds(
        Commit,
        at=times,
        seen_at=st.one_of(st.none(), times),
        since=st.one_of(st.none(), times),
        cluster=st.just("main"),
        group=st.sampled_from(["g", "h"]),
        topic=st.just("t"),
        partition=st.integers(0, 2),
        offset=offsets,
        leader_epoch=st.one_of(st.none(), st.integers(0, 9)),
    )


OBSERVATIONS = st.one_of([values(kind) for kind in KINDS.values()])


def test_every_kind_has_columns() -> None:
    """A new kind of observation needs no change in the journal; position and times come first."""
    for kind in KINDS.values():
        assert Columns(kind).schema.names == ["position", *kind.__struct_fields__]


def check_order(
    journal: Journal,
    folder: Path,
    flushed: Sequence[Sequence[Observation]],
    *,
    sealed: bool,
    append: Callable[[Sequence[Observation]], object],
) -> None:
    """Write what is flushed together, then read all: nothing is missing, twice or in another order."""
    for observations in flushed:
        append(observations)
        journal.flush()
    if sealed:
        journal.seal(now=0)  # notices the open segments
        journal.seal(now=1 << 62)
    written = [observation for observations in flushed for observation in observations]
    assert list(entries(folder)) == list(enumerate(written))
    in_chunks = [observation for chunk in chunks(folder) for part in chunk for observation in part]
    ticks = [observation.at for observation in written if isinstance(observation, Tick)]
    if any(later < earlier for earlier, later in pairwise(ticks)):  # a clock set back: what was ahead is dated back
        in_chunks, written = list(map(undated, in_chunks)), list(map(undated, written))
    assert sorted(in_chunks, key=series_of) == sorted(written, key=series_of)


def undated(observation: Observation) -> Observation:
    return replace(observation, at=0, seen_at=None, since=None)


def series_of(observation: Observation) -> tuple[str, str]:
    """Return what chunks keep in order: the observations of a kind, those of each cluster apart."""
    return type(observation).__name__, repr(getattr(observation, "cluster", None))


def test_times_of_a_clock_that_was_ahead_are_set_back(tmp_path: Path) -> None:
    """Those of other clocks, and what follows its second step, keep theirs."""
    of_broker = replace(commit(NOON + 3_000), seen_at=NOON + 63_000)
    written = [
        Tick(at=NOON),
        Tick(at=NOON + 62_000),
        replace(commit(NOON + 63_000), since=NOON + 61_000),
        of_broker,
        Tick(at=NOON + 64_000),
        commit(NOON + 64_500),
        commit(NOON + 4_500),
        Tick(at=NOON + 5_000),
        commit(NOON + 70_000),
    ]
    with closing(Journal(tmp_path)) as journal:
        journal.append(written)
    read_back = [observation for chunk in chunks(tmp_path) for part in chunk for observation in part]
    assert [observation for observation in read_back if isinstance(observation, Tick)] == [
        Tick(at=NOON + after) for after in (0, 3_000, 5_000, 5_000)
    ]
    assert [observation for observation in read_back if isinstance(observation, Commit)] == [
        replace(commit(NOON + 4_000), since=NOON + 2_000),
        replace(of_broker, seen_at=NOON + 4_000),
        commit(NOON + 5_500),
        commit(NOON + 4_500),
        commit(NOON + 70_000),
    ]


def test_chunks_keep_the_order_of_what_is_dated_before_and_after_midnight(tmp_path: Path) -> None:
    """Each date has a file of its own; a clock that is set back writes to both in turn."""
    written = [Tick(at=DAY_MS + at) for at in (-1, 0, -1, 0, 0, -1)]
    with closing(Journal(tmp_path)) as journal:
        journal.append(written)
    assert [observation for chunk in chunks(tmp_path) for part in chunk for observation in part] == written


def test_what_is_dated_outside_of_the_calendar_is_read_in_order(tmp_path: Path) -> None:
    """By a clock that is wrong by millennia: several of its days are filed under the same date."""
    at = millis("0001-01-01T00:00:00.000Z")
    written = [Tick(at=at + days * DAY_MS) for days in (0, -2, 0, -1, 4_000_000, 4_000_001, 4_000_000)]
    with closing(Journal(tmp_path)) as journal:
        journal.append(written)
    assert list(read(tmp_path)) == written


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(OBSERVATIONS, max_size=8), max_size=4), st.booleans())
def test_observations_are_read_in_the_order_written(
    flushed: list[list[Observation]],
    sealed: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    """Every kind and value, sealed or not, across kinds and dates."""
    with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder))) as journal:
        check_order(journal, Path(folder), flushed, sealed=sealed, append=journal.append)


def _cluster_of_commit(observation: Observation) -> str | None:
    return observation.cluster if isinstance(observation, Commit) else None


@pytest.mark.slow
@given(st.lists(st.lists(st.one_of(samples_of_commits(), OBSERVATIONS), max_size=5), max_size=4), st.booleans())
def test_commits_in_columns_are_read_like_others(
    flushed: list[list[Observation]],
    sealed: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    """Whatever comes before and after them in the same flush, on several dates."""
    with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder))) as journal:

        def append(observations: Sequence[Observation]) -> None:
            for cluster, run in groupby(observations, key=_cluster_of_commit):  # a batch is of one
                several = list(run)
                batch = None if cluster is None else CommitBatch.of(several)
                assert journal.append(several if batch is None else batch) == journal.position

        check_order(journal, Path(folder), flushed, sealed=sealed, append=append)


@pytest.mark.parametrize("keys", [[], CommitKeys()], ids=["a list", "in columns"])
def test_batches_share_keys_that_grow(tmp_path: Path, keys: list[CommitKey] | CommitKeys) -> None:
    """Whether a batch is about early keys, late ones or both."""
    written = []
    with closing(Journal(tmp_path)) as journal:
        for turn, numbers in enumerate([[0, 1], [1, 2, 0], [5], [0], [4, 1, 30], list(range(31)), [7, 7, 29]]):
            for number in range(len(keys), max(numbers) + 1):
                keys.append(CommitKey(f"g{number % 7}", f"t{number % 3}", number))
            rows = np.array(numbers, np.int64)
            unknown = np.full(len(rows), UNKNOWN)
            batch = CommitBatch("main", keys, rows, NOON + turn + 0 * rows, unknown, unknown, rows, unknown)
            journal.append(batch)
            written += list(batch)
    assert [observation for _, observation in entries(tmp_path)] == written


@given(st.lists(st.integers(0, 9)))
def test_batches_are_joined_and_divided_into_groups_of_a_size(sizes: list[int]) -> None:
    numbers = iter(range(sum(sizes)))
    parts = [pa.array([next(numbers) for _ in range(size)], pa.int64()) for size in sizes]
    batches = [pa.record_batch({"position": part}) for part in parts]
    groups = [table.column("position") for table in in_groups(batches, 4)]
    assert [number for group in groups for number in group.to_pylist()] == list(range(sum(sizes)))
    assert all(len(group) == 4 for group in groups[:-1])
    assert all(group.num_chunks == 1 and 1 <= len(group) <= 4 for group in groups)


def test_positions_continue_after_a_restart(tmp_path: Path) -> None:
    """Also if the store has a higher position than the files."""
    with closing(Journal(tmp_path)) as journal:
        assert journal.append([commit(NOON), Tick(at=NOON)]) == 2
    with closing(Journal(tmp_path)) as journal:
        assert journal.position == 2
        assert journal.append([commit(NOON)]) == 3
    with closing(Journal(tmp_path, position=10)) as journal:
        journal.append([commit(NOON)])
    assert [position for position, _ in entries(tmp_path)] == [0, 1, 2, 10]


def test_only_the_requested_times_and_kinds_are_read(tmp_path: Path) -> None:
    """A damaged file of another date or kind is not even opened."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON + step * 60_000, step) for step in range(2_000)])
        journal.append([Tick(at=NOON)])
    for path in [*tmp_path.glob("commit/date=2026-11-21/*"), *tmp_path.glob("tick/*/*")]:
        path.write_bytes(b"not Parquet")
    unreadable = Unreadable()
    observations = read(tmp_path, NOON + 60_000, NOON + 180_000, kinds=["commit"], unreadable=unreadable)
    assert list(observations) == [commit(NOON + 60_000, 1), commit(NOON + 120_000, 2)]
    assert not unreadable.paths


def test_a_reader_sees_flushed_observations_only(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON)])
        assert list(read(tmp_path)) == []
        journal.flush()
        assert list(read(tmp_path)) == [commit(NOON)]


def test_a_segment_sealed_during_a_read_is_read(tmp_path: Path) -> None:
    """The reader lists an open stream, the writer seals it, the reader opens it."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON)])
        journal.flush()
        reading = read(tmp_path)
    assert list(reading) == [commit(NOON)]


def test_a_segment_is_sealed_when_large_old_or_of_a_past_date(tmp_path: Path) -> None:
    """And not before; a date stays open for five minutes after its end."""

    def still_open() -> list[str]:
        return sorted(path.parent.name for path in tmp_path.glob("*/*/_*"))

    yesterday, today = "date=2026-11-20", "date=2026-11-21"
    with closing(Journal(tmp_path, segment_bytes=20_000, segment_ms=3_600_000)) as journal:
        journal.append([commit(MIDNIGHT - 1, 1), commit(MIDNIGHT, 2)])
        journal.flush()
        journal.seal(MIDNIGHT)
        journal.seal(MIDNIGHT + 299_999)
        assert still_open() == [yesterday, today]
        journal.seal(MIDNIGHT + 300_000)
        assert still_open() == [today]
        journal.seal(MIDNIGHT + 3_599_999)
        assert still_open() == [today]
        journal.seal(MIDNIGHT + 3_600_000)
        assert still_open() == []
        journal.append([commit(MIDNIGHT, offset) for offset in range(3, 1_000)])
        journal.flush()
        journal.seal(MIDNIGHT + 3_600_000)
        assert still_open() == []
    assert list(read(tmp_path)) == [commit(MIDNIGHT - 1, 1), *(commit(MIDNIGHT, offset) for offset in range(2, 1_000))]


def test_retention_deletes_old_dates_and_keeps_the_position(tmp_path: Path) -> None:
    """Retention also deletes open segments; the position continues even if all dates are deleted."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON), commit(NOON + DAY_MS), commit(NOON + 2 * DAY_MS)])
        journal.flush()
        journal.append([commit(NOON)])
        journal.retain(days=1, now=NOON + 2 * DAY_MS)
        assert list(read(tmp_path)) == [commit(NOON + DAY_MS), commit(NOON + 2 * DAY_MS)]
        journal.flush()
        assert list(read(tmp_path))[2:] == [commit(NOON)]
    with closing(Journal(tmp_path)) as journal:
        journal.retain(days=1, now=NOON + 100 * DAY_MS)
        assert list(read(tmp_path)) == [commit(NOON)]
        assert journal.position == 4


def test_last_at_is_the_time_of_the_newest_tick(tmp_path: Path) -> None:
    assert last_at(tmp_path) is None
    with closing(Journal(tmp_path)) as journal:
        journal.append([Tick(at=NOON), Tick(at=MIDNIGHT), Tick(at=MIDNIGHT + 9), commit(MIDNIGHT + DAY_MS)])
    assert last_at(tmp_path) == MIDNIGHT + 9


def test_a_second_writer_is_refused_and_the_first_named(tmp_path: Path) -> None:
    with (
        closing(Journal(tmp_path)),
        pytest.raises(JournalError, match=f"being written by process {os.getpid()}: stop that one"),
    ):
        Journal(tmp_path)
    Journal(tmp_path).close()


def test_a_field_an_older_file_lacks_has_its_default(tmp_path: Path) -> None:
    """An unknown column is ignored."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1)])
    (path,) = tmp_path.glob("commit/*/*.parquet")
    table = parquet.ParquetFile(path).read()
    parquet.write_table(table.drop_columns(["leader_epoch", "since"]).append_column("new", [["x"]]), path)
    assert list(read(tmp_path)) == [commit(NOON, 1)]


def test_a_struct_field_an_older_file_lacks_has_its_default(tmp_path: Path) -> None:
    state = GroupState(at=NOON, cluster="main", group="g", state="Stable", members=(Member("m", tasks=("0_0",)),))
    with closing(Journal(tmp_path)) as journal:
        journal.append([state])
    (path,) = tmp_path.glob("group_state/*/*.parquet")
    table = parquet.ParquetFile(path).read()
    old: list[list[dict[str, Any]]] = [[{"id": "m", "host": "/h", "partitions": [], "client_id": None}]]
    kind = pa.list_(
        pa.struct([field for field in table.schema.field("members").type.value_type if field.name != "tasks"])
    )
    place = table.schema.get_field_index("members")
    parquet.write_table(table.set_column(place, "members", pa.array(old, type=kind)), path)
    assert list(read(tmp_path)) == [msgspec.structs.replace(state, members=(Member("m", "/h"),))]


def test_folder_that_is_no_date_is_not_the_journals(tmp_path: Path) -> None:
    foreign = tmp_path / "commit" / "date=2026-13-45"
    foreign.mkdir(parents=True)
    (foreign / f"{0:019d}-{1:019d}.parquet").write_bytes(b"")
    (foreign / f"_{0:019d}.arrow").write_bytes(b"")
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1), Tick(at=NOON)])
        journal.flush()
        journal.retain(1, NOON)
    assert list(read(tmp_path)) == [commit(NOON, 1), Tick(at=NOON)]
    assert last_at(tmp_path) == NOON
    assert foreign.exists()


def test_last_at_without_a_tick_is_that_of_any_observation(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1), commit(NOON + 5 * DAY_MS, 2)])
    assert last_at(tmp_path) == NOON + 5 * DAY_MS
    assert last_at(tmp_path, until=NOON + DAY_MS) == NOON


def test_deleted_journal_is_begun_anew(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    with closing(Journal(directory)) as journal:
        journal.append([commit(NOON, 1)])
        journal.flush()
        shutil.rmtree(directory)
        journal.append([commit(NOON, 2)])
        with pytest.raises(JournalError, match="was deleted while the agent was running"):
            journal.flush()
        journal.flush()
        assert list(entries(directory)) == [(1, commit(NOON, 2))]
        (folder,) = directory.glob("commit/*")
        shutil.rmtree(folder)
        journal.append([commit(NOON, 3)])
        with pytest.raises(JournalError, match="deleted while it was being written"):
            journal.flush()
        journal.flush()
    assert list(entries(directory)) == [(2, commit(NOON, 3))]
