"""A transactional producer as a process of its own, to be killed with its transaction open."""

import sys
from pathlib import Path

from confluent_kafka import Producer

from testbed.processes import Process
from testbed.traffic import Place

_OPEN = "the transaction is open"


class OpenTransaction(Process):
    """A producer that has written `records` records in a transaction and does not end it; `kill` leaves it open."""

    def __init__(self, bootstrap_servers: str, place: Place, name: str, records: int, log: Path) -> None:
        """name: its transactional.id."""
        arguments = [bootstrap_servers, *map(str, place), name, str(records)]
        super().__init__("the producer", [sys.executable, "-m", "testbed.transactions", *arguments], log)

    def wait_until_open(self) -> None:
        """Wait until its records are written."""
        self.wait_for_line(_OPEN)


def _main(bootstrap_servers: str, topic: str, partition: str, name: str, records: str) -> None:
    settings = {"bootstrap.servers": bootstrap_servers, "transactional.id": name, "transaction.timeout.ms": 60_000}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    for _ in range(int(records)):
        producer.produce(topic, b"never committed", partition=int(partition))
    producer.flush(60)
    print(_OPEN, flush=True)  # noqa: T201  # for wait_until_open
    while True:
        producer.poll(60)


if __name__ == "__main__":
    _main(*sys.argv[1:])
