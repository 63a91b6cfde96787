"""offset_history against DuckDB's `lag() over (...)` on the same journal: seconds and their ratios, of one run.

Run as `python -m bench.history [COMMITS] [--directory DIR]`; 100 million commits by default, written first where DIR
does not hold them yet. Spark's start is measured apart; the daemon does it ahead of a check. CPU times are those of all
processes together; their ratio changes little with other load.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from agent.model.observations.kafka import Commit
from agent.model.times import millis
from agent.storage.journal.columns import Columns
from bench.family import need
from spark_checks.journal.files import find_pieces
from spark_checks.offset_history import CONF
from spark_checks.offsets.arrays import Ints
from spark_checks.offsets.commits import CommitFilter, search
from spark_checks.offsets.coverage import Clock
from spark_checks.session import session

GROUPS, TOPICS, PARTITIONS = 1_000, 200, 32
SEGMENT = 2_000_000
STARTED = millis("2026-07-01T00:00:00.000Z")
REWINDS_PER_MILLION = 5
_LEAST = 1_000


def write(directory: Path, count: int, seed: int = 1) -> None:
    """Write a journal of commits, 20,000 a second, two million a segment: turns of all 32,000 keys in any order."""
    chance = np.random.default_rng(seed)
    keys = GROUPS * PARTITIONS
    offsets = chance.integers(0, 1_000_000, keys)
    for first in range(0, count, SEGMENT):
        rows = np.arange(first, min(first + SEGMENT, count))
        table = pa.concat_tables(_tables(rows, offsets, chance)).combine_chunks()
        day = np.datetime64(int(table["at"][0].value), "ms").astype("datetime64[D]")
        folder = directory / "commit" / f"date={day}"
        folder.mkdir(parents=True, exist_ok=True)
        rising = [field.name for field in table.schema if field.type in (pa.int64(), pa.timestamp("ms", tz="UTC"))]
        parquet.write_table(
            table,
            folder / f"{rows[0]:019d}-{rows[-1]:019d}.parquet",
            compression="zstd",
            row_group_size=65_536,
            use_dictionary=[field.name for field in table.schema if field.type == pa.string()],
            column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )


def _tables(rows: Ints, offsets: Ints, chance: np.random.Generator) -> Iterator[pa.Table]:
    """Yield the rows, a turn of all keys at a time."""
    schema = Columns(Commit).schema
    names = {
        "cluster": pa.array(["main"]),
        "group": pa.array([f"group-{number}" for number in range(GROUPS)]),
        "topic": pa.array([f"topic-{number}" for number in range(TOPICS)]),
    }
    keys = offsets.size
    for begin in range(0, rows.size, keys):
        turn = rows[begin : begin + keys]
        key = chance.permutation(keys)[: turn.size]
        offsets[key] += chance.integers(1, 114, turn.size)
        back = chance.random(turn.size) < REWINDS_PER_MILLION / 1e6
        offsets[key[back]] -= chance.integers(1_000, 20_000, int(back.sum()))
        np.maximum(offsets, 0, out=offsets)
        group = key // PARTITIONS
        codes = {"cluster": np.zeros(turn.size, np.int32), "group": group, "topic": group % TOPICS}
        columns = {
            "position": pa.array(turn),
            "at": pa.array(STARTED + turn // 20, pa.timestamp("ms", tz="UTC")),
            "partition": pa.array(key % PARTITIONS),
            "offset": pa.array(offsets[key]),
            "leader_epoch": pa.array(np.full(turn.size, 3)),
        }
        columns |= {name: names[name].take(pa.array(code)) for name, code in codes.items()}
        nulls = {field.name: pa.nulls(turn.size, field.type) for field in schema if field.name not in columns}
        yield pa.table({field.name: {**columns, **nulls}[field.name] for field in schema}, schema=schema)


QUERY = """
SELECT "group", topic, partition, position, previous, "offset" FROM (
    SELECT *, lag("offset") OVER (PARTITION BY cluster, "group", topic, partition ORDER BY "at", position) AS previous
    FROM read_parquet('{files}')
) WHERE previous - "offset" >= {least}
"""


def main(count: int, directory: Path) -> None:
    """Measure and print."""
    journal = directory / f"journal-{count}"
    if not journal.exists():
        began = time.monotonic()
        write(journal, count)
        print(f"{count:,} commits written in {time.monotonic() - began:.1f} s")
    size = sum(path.stat().st_size for path in journal.rglob("*.parquet"))
    print(f"{count:,} commits of {GROUPS * PARTITIONS:,} keys, {size / count:.1f} bytes each, {os.cpu_count()} cores")

    own = os.getpid()
    began, used = time.monotonic(), need(own).cpu
    with duckdb.connect() as peer:
        peer.execute(f"SET temp_directory = '{directory / 'duckdb'}'")
        theirs = peer.execute(QUERY.format(files=f"{journal}/commit/*/*.parquet", least=_LEAST)).fetchall()
    peer_took, peer_cpu = time.monotonic() - began, need(own).cpu - used

    began = time.monotonic()
    with session("bench", f"local[{os.cpu_count()}]", CONF) as spark:
        spark.range(1).count()
        started = time.monotonic() - began
        began, used = time.monotonic(), need(own).cpu
        pieces = find_pieces(journal, "commit", STARTED, STARTED + (1 << 40), print)
        wanted = CommitFilter("main", bool, bool, STARTED, STARTED + (1 << 40), _LEAST, Clock())
        moves = search(spark, pieces, wanted, print)
        took, cpu = time.monotonic() - began, need(own).cpu - used
    rewinds = ((key, move) for key, move in moves if move.offset < move.before_offset)
    ours = sorted((*key, move.position, move.before_offset, move.offset) for key, move in rewinds)
    print(f"{'DuckDB lag() over (...)':<32} {peer_took:7.1f} s {peer_cpu:7.1f} s CPU  {len(theirs)} rewinds")
    print(f"{'offset_history in Spark':<32} {took:7.1f} s {cpu:7.1f} s CPU  {len(ours)} rewinds")
    print(f"{'ratio':<32} {took / peer_took:7.2f} {cpu / peer_cpu:9.2f}")
    print(f"{'Spark start, apart':<32} {started:7.1f} s")
    if ours != sorted(theirs):
        msg = "the two did not find the same rewinds"
        raise SystemExit(msg)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", type=int, nargs="?", default=100_000_000)
    parser.add_argument("--directory", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backflow-bench-") as made:
        main(chosen.commits, chosen.directory or Path(made))
