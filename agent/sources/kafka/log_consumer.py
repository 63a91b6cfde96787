"""Consumers that read logs by assign(): committed records only, without joining a group or committing."""

from collections.abc import Mapping
from typing import Any

import structlog
from confluent_kafka import Consumer

_DEFAULTS: Mapping[str, Any] = {
    # A queued record costs librdkafka some hundreds of bytes beside its own; by default it queues 100,000 of them.
    "queued.min.messages": "20000",
    "fetch.queue.backoff.ms": "5",  # by default nothing is fetched for a second once the queue is full
    "reconnect.backoff.max.ms": "2000",
    "client.id": "backflow",
}
_REQUIRED: Mapping[str, Any] = {
    "allow.auto.create.topics": False,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",  # records of open and aborted transactions do not count
    "auto.offset.reset": "error",  # an error shows that the log was replaced or lost the offset to read next
}


def make_log_consumer(
    name: str,
    properties: Mapping[str, str],
    log: structlog.typing.FilteringBoundLogger,
    *,
    defaults: Mapping[str, Any],
    required: Mapping[str, Any],
) -> Consumer:
    """Return a consumer of logs. Raises KafkaException if librdkafka rejects the properties.

    name: in its group.id, which the client requires; nothing joins it or commits for it. properties: the user's, which
    override defaults. required: what they cannot override.
    """
    settled = {**_REQUIRED, "group.id": f"backflow-{name}", **required}
    return Consumer({**_DEFAULTS, **defaults, **properties, **settled}, logger=_ClientLog(log))


class _ClientLog:
    """The part of `logging.Logger` that librdkafka calls."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = log

    def log(self, level: int, text: str, *values: object) -> None:
        """Log a line of librdkafka's."""
        self._log.debug("librdkafka_log", text=text % values, level=level)
