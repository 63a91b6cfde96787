"""The active tasks of a Kafka Streams thread, as its group's leader wrote them into its assignment. Bytes in, values
out; who reads the bytes from Kafka: kafka_client.
"""

from typing import NamedTuple

_VERSIONS = range(1, 12)
_WITH_COMMON_VERSION = 3
_WITH_NAMED_TOPOLOGIES = 10


class UndecodableAssignmentError(ValueError):
    """These are no tasks of a version known; the text says why."""


class Assignment(NamedTuple):
    """What a member is to read, and the task that reads each partition ("1_0"), one for one; sorted by partition."""

    partitions: tuple[tuple[str, int], ...] = ()
    tasks: tuple[str, ...] = ()


def decode(assignment: bytes) -> Assignment:
    """A member's assignment: ConsumerProtocolAssignment of Kafka's consumer, its user data being Streams' own.

    The tasks stand in the order of the sorted partitions (StreamsPartitionAssignor.onAssignment, 0.10 to 3.9). Empty
    while a group rebalances. Raises UndecodableAssignmentError.
    """
    if not assignment:
        return Assignment()
    read = _Reader(assignment)
    read.number(2)  # its version: all have this layout
    partitions = []
    for _ in range(read.count()):
        topic = read.text(read.count(2))
        partitions += [(topic, read.number()) for _ in range(read.count())]
    size = read.number()  # -1 where there is none
    if size <= 0:
        msg = "Kafka Streams has written nothing into it"
        raise UndecodableAssignmentError(msg)
    tasks = _active_tasks(_Reader(read.take(size)))
    if len(tasks) != len(partitions):
        msg = f"there are {len(tasks)} active tasks for {len(partitions)} partitions"
        raise UndecodableAssignmentError(msg)
    return Assignment(tuple(sorted(partitions)), tasks)


def _active_tasks(read: "_Reader") -> tuple[str, ...]:
    """AssignmentInfo of Kafka Streams, as far as the active tasks: standby tasks and hosts follow them.

    Seen: version 4 written by 2.1 and 2.2, 11 by 3.9.
    """
    version = read.number()
    if version not in _VERSIONS:
        msg = f"version {version} is not known"
        raise UndecodableAssignmentError(msg)
    if version >= _WITH_COMMON_VERSION:
        read.number()
    return tuple(_task(read, version) for _ in range(read.count()))


def _task(read: "_Reader", version: int) -> str:
    """A TaskId, as Streams' logs show it."""
    task = f"{read.number()}_{read.number()}"
    name = read.text(2 * read.count(), "utf-16-be") if version >= _WITH_NAMED_TOPOLOGIES else ""
    return f"{name}__{task}" if name else task


class _Reader:
    """Takes big-endian numbers and texts off the front of bytes."""

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._place = 0

    def take(self, size: int) -> bytes:
        begin, self._place = self._place, self._place + size
        if self._place > len(self._encoded):
            msg = f"it ends at byte {len(self._encoded)}, within what is to end at {self._place}"
            raise UndecodableAssignmentError(msg)
        return self._encoded[begin : self._place]

    def number(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def count(self, size: int = 4) -> int:
        count = self.number(size)
        if count < 0:
            msg = f"it counts {count} at byte {self._place - size}"
            raise UndecodableAssignmentError(msg)
        return count

    def text(self, size: int, encoding: str = "utf-8") -> str:
        try:
            return self.take(size).decode(encoding)
        except UnicodeDecodeError as error:
            msg = f"a name in it is no {encoding}: {error.reason}"
            raise UndecodableAssignmentError(msg) from error
