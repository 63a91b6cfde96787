"""The programs that are submitted as jobs; their Java is in java/, one variant per Flink API."""

from typing import NamedTuple

CHECKPOINT_MS = 2000
"""The default checkpoint interval."""


class Program(NamedTuple):
    """A main class and its arguments: name, parallelism, delay (ms), checkpoint interval (ms), then Kafka's."""

    main: str
    arguments: tuple[str, ...]


def kafka_job(
    name: str,
    bootstrap_servers: str,
    topic: str,
    group: str,
    *,
    parallelism: int = 1,
    delay_ms: int = 1,
    checkpoint_ms: int = CHECKPOINT_MS,
) -> Program:
    """Return a job that reads a topic with its source `kafka-source` and spends `delay_ms` on each record.

    It starts at the group's committed offsets. Without them, and after "out of range", it starts at the log start
    offset. It commits offsets with each checkpoint.
    """
    arguments = (name, str(parallelism), str(delay_ms), str(checkpoint_ms), bootstrap_servers, topic, group)
    return Program("KafkaJob", arguments)


def sequence_job(name: str, *, parallelism: int = 1, delay_ms: int = 10, checkpoint_ms: int = CHECKPOINT_MS) -> Program:
    """Return a job that counts without end, a number per `delay_ms`, and continues where it is restored.

    It needs nothing but Flink.
    """
    return Program("SequenceJob", (name, str(parallelism), str(delay_ms), str(checkpoint_ms)))
