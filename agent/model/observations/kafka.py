"""Facts about Kafka and its consumer groups."""

from msgspec import Struct

from agent.model.observations.base import Observation

OFFSETS_TOPIC = "__consumer_offsets"
"""The topic in which Kafka keeps committed offsets."""


class Commit(Observation, frozen=True, kw_only=True, tag="commit", gc=False):
    """A committed offset of a group.

    cluster: the cluster's name in rules.toml. group: the consumer group. topic, partition: what the offset belongs to.
    offset: of the next record that the group would read; null if Kafka has forgotten it (expired or deleted).
    leader_epoch: committed with the offset; null if unknown. Of a share group (KIP-932): how far it has processed the
    partition, the log end minus its lag.
    """

    key = ("cluster", "group", "topic", "partition")
    is_frequent = True
    is_compact = True

    cluster: str
    group: str
    topic: str
    partition: int
    offset: int | None
    leader_epoch: int | None = None

    @property
    def is_gone(self) -> bool:
        """Whether there is no committed offset any more."""
        return self.offset is None


class LogOffsets(Observation, frozen=True, kw_only=True, tag="log_offsets", gc=False):
    """The log start offset and the log end of a partition.

    cluster: the cluster's name in rules.toml. topic, partition: whose log it is. log_start: the log start offset.
    log_end: the high watermark, where consumers see the log end.
    """

    key = ("cluster", "topic", "partition")
    is_compact = True
    memory_ms = 8 * 86_400_000  # tells how old a record is, for the usual retention of a week

    cluster: str
    topic: str
    partition: int
    log_start: int
    log_end: int


class LastStableOffset(Observation, frozen=True, kw_only=True, tag="last_stable_offset", gc=False):
    """Where consumers with isolation.level=read_committed see a log end: before the oldest open transaction.

    cluster: the cluster's name in rules.toml. topic, partition: whose log it is. offset: the last stable offset.
    held_back: whether it is below the log end, so that a transaction is open.
    """

    key = ("cluster", "topic", "partition")

    cluster: str
    topic: str
    partition: int
    offset: int
    held_back: bool = True


class OpenTransaction(Observation, frozen=True, kw_only=True, tag="open_transaction", gc=False):
    """The transaction that holds a last stable offset back.

    Read only after the last stable offset has stood still for a minute (KIP-664, brokers from 2.8 on).

    cluster: the cluster's name in rules.toml. topic, partition: whose last stable offset. start_offset: of the
    transaction's first record, which is the last stable offset. producer_id, producer_epoch: of its producer.
    last_write_at: when the producer last wrote to the partition, ms; null if unknown. transactional_id: the producer's;
    null if unknown. state: of the transaction according to its coordinator (`Ongoing`); null if unknown, or if the
    coordinator does not know the producer.
    """

    key = ("cluster", "topic", "partition")

    cluster: str
    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    last_write_at: int | None = None
    transactional_id: str | None = None
    state: str | None = None


class OffsetsPosition(Observation, frozen=True, kw_only=True, tag="offsets_position", gc=False):
    """Up to where a partition of `__consumer_offsets` has been read: a restarted agent continues there.

    It comes after the commits that it covers. Everything that was written before `at` is below next_offset.

    cluster: the cluster's name in rules.toml. partition: of the topic. next_offset: the first offset that has not been
    read. partitions: how many the topic has. clock_ahead: how much later than read commits were dated in the last
    minutes at most, ms, as the coordinators' clocks may be ahead of the agent's; null if unknown.
    """

    key = ("cluster", "partition")
    is_compact = True

    cluster: str
    partition: int
    next_offset: int
    partitions: int
    clock_ahead: int | None = None


class OffsetsUnread(Observation, frozen=True, kw_only=True, tag="offsets_unread", gc=False):
    """Records of `__consumer_offsets` were not read: what groups committed there is compared by polls only.

    cluster: the cluster's name in rules.toml. partition: of the topic. first_offset, last_offset: what was not read;
    null if that is unknown, as the log was truncated or the topic was created again. reason: why, as a clause.
    """

    key = ("cluster", "partition")
    is_event = True

    cluster: str
    partition: int
    first_offset: int | None = None
    last_offset: int | None = None
    reason: str


class TopicSettings(Observation, frozen=True, kw_only=True, tag="topic_settings", gc=False):
    """The settings of a topic that decide what happens to its records.

    cluster: the cluster's name in rules.toml. topic: the topic. cleanup_policy: `delete`, `compact` or both,
    comma-separated. retention_ms: retention.ms; -1 for no limit. retention_bytes: retention.bytes; -1 for no limit.
    """

    key = ("cluster", "topic")

    cluster: str
    topic: str
    cleanup_policy: str
    retention_ms: int
    retention_bytes: int = -1

    @property
    def is_compacted(self) -> bool:
        """Whether compaction removes records, so that offsets are not records."""
        return "compact" in self.cleanup_policy


class ClusterSettings(Observation, frozen=True, kw_only=True, tag="cluster_settings", gc=False):
    """The settings of a cluster's brokers that decide what happens to committed offsets.

    cluster: the cluster's name in rules.toml. offsets_retention_ms: offsets.retention.minutes, in ms. version: the
    oldest Kafka version among its brokers as far as known (`2.8`); null if unknown. transaction_max_timeout_ms:
    transaction.max.timeout.ms; null if unknown.
    """

    key = ("cluster",)

    cluster: str
    offsets_retention_ms: int
    transaction_max_timeout_ms: int | None = None
    version: str | None = None


class PartitionState(Observation, frozen=True, kw_only=True, tag="partition_state", gc=False):
    """The leader, replicas and ISR of a partition.

    cluster: the cluster's name in rules.toml. topic, partition: which partition. leader: the leading broker; null or -1
    if there is none. leader_epoch: null if the source cannot read it (AdminClient). replicas: their brokers; empty if
    the partition was deleted. isr: brokers of the in-sync replicas. topic_id: the topic's id (KIP-516), before Kafka
    2.8 `czxid:N` of its znode; null if unknown. elr: brokers of the eligible leader replicas (KIP-966), which have all
    records below the high watermark; null if unknown. adding, removing: brokers that a reassignment in progress
    (KIP-455) adds and removes.
    """

    key = ("cluster", "topic", "partition")

    cluster: str
    topic: str
    partition: int
    leader: int | None
    leader_epoch: int | None = None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    topic_id: str | None = None
    elr: tuple[int, ...] | None = None
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_deleted(self) -> bool:
        """Whether the partition no longer exists."""
        return not self.replicas

    def deleted(self, at: int) -> "PartitionState":
        """Return the state of the partition once it no longer exists, seen at that moment (ms)."""
        return PartitionState(
            at=at,
            cluster=self.cluster,
            topic=self.topic,
            partition=self.partition,
            leader=None,
            replicas=(),
            isr=(),
            topic_id=self.topic_id,
        )


class BrokerRegistration(Observation, frozen=True, kw_only=True, tag="broker_registration", gc=False):
    """A broker's registration; session and epoch are both null if it has none.

    Under KRaft neither can be read: session null and epoch -1 mean that the broker is in the cluster metadata.

    cluster: the cluster's name in rules.toml. broker: its id. session: ephemeralOwner of the broker's znode as 0x hex.
    epoch: czxid of the broker's znode, which is Kafka's broker epoch.
    """

    key = ("cluster", "broker")

    cluster: str
    broker: int
    session: str | None
    epoch: int | None

    @property
    def gone(self) -> bool:
        """Whether the broker is not registered."""
        return self.session is None and self.epoch is None


class Controller(Observation, frozen=True, kw_only=True, tag="controller", gc=False):
    """The broker that is the cluster's controller.

    cluster: the cluster's name in rules.toml. broker: its id; null if there is none. epoch: the controller epoch; null
    if the source cannot read it.
    """

    key = ("cluster",)

    cluster: str
    broker: int | None
    epoch: int | None = None


class Member(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A member of a consumer group.

    id: the member id. host: where it runs. partitions: assigned to it, as (topic, partition). client_id: its
    `client.id`; null if unknown. tasks: of a Kafka Streams thread, the active task that reads each of the partitions
    (`1_0`: subtopology, partition), in the same order; empty if unknown.
    """

    id: str
    host: str = ""
    partitions: tuple[tuple[str, int], ...] = ()
    client_id: str | None = None
    tasks: tuple[str, ...] = ()


class GroupState(Observation, frozen=True, kw_only=True, tag="group_state", gc=False):
    """A consumer group's state and its members.

    cluster: the cluster's name in rules.toml. group: the consumer group. state: as Kafka names it (Stable, Empty, Dead,
    ...). members: its members. simple: whether the group has only ever been used with assign(), thus without members;
    null if unknown. assignor: the last known partition assignor (`range`, `stream` for Kafka Streams); null if unknown.
    type: its protocol as ListGroups names it: `classic`, `consumer` (KIP-848), `streams` (KIP-1071) or `share`
    (KIP-932); null if unknown.
    """

    key = ("cluster", "group")

    cluster: str
    group: str
    state: str
    members: tuple[Member, ...] = ()
    simple: bool | None = None
    assignor: str | None = None
    type: str | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the group no longer exists."""
        return self.state == "Dead"

    @property
    def has_consumers(self) -> bool:
        """Whether the group has members, or members may be joining it."""
        return bool(self.members) or self.state not in ("Empty", "Dead")
