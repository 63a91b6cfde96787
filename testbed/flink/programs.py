"""The programs that are submitted as jobs; their Java is in java/, in the words of each version of Flink."""

from typing import NamedTuple

CHECKPOINT_MS = 2000
"""The time between checkpoints, unless said otherwise."""


class Program(NamedTuple):
    """A main class and its arguments: name, parallelism, delay (ms), checkpoint interval (ms); Kafka's come after."""

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
    """Reads a topic from the group's offsets (where it has none, and after "out of range", from the log's start) and
    takes so long over each record; offsets are committed with each checkpoint. The source is called kafka-source.
    """
    arguments = (name, str(parallelism), str(delay_ms), str(checkpoint_ms), bootstrap_servers, topic, group)
    return Program("KafkaJob", arguments)


def sequence_job(name: str, *, parallelism: int = 1, delay_ms: int = 10, checkpoint_ms: int = CHECKPOINT_MS) -> Program:
    """Counts for ever, one number each so many ms, from where it was restored. Needs nothing but Flink."""
    return Program("SequenceJob", (name, str(parallelism), str(delay_ms), str(checkpoint_ms)))
