"""What is said between the Kafka source and its client process: questions, answers, frames. Who asks: kafka."""

from typing import BinaryIO, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from agent.model.observations import Member
from agent.sources.streams.assignment import Assignment

T = TypeVar("T")

Place: TypeAlias = tuple[str, int]
"""A topic's partition."""


class ListGroups(Struct, tag=True, frozen=True):
    """Which consumer groups are there?"""


class Layout(Struct, tag=True, frozen=True):
    """Which brokers, topics, partitions and leaders are there?"""


class ListCommits(Struct, tag=True, frozen=True):
    """What has the group committed?"""

    group: str


class ListOffsets(Struct, tag=True, frozen=True):
    """Where do these logs start and end?"""

    places: list[Place]


class DescribeGroup(Struct, tag=True, frozen=True):
    """What state is the group in, and who is in it?"""

    group: str


class ListTasks(Struct, tag=True, frozen=True):
    """Which active tasks have the members of this group, a Kafka Streams application?"""

    group: str


class DescribeTopics(Struct, tag=True, frozen=True):
    """Who leads these topics' partitions, who follows, and what are their ids?"""

    topics: list[str]


Question: TypeAlias = ListGroups | Layout | ListCommits | ListOffsets | DescribeGroup | ListTasks | DescribeTopics


class Failure(Struct, tag=True, frozen=True):
    """Why there is no answer. code: librdkafka's, negative where no broker said so."""

    code: int
    text: str

    @property
    def told(self) -> bool:
        """Whether a broker answered, if only to say no."""
        return self.code > 0


class Groups(Struct, tag=True, frozen=True):
    """The groups of the brokers that answered, and why others did not."""

    names: list[str]
    failures: list[Failure]


class Metadata(Struct, tag=True, frozen=True):
    """topics: leader (-1: none) by partition; None where the broker knows the topic but cannot tell of it now."""

    brokers: list[int]
    topics: dict[str, dict[int, int] | None]


class CommittedOffset(Struct, array_like=True, frozen=True):
    """offset: negative where there is none."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    failure: Failure | None


class Commits(Struct, tag=True, frozen=True):
    """A group's committed offsets: every one that it has."""

    offsets: list[CommittedOffset]


class LogRange(Struct, array_like=True, frozen=True):
    """start, end: -1001 where the leader is away (seen from 0.11 to 4.1, without an error)."""

    topic: str
    partition: int
    start: int
    end: int
    failure: Failure | None


class Offsets(Struct, tag=True, frozen=True):
    """Log start and end offsets."""

    ranges: list[LogRange]


class Group(Struct, tag=True, frozen=True):
    """state: as Kafka names it. simple: whether the group has only ever been used with assign(); None where unknown.

    assignor: its protocol; None in a rebalance and where there are no members.
    """

    state: str
    simple: bool | None
    members: list[Member]
    assignor: str | None = None


class Tasks(Struct, tag=True, frozen=True):
    """The members' assignments by member id. undecodable: why those of others cannot be read."""

    assignments: dict[str, Assignment]
    undecodable: str | None = None


class Partition(Struct, array_like=True, frozen=True):
    """A topic's partition; leader None: nobody."""

    id: int
    leader: int | None
    replicas: list[int]
    isr: list[int]


class Topic(Struct, tag=True, frozen=True):
    """id: None before KIP-516 (Kafka 2.8)."""

    id: str | None
    partitions: list[Partition]


class Topics(Struct, tag=True, frozen=True):
    """Topics by name, or why there is no answer for one."""

    topics: dict[str, Topic | Failure]


Result: TypeAlias = Groups | Metadata | Commits | Offsets | Group | Tasks | Topics | Failure


class Setup(Struct, tag=True, frozen=True):
    """The first frame to the client. properties: librdkafka's. timeout: of a call, ms."""

    properties: dict[str, str]
    timeout: int


class Asked(Struct, tag=True, frozen=True):
    """A question to the client; number names it in the answer."""

    number: int
    question: Question


class Answered(Struct, tag=True, frozen=True):
    """An answer. at: when it came in, ms."""

    number: int
    at: int
    result: Result


class Line(Struct, tag=True, frozen=True):
    """A line of librdkafka's log. level: as in `logging`."""

    level: int
    text: str


class Complaint(Struct, tag=True, frozen=True):
    """What librdkafka tells of its connections, or why there can be no client."""

    text: str


FromClient: TypeAlias = Answered | Line | Complaint
ToClient: TypeAlias = Setup | Asked

_ENCODER = msgspec.msgpack.Encoder()
_LENGTH_BYTES = 4


def send(stream: BinaryIO, message: Struct) -> None:
    """Write one message as a frame: its length (4 bytes, big-endian) and MessagePack. Raises OSError."""
    body = _ENCODER.encode(message)
    stream.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    stream.flush()


def receive(stream: BinaryIO, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """Read one message; None at the end of the stream, in the middle of a frame too (the writer died)."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    body = stream.read(length)
    return decoder.decode(body) if len(body) == length else None
