"""What following a changelog costs: the source `changelogs` on a topic of 10 million keys, against a raw consume loop.

Run as `python -m bench.changelogs [--keys N] [--partitions N] [--memory MB ...]`. A broker of the testbed (3.9.1) holds
the topic: a long for each key, and for a second, live pass a lower value for each 100,000th key. Both sides
read the same topic, each in a process of its own, whose memory is taken before and at its highest. The raw loop
consumes batches of 10,000 with the client's defaults (but for fetch.queue.backoff.ms, which ours sets too) and looks at
nothing. Passing time counts; CPU time is printed beside it.
"""

import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from agent.model.declared_stores import DeclaredStore
from agent.model.observations.base import Observation, Unavailable
from agent.model.observations.streams import ChangelogDecreases
from agent.sources.streams.changelog_source import ChangelogSource
from testbed.kafka import Cluster

BROKER = 2005
GOAL = 200_000
STORE = DeclaredStore(application="bench", store="counts")
FALLEN_EVERY = 100_000
BEFORE, AFTER = 1_000, 7


def write(servers: str, keys: int, partitions: int, value: Callable[[int], int]) -> None:
    """Write a record per key. Raises RuntimeError if any is refused."""
    refused: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 50,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 1_000_000,
            "acks": 1,
            "error_cb": refused.append,
            "log_level": 0,
        }
    )
    for number in range(keys):
        while True:
            try:
                producer.produce(
                    STORE.changelog,
                    key=b"customer-%012d" % number,
                    value=value(number).to_bytes(8, "big", signed=True),
                    partition=number % partitions,
                )
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(600) or refused:
        msg = f"not all records were written: {refused[:1]}"
        raise RuntimeError(msg)


class Memory:
    """How much this process has grown since, at its highest."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._begun = self.highest = self._process.memory_info().rss
        self._done = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.highest = max(self.highest, self._process.memory_info().rss)

    @property
    def grown(self) -> int:
        """Bytes."""
        return self.highest - self._begun


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def raw(servers: str, partitions: int) -> dict[str, Any]:
    """Read the topic to its end with nothing done about it."""
    memory = Memory()
    settings = {
        "bootstrap.servers": servers,
        "group.id": "bench",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 5,
    }
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
    begun, cpu, ended, read = time.monotonic(), _cpu(), 0, 0
    consumer.assign([TopicPartition(STORE.changelog, number, OFFSET_BEGINNING) for number in range(partitions)])
    while ended < partitions:
        for message in consumer.consume(10_000, 0.1):
            if message.error() is None:
                read += 1
            else:
                ended += 1
    measured = {"seconds": time.monotonic() - begun, "cpu": _cpu() - cpu, "records": read, "grown": memory.grown}
    consumer.close()
    return measured


def ours(servers: str, partitions: int, megabytes: int) -> dict[str, Any]:
    """Read the topic to its end, say so, and then what comes live: a line of standard input says how many records."""
    seen: list[Observation] = []
    memory = Memory()
    begun, cpu = time.monotonic(), _cpu()
    source = ChangelogSource("bench", servers, dict, [STORE], seen.extend, memory=megabytes * 1_000_000, interval=1_000)
    changelog = source._changelogs[STORE.changelog]  # noqa: SLF001 - to know when it is through

    def read() -> int:
        return sum(partition.next_offset or 0 for partition in list(changelog.partitions.values()))

    def read_on(until: Callable[[], bool]) -> None:
        polled = 0.0
        while not until():
            if time.monotonic() - polled > 1:
                source.poll()
                polled = time.monotonic()
            time.sleep(0.01)

    read_on(
        lambda: (
            len(changelog.partitions) == partitions
            and all(partition.live for partition in changelog.partitions.values())
        )
    )
    history = {"seconds": time.monotonic() - begun, "cpu": _cpu() - cpu, "records": read()}
    print(json.dumps(history), flush=True)
    expected = int(sys.stdin.readline())
    begun, cpu, already = time.monotonic(), _cpu(), read()
    read_on(lambda: read() >= expected)
    live = {"seconds": time.monotonic() - begun, "cpu": _cpu() - cpu, "records": read() - already}
    for _ in range(3):
        source.poll()
        time.sleep(1.1)
    falls = {found.partition: found.keys for found in seen if isinstance(found, ChangelogDecreases)}
    coverage = changelog.coverage
    source.close()
    unavailable = [
        change.reason
        for change in seen
        if isinstance(change, Unavailable) and (change.topic, change.partition) == (STORE.changelog, None)
    ]
    return {
        "live": live,
        "falls": sum(falls.values()),
        "keys": coverage.keys,
        "grown": memory.grown,
        "unavailable": unavailable,
    }


def _started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.changelogs", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def compare(cluster: Cluster, keys: int, partitions: int, memories: Sequence[int]) -> None:
    """Write the topic, read it both ways, and print."""
    servers = cluster.bootstrap_servers
    cluster.create_topic(STORE.changelog, partitions, config={"cleanup.policy": "compact"})
    write(servers, keys, partitions, lambda _: BEFORE)
    process = _started("--raw", servers, "--partitions", str(partitions))
    bare = json.loads(process.communicate()[0])
    rate = bare["records"] / bare["seconds"]
    print(f"raw loop:  {rate:>11,.0f} records/s, {bare['cpu'] / bare['records'] * 1e6:.2f} µs CPU a record")
    written = keys
    for memory in memories:
        process = _started("--ours", servers, "--partitions", str(partitions), "--memory", str(memory))
        if process.stdout is None:
            msg = "the process was started without pipes"
            raise ValueError(msg)
        history = json.loads(process.stdout.readline())
        _print_rate(f"ours, {memory} MB, history:", history, rate)
        # It stands still meanwhile, so that not the producer is measured.
        process.send_signal(signal.SIGSTOP)
        write(servers, keys, partitions, lambda number: AFTER if number % FALLEN_EVERY == 0 else BEFORE + 1)
        written += keys
        process.send_signal(signal.SIGCONT)
        out = json.loads(process.communicate(f"{written}\n")[0])
        _print_rate(f"ours, {memory} MB, live:   ", out["live"], rate)
        print(f"  {out['falls']} of {keys // FALLEN_EVERY} decreases reported; {out['keys']:,} of {keys:,} keys known")
        verdict = "within" if out["grown"] < memory * 1_000_000 else "ABOVE"
        print(f"  memory grew by {out['grown'] / 1e6:,.0f} MB: {verdict} the limit. {' '.join(out['unavailable'])}")
        write(servers, keys, partitions, lambda _: BEFORE)
        written += keys


def _print_rate(what: str, measured: dict[str, float], bare: float) -> None:
    rate = measured["records"] / measured["seconds"]
    cost = measured["cpu"] / measured["records"] * 1e6
    print(
        f"{what} {rate:>11,.0f} records/s, {cost:.2f} µs CPU a record,"
        f" {rate / bare:.2f} of the raw loop (goal: {GOAL:,} records/s)"
    )


def main() -> None:
    """Measure; or be one of the two processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000, help="Default: 10 million.")
    parser.add_argument("--partitions", type=int, default=8, help="Default: 8.")
    parser.add_argument("--memory", type=int, nargs="+", default=[512, 192], help="Limits, MB. Default: 512 192.")
    parser.add_argument("--raw", help=argparse.SUPPRESS)
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.raw:
        print(json.dumps(raw(options.raw, options.partitions)))
    elif options.ours:
        print(json.dumps(ours(options.ours, options.partitions, options.memory[0])))
    else:
        with (
            tempfile.TemporaryDirectory(prefix="backflow-bench-") as folder,
            Cluster("3.9.1", (BROKER,), workdir=Path(folder)) as cluster,
        ):
            compare(cluster, options.keys, options.partitions, options.memory)


if __name__ == "__main__":
    main()
