"""Power losses that leave replicas different (KAFKA-3919), made on a running cluster, and the resulting logs.

Kafka 0.11.0.0 with message format 0.10.0, whose followers truncate to a high watermark (before KIP-101). Once the
cluster is in sync again, the vendor's own tool reads the logs (dump_log.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from confluent_kafka import Producer

from testbed.dump_log import Dump, dump
from testbed.kafka import Cluster
from testbed.waiting import wait_until

Progress: TypeAlias = Callable[[str], None]

STRADDLING, SILENT = 2500, 353
"""Records written after the loss of a tenth of 8,000.

STRADDLING: the new leader's log grows past the old high watermark, with a batch across it that the follower appends
whole. SILENT: so few that the follower keeps records that no other replica has.
"""


class OffsetDecrease(NamedTuple):
    """An offset `current` that follows `previous` in one replica, in the batch at byte `position`."""

    broker: int
    file: Path
    position: int
    previous: int
    current: int


class Difference(NamedTuple):
    """The difference between two replicas below their high watermark.

    first, last: the first and last offset with different records. alone: how many records only the one or the other
    holds, which it loses if it has to follow the other.
    """

    first: int
    last: int
    alone: tuple[int, int]


class PowerLoss(NamedTuple):
    """The contents of the logs after a power loss.

    end: log end offset before the loss. leader_end: of the first leader afterwards, before new records. high_watermark:
    of all replicas in the end. decreases: where offsets decrease. diverged: the pairs of brokers that differ, the lower
    id first.
    """

    topic: str
    partition: int
    leader: int
    directories: Mapping[int, Path]
    end: int
    leader_end: int
    high_watermark: int
    decreases: Sequence[OffsetDecrease]
    diverged: Mapping[tuple[int, int], Difference]


def create(cluster: Cluster, topic: str, brokers: Sequence[int]) -> None:
    """Create a one-partition topic for `power_loss`; the first broker is the preferred leader."""
    cluster.create_topic(topic, assignment={0: brokers}, config={"message.format.version": "0.10.0"})


def power_loss(
    cluster: Cluster,
    topic: str,
    *,
    keep: Mapping[int, float],
    leader: int,
    records: int = 8000,
    others: int = STRADDLING,
    codec: str = "snappy",
    progress: Progress = lambda _: None,
) -> PowerLoss:
    """Write records, cut the power of all replicas, start `leader` first, and write other records.

    keep: the share of its log that remains, by broker, for the brokers that lose some. Ends when all replicas are in
    sync. Raises TimeoutError.
    """
    state = cluster.wait_for_leader(topic, 0)
    cluster.wait_for_leader(topic, 0, isr=state.replicas)
    _write(cluster, topic, records, codec, batch=200)
    _wait_until_checkpointed(cluster, topic, state.replicas, records)
    progress(f"{topic}[0] holds {records:,} records on brokers {', '.join(map(str, state.replicas))}, all in sync")

    for broker in state.replicas:
        cluster.kill(broker)
    lost = {broker: cluster.lose_tail(broker, topic, 0, share) for broker, share in keep.items()}
    losses = ", ".join(f"{number:,} bytes of its log on {broker}" for broker, number in lost.items())
    progress(f"power loss: brokers {', '.join(map(str, state.replicas))} are down; {topic}[0] lost {losses}")
    for broker in state.replicas:
        cluster.wait_until_gone(broker)

    cluster.start(leader)
    cluster.wait_for_leader(topic, 0, leader)
    leader_end = wait_until(lambda: cluster.log_end(topic, 0), f"the end of {topic}[0]")
    progress(f"broker {leader} is up and leads; its log end offset is {leader_end:,}")
    _write(cluster, topic, others, codec, batch=149)  # old and new wrappers then end at different offsets
    progress(f"{others:,} other records are written")
    for broker in state.replicas:
        if broker != leader:
            cluster.start(broker)
    cluster.wait_for_leader(topic, 0, isr=state.replicas)
    high_watermark = leader_end + others
    _wait_until_checkpointed(cluster, topic, state.replicas, high_watermark)
    progress("all replicas are up and in sync, and no broker reports an error")
    return _truth(
        cluster, topic, state.replicas, leader=leader, end=records, leader_end=leader_end, high_watermark=high_watermark
    )


def _wait_until_checkpointed(cluster: Cluster, topic: str, brokers: Sequence[int], high_watermark: int) -> None:
    """Wait until the brokers have written this high watermark to disk, as they do every 5 s."""

    def checkpointed(checkpoint: Path) -> bool:
        return checkpoint.exists() and f"{topic} 0 {high_watermark}" in checkpoint.read_text().splitlines()

    for broker in brokers:
        checkpoint = cluster.log_directory(broker) / "replication-offset-checkpoint"
        what = f"broker {broker} to checkpoint the high watermark {high_watermark} of {topic}[0]"
        wait_until(partial(checkpointed, checkpoint), what)


def _write(cluster: Cluster, topic: str, records: int, codec: str, *, batch: int) -> None:
    """Write records in wrappers of up to `batch` records."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "acks": 1,
            "compression.codec": codec,
            "linger.ms": 30,
            "batch.num.messages": batch,
            "log_level": 0,
        }
    )
    for number in range(records):
        producer.produce(topic, f"record {number} of {records}".encode(), partition=0)
    if producer.flush(60):
        msg = f"{topic} did not take {records} records within a minute."
        raise TimeoutError(msg)


def _truth(
    cluster: Cluster, topic: str, brokers: Sequence[int], *, leader: int, end: int, leader_end: int, high_watermark: int
) -> PowerLoss:
    directories = {broker: cluster.log_directory(broker) for broker in brokers}
    files = {broker: sorted((folder / f"{topic}-0").glob("*.log")) for broker, folder in directories.items()}
    dumps = dump(cluster.version, [file for logs in files.values() for file in logs], deep=True)
    records = {broker: _records([dumps[file] for file in logs]) for broker, logs in files.items()}
    diverged = {}
    for first, second in combinations(sorted(records), 2):
        alone = records[first] - records[second], records[second] - records[first]
        offsets = [offset for offset, _ in alone[0] | alone[1] if offset < high_watermark]
        if offsets:
            diverged[first, second] = Difference(min(offsets), max(offsets), (len(alone[0]), len(alone[1])))
    return PowerLoss(
        topic=topic,
        partition=0,
        leader=leader,
        directories=directories,
        end=end,
        leader_end=leader_end,
        high_watermark=high_watermark,
        decreases=[
            decrease
            for broker, logs in files.items()
            for file in logs
            for decrease in _find_decreases(broker, file, dumps[file])
        ],
        diverged=diverged,
    )


def _records(logs: Sequence[Dump]) -> set[tuple[int, int]]:
    """Return the offset and checksum of every record."""
    return {
        record for log in logs for batch in log.batches for record in zip(batch.offsets, batch.record_crcs, strict=True)
    }


def _find_decreases(broker: int, file: Path, log: Dump) -> Iterator[OffsetDecrease]:
    offsets = [(offset, batch.position) for batch in log.batches for offset in batch.offsets]
    for (previous, _), (current, position) in pairwise(offsets):
        if current <= previous:
            yield OffsetDecrease(broker, file, position, previous, current)
