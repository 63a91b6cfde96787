"""Messages between the Kafka source and its admin process: requests and results.

Results carry observations where there is one for the fact.
"""

from collections.abc import Iterator, Sequence
from sys import intern
from typing import TypeAlias

from msgspec import Struct

from agent.model.observations.kafka import (
    Commit,
    GroupState,
    LastStableOffset,
    LogOffsets,
    OpenTransaction,
    PartitionState,
    TopicSettings,
)
from agent.sources.kafka.admin.streams_assignment import Assignment

TopicPartition: TypeAlias = tuple[str, int]

UNKNOWN_TOPIC_OR_PARTITION = 3

_LOGIN_REFUSED = (33, 34, 58)
"""UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED."""

_UNAUTHORIZED = (29, 30, 31)
"""TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED."""

_UNSUPPORTED_VERSION = 35

UNSUPPORTED = -165
"""librdkafka's own code for a request that the broker does not know; also if there is no client for it."""


class Message(Struct, tag=True, tag_field="kind", frozen=True):
    """A part of the protocol, tagged as observations are, so that both fit into one union."""


# --- requests


class ListGroups(Message, frozen=True):
    """List the consumer groups."""


class FetchMetadata(Message, frozen=True):
    """List brokers, topics, partitions and leaders; only of these topics if no client understands the whole list."""

    topics: list[str]


class ListCommits(Message, frozen=True):
    """List the committed offsets of a group. complete: also if they are unchanged."""

    group: str
    complete: bool = True


class ListOffsets(Message, frozen=True):
    """List the log start and end offsets of partitions that a broker leads. complete: also those that are unchanged."""

    leader: int
    partitions: Sequence[TopicPartition]
    complete: bool = True


class DescribeGroup(Message, frozen=True):
    """Describe a group's state and members. complete: also if they are unchanged."""

    group: str
    complete: bool = True


class ListTasks(Message, frozen=True):
    """List the active tasks of a Kafka Streams application's members."""

    group: str


class DescribeTopics(Message, frozen=True):
    """Describe topics: ids, and the leader, replicas and ISR of their partitions."""

    topics: list[str]


class ListStableOffsets(Message, frozen=True):
    """List the last stable offsets of partitions with the same leader."""

    leader: int
    partitions: Sequence[TopicPartition]


class DescribeBrokerSettings(Message, frozen=True):
    """Describe the settings of a broker."""

    broker: int


class DescribeTopicSettings(Message, frozen=True):
    """Describe the settings of topics."""

    topics: list[str]


class ListTypedGroups(Message, frozen=True):
    """List groups of all types with their types and states."""


class DescribeTypedGroup(Message, frozen=True):
    """Describe a group of a type that `DescribeGroup` does not cover: `streams` or `share`."""

    group: str
    type: str


class ListShareOffsets(Message, frozen=True):
    """List the start offsets and lags of a share group, from Kafka 4.2 on."""

    group: str


class DescribeOpenTransaction(Message, frozen=True):
    """Describe the transaction that begins at an offset of a partition."""

    topic: str
    partition: int
    leader: int
    offset: int


class CheckTopics(Message, frozen=True):
    """Find out whether topics exist and may be described."""

    topics: list[str]


class CheckGroup(Message, frozen=True):
    """Find out whether a group may be described."""

    group: str


class ListOperations(Message, frozen=True):
    """List the operations on a topic that our credentials permit (KIP-430, brokers from 2.3 on)."""

    topic: str


Request: TypeAlias = (
    ListGroups
    | FetchMetadata
    | ListCommits
    | ListOffsets
    | DescribeGroup
    | ListTasks
    | DescribeTopics
    | ListStableOffsets
    | DescribeBrokerSettings
    | DescribeTopicSettings
    | ListTypedGroups
    | DescribeTypedGroup
    | ListShareOffsets
    | DescribeOpenTransaction
    | CheckTopics
    | CheckGroup
    | ListOperations
)

GROUP_REQUESTS = (DescribeGroup, ListCommits)
"""What one request can ask about many groups."""


# --- results


class Failure(Message, frozen=True):
    """The reason why a request has no result. code: librdkafka's, negative if the error is the client's own."""

    code: int
    text: str

    @property
    def is_from_broker(self) -> bool:
        """Whether a broker responded to the request, with an error; a refused login is no response to a request."""
        return self.code > 0 and self.code not in _LOGIN_REFUSED

    @property
    def is_unauthorized(self) -> bool:
        """Whether the request is not permitted."""
        return self.code in _UNAUTHORIZED

    @property
    def is_refusal(self) -> bool:
        """Whether the request is not permitted, or unknown to the broker or the client."""
        return self.is_unauthorized or self.code in (_UNSUPPORTED_VERSION, UNSUPPORTED)

    @property
    def is_final(self) -> bool:
        """Whether the request would fail again: the broker refuses it, or is too old for it."""
        return (self.is_from_broker and self.code != UNKNOWN_TOPIC_OR_PARTITION) or self.code == UNSUPPORTED


class PartitionFailure(Struct, array_like=True, frozen=True):
    """A partition without a result. failure: None if its leader is away, which brokers do not report as an error."""

    topic: str
    partition: int
    failure: Failure | None


class Groups(Message, frozen=True):
    """Groups from the brokers that responded with their types (None: unknown), and the failures of the others."""

    types: dict[str, str | None]
    failures: list[Failure]


class Metadata(Message, frozen=True):
    """Broker ids, and leaders (-1: none) by topic and partition; None for a topic in error."""

    brokers: list[int]
    topics: dict[str, dict[int, int] | None]


class Commits(Message, frozen=True):
    """All committed offsets of a group, and the partitions for which it could not be read. Iterates over commits.

    at: ms. offsets: by topic a partition, its offset and its leader epoch (-1: unknown) after the other: what is the
    same in all commits takes memory once.
    """

    cluster: str
    group: str
    at: int
    offsets: dict[str, list[int]]
    failures: list[PartitionFailure]

    def __iter__(self) -> Iterator[Commit]:
        cluster, group = intern(self.cluster), intern(self.group)
        for topic, numbers in self.offsets.items():
            name = intern(topic)
            for partition, offset, epoch in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
                yield Commit(
                    at=self.at,
                    cluster=cluster,
                    group=group,
                    topic=name,
                    partition=partition,
                    offset=offset,
                    leader_epoch=None if epoch < 0 else epoch,
                )


class ShareOffset(Struct, array_like=True, frozen=True):
    """A share group's start offset of a partition. unread: offsets up to the log end not yet processed; -1: unknown."""

    topic: str
    partition: int
    start_offset: int
    unread: int


class ShareOffsets(Message, frozen=True):
    """The offsets of a share group, and the partitions for which they could not be read."""

    offsets: list[ShareOffset]
    failures: list[PartitionFailure]


class Offsets(Message, frozen=True):
    """Log start and end offsets, as of when they were requested, and the partitions without. Others are unchanged."""

    logs: list[LogOffsets]
    failures: list[PartitionFailure]


class Tasks(Message, frozen=True):
    """Assignments by member id. undecodable: why those of other members cannot be decoded."""

    assignments: dict[str, Assignment]
    undecodable: str | None = None


class Topic(Message, frozen=True):
    """A topic's id (None before KIP-516, Kafka 2.8) and partitions."""

    id: str | None
    partitions: list[PartitionState]


class Topics(Message, frozen=True):
    """Descriptions of topics by name, each with its own failure. reassignments: why those are unknown."""

    topics: dict[str, Topic | Failure]
    reassignments: Failure | None = None


class StableOffsets(Message, frozen=True):
    """Last stable offsets, as of when they were requested; partitions without are left out.

    at_end: whether those of all partitions are the log ends that were sent last; they are not listed then.
    """

    offsets: list[LastStableOffset]
    at_end: bool = False


class BrokerSettings(Message, frozen=True):
    """The settings of a broker. protocol_version: its inter.broker.protocol.version; None from Kafka 4.0 on."""

    offsets_retention_ms: int
    transaction_max_timeout_ms: int
    protocol_version: str | None


class Settings(Message, frozen=True):
    """The settings of topics by name, each with its own failure."""

    topics: dict[str, TopicSettings | Failure]


class TopicChecks(Message, frozen=True):
    """Why topics, by name, cannot be described; None for those that can."""

    failures: dict[str, Failure | None]


class GroupCheck(Message, frozen=True):
    """The group may be described, whether or not it exists."""


class Operations(Message, frozen=True):
    """The permitted operations on a topic as ACLs name them (`READ`); empty if the broker is too old to list them."""

    operations: list[str]


class TypedGroup(Struct, array_like=True, frozen=True):
    """A group's type and state, as Kafka names them."""

    type: str
    state: str


class TypedGroups(Message, frozen=True):
    """Groups of all types, by name, from the brokers that responded."""

    groups: dict[str, TypedGroup]


class OpenTransactions(Message, frozen=True):
    """The transaction that was to be described, or none if it has ended."""

    transactions: list[OpenTransaction]


class Unchanged(Message, frozen=True):
    """The result is the same as that of the last request like this one."""


Result: TypeAlias = (
    Groups
    | Metadata
    | Commits
    | ShareOffsets
    | Offsets
    | GroupState
    | Tasks
    | Topics
    | StableOffsets
    | BrokerSettings
    | Settings
    | TypedGroups
    | OpenTransactions
    | TopicChecks
    | GroupCheck
    | Operations
    | Unchanged
    | Failure
)


# --- to and from the process


class Setup(Message, frozen=True):
    """The first message to the process. cluster: for observations. properties: librdkafka's. timeout: of a call, ms."""

    cluster: str
    properties: dict[str, str]
    timeout: int


class NumberedRequest(Message, frozen=True):
    """A request. number: repeated in its response. sent_at: ms."""

    number: int
    sent_at: int
    request: Request


class Response(Message, frozen=True):
    """The result of a request. at: when it arrived, ms."""

    number: int
    at: int
    result: Result


class ClientLog(Message, frozen=True):
    """A line of librdkafka's log. level: as in `logging`."""

    level: int
    text: str


class ConnectionFailure(Message, frozen=True):
    """Why a broker cannot be connected to.

    address: its host and port; empty if the failure is about the client, such as a token that it cannot get. broker:
    its id if it is known.
    """

    address: str
    broker: int | None
    text: str


FromProcess: TypeAlias = Response | ClientLog | ConnectionFailure
ToProcess: TypeAlias = Setup | NumberedRequest
