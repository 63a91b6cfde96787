"""A corpus of log segments written by real brokers, in every message format, codec and state of a log.

Its contents are known from the vendor's own tool (dump_log.py). Damage that no broker causes is not made here.
"""

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from testbed.kafka import Cluster
from testbed.waiting import wait_until

FORMATS: Mapping[str, int] = {"0.9.0": 0, "0.10.0": 1, "0.11.0": 2}
"""message.format.version of Kafka 0.11 and the magic that it writes."""

CODECS = ("none", "gzip", "snappy", "lz4")
BROKERS = (2005, 2011)
STATES = ("stopped", "killed", "torn")
"""Cleanly shut down: trimmed tails and indexes. Killed: preallocated tails. Torn: truncated by a power loss too."""


class Recipe(NamedTuple):
    """How a topic is written. records: records per round; the follower is down during one of three rounds.

    config: topic properties. producer: librdkafka's properties. transactions: whether to write in transactions and
    abort every second one. compacted: whether the cleaner must have compacted it. upgrades: message formats that it is
    changed to.
    """

    topic: str
    config: Mapping[str, str] = {}
    producer: Mapping[str, Any] = {}
    records: int = 600
    transactions: bool = False
    compacted: bool = False
    upgrades: Sequence[str] = ()


class Specimen(NamedTuple):
    """One partition as a broker left it on its disk. version: of that broker."""

    version: str
    state: str
    broker: int
    directory: Path

    @property
    def name(self) -> str:
        """A unique name."""
        return f"{self.version}/{self.state}/{self.broker}/{self.directory.name}"

    @property
    def logs(self) -> list[Path]:
        """Its segments, the active one last."""
        return sorted(self.directory.glob("*.log"))

    @property
    def indexes(self) -> list[Path]:
        """Its offset indexes."""
        return sorted(self.directory.glob("*.index"))


def recipes(version: str) -> list[Recipe]:
    """Return the recipes that this Kafka version can write."""
    return list(_of_0_11() if version.startswith("0.11") else _of_today(version))


def make(directory: Path, version: str, wanted: Sequence[Recipe]) -> list[Specimen]:
    """Let two brokers write the recipes, and copy their disks in every state to directory/STATE/BROKER."""
    config = {
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 2,
        "log.cleaner.backoff.ms": 500,
        "replica.lag.time.max.ms": 3000,
    }
    with Cluster(version, BROKERS, workdir=directory / "kafka", config=config, offsets_on=BROKERS) as cluster:
        for recipe in wanted:
            limits = {"segment.bytes": "1048576" if cluster.kraft else "16384", "segment.index.bytes": "8400"}
            base = {**limits, "index.interval.bytes": "1000"}
            cluster.create_topic(recipe.topic, assignment={0: BROKERS}, config={**base, **recipe.config})
            _write(cluster, recipe, 1)
            for number in recipe.upgrades:
                changed = {**base, **recipe.config, "message.format.version": number}
                cluster.alter_topic(recipe.topic, changed)
                _write(cluster, recipe, 2)
        cluster.kill(BROKERS[1])
        for recipe in wanted:
            cluster.wait_for_leader(recipe.topic, 0, BROKERS[0], isr=BROKERS[:1])
            _write(cluster, recipe, 3)
        cluster.start(BROKERS[1])
        cluster.wait_until_in_sync()
        for recipe in wanted:
            if recipe.compacted:
                for broker in BROKERS:
                    _wait_until_cleaned(cluster.log_directory(broker), recipe.topic)
        for broker in reversed(BROKERS):
            cluster.stop(broker)
        found = _copy(cluster, directory, "stopped")
        for broker in BROKERS:
            cluster.start(broker)
        cluster.wait_until_in_sync()
        for recipe in wanted:
            _write(cluster, recipe, 4)
        for broker in BROKERS:
            cluster.kill(broker)
        found += _copy(cluster, directory, "killed")
        for broker in BROKERS:
            for recipe in wanted:
                cluster.lose_tail(broker, recipe.topic, 0, keep=0.7)
        return found + _copy(cluster, directory, "torn")


def _of_0_11() -> Iterator[Recipe]:
    for number, magic in FORMATS.items():
        format_ = {"message.format.version": number}
        for codec in CODECS:
            # The producer uses another codec, so that the broker compresses: snappy with xerial framing, and for
            # format 0 lz4 with Kafka's wrong frame checksum (KAFKA-3160).
            other = {"compression.codec": "lz4" if codec == "gzip" else "gzip"}
            yield Recipe(
                f"magic-{magic}-{codec}", {**format_, "compression.type": codec.replace("none", "uncompressed")}, other
            )
        cleaned = {**format_, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        for codec in ("none", "gzip"):
            yield Recipe(f"magic-{magic}-{codec}-compacted", cleaned, {"compression.codec": codec}, compacted=True)
        yield Recipe(f"magic-{magic}-preallocated", {**format_, "preallocate": "true"}, {"compression.codec": "lz4"})
    for magic, number in ((1, "0.10.0"), (2, "0.11.0")):
        # Sent in the topic's format and codec: format 2 is appended as librdkafka compressed it, snappy without
        # framing.
        versions = {} if magic == 2 else {"api.version.request": False, "broker.version.fallback": "0.10.0"}
        for codec in ("snappy", "lz4"):
            yield Recipe(
                f"magic-{magic}-{codec}-librdkafka",
                {"message.format.version": number},
                {"compression.codec": codec, **versions},
            )
        stamped = {"message.format.version": number, "message.timestamp.type": "LogAppendTime"}
        yield Recipe(f"magic-{magic}-append-time", stamped, {"compression.codec": "gzip"})
    yield Recipe(
        "upgraded", {"message.format.version": "0.9.0"}, {"compression.codec": "snappy"}, upgrades=("0.10.0", "0.11.0")
    )
    yield Recipe("transactions", {}, {"compression.codec": "lz4"}, transactions=True)


def _of_today(version: str) -> Iterator[Recipe]:
    for codec in (*CODECS, "zstd"):
        yield Recipe(f"{codec}-librdkafka", {}, {"compression.codec": codec})
        other = {"compression.codec": "lz4" if codec == "gzip" else "gzip"}
        yield Recipe(f"{codec}-broker", {"compression.type": codec.replace("none", "uncompressed")}, other)
    yield Recipe("transactions", {}, {"compression.codec": "zstd"}, transactions=True)
    # Rolled by time too: a clean stop trims the active segment, and only a new one is preallocated.
    yield Recipe("preallocated", {"preallocate": "true", "segment.ms": "1000"}, {"compression.codec": "gzip"})
    yield Recipe("append-time", {"message.timestamp.type": "LogAppendTime"}, {"compression.codec": "snappy"})
    if not version.startswith("4."):  # its segments are at least 1 MiB, which would take too many records
        cleaned = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1000"}
        for codec in ("none", "zstd"):
            yield Recipe(f"{codec}-compacted", cleaned, {"compression.codec": codec}, compacted=True)
        yield Recipe(
            "transactions-compacted", cleaned, {"compression.codec": "gzip"}, transactions=True, compacted=True
        )


def _write(cluster: Cluster, recipe: Recipe, round_: int) -> None:
    """Write a round of records, random by topic and round: with repeated keys and, for the cleaner, tombstones."""
    chance = random.Random(f"{recipe.topic}-{round_}")
    refused: list[KafkaError] = []
    own = {"transactional.id": recipe.topic} if recipe.transactions else {}
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "linger.ms": 20,
            "batch.num.messages": 40,
            "log_level": 0,
            **own,
            **recipe.producer,
        }
    )
    if recipe.transactions:
        producer.init_transactions(60)
    for number in range(0, recipe.records, 150):
        if recipe.transactions:
            producer.begin_transaction()
        for _ in range(150):
            key = None if not recipe.compacted and chance.random() < 0.2 else b"key-%d" % chance.randrange(25)
            noise = chance.randbytes(chance.randrange(60))
            value = None if key is not None and chance.random() < 0.1 else noise + b"backflow " * chance.randrange(8)
            producer.produce(
                recipe.topic,
                value,
                key,
                0,
                on_delivery=lambda error, _: refused.append(error) if error is not None else None,
            )
        unwritten = producer.flush(60)
        if recipe.transactions:
            (producer.commit_transaction if number % 300 else producer.abort_transaction)(60)
        if refused or unwritten:
            msg = f"{len(refused) + unwritten} records of {recipe.topic} were not written: {refused[:1]}."
            raise KafkaException(msg)


def _wait_until_cleaned(log_directory: Path, topic: str) -> None:
    """Wait until the cleaner has compacted all but the active segment."""

    def cleaned() -> bool:
        checkpoint = log_directory / "cleaner-offset-checkpoint"
        ends = {
            line.split()[0]: int(line.split()[2])
            for line in (checkpoint.read_text().splitlines() if checkpoint.exists() else ())
            if len(line.split()) == 3
        }
        active = max((log_directory / f"{topic}-0").glob("*.log"))
        return ends.get(topic, 0) >= int(active.stem) > 0

    wait_until(cleaned, f"the cleaner to have been over {topic} in {log_directory}", 120)


def _copy(cluster: Cluster, directory: Path, state: str) -> list[Specimen]:
    """Copy the current disks of brokers that are down."""
    found = []
    for broker in BROKERS:
        target = directory / state / str(broker)
        shutil.copytree(cluster.log_directory(broker), target)
        found += [
            Specimen(cluster.version, state, broker, folder) for folder in sorted(target.iterdir()) if folder.is_dir()
        ]
    return found
