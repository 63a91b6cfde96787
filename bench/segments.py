"""The speed of log_segments on real segments, compared with Kafka's own DumpLogSegments on the same files.

Run as `python -m bench.segments [--gib N] [--batch BYTES] [--records N]`. A broker writes the segments, in four
partitions per topic. Format 2 comes in batches of up to BYTES, by default 16 KiB (the Java producer's batch.size) as
lingering producers fill them; with 1200, each batch holds one record of 1 KiB, as without linger (the Java producer's
default until 4.0). Formats 0 (snappy) and 1 (gzip) hold half of the records each, in batches of 16 KiB. Kafka's tool
reads format 2 without and the old formats with --deep-iteration; its output goes to /dev/null. Both sides are timed
including the start of their JVMs, with the files in the page cache. "Spark's own" is a run without segments.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from testbed.artifacts import KAFKA, class_path, java
from testbed.kafka import Cluster

BROKER = 2005
VERSION = "0.11.0.0"  # the one Kafka that writes all three formats
HEAP = "-Xmx256M"  # what kafka-run-class.sh gives its tools
MASTER = "local[2]"
PARTITIONS = 4
PLAIN = {"two": "0.11.0"}
OLD = {"zero": "0.9.0", "one": "0.10.0"}
CODECS = {"two": "none", "zero": "snappy", "one": "gzip"}
BATCH = 16384
VALUE_BYTES = {"two": 1024, "zero": 100, "one": 100}


def write(cluster: Cluster, topic: str, format_: str, records: int, batch: int = BATCH) -> None:
    """Produce `records` records in batches of up to `batch` bytes. Raises RuntimeError if a record is refused."""
    cluster.create_topic(topic, PARTITIONS, config={"message.format.version": format_})
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    settings = {"batch.size": batch, "linger.ms": 20, "compression.codec": CODECS[topic], "log_level": 0}
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "queue.buffering.max.messages": 500_000, **settings}
    )
    text = b'{"order": %012d, "customer": "customer-%05d", "state": "shipped", "total": %08d, "currency": "EUR"}'
    for number in range(records):
        value = (text % (number, number * 7919 % 99_991, number * 104_729 % 9_999_991)).ljust(VALUE_BYTES[topic], b" ")
        while True:
            try:
                producer.produce(topic, value, partition=number // 100 % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(300) or refused:
        msg = f"{topic}: records were refused: {refused[:1]}"
        raise RuntimeError(msg)


def seconds(command: Sequence[str], files: Sequence[Path] = ()) -> float:
    """Return how long a command takes, s. Raises CalledProcessError if it fails.

    files: what it reads; they are in the page cache when it starts.
    """
    for file in files:
        with file.open("rb") as log:
            while log.read(1 << 24):
                pass
    started = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - started


def compare(title: str, logs: Path, topics: Sequence[str], records: int, goal: float, *deep: str) -> None:
    """Time both on the logs of some topics and print the ratio."""
    files = [file for topic in topics for file in sorted(logs.glob(f"{topic}-*/*.log"))]
    size = sum(file.stat().st_size for file in files)
    names = ",".join(map(str, files))
    tool = [java(), HEAP, "-cp", class_path(KAFKA[VERSION]), "kafka.tools.DumpLogSegments", *deep, "--files", names]
    check = [sys.executable, "-m", "spark_checks", "log_segments", "--master", MASTER, "--path", f"{BROKER}={logs}"]
    theirs = seconds(tool, files)
    ours = seconds([*check, *(part for topic in topics for part in ("--topic", topic))], files)
    idle = seconds([*check, "--topic", "no-such-topic"])
    print(f"{title}: {len(files)} segments, {size / 2**30:.2f} GiB, {records:,} records")
    print(f"  DumpLogSegments {' '.join(deep)}: {theirs:.1f} s ({records / theirs:,.0f} records/s)")
    print(f"  log_segments, {MASTER}: {ours:.1f} s ({records / ours:,.0f} records/s), {idle:.1f} s of it Spark's own")
    print(f"  ratio: {theirs / ours:.2f} times as fast; goal {goal:g}", flush=True)


def main() -> None:
    """Write the segments and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4, help="GiB of format 2; 0: none. Default: 4.")
    parser.add_argument("--batch", type=int, default=BATCH, help="Bytes of a batch of format 2. Default: 16384.")
    parser.add_argument(
        "--records", type=int, default=60_000_000, help="Records of formats 0 and 1. Default: 60 million."
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backflow-bench-") as folder:
        with Cluster(VERSION, (BROKER,), workdir=Path(folder), config={"log.segment.bytes": 2**30 - 1}) as cluster:
            counts = {"two": int(arguments.gib * 2**30 / VALUE_BYTES["two"]), "zero": arguments.records // 2}
            counts["one"] = counts["zero"]
            for topic, format_ in {**PLAIN, **OLD}.items():
                if counts[topic]:
                    write(cluster, topic, format_, counts[topic], arguments.batch if topic in PLAIN else BATCH)
            logs = cluster.log_directory(BROKER)
            cluster.stop(BROKER)
        if counts["two"]:
            compare(
                f"Format 2, not compressed, batches of {arguments.batch} bytes", logs, list(PLAIN), counts["two"], 2
            )
        if counts["zero"]:
            title = "Formats 0 (snappy) and 1 (gzip)"
            compare(title, logs, list(OLD), counts["zero"] + counts["one"], 5, "--deep-iteration")


if __name__ == "__main__":
    main()
