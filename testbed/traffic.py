"""Producers that keep a cluster busy, and the worker thread that producers and consumers run in."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

Delivered: TypeAlias = Callable[[KafkaError | None, Message], None]
Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""

# A frozen broker does not respond; with these a client tries another one soon (ms).
IMPATIENT: Mapping[str, Any] = {
    "socket.timeout.ms": 3000,
    "topic.metadata.refresh.interval.ms": 500,
    "reconnect.backoff.max.ms": 500,
    "broker.address.family": "v4",
}
_VALUE = b"backflow testbed record ".ljust(100, b".")


class Worker:
    """A thread that works in steps until its context ends; its failure is raised there."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failure: BaseException | None = None

    def _step(self) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        """Release what the steps used."""

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._step()
        except BaseException as error:  # noqa: BLE001  # raised where the context ends
            self._failure = error
        finally:
            self._finish()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None:
            self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the exception that ended the thread early, if any."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the thread; nothing is read, written or committed afterwards."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()


def fill(bootstrap_servers: str, places: Iterable[Place], records: int) -> None:
    """Write `records` records to each partition, in batches of 100, and wait for their acknowledgement."""
    refused: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "batch.num.messages": 100, **IMPATIENT})
    for topic, partition in places:
        for _ in range(records):
            _produce(producer, topic, partition, lambda error, _: refused.append(error) if error else None)
        producer.poll(0)
    unacknowledged = producer.flush(60)
    if refused or unacknowledged:
        msg = f"{len(refused) + unacknowledged} records were not written: {refused[:1]}."
        raise KafkaException(msg)


class Traffic(Worker):
    """Writes at a steady rate with acks=1, as producers that trade safety for speed do.

    acknowledged: records that a leader confirmed. refused: records given up after 1.5 s. Records that a failed broker
    does not take are given up, so that a burst of retries does not fill a new leader's log.
    """

    def __init__(self, bootstrap_servers: str, places: Iterable[Place], rate: float) -> None:
        """Prepare the producer. rate: records per second and partition."""
        super().__init__("traffic")
        self.acknowledged = 0
        self.refused = 0
        self._places = list(places)
        self._rate = rate
        self._written = 0
        self._begin = time.monotonic()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": 1,
                "linger.ms": 5,
                "message.timeout.ms": 1500,
                "request.timeout.ms": 1000,
                "log_level": 0,
                **IMPATIENT,
            }
        )

    def _step(self) -> None:
        due = int((time.monotonic() - self._begin) * self._rate)
        for _ in range(due - self._written):
            for topic, partition in self._places:
                _produce(self._producer, topic, partition, self._delivered)
        self._written = max(due, self._written)
        self._producer.poll(0)
        self._stopped.wait(0.01)

    def _finish(self) -> None:
        self._producer.flush(5)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.refused += 1

    def __enter__(self) -> Self:
        self._begin = time.monotonic()
        return super().__enter__()


def _produce(producer: Producer, topic: str, partition: int, delivered: Delivered) -> None:
    while True:
        try:
            producer.produce(topic, _VALUE, partition=partition, on_delivery=delivered)
        except BufferError:  # the queue is full: make room
            producer.poll(0.1)
        else:
            return
