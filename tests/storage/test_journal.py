"""The journal: what is written comes back, once and in order, whatever happened to the writer and to the files."""

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from pyarrow import parquet

from agent.model.observations import KINDS
from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState, LogOffsets, Member
from agent.model.times import millis
from agent.storage.journal import Journal, JournalError, entries, last_at, read
from agent.storage.journal.columns import Columns
from agent.storage.journal.segments import DAY_MS

NOON = millis("2026-11-20T12:00:00.000Z")
MIDNIGHT = millis("2026-11-21T00:00:00.000Z")
ROOT = Path(__file__).parents[2]


class LeftOut:
    """What the journal told that it had to leave out."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.reasons: list[str] = []

    def __call__(self, path: Path, reason: str) -> None:
        self.paths.append(path)
        self.reasons.append(reason)


def commit(at: int, offset: int | None = 0) -> Commit:
    """A commit of the group under test."""
    return Commit(at=at, cluster="main", group="g", topic="t", partition=0, offset=offset)


def taken(position: int) -> Observation:
    """The observation of a position: of four kinds and two dates in turn."""
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
    """Values of a field's type."""
    if hint is int:
        return st.integers(-(1 << 63), (1 << 63) - 1)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return st.builds(hint, **{field.name: values(field.type) for field in msgspec.structs.fields(hint)})
    if get_origin(hint) in (Union, UnionType):
        return st.one_of([st.none() if one is NoneType else values(one) for one in get_args(hint)])
    if get_origin(hint) is tuple:
        items = get_args(hint)
        if items[-1] is ...:
            return st.lists(values(items[0]), max_size=4).map(tuple)
        return st.tuples(*map(values, items))
    return st.from_type(hint)


ANY = st.one_of([values(kind) for kind in KINDS.values()])


def test_every_kind_has_columns() -> None:
    """A new kind of observation needs no change in the journal; position and times come first."""
    for kind in KINDS.values():
        assert Columns(kind).schema.names == ["position", *kind.__struct_fields__]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(ANY, max_size=8), max_size=4), st.booleans())
def test_what_is_written_is_read_in_the_order_in_which_it_was_taken(
    flushed: list[list[Observation]],
    sealed: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    """Every kind and value, sealed or not, across kinds and dates."""
    with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder))) as journal:
        for observations in flushed:
            journal.append(observations)
            journal.flush()
        if sealed:
            journal.seal(now=0)
            journal.seal(now=1 << 62)
        written = [one for observations in flushed for one in observations]
        assert list(entries(Path(folder))) == list(enumerate(written))


def test_positions_go_on_where_they_ended(tmp_path: Path) -> None:
    """Also where the store remembers a higher one than the files do."""
    with closing(Journal(tmp_path)) as journal:
        assert journal.append([commit(NOON), Tick(at=NOON)]) == 2
    with closing(Journal(tmp_path)) as journal:
        assert journal.position == 2
        assert journal.append([commit(NOON)]) == 3
    with closing(Journal(tmp_path, position=10)) as journal:
        journal.append([commit(NOON)])
    assert [position for position, _ in entries(tmp_path)] == [0, 1, 2, 10]


def test_only_the_times_and_kinds_asked_for_are_read(tmp_path: Path) -> None:
    """A damaged file of another date or kind is not even opened."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON + step * 60_000, step) for step in range(2_000)])
        journal.append([Tick(at=NOON)])
    for path in [*tmp_path.glob("commit/date=2026-11-21/*"), *tmp_path.glob("tick/*/*")]:
        path.write_bytes(b"not Parquet")
    left_out = LeftOut()
    asked = read(tmp_path, NOON + 60_000, NOON + 180_000, kinds=["commit"], unreadable=left_out)
    assert list(asked) == [commit(NOON + 60_000, 1), commit(NOON + 120_000, 2)]
    assert not left_out.paths


def test_what_waits_in_memory_is_not_read_and_what_is_flushed_is(tmp_path: Path) -> None:
    """A reader sees a live writer's open segments."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON)])
        assert list(read(tmp_path)) == []
        journal.flush()
        assert list(read(tmp_path)) == [commit(NOON)]


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_writer_loses_nothing_that_was_flushed_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    """SIGKILL at random points of appending, flushing, sealing and closing, again and again on one journal."""
    draw = random.Random(seed)  # noqa: S311 - picks the moment of a kill
    flushed: set[int] = set()
    for _ in range(4):
        command = [sys.executable, __file__, str(tmp_path), str(draw.random())]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
            assert writer.stdout is not None
            told = [line for _, line in zip(range(draw.randrange(1, 100)), writer.stdout, strict=False)]
            writer.kill()
            told += [line for line in writer.stdout if line.endswith("\n")]
        assert writer.returncode == -signal.SIGKILL
        for line in told:
            flushed.update(range(*map(int, line.split())))
        held = held_positions(tmp_path)
        assert flushed <= set(held)
        with closing(Journal(tmp_path)) as journal:
            assert journal.position > held[-1]
        assert held_positions(tmp_path) == held
        assert not list(tmp_path.glob("*/*/_*"))


def held_positions(directory: Path) -> list[int]:
    """The positions that the journal holds, having seen that each is there once, in order, with its own observation."""
    left_out = LeftOut()
    held = list(entries(directory, unreadable=left_out))
    positions = [position for position, _ in held]
    assert not left_out.paths
    assert positions == sorted(set(positions))
    assert all(one == taken(position) for position, one in held)
    return positions


def write_until_killed(directory: Path, seed: str) -> None:
    """The writer that is killed: tells the range of positions of each flush once it is done."""
    draw = random.Random(seed)  # noqa: S311 - sizes of batches and segments
    now = MIDNIGHT
    while True:
        with closing(Journal(directory, segment_bytes=draw.randrange(2_000, 50_000))) as journal:
            for _ in range(draw.randrange(1, 50)):
                start = journal.position
                journal.append([taken(position) for position in range(start, start + draw.randrange(1, 400))])
                journal.flush()
                os.write(1, f"{start} {journal.position}\n".encode())
                now += draw.randrange(100_000)
                journal.seal(now)


def test_a_stream_cut_at_any_byte_is_readable_up_to_the_cut(tmp_path: Path) -> None:
    """Nobody is told: a cut is what a kill leaves. What was flushed before it is there, before and after recovery."""
    batches = [[commit(NOON, 1), commit(NOON, None)], [commit(NOON, 3)]]
    ends, left_out = [], LeftOut()
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
        whole = [one for batch, end in zip(batches, ends, strict=True) if end <= cut for one in batch]
        assert list(read(tmp_path / str(cut), unreadable=left_out)) == whole
        with closing(Journal(tmp_path / str(cut), unreadable=left_out)) as journal:
            assert journal.position == len(whole)
            assert list(read(tmp_path / str(cut), unreadable=left_out)) == whole
    assert not left_out.paths


def test_damage_inside_a_stream_is_told_and_what_precedes_it_is_kept(tmp_path: Path) -> None:
    """Before recovery and after it; the damaged file stays for whoever wants to look."""
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
    left_out = LeftOut()
    assert list(read(tmp_path / "damaged", unreadable=left_out)) == [commit(NOON, 0)]
    with closing(Journal(tmp_path / "damaged", unreadable=left_out)) as journal:
        assert journal.position == 1
    assert left_out.paths == [damaged, damaged.with_suffix(".damaged")]
    assert left_out.paths[1].read_bytes() == content
    assert list(read(tmp_path / "damaged", unreadable=left_out)) == [commit(NOON, 0)]
    assert len(left_out.paths) == 2


def test_a_crash_between_sealing_and_removing_the_stream_doubles_nothing(tmp_path: Path) -> None:
    """The sealed file counts; recovery removes the stream and what was half made."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1), commit(NOON, 2)])
        journal.flush()
        (stream,) = tmp_path.glob("commit/*/_*.arrow")
    stream.write_bytes(b"what was sealed is not looked at any more")
    stream.with_suffix(".tmp").write_bytes(b"half made")
    left_out = LeftOut()
    assert list(read(tmp_path, unreadable=left_out)) == [commit(NOON, 1), commit(NOON, 2)]
    with closing(Journal(tmp_path, unreadable=left_out)) as journal:
        assert journal.position == 2
    assert list(read(tmp_path, unreadable=left_out)) == [commit(NOON, 1), commit(NOON, 2)]
    assert not left_out.paths
    assert [path.suffix for path in tmp_path.glob("commit/*/*")] == [".parquet"]


def test_a_segment_sealed_while_it_is_being_read_is_read_all_the_same(tmp_path: Path) -> None:
    """The reader has listed an open stream, the writer seals it, the reader comes to it."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON)])
        journal.flush()
        reading = read(tmp_path)
    assert list(reading) == [commit(NOON)]


def test_a_segment_is_sealed_when_large_old_or_of_another_date(tmp_path: Path) -> None:
    """And not before; a late observation of yesterday is given five minutes."""

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


def test_dates_past_their_retention_go_and_the_position_stays(tmp_path: Path) -> None:
    """An open segment of such a date goes too, and the position goes on even when all dates are past."""
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


def test_the_newest_tick_tells_until_when_the_writer_lived(tmp_path: Path) -> None:
    """Whatever else has been journaled, and on whichever date."""
    assert last_at(tmp_path) is None
    with closing(Journal(tmp_path)) as journal:
        journal.append([Tick(at=NOON), Tick(at=MIDNIGHT), Tick(at=MIDNIGHT + 9), commit(MIDNIGHT + DAY_MS)])
    assert last_at(tmp_path) == MIDNIGHT + 9


def test_a_second_writer_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    """Until the first has closed."""
    with (
        closing(Journal(tmp_path)),
        pytest.raises(JournalError, match=f"being written by process {os.getpid()}: stop that one"),
    ):
        Journal(tmp_path)
    Journal(tmp_path).close()


def test_an_unreadable_parquet_file_is_told_and_passed_over(tmp_path: Path) -> None:
    """Whether it is no Parquet at all, cut, has a flipped bit in a page, or lacks a column."""
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
    left_out = LeftOut()
    assert list(read(tmp_path, unreadable=left_out)) == [commit(NOON, offset) for offset in range(100)]
    assert left_out.paths == sealed[1:]
    assert all(left_out.reasons)


def test_a_field_that_an_older_version_did_not_write_takes_its_default(tmp_path: Path) -> None:
    """And a column that this version does not know is ignored."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([commit(NOON, 1)])
    (path,) = tmp_path.glob("commit/*/*.parquet")
    table = parquet.ParquetFile(path).read()
    parquet.write_table(table.drop_columns(["leader_epoch", "since"]).append_column("new", [["x"]]), path)
    assert list(read(tmp_path)) == [commit(NOON, 1)]


def test_a_field_of_a_struct_that_an_older_version_did_not_write_takes_its_default(tmp_path: Path) -> None:
    """As of members from before their tasks were known."""
    state = GroupState(at=NOON, cluster="main", group="g", state="Stable", members=(Member("m", tasks=("0_0",)),))
    with closing(Journal(tmp_path)) as journal:
        journal.append([state])
    (path,) = tmp_path.glob("group_state/*/*.parquet")
    table = parquet.ParquetFile(path).read()
    old: list[list[dict[str, Any]]] = [[{"id": "m", "host": "/h", "partitions": [], "client_id": None}]]
    kind = pa.list_(pa.struct([one for one in table.schema.field("members").type.value_type if one.name != "tasks"]))
    place = table.schema.get_field_index("members")
    parquet.write_table(table.set_column(place, "members", pa.array(old, type=kind)), path)
    assert list(read(tmp_path)) == [msgspec.structs.replace(state, members=(Member("m", "/h"),))]


def test_a_value_that_fits_no_column_keeps_nothing_else_from_the_disk(tmp_path: Path) -> None:
    """What a znode written by somebody else may hold: told, passed over, and the rest is written."""
    left_out = LeftOut()
    with closing(Journal(tmp_path, unreadable=left_out)) as journal:
        journal.append([commit(NOON, 1), commit(NOON, 1 << 70), commit(NOON, 3)])
    assert list(read(tmp_path)) == [commit(NOON, 1), commit(NOON, 3)]
    assert len(left_out.reasons) == 1
    assert "offset=1180591620717411303424" in left_out.reasons[0]


def test_what_a_full_disk_refused_is_written_once_when_there_is_room(tmp_path: Path) -> None:
    """A write that stops halfway is told; readers see what was flushed before; nothing is lost or doubled."""
    taken_in = [commit(NOON, 1), Tick(at=NOON + 1), *(commit(NOON, offset) for offset in range(2, 500))]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(Journal(tmp_path)) as journal:
        journal.append(taken_in[:1])
        journal.flush()
        (stream,) = tmp_path.glob("commit/*/_*.arrow")
        journal.append(taken_in[1:])
        resource.setrlimit(resource.RLIMIT_FSIZE, (stream.stat().st_size + 1_000, limits[1]))
        try:
            with pytest.raises(JournalError, match=r"cannot be written.*File too large"):
                journal.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(read(tmp_path)) == taken_in[:2]
        journal.append([commit(NOON, 500)])
        journal.flush()
        assert list(read(tmp_path)) == [*taken_in, commit(NOON, 500)]
    assert list(read(tmp_path)) == [*taken_in, commit(NOON, 500)]


if __name__ == "__main__":
    write_until_killed(Path(sys.argv[1]), sys.argv[2])
