"""Reads all commits as a bare loop does, which keeps the last value of each key in a dict: what others compare with.

Run as `python -m bench.bare_loop BOOTSTRAP_SERVERS`, in a process of its own; prints a `Loop` as JSON.
"""

import json
import os
import subprocess
import sys
import time
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.family import need

_TOPIC = "__consumer_offsets"


class Loop(NamedTuple):
    """cost: CPU time per record, us. memory: resident at the end, MiB."""

    records: int
    cost: float
    memory: float


def measure(bootstrap_servers: str) -> Loop:
    """Read all commits in a process of its own, which has loaded nothing else."""
    command = [sys.executable, "-m", "bench.bare_loop", bootstrap_servers]
    return Loop(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _read(bootstrap_servers: str) -> Loop:
    properties = {"group.id": "bare", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, **properties})
    partitions = consumer.list_topics(_TOPIC).topics[_TOPIC].partitions
    ends = [consumer.get_watermark_offsets(TopicPartition(_TOPIC, number))[1] for number in partitions]
    consumer.assign([TopicPartition(_TOPIC, number, OFFSET_BEGINNING) for number in partitions])
    last: dict[bytes, bytes | None] = {}
    count, begin = 0, time.process_time()
    while count < sum(ends):  # a broker that has just started has compacted nothing
        for message in consumer.consume(10_000, 1):
            last[message.key() or b""] = message.value()
            count += 1
    used = time.process_time() - begin
    memory = need(os.getpid()).memory
    consumer.close()
    return Loop(count, used / count * 1e6, memory)


if __name__ == "__main__":
    print(json.dumps(_read(sys.argv[1])._asdict()))
