"""The journal loses and doubles nothing that was flushed, after kills of the writer and damage to files."""

import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import BrokerRegistration, LogOffsets
from agent.storage.journal.reader import entries, last_at, read
from agent.storage.journal.writer import Journal
from tests.storage.journals import MIDNIGHT, NOON, Unreadable, commit

ROOT = Path(__file__).parents[2]


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


def test_damaged_stream_survives_later_starts(tmp_path: Path) -> None:
    """Beside it is the sealed file with what precedes the damage."""
    with closing(Journal(tmp_path / "written")) as journal:
        journal.append([commit(NOON, offset) for offset in range(40)])
        journal.flush()
        (stream,) = tmp_path.glob("written/commit/*/_*.arrow")
        undamaged = stream.stat().st_size
        journal.append([commit(NOON, 40)])
        journal.flush()
        content = bytearray(stream.read_bytes())
    content[undamaged + 8 : undamaged + 48] = b"\xee" * 40
    damaged = tmp_path / "journal" / stream.relative_to(tmp_path / "written")
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(content)
    unreadable = Unreadable()
    for start in range(3):
        with closing(Journal(tmp_path / "journal", unreadable=unreadable)) as journal:
            assert journal.position == 40 + start
            journal.append([commit(NOON, 40)])
    assert unreadable.paths == [damaged.with_suffix(".damaged")]
    assert unreadable.paths[0].read_bytes() == content


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


def test_a_value_that_fits_no_column_is_reported_and_skipped(tmp_path: Path) -> None:
    """A znode may hold such a value; the other observations are written."""
    unreadable = Unreadable()
    with closing(Journal(tmp_path, unreadable=unreadable)) as journal:
        journal.append([commit(NOON, 1), commit(NOON, 1 << 70), commit(NOON, 3)])
    assert list(read(tmp_path)) == [commit(NOON, 1), commit(NOON, 3)]
    assert len(unreadable.reasons) == 1
    assert "offset=1180591620717411303424" in unreadable.reasons[0]


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


if __name__ == "__main__":
    write_until_killed(Path(sys.argv[1]), sys.argv[2])
