"""Continuing after a restart: CPU time and memory of taking in what the journal holds of the last 21 minutes.

Run as `python -m bench.restart [--topics N] [--groups N] [--partitions N]`: the journal is that of `bench.replay`. Each
group commits every five seconds in each partition, and each log is read every other second. The agent starts no
sources; it restores its facts, as it does before it begins to read the clusters.
"""

import argparse
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil

from agent.cli.common import config_path, load_config
from agent.daemon.pipeline import LOOKBACK_MS, Pipeline
from agent.engine.engine import Engine
from agent.storage.incidents import IncidentStore
from agent.storage.journal.reader import positioned_chunks
from agent.storage.journal.writer import Journal
from bench.replay import write

_MIB = 1 << 20
_DAY_MS = 86_400_000


def main() -> int:
    """Parse the arguments, write and restore."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=50)
    arguments = parser.parse_args()
    settings = load_config(config_path(None), need_clusters=False)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        write(directory / "journal", LOOKBACK_MS // 1_000, arguments.topics, arguments.groups, arguments.partitions)
        process = psutil.Process()
        engine = Engine(settings.rules, settings.correlations, settings.incidents)
        with (
            IncidentStore(directory / "state.sqlite3", []) as store,
            closing(Journal(directory / "journal", 0)) as journal,
        ):
            count = journal.position
            store.save(count, [])
            pipeline = Pipeline(journal, store, engine, retention=_DAY_MS, wake={})
            held, begin = process.memory_info().rss, time.process_time()
            pipeline.restore(positioned_chunks(directory / "journal", 0))
            seconds, taken = time.process_time() - begin, process.memory_info().rss - held
    print("| observations | of a second | subjects | CPU, s | us an observation | memory, MiB |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {count:,} | {count * 1_000 / LOOKBACK_MS:,.0f} | {len(engine.histories()):,} | {seconds:.1f} "
        f"| {seconds / count * 1e6:.1f} | {taken / _MIB:,.0f} |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
