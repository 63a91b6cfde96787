"""What goes into Streams applications, and waiting until it has come through."""

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from testbed.streams.app import StreamsApp
from testbed.streams.changelog import records
from testbed.traffic import IMPATIENT, Worker
from testbed.waiting import wait_until

KEYS = tuple(f"key-{number:02d}" for number in range(24))
"""Enough of them to have some in each of four partitions."""


def feed(
    bootstrap_servers: str, topic: str, rounds: int, *, value: str | None = None, keys: Sequence[str] = KEYS
) -> None:
    """Write so many records of each key, spread over the partitions as Java's clients do; wait until acknowledged.

    value: the round's number, from 1 on, unless given.
    """
    producer = _producer(bootstrap_servers)
    for number in range(1, rounds + 1):
        for key in keys:
            producer.produce(topic, key=key, value=value or str(number))
        producer.poll(0)
    unacknowledged = producer.flush(60)
    if unacknowledged:
        msg = f"{unacknowledged} records were not written to {topic}."
        raise KafkaException(msg)


class Trickle(Worker):
    """Writes a record of each key again and again until its context ends, so that an application is never idle."""

    def __init__(self, bootstrap_servers: str, topic: str, *, every: float = 0.05) -> None:
        """every: seconds between two records of a key."""
        super().__init__("trickle")
        self.rounds = 0
        self._topic = topic
        self._every = every
        self._producer = _producer(bootstrap_servers)

    def _step(self) -> None:
        for key in KEYS:
            self._producer.produce(self._topic, key=key, value="1")
        self._producer.poll(0)
        self.rounds += 1
        self._stopped.wait(self._every)

    def _finish(self) -> None:
        self._producer.flush(30)


def wait_until_processed(app: StreamsApp, seconds: float = 120) -> None:
    """Wait until all that is in the application's input now has been processed and committed."""
    client = Consumer({"bootstrap.servers": app.bootstrap_servers, "group.id": app.application_id, **_QUIET})
    try:
        for topic in app.source_topics:
            ends: dict[int, int] = {}
            # The last record, not the log's end: transactions end in a marker, which nobody commits past in 2.x.
            for one in records(app.bootstrap_servers, topic):
                ends[one.partition] = one.offset + 1

            def behind(topic: str = topic, ends: dict[int, int] = ends) -> list[TopicPartition]:
                places = [TopicPartition(topic, partition) for partition in ends]
                committed = client.committed(places, timeout=30) if places else []
                return [place for place in committed if place.offset < ends[place.partition]]

            wait_until(lambda: not behind(), f"{app.application_id} to have processed {topic}", seconds)
    finally:
        client.close()


_QUIET = {"enable.auto.commit": False, "log_level": 0, **IMPATIENT}


def _producer(bootstrap_servers: str) -> Producer:
    settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "log_level": 0, **IMPATIENT}
    return Producer({**settings, "partitioner": "murmur2_random"})  # Java's own
