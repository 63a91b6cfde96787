"""The journal returns each observation once and in order, after kills of the writer and damage to files."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from errno import EIO
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
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState, LogOffsets, Member, OffsetsPosition
from agent.model.times import millis
from agent.storage.journal.columns import Columns
from agent.storage.journal.reader import chunks, entries, last_at, read
from agent.storage.journal.segments import DAY_MS, in_groups
from agent.storage.journal.writer import Journal, JournalError

NOON = millis("2026-11-20T12:00:00.000Z")
MIDNIGHT = millis("2026-11-21T00:00:00.000Z")
ROOT = Path(__file__).parents[2]


class Unreadable:
    """The files and values that the journal reported as unreadable."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.reasons: list[str] = []

    def __call__(self, path: Path, reason: str) -> None:
        self.paths.append(path)
        self.reasons.append(reason)


def commit(at: int, offset: int | None = 0) -> Commit:
    return Commit(at=at, cluster="main", group="g", topic="t", partition=0, offset=offset)


def observation_at(position: int) -> Observation:
    """Return the observation of a position: four kinds in turn, on two dates."""
    at = MIDNIGHT - 5_000 + position
    match position % 4:
        case 0:
            return BrokerRegistration(at=at, cluster="main", broker=2005, session=f"{position:#x}", epoch=position)
        case 1:
            return LogOffsets(at=at, cluster="main", topic="t", partition=position, log_start=0, log_end=position)
        case 2:
            return Tick(at=at)
        case _:
            return commit(at, position)


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_kill_loses_and_duplicates_nothing_flushed(tmp_path: Path, seed: int) -> None:
    """SIGKILL at random points of appending, flushing, sealing and closing, four times on one journal."""
    draw = random.Random(seed)  # noqa: S311 - picks the moment of a kill
    flushed: set[int] = set()
    for _ in range(4):
        command = [sys.executable, __file__, str(tmp_path), str(draw.random())]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
            assert writer.stdout is not None
            printed = [line for _, line in zip(range(draw.randrange(1, 100)), writer.stdout, strict=False)]
            writer.kill()
            printed += [line for line in writer.stdout if line.endswith("\n")]
        assert writer.returncode == -signal.SIGKILL
        for line in printed:
            flushed.update(range(*map(int, line.split())))
        positions = read_positions(tmp_path)
        assert flushed <= set(positions)
        with closing(Journal(tmp_path)) as journal:
            assert journal.position > positions[-1]
        assert read_positions(tmp_path) == positions
        assert not list(tmp_path.glob("*/*/_*"))


def read_positions(directory: Path) -> list[int]:
    """Return the journal's positions; assert that they are unique, in order and have the right observations."""
    unreadable = Unreadable()
    found = list(entries(directory, unreadable=unreadable))
    positions = [position for position, _ in found]
    assert not unreadable.paths
    assert positions == sorted(set(positions))
    assert all(observation == observation_at(position) for position, observation in found)
    return positions


def write_until_killed(directory: Path, seed: str) -> None:
    """Write, and print the range of positions after each flush, until killed."""
    draw = random.Random(seed)  # noqa: S311 - sizes of batches and segments
    now = MIDNIGHT
    while True:
        with closing(Journal(directory, segment_bytes=draw.randrange(2_000, 50_000))) as journal:
            for _ in range(draw.randrange(1, 50)):
                start = journal.position
                journal.append([observation_at(position) for position in range(start, start + draw.randrange(1, 400))])
                journal.flush()
                os.write(1, f"{start} {journal.position}\n".encode())
                now += draw.randrange(100_000)
                journal.seal(now)


@pytest.mark.slow
def test_a_stream_truncated_at_any_byte_is_readable_up_to_there(tmp_path: Path) -> None:
    """A kill leaves such a file: it is not reported, and earlier flushes are read before and after recovery."""
    batches = [[commit(NOON, 1), commit(NOON, None)], [commit(NOON, 3)]]
    ends, unreadable = [], Unreadable()
    with closing(Journal(tmp_path / "whole")) as journal:
        for batch in batches:
            journal.append(batch)
            journal.flush()
            (stream,) = tmp_path.glob("whole/commit/*/_*.arrow")
            ends.append(stream.stat().st_size)
        content, name = stream.read_bytes(), stream.relative_to(tmp_path / "whole")
    for cut in range(len(content) + 1):
        torn = tmp_path / str(cut) / name
        torn.parent.mkdir(parents=True)
        torn.write_bytes(content[:cut])
        whole = [observation for batch, end in zip(batches, ends, strict=True) if end <= cut for observation in batch]
        assert list(read(tmp_path / str(cut), unreadable=unreadable)) == whole
        with closing(Journal(tmp_path / str(cut), unreadable=unreadable)) as journal:
            assert journal.position == len(whole)
            assert list(read(tmp_path / str(cut), unreadable=unreadable)) == whole
    assert not unreadable.paths


@pytest.mark.slow
def test_journal_cut_at_any_byte_continues_and_counts_what_is_missing(tmp_path: Path) -> None:
    """Opened as at a start: with the position that the state knows, and then written and read again."""
    written = [commit(NOON, 1), commit(NOON, None), commit(NOON + 1, 3)]
    with closing(Journal(tmp_path / "whole")) as journal:
        ends = []
        for observation in written:
            journal.append([observation])
            journal.flush()
            (stream,) = tmp_path.glob("whole/commit/*/_*.arrow")
            ends.append(stream.stat().st_size)
        content, name = stream.read_bytes(), stream.relative_to(tmp_path / "whole")
    for cut in range(len(content) + 1):
        directory, unreadable = tmp_path / str(cut), Unreadable()
        (directory / name).parent.mkdir(parents=True)
        (directory / name).write_bytes(content[:cut])
        kept = sum(end <= cut for end in ends)
        with closing(Journal(directory, unreadable=unreadable)) as journal:
            assert journal.continue_at(len(written)) == len(written) - kept
            journal.append([Tick(at=NOON + 2)])
        assert list(entries(directory, unreadable=unreadable)) == [
            *enumerate(written[:kept]),
            (len(written), Tick(at=NOON + 2)),
        ]
        assert last_at(directory) == NOON + 2
        with closing(Journal(directory, unreadable=unreadable)) as journal:
            assert journal.continue_at(len(written) + 1) == 0
        assert not unreadable.paths


@pytest.mark.slow
def test_sealed_segment_cut_at_any_byte_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1), commit(NOON, None)])
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON + 1, 3), Tick(at=NOON + 1)])
    rest = [(2, commit(NOON + 1, 3)), (3, Tick(at=NOON + 1))]
    sealed = min(tmp_path.glob("commit/*/*.parquet"))
    content = sealed.read_bytes()
    for cut in range(len(content)):
        sealed.write_bytes(content[:cut])
        unreadable = Unreadable()
        with closing(Journal(tmp_path, unreadable=unreadable)) as journal:
            assert journal.position == 4
            assert last_at(tmp_path) == NOON + 1
            assert list(entries(tmp_path, unreadable=unreadable)) == rest
        assert unreadable.paths == [sealed]
        assert unreadable.reasons[0]


def test_damage_in_a_stream_is_reported_and_earlier_records_kept(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "whole")) as journal:
        ends = []
        for offset in range(3):
            journal.append([commit(NOON, offset)])
            journal.flush()
            (stream,) = tmp_path.glob("whole/commit/*/_*.arrow")
            ends.append(stream.stat().st_size)
        content, name = bytearray(stream.read_bytes()), stream.relative_to(tmp_path / "whole")
    content[ends[0] + 8 : ends[0] + 40] = b"\xff" * 32  # the second batch's metadata
    damaged = tmp_path / "damaged" / name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(content)
    unreadable = Unreadable()
    assert list(read(tmp_path / "damaged", unreadable=unreadable)) == [commit(NOON, 0)]
    with closing(Journal(tmp_path / "damaged", unreadable=unreadable)) as journal:
        assert journal.position == 1
    assert unreadable.paths == [damaged, damaged.with_suffix(".damaged")]
    assert unreadable.paths[1].read_bytes() == content
    assert list(read(tmp_path / "damaged", unreadable=unreadable)) == [commit(NOON, 0)]
    assert len(unreadable.paths) == 2


def test_a_crash_after_sealing_duplicates_nothing(tmp_path: Path) -> None:
    """The sealed file is read; recovery removes the stream and the temporary file."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1), commit(NOON, 2)])
        journal.flush()
        (stream,) = tmp_path.glob("commit/*/_*.arrow")
    stream.write_bytes(b"a sealed stream is not read")
    stream.with_suffix(".tmp").write_bytes(b"incomplete")
    unreadable = Unreadable()
    assert list(read(tmp_path, unreadable=unreadable)) == [commit(NOON, 1), commit(NOON, 2)]
    with closing(Journal(tmp_path, unreadable=unreadable)) as journal:
        assert journal.position == 2
    assert list(read(tmp_path, unreadable=unreadable)) == [commit(NOON, 1), commit(NOON, 2)]
    assert not unreadable.paths
    assert [path.suffix for path in tmp_path.glob("commit/*/*")] == [".parquet"]


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


def test_a_segment_that_cannot_be_sealed_is_sealed_later(tmp_path: Path) -> None:
    """The journal says so until then, and seals the others."""
    sealed: list[bool] = []
    with closing(Journal(tmp_path, segment_ms=0, sealed=lambda: sealed.append(True))) as journal:
        journal.append([commit(NOON), Tick(at=NOON)])
        journal.flush()
        (stream,) = tmp_path.glob("commit/*/_*.arrow")
        in_the_way = stream.with_suffix(".tmp")
        in_the_way.mkdir()
        with pytest.raises(JournalError, match=f"{stream} cannot be sealed"):
            journal.seal(NOON)
        assert sealed == [True]
        journal.append([commit(NOON + 1)])
        journal.flush()
        in_the_way.rmdir()
        with pytest.raises(JournalError, match="is tried again"):
            journal.seal(NOON + 59_999)
        journal.seal(NOON + 60_000)
        assert not list(tmp_path.glob("*/*/_*"))
        assert list(read(tmp_path)) == [commit(NOON), Tick(at=NOON), commit(NOON + 1)]


def test_what_cannot_be_sealed_at_the_start_is_sealed_later(tmp_path: Path) -> None:
    """As on a disk that is still full after a restart."""
    stopped = Journal(tmp_path)
    stopped.append([commit(NOON), Tick(at=NOON)])
    stopped.flush()
    for stream in tmp_path.glob("*/*/_*.arrow"):
        stream.with_suffix(".tmp").mkdir()
    with pytest.raises(JournalError, match="cannot be sealed"):
        stopped.close()
    unreadable = Unreadable()
    with closing(Journal(tmp_path, unreadable=unreadable)) as journal:
        assert [reason.partition(":")[0] for reason in unreadable.reasons] == ["cannot be recovered"]
        for in_the_way in tmp_path.glob("*/*/_*.tmp"):
            in_the_way.rmdir()
        journal.seal(NOON)
        assert not list(tmp_path.glob("*/*/_*"))
        assert list(read(tmp_path)) == [commit(NOON), Tick(at=NOON)]


def test_a_segment_that_cannot_be_sealed_may_be_removed(tmp_path: Path) -> None:
    with closing(Journal(tmp_path, segment_ms=0)) as journal:
        journal.append([commit(NOON)])
        journal.flush()
        (stream,) = tmp_path.glob("commit/*/_*.arrow")
        stream.with_suffix(".tmp").mkdir()
        with pytest.raises(JournalError):
            journal.seal(NOON)
        journal.append([commit(NOON + 9 * DAY_MS)])
        journal.flush()
        journal.retain(days=1, now=NOON + 9 * DAY_MS)
        journal.seal(NOON + 9 * DAY_MS)
    assert list(read(tmp_path)) == [commit(NOON + 9 * DAY_MS)]


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


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("position", pa.float64()), ("at", pa.int64())]),
        pa.schema([("position", pa.int64()), pa.field("at", pa.int64(), nullable=False)]),
    ],
)
def test_a_stream_that_cannot_be_sealed_is_kept_aside_at_the_start(tmp_path: Path, schema: pa.Schema) -> None:
    folder = tmp_path / "commit" / "date=2026-11-20"
    folder.mkdir(parents=True)
    stream = folder / f"_{7:019d}.arrow"
    batch = pa.RecordBatch.from_arrays(
        [pa.array([7], schema.field(0).type), pa.array([None], pa.int64())], schema=schema
    )
    with stream.open("wb") as file, pa.ipc.new_stream(file, schema) as writer:
        writer.write_batch(batch)
    unreadable = Unreadable()
    Journal(tmp_path, unreadable=unreadable).close()
    assert unreadable.paths == [stream.with_suffix(".damaged")]
    assert list(folder.iterdir()) == unreadable.paths


@pytest.mark.slow
def test_no_damaged_stream_ends_the_start(tmp_path: Path) -> None:
    """A bit of each byte is wrong, one after the other: the journal starts, and goes on.

    A length that is too large looks as if the last write had been cut, so not all damage is named.
    """
    sample = tmp_path / "sample"
    with closing(Journal(sample)) as journal:
        journal.append([commit(NOON + step, step) for step in range(3)])
        journal.flush()
        (stream,) = sample.glob("commit/*/_*.arrow")
        content = stream.read_bytes()
    for place in range(len(content)):
        directory = tmp_path / str(place)
        damaged = directory / stream.relative_to(sample)
        damaged.parent.mkdir(parents=True)
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        with closing(Journal(directory, unreadable=Unreadable())) as journal:
            journal.append([commit(NOON + 10, 10)])
        assert commit(NOON + 10, 10) in list(read(directory, unreadable=Unreadable()))


@pytest.mark.slow
@pytest.mark.parametrize("bit", range(8))
def test_no_damaged_parquet_index_ends_the_process(tmp_path: Path, bit: int) -> None:
    """pyarrow 26 aborts over some of it when it is asked for a row group's statistics."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON + step, step) for step in range(3)])
    (sealed,) = tmp_path.glob("commit/*/*.parquet")
    content = sealed.read_bytes()
    for place in range(len(content) - 8 - int.from_bytes(content[-8:-4], "little"), len(content)):
        sealed.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        unreadable = Unreadable()
        rows = list(read(tmp_path, NOON, NOON + 2, unreadable=unreadable))
        assert rows or unreadable.paths == [sealed]


def test_an_unreadable_parquet_file_is_reported_and_skipped(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        for step in range(5):
            journal.append([commit(NOON + step, offset) for offset in range(100)])
            journal.flush()
            journal.seal(0)
            journal.seal(MIDNIGHT)
    _, garbage, cut, flipped, foreign = sealed = sorted(tmp_path.glob("commit/*/*.parquet"))
    garbage.write_bytes(b"not Parquet")
    cut.write_bytes(cut.read_bytes()[:-20])
    content = bytearray(flipped.read_bytes())
    chunk = parquet.read_metadata(flipped).row_group(0).column(0)
    content[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    flipped.write_bytes(content)
    parquet.write_table(pa.table({"position": [300]}), foreign)
    unreadable = Unreadable()
    assert list(read(tmp_path, unreadable=unreadable)) == [commit(NOON, offset) for offset in range(100)]
    assert unreadable.paths == sealed[1:]
    assert all(unreadable.reasons)


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


def test_a_value_that_fits_no_column_is_reported_and_skipped(tmp_path: Path) -> None:
    """A znode may hold such a value; the other observations are written."""
    unreadable = Unreadable()
    with closing(Journal(tmp_path, unreadable=unreadable)) as journal:
        journal.append([commit(NOON, 1), commit(NOON, 1 << 70), commit(NOON, 3)])
    assert list(read(tmp_path)) == [commit(NOON, 1), commit(NOON, 3)]
    assert len(unreadable.reasons) == 1
    assert "offset=1180591620717411303424" in unreadable.reasons[0]


def test_after_a_full_disk_observations_are_written_once(tmp_path: Path) -> None:
    """An incomplete write raises; readers see earlier flushes; nothing is lost or duplicated."""
    observations = [commit(NOON, 1), Tick(at=NOON + 1), *(commit(NOON, offset) for offset in range(2, 500))]
    with closing(Journal(tmp_path)) as journal:
        journal.append(observations[:1])
        journal.flush()
        journal.append(observations[1:])
        with no_larger_than(1_000, tmp_path), pytest.raises(JournalError, match=r"cannot be written.*File too large"):
            journal.flush()
        assert list(read(tmp_path)) == observations[:2]
        journal.append([commit(NOON, 500)])
        journal.flush()
        assert list(read(tmp_path)) == [*observations, commit(NOON, 500)]
    assert list(read(tmp_path)) == [*observations, commit(NOON, 500)]


def test_what_follows_dropped_observations_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shorter than the incomplete write before it, of which nothing may remain in the file."""
    monkeypatch.setattr("agent.storage.journal.writer.MAX_WAITING", 400)
    unreadable = Unreadable()
    with closing(Journal(tmp_path, unreadable=unreadable)) as journal:
        journal.append([commit(NOON, 1)])
        journal.flush()
        journal.append([commit(NOON, offset) for offset in range(2, 500)])
        with no_larger_than(10_000, tmp_path), pytest.raises(JournalError, match="498 observations were dropped"):
            journal.flush()
        journal.append([commit(NOON, 500)])
        journal.flush()
        assert list(read(tmp_path, unreadable=unreadable)) == [commit(NOON, 1), commit(NOON, 500)]
    assert list(read(tmp_path, unreadable=unreadable)) == [commit(NOON, 1), commit(NOON, 500)]
    assert unreadable.reasons == []


def test_a_position_is_written_only_after_the_commits_before_it(tmp_path: Path) -> None:
    """A small write succeeds on a nearly full disk where a large one fails."""

    def position(offset: int) -> OffsetsPosition:
        return OffsetsPosition(at=NOON, cluster="c", partition=0, next_offset=offset, partitions=1)

    commits = [commit(NOON, offset) for offset in range(2, 500)]
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1)])
        journal.flush()
        journal.append([position(1)])
        journal.append([*commits, position(500)])
        with no_larger_than(10_000, tmp_path), pytest.raises(JournalError):
            journal.flush()
        assert list(read(tmp_path)) == [commit(NOON, 1)]
        journal.flush()
        assert list(read(tmp_path)) == [commit(NOON, 1), position(1), *commits, position(500)]


def test_a_disk_that_does_not_keep_names_costs_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flush tries again."""

    def fail(folder: Path) -> None:
        raise OSError(EIO, "Input/output error", str(folder))

    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1)])
        before = len(list(Path("/proc/self/fd").iterdir()))
        with monkeypatch.context() as patched:
            patched.setattr("agent.storage.journal.segments.sync", fail)
            for _ in range(3):
                with pytest.raises(JournalError, match="Input/output error"):
                    journal.flush()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert list(read(tmp_path)) == [commit(NOON, 1)]


@contextmanager
def no_larger_than(more: int, directory: Path) -> Iterator[None]:
    """Let this process write so many bytes more to the open segment of commits, as if the disk were full then."""
    (stream,) = directory.glob("commit/*/_*.arrow")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (stream.stat().st_size + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_row_that_cannot_be_read_is_skipped_and_reported(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON + step, step) for step in range(5)])
    (sealed,) = tmp_path.glob("commit/*/*.parquet")
    table = parquet.read_table(sealed, partitioning=None)
    for name, number in (("position", 1), ("at", 2), ("group", 3)):
        column = table.column(name).to_pylist()
        column[number] = None
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, pa.array(column, type=table.schema.field(name).type))
    parquet.write_table(table, sealed)
    unreadable = Unreadable()
    assert list(read(tmp_path, unreadable=unreadable)) == [commit(NOON, 0), commit(NOON + 4, 4)]
    assert unreadable.reasons == ["3 of 5 rows cannot be read; the first: `position` has no value"]


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


def test_observations_wait_within_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.storage.journal.writer.MAX_WAITING", 10)
    (tmp_path / "file").touch()
    with closing(Journal(tmp_path / "file" / "journal", unreadable=Unreadable())) as journal:
        journal.append([commit(NOON, offset) for offset in range(10)])
        with pytest.raises(JournalError, match=r"cannot be opened: [^;]*$"):
            journal.flush()
        journal.append([commit(NOON, 10)])
        with pytest.raises(JournalError, match="11 observations were dropped"):
            journal.flush()
        (tmp_path / "file").unlink()
        journal.append([commit(NOON, 11)])
        journal.flush()
        assert list(entries(tmp_path / "file" / "journal")) == [(11, commit(NOON, 11))]


if __name__ == "__main__":
    write_until_killed(Path(sys.argv[1]), sys.argv[2])
