"""Decoder for the active tasks in a Kafka Streams member's assignment, as the group's leader wrote it."""

from typing import NamedTuple

_VERSIONS = range(1, 12)
_WITH_COMMON_VERSION = 3
_WITH_NAMED_TOPOLOGIES = 10


class UndecodableAssignmentError(ValueError):
    """An assignment without tasks of a known version; the message says why."""


class Assignment(NamedTuple):
    """A member's partitions, sorted, and for each the task that reads it ("1_0")."""

    partitions: tuple[tuple[str, int], ...] = ()
    tasks: tuple[str, ...] = ()


def decode_assignment(assignment: bytes) -> Assignment:
    """Decode a ConsumerProtocolAssignment of Kafka's consumer whose user data is Kafka Streams' own.

    The tasks are in the order of the sorted partitions (StreamsPartitionAssignor.onAssignment, 0.10 to 3.9). Empty
    during a rebalance. Raises UndecodableAssignmentError.
    """
    if not assignment:
        return Assignment()
    reader = _Reader(assignment)
    partitions = _partitions(reader)
    size = reader.number()  # -1: null
    if size <= 0:
        msg = "the assignment has no user data of Kafka Streams"
        raise UndecodableAssignmentError(msg)
    tasks = _active_tasks(_Reader(reader.take(size)))
    if len(tasks) != len(partitions):
        msg = f"the assignment has {len(tasks)} active tasks for {len(partitions)} partitions"
        raise UndecodableAssignmentError(msg)
    return Assignment(tuple(sorted(partitions)), tasks)


def decode_partitions(assignment: bytes) -> tuple[tuple[str, int], ...]:
    """Return the partitions of a ConsumerProtocolAssignment, sorted. Raises UndecodableAssignmentError."""
    return tuple(sorted(_partitions(_Reader(assignment)))) if assignment else ()


def _partitions(reader: "_Reader") -> list[tuple[str, int]]:
    reader.number(2)  # the version: all have this layout
    partitions = []
    for _ in range(reader.count()):
        topic = reader.text(reader.count(2))
        partitions += [(topic, reader.number()) for _ in range(reader.count())]
    return partitions


def _active_tasks(reader: "_Reader") -> tuple[str, ...]:
    """Decode Kafka Streams' AssignmentInfo up to the active tasks; standby tasks and hosts follow.

    Seen: version 4 written by 2.1 and 2.2, 11 by 3.9.
    """
    version = reader.number()
    if version not in _VERSIONS:
        msg = f"unknown version {version} of AssignmentInfo"
        raise UndecodableAssignmentError(msg)
    if version >= _WITH_COMMON_VERSION:
        reader.number()
    return tuple(_task_id(reader, version) for _ in range(reader.count()))


def _task_id(reader: "_Reader", version: int) -> str:
    """Decode a TaskId into the form that Streams logs."""
    task = f"{reader.number()}_{reader.number()}"
    topology = reader.text(2 * reader.count(), "utf-16-be") if version >= _WITH_NAMED_TOPOLOGIES else ""
    return f"{topology}__{task}" if topology else task


class _Reader:
    """A cursor over big-endian numbers and texts."""

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._position = 0

    def take(self, size: int) -> bytes:
        begin, self._position = self._position, self._position + size
        if self._position > len(self._encoded):
            msg = f"the assignment ends at byte {len(self._encoded)}, before byte {self._position}"
            raise UndecodableAssignmentError(msg)
        return self._encoded[begin : self._position]

    def number(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def count(self, size: int = 4) -> int:
        count = self.number(size)
        if count < 0:
            msg = f"negative count {count} at byte {self._position - size} of the assignment"
            raise UndecodableAssignmentError(msg)
        return count

    def text(self, size: int, encoding: str = "utf-8") -> str:
        try:
            return self.take(size).decode(encoding)
        except UnicodeDecodeError as error:
            msg = f"a name in the assignment is not {encoding}: {error.reason}"
            raise UndecodableAssignmentError(msg) from error
