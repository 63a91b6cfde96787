"""The cost of the journal: CPU time per commit written and read, its ratio to bare pyarrow, and memory while it seals.

Run as `python -m bench.journal [OBSERVATIONS]`. Bare pyarrow gets finished columns and writes the same table once, as
Parquet. The journal starts from observations and writes each twice: flushed to the stream, and sealed into Parquet.
"""

import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from msgspec.structs import replace
from pyarrow import parquet

from agent.model.observations.kafka import Commit
from agent.storage.journal.columns import Columns
from agent.storage.journal.reader import read
from agent.storage.journal.writer import Journal

BATCH = 5_000
STARTED = 1_795_176_000_000
HOUR_MS = 3_600_000
SEALS = 8


def cpu(work: Callable[[], Any], times: int = 3) -> float:
    """Return the lowest CPU time of several runs, s; other work on the machine disturbs single runs."""
    taken = []
    for _ in range(times):
        before = time.process_time()
        work()
        taken.append(time.process_time() - before)
    return min(taken)


def commits(count: int) -> list[Commit]:
    """Return commits of 1,000 groups on 32 partitions each, a batch a second."""
    draw = random.Random(1)
    return [
        Commit(
            at=STARTED + number // BATCH * 1_000 + number % 997,
            cluster="main",
            group=f"group-{number % 1_000}",
            topic=f"topic-{number % 200}",
            partition=number % 32,
            offset=number * 7 + draw.randrange(1_000),
            leader_epoch=3,
        )
        for number in range(count)
    ]


def write(folder: Path, taken: list[Commit], *, sealed: bool) -> None:
    """Append and flush batch by batch.

    sealed: also seal segments as the daemon does, at the size it uses.
    """
    journal = Journal(folder / f"{time.monotonic_ns()}")
    for start in range(0, len(taken), BATCH):
        journal.append(taken[start : start + BATCH])
        journal.flush()
        if sealed:
            journal.seal(STARTED)
    if sealed:
        journal.close()


def memory_of_seals(folder: Path, taken: list[Commit], seals: int) -> list[float]:
    """Return what this process holds before it seals segments for the first time, and after each time, MiB."""
    process, journal = psutil.Process(), Journal(folder / "seals")
    held = []
    for number in range(seals + 1):
        held.append(process.memory_info().rss / (1 << 20))
        journal.append([replace(commit, at=commit.at + number * HOUR_MS) for commit in taken])
        journal.flush()
        journal.seal(STARTED + number * HOUR_MS)
        journal.seal(STARTED + (number + 1) * HOUR_MS)
    journal.close()
    return held


def bare_table(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.Table:
    """Return the same table, made from columns of Python values."""
    return pa.table([pa.array(columns[field.name], type=field.type) for field in schema], schema=schema)


def main(count: int) -> None:
    """Measure and print the results."""
    taken, schema = commits(count), Columns(Commit).schema
    columns = {name: list(map(attrgetter(name), taken)) for name in Commit.__struct_fields__}
    columns["position"] = list(range(count))
    with tempfile.TemporaryDirectory(prefix="backflow-bench-") as name:
        folder = Path(name)
        held = memory_of_seals(folder, taken[:BATCH], SEALS)
        print(f"resident before and after each of {SEALS} seals, MiB: {', '.join(f'{size:.1f}' for size in held)}")

        def bare_write() -> None:
            parquet.write_table(bare_table(columns, schema), folder / "bare.parquet", compression="zstd")

        def bare_read() -> None:
            for column in parquet.read_table(folder / "bare.parquet").columns:
                (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()

        def write_sealed() -> None:
            write(folder / "sealed", taken, sealed=True)

        bare, flushed, sealed = (
            cpu(bare_write),
            cpu(lambda: write(folder / "flushed", taken, sealed=False)),
            cpu(write_sealed),
        )
        bare_reading = cpu(bare_read)
        journal = next((folder / "sealed").iterdir())
        stream = next((folder / "flushed").iterdir())
        reading = cpu(lambda: deque(read(journal), maxlen=0))
        reading_open = cpu(lambda: deque(read(stream), maxlen=0))
        size = sum(path.stat().st_size for path in journal.rglob("*.parquet"))
        for what, seconds, peer in (
            ("bare pyarrow: columns to Parquet", bare, bare),
            ("journal: append and flush", flushed, bare),
            ("journal: append, flush and seal", sealed, bare),
            ("bare pyarrow: Parquet to columns", bare_reading, bare_reading),
            ("journal: read sealed segments", reading, bare_reading),
            ("journal: read an open segment", reading_open, bare_reading),
        ):
            print(f"{what:<36} {seconds / count * 1e6:6.2f} CPU-us per observation  {seconds / peer:5.2f} x bare")
        bare_size = (folder / "bare.parquet").stat().st_size
        print(f"{'journal: bytes per observation':<36} {size / count:6.2f} {size / bare_size:30.2f} x bare")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
