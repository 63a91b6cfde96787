"""changelog_restore's search in 50 million records with the default memory of a driver: seconds, and the memory taken.

Run as `python -m bench.changelog_restore [RECORDS] [--keys KEYS] [--broker]`. The records are made by Spark itself;
with --broker they are written to a real broker first, and read from there by the check's own command, start included.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from pyspark import StorageLevel

from agent.checks.sessions import memory
from spark_checks.changelogs.falls import marked, numbered, stretches
from spark_checks.session import session
from testbed.kafka import Cluster

PARTITIONS = 4
CHANGELOG = "bench-counts-changelog"


class Peak:
    """The most memory that the processes of this session took together, bytes."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def watched(session_id: int) -> Iterator[Peak]:
    """Looks at it four times a second while the body runs."""
    peak, ended = Peak(), threading.Event()

    def look() -> None:
        while not ended.wait(0.25):
            peak.bytes = max(peak.bytes, memory(session_id))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def made(records: int, keys: int) -> None:
    """Counts of each key, which in the middle of the changelog begin again; found in records that Spark makes."""
    conf = {"spark.sql.shuffle.partitions": "64", "spark.driver.memory": "1g"}
    with session("bench", "local[*]", conf) as spark, watched(os.getsid(0)) as peak:
        begun = time.monotonic()
        log = spark.range(records).selectExpr(
            f"cast(id % {PARTITIONS} as int) partition",
            f"encode(concat('key-', id % {keys}), 'utf-8') key",
            "id offset",
            "id timestamp",
            f"(id % {records // 2}) div {keys} value",
        )
        marks = marked(log).persist(StorageLevel.DISK_ONLY)
        found = stretches(marks, numbered(marks, {}))
        seconds = time.monotonic() - begun
        fell = sum(one.keys for one in found)
        told(records, fell, seconds, peak.bytes)


def read(records: int, keys: int) -> None:
    """The same from a broker, by the command."""
    with (
        tempfile.TemporaryDirectory(prefix="backflow-bench-") as workdir,
        Cluster("3.9.1", [2005], workdir=Path(workdir)) as kafka,
    ):
        kafka.create_topic(CHANGELOG, PARTITIONS)
        producer = Producer({
            "bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50, "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        })  # fmt: skip
        for number in range(records):
            value = (number % (records // 2) // keys).to_bytes(8, "big")
            key = b"key-%d" % (number % keys)
            while True:
                try:
                    producer.produce(CHANGELOG, value, key, number % keys % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        command = [sys.executable, "-m", "spark_checks", "changelog_restore", "--store", "bench/counts=long"]
        command += ["--bootstrap-servers", kafka.bootstrap_servers, "--report", str(Path(workdir, "report"))]
        begun = time.monotonic()
        check = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with watched(check.pid) as peak:
            found, _ = check.communicate()
        told(records, len(found.splitlines()), time.monotonic() - begun, peak.bytes)


def told(records: int, found: int, seconds: float, peak: int) -> None:
    """Print what it took."""
    rate = records / seconds
    print(f"{records:,} records: {found:,} found, {seconds:.1f} s, {rate:,.0f} records/s, {peak >> 20:,} MiB at most")


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="?", type=int, default=50_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--broker", action="store_true")
    asked = parser.parse_args()
    (read if asked.broker else made)(asked.records, asked.keys)


if __name__ == "__main__":
    main()
