"""What `changelog_restore` takes for 50 million records on a real broker: time against a raw consume loop, and memory.

Run as `python -m bench.changelog_restore [RECORDS] [--keys KEYS]`. A broker of the testbed (3.9.1) holds the changelog:
each key is counted up, and in the middle begins again. The raw loop (bench.changelogs) looks at nothing. The check runs
by its own command with the default memory, start included. What it finds must be every key.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic

import psutil
from confluent_kafka import Producer
from pyarrow import parquet

from agent.checks.process import session_processes
from bench.changelogs import STORE, raw
from bench.family import often
from testbed.kafka import Cluster

PARTITIONS = 4
MIB = 1 << 20
_BATCH = 10_000
_WAITING = 1_000_000
"""How many records may wait in the producer: what is more stays with us, so that its queue is never full."""


class Peak:
    """The most memory that a session's processes took, bytes: its JVMs, its Pythons, and all together."""

    def __init__(self) -> None:
        self.java = self.python = self.together = 0

    def look(self, session: int) -> None:
        """Take what they have now."""
        now = {True: 0, False: 0}
        for process in session_processes(session):
            with suppress(psutil.NoSuchProcess):
                now[process.name() == "java"] += process.memory_info().rss
        self.java, self.python = max(self.java, now[True]), max(self.python, now[False])
        self.together = max(self.together, sum(now.values()))


def write(servers: str, records: int, keys: int) -> None:
    """Count each key up, record by record in turn, and from the middle on again. Raises RuntimeError."""
    producer = Producer({
        "bootstrap.servers": servers, "linger.ms": 50, "batch.size": MIB, "batch.num.messages": 100_000,
        "compression.type": "lz4", "queue.buffering.max.messages": 2 * _WAITING, "log_level": 0,
    })  # fmt: skip
    # One record a key, made once: of each pass only the value is new.
    counted = [[{"key": b"key-%d" % key} for key in range(number, keys, PARTITIONS)] for number in range(PARTITIONS)]
    passes = records // keys
    for number in range(passes):
        value = (number % (passes // 2) + 1).to_bytes(8, "big")
        for partition, messages in enumerate(counted):
            for begin in range(0, len(messages), _BATCH):
                batch = messages[begin : begin + _BATCH]
                for message in batch:
                    message["value"] = value
                while len(producer) > _WAITING:
                    producer.poll(0.1)
                if producer.produce_batch(STORE.changelog, batch, partition) != len(batch):
                    msg = "the producer did not take all records"
                    raise RuntimeError(msg)
    if producer.flush(600):
        msg = "not all records were written"
        raise RuntimeError(msg)


def compare(kafka: Cluster, records: int, keys: int, report: Path) -> None:
    """Write the changelog, read it both ways, and print."""
    servers = kafka.bootstrap_servers
    kafka.create_topic(STORE.changelog, PARTITIONS)
    begun = monotonic()
    write(servers, records, keys)
    print(
        f"written: {records:,} records of {keys:,} keys in {monotonic() - begun:.0f} s, load {os.getloadavg()[0]:.1f}"
    )
    bare = raw(servers, PARTITIONS)
    rate = bare["records"] / bare["seconds"]
    print(f"raw loop: {bare['seconds']:.1f} s, {rate:,.0f} records/s, load {os.getloadavg()[0]:.1f}")

    command = [sys.executable, "-m", "spark_checks", "changelog_restore", "--bootstrap-servers", servers]
    command += ["--store", f"{STORE.application}/{STORE.store}={STORE.value}", "--report", str(report)]
    begun = monotonic()
    check = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = Peak()
    with often(lambda: peak.look(check.pid)):
        _, log = check.communicate()
    seconds = monotonic() - begun
    if check.returncode != 1:
        raise RuntimeError(log.decode())
    decreases = parquet.read_metadata(report / "keys.parquet").num_rows
    print(
        f"changelog_restore: {seconds:.1f} s, {records / seconds:,.0f} records/s, {records / seconds / rate:.2f} of the"
        f" raw loop; at most {peak.together // MIB:,} MiB (JVM {peak.java // MIB:,}, Python {peak.python // MIB:,}),"
        f" load {os.getloadavg()[0]:.1f}; {decreases:,} of {keys:,} decreases found"
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="?", type=int, default=50_000_000)
    parser.add_argument(
        "--keys", type=int, default=1_000_000, help="A part of RECORDS without rest. Default: 1 million."
    )
    options = parser.parse_args()
    if options.records % (2 * options.keys):
        parser.error("RECORDS must be an even multiple of KEYS")
    with (
        tempfile.TemporaryDirectory(prefix="backflow-bench-") as folder,
        Cluster("3.9.1", [2005], workdir=Path(folder, "kafka")) as kafka,
    ):
        compare(kafka, options.records, options.keys, Path(folder, "report"))


if __name__ == "__main__":
    main()
