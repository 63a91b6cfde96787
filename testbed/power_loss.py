"""Power losses that leave replicas different (KAFKA-3919), as faults of a running cluster, with the truth about them.

Kafka 0.11.0.0 with message format 0.10.0, whose followers truncate to a high watermark (before KIP-101). The truth is
read by the vendor's own tool (dump_log.py) once the cluster is well again.
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
"""Other records written after the loss of a tenth of 8,000: so many that the new leader's log is longer than the old
high watermark, with a batch across it that the follower appends whole; or so few that the follower truncates to its
end and goes on with what nobody else has.
"""


class Dip(NamedTuple):
    """Offsets that go back in one replica: in the batch at this byte of the file, `current` after `previous`."""

    broker: int
    file: Path
    position: int
    previous: int
    current: int


class Difference(NamedTuple):
    """Between two replicas, below their high watermark: the first and the last offset at which not the same records
    stand, and how many records the one and the other hold alone, hence lose when they have to follow the other.
    """

    first: int
    last: int
    alone: tuple[int, int]


class PowerLoss(NamedTuple):
    """What is really in the logs. end: before the loss; leader_end: of the first leader afterwards, before new records.

    high_watermark: of all replicas in the end. dips: where offsets go back. diverged: the pairs of brokers that
    differ, the lower id first.
    """

    topic: str
    partition: int
    leader: int
    directories: Mapping[int, Path]
    end: int
    leader_end: int
    high_watermark: int
    dips: Sequence[Dip]
    diverged: Mapping[tuple[int, int], Difference]


def create(cluster: Cluster, topic: str, brokers: Sequence[int]) -> None:
    """Create a topic of one partition that can be hurt so; the first broker is the preferred leader."""
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
    """Write records, lose power on all replicas at once, and let `leader` come back first and take other records.

    keep: the share of its log that is still there, for each broker that loses some. Ends when all replicas are in sync.
    Raises TimeoutError.
    """
    state = cluster.wait_for_leader(topic, 0)
    cluster.wait_for_leader(topic, 0, isr=state.replicas)
    _write(cluster, topic, records, codec, batch=200)
    _wait_until_noted(cluster, topic, state.replicas, records)
    progress(f"{topic}[0] holds {records:,} records on brokers {', '.join(map(str, state.replicas))}, all in sync")

    for broker in state.replicas:
        cluster.kill(broker)
    lost = {broker: cluster.lose_tail(broker, topic, 0, share) for broker, share in keep.items()}
    told = ", ".join(f"{number:,} bytes of its log on {broker}" for broker, number in lost.items())
    progress(f"power loss: brokers {', '.join(map(str, state.replicas))} are dead, {topic}[0] lost {told}")
    for broker in state.replicas:
        cluster.wait_until_gone(broker)

    cluster.start(leader)
    cluster.wait_for_leader(topic, 0, leader)
    leader_end = wait_until(lambda: cluster.log_end(topic, 0), f"the end of {topic}[0]")
    progress(f"broker {leader} is back and leads; its log ends at {leader_end:,}")
    _write(cluster, topic, others, codec, batch=149)  # so that old and new wrappers end at different offsets
    progress(f"{others:,} other records are written")
    for broker in state.replicas:
        if broker != leader:
            cluster.start(broker)
    cluster.wait_for_leader(topic, 0, isr=state.replicas)
    high_watermark = leader_end + others
    _wait_until_noted(cluster, topic, state.replicas, high_watermark)
    progress("all replicas are back and in sync, and nobody complains")
    return _truth(
        cluster, topic, state.replicas, leader=leader, end=records, leader_end=leader_end, high_watermark=high_watermark
    )


def _wait_until_noted(cluster: Cluster, topic: str, brokers: Sequence[int], high_watermark: int) -> None:
    """Wait until brokers have written the high watermark down, as they do every five seconds."""

    def noted(checkpoint: Path) -> bool:
        return checkpoint.exists() and f"{topic} 0 {high_watermark}" in checkpoint.read_text().splitlines()

    for broker in brokers:
        checkpoint = cluster.log_directory(broker) / "replication-offset-checkpoint"
        what = f"broker {broker} to note the high watermark {high_watermark} of {topic}[0]"
        wait_until(partial(noted, checkpoint), what)


def _write(cluster: Cluster, topic: str, records: int, codec: str, *, batch: int) -> None:
    """Write so many records in wrappers of up to `batch` each."""
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
    files = {broker: sorted((one / f"{topic}-0").glob("*.log")) for broker, one in directories.items()}
    dumps = dump(cluster.version, [file for logs in files.values() for file in logs], deep=True)
    held = {broker: _held([dumps[file] for file in logs]) for broker, logs in files.items()}
    diverged = {}
    for one, other in combinations(sorted(held), 2):
        alone = held[one] - held[other], held[other] - held[one]
        offsets = [offset for offset, _ in alone[0] | alone[1] if offset < high_watermark]
        if offsets:
            diverged[one, other] = Difference(min(offsets), max(offsets), (len(alone[0]), len(alone[1])))
    return PowerLoss(
        topic=topic,
        partition=0,
        leader=leader,
        directories=directories,
        end=end,
        leader_end=leader_end,
        high_watermark=high_watermark,
        dips=[dip for broker, logs in files.items() for file in logs for dip in _dips(broker, file, dumps[file])],
        diverged=diverged,
    )


def _held(logs: Sequence[Dump]) -> set[tuple[int, int]]:
    """The offsets and checksums of all records."""
    return {
        record for log in logs for batch in log.batches for record in zip(batch.offsets, batch.record_crcs, strict=True)
    }


def _dips(broker: int, file: Path, log: Dump) -> Iterator[Dip]:
    offsets = [(offset, batch.position) for batch in log.batches for offset in batch.offsets]
    for (previous, _), (current, position) in pairwise(offsets):
        if current <= previous:
            yield Dip(broker, file, position, previous, current)
