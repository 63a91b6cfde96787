"""offset_history against DuckDB's `lag() over (...)` on the same journal: seconds and their ratios, of one run.

Run as `python -m bench.history [COMMITS] [--directory DIR] [--alone | --places]`; 100 million commits by default,
written first where DIR does not hold them yet. Spark has started before; the daemon does it ahead of a check. CPU times
are those of all processes together; their ratio changes little with other load. DuckDB needs about 100 bytes of memory
or disk for each commit: --alone does without it. With --places, Spark is compared with itself: a Spark Connect server
with classic Spark, two workers with one. The exit status is 1 if two searches found different rewinds.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from agent.model.observations.kafka import Commit
from agent.model.times import millis
from agent.storage.journal.columns import Columns
from bench.family import need, often
from spark_checks.journal.files import find_pieces
from spark_checks.offset_history import CONF
from spark_checks.offsets.arrays import Ints
from spark_checks.offsets.commits import CommitFilter, search
from spark_checks.offsets.coverage import Clock
from spark_checks.session import session
from testbed.spark import SparkCluster, SparkConnectServer

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


class Search(NamedTuple):
    """What a search took: seconds, CPU seconds and the most memory (MiB) of all processes, and the rewinds found."""

    seconds: float
    cpu: float
    memory: float
    rewinds: Sequence[tuple[Any, ...]]

    def line(self, what: str) -> str:
        """Return this as a line of a table."""
        return f"| {what} | {self.seconds:.1f} | {self.cpu:.1f} | {self.memory:,.0f} | {len(self.rewinds):,} |"


def measured(find: Callable[[], Iterable[tuple[Any, ...]]]) -> Search:
    """Run a search, with all that this process has started beside it."""
    own = os.getpid()
    memory = [need(own).memory]
    with often(lambda: memory.append(need(own).memory)):
        began, used = time.monotonic(), need(own).cpu
        rewinds = list(find())
        took, cpu = time.monotonic() - began, need(own).cpu - used
    return Search(took, cpu, max(memory), sorted(rewinds))


def find_with_duckdb(journal: Path, folder: Path) -> list[tuple[Any, ...]]:
    """Return the rewinds. folder: for what does not fit in memory."""
    with duckdb.connect() as peer:
        peer.execute(f"SET temp_directory = '{folder}'")
        return peer.execute(QUERY.format(files=f"{journal}/commit/*/*.parquet", least=_LEAST)).fetchall()


def find_with_spark(spark: SparkSession, journal: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the rewinds that offset_history finds."""
    pieces = find_pieces(journal, "commit", STARTED, STARTED + (1 << 40), print)
    wanted = CommitFilter("main", bool, bool, STARTED, STARTED + (1 << 40), _LEAST, Clock())
    for key, move in search(spark, pieces, wanted, print).moves:
        if move.offset < move.before_offset:
            yield (*key, move.position, move.before_offset, move.offset)


def searches_at(place: str, journal: Path, cores: int) -> list[Search]:
    """Return a first search and a second one in the same session. place: a master, or sc:// of a server."""
    share = {"spark.executor.memory": "1g", "spark.cores.max": str(cores)} if place.startswith("spark://") else {}
    with session("bench", place, {**CONF, **share}, remote=place if place.startswith("sc://") else None) as spark:
        spark.range(1).count()
        return [measured(partial(find_with_spark, spark, journal)) for _ in range(2)]


def compare_peers(journal: Path, folder: Path) -> list[Search]:
    """Compare with DuckDB, print, and return all searches."""
    theirs = measured(partial(find_with_duckdb, journal, folder))
    print(theirs.line("DuckDB `lag() over (...)`"))
    found = search_alone(journal, folder)
    _print_ratios("offset_history / DuckDB", found, [theirs, theirs])
    return [theirs, *found]


def search_alone(journal: Path, _: Path) -> list[Search]:
    """Search with Spark, print, and return both searches."""
    cores = os.cpu_count() or 1
    return _print_both("offset_history", searches_at(f"local[{cores}]", journal, cores))


def compare_places(journal: Path, folder: Path) -> list[Search]:
    """Compare a Connect server with classic Spark, and one worker of a core with two; print and return all searches."""
    classic = _print_both("classic Spark, two cores", searches_at("local[2]", journal, 2))
    by_workers = []
    for workers, what in ((1, "one worker of a core"), (2, "two workers of a core each")):
        with SparkCluster(folder / f"cluster-{workers}", workers=workers, cores=1, memory="2g") as cluster:
            by_workers.append(_print_both(what, searches_at(cluster.master, journal, workers)))
    # Last: a process that has had a Connect session cannot start classic Spark.
    with SparkConnectServer(folder / "connect") as server:
        connected = _print_both("Spark Connect, two cores", searches_at(server.remote, journal, 2))
    _print_ratios("Connect / classic", connected, classic)
    _print_ratios("one worker / two", *by_workers)
    return [*classic, *by_workers[0], *by_workers[1], *connected]


def _print_both(what: str, searches: list[Search]) -> list[Search]:
    for number, found in zip(("first in a session", "second"), searches, strict=True):
        print(found.line(f"{what}, {number}"), flush=True)
    return searches


def _print_ratios(what: str, ours: list[Search], theirs: list[Search]) -> None:
    for number, our, their in zip(("first", "second"), ours, theirs, strict=True):
        print(f"| {what}, {number} | {our.seconds / their.seconds:.2f} | {our.cpu / their.cpu:.2f} | | |")


def main(count: int, directory: Path, compare: Callable[[Path, Path], list[Search]]) -> None:
    """Measure and print. Raises SystemExit if two searches found different rewinds."""
    journal = directory / f"journal-{count}"
    if not journal.exists():
        began = time.monotonic()
        write(journal, count)
        print(f"{count:,} commits written in {time.monotonic() - began:.1f} s")
    size = sum(path.stat().st_size for path in journal.rglob("*.parquet"))
    print(f"{count:,} commits of {GROUPS * PARTITIONS:,} keys, {size / count:.1f} bytes each, {os.cpu_count()} cores")
    print("| search | s | CPU, s | memory, MiB | rewinds |\n|---|---|---|---|---|")
    searches = compare(journal, directory)
    if any(found.rewinds != searches[0].rewinds for found in searches):
        msg = "not all found the same rewinds"
        raise SystemExit(msg)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", type=int, nargs="?", default=100_000_000)
    parser.add_argument("--directory", type=Path)
    how = parser.add_mutually_exclusive_group()
    for name, compare, what in (
        ("--alone", search_alone, "Without DuckDB."),
        ("--places", compare_places, "Compare Spark's places in place of DuckDB."),
    ):
        how.add_argument(name, dest="compare", action="store_const", const=compare, default=compare_peers, help=what)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backflow-bench-") as made:
        main(chosen.commits, chosen.directory or Path(made), chosen.compare)
