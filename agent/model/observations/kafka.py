"""Facts about Kafka and the groups that read it."""

from msgspec import Struct

from agent.model.observations.base import Observation


class Commit(Observation, frozen=True, kw_only=True, tag="commit", gc=False):
    """A committed offset: the next record the group would read. offset None: Kafka has forgotten it (expired,
    deleted).
    """

    key = ("cluster", "group", "topic", "partition")
    is_frequent = True

    cluster: str
    group: str
    topic: str
    partition: int
    offset: int | None
    leader_epoch: int | None = None


class LogOffsets(Observation, frozen=True, kw_only=True, tag="log_offsets", gc=False):
    """A partition's log start offset and its end as consumers see it (the high watermark; the next offset to be
    written).
    """

    key = ("cluster", "topic", "partition")

    cluster: str
    topic: str
    partition: int
    log_start: int
    log_end: int


class PartitionState(Observation, frozen=True, kw_only=True, tag="partition_state", gc=False):
    """Who leads a partition. leader None (or -1): nobody. replicas []: the partition was deleted.

    topic_id: the topic's id (KIP-516), before Kafka 2.8 "czxid:N" of its znode; None where unknown.
    leader_epoch: None where the source cannot tell it (AdminClient).
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


class BrokerRegistration(Observation, frozen=True, kw_only=True, tag="broker_registration", gc=False):
    """A broker's registration. Both null: it is gone.

    session: the znode's ephemeralOwner as 0x hex. epoch: the znode's czxid (Kafka's broker epoch).
    Under KRaft neither can be read: session None and epoch -1 say that the broker is in the cluster's metadata.
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
    """Which broker is the cluster's controller (None: nobody), and the controller epoch where the source can tell
    it.
    """

    key = ("cluster",)

    cluster: str
    broker: int | None
    epoch: int | None = None


class Member(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A group's member, the host it runs on and the (topic, partition) pairs assigned to it.

    tasks: of a Kafka Streams thread the active task that reads each of the partitions ("1_0": subtopology, partition),
    one for one; empty where unknown.
    """

    id: str
    host: str = ""
    partitions: tuple[tuple[str, int], ...] = ()
    client_id: str | None = None
    tasks: tuple[str, ...] = ()


class GroupState(Observation, frozen=True, kw_only=True, tag="group_state", gc=False):
    """A consumer group's state as Kafka names it (Stable, Empty, Dead, ...) and its members.

    simple: whether the group has only ever been used with assign(), hence without members; None where unknown.
    assignor: how the members share their partitions, as last told ("range", "stream" for Kafka Streams); None where
    unknown.
    """

    key = ("cluster", "group")

    cluster: str
    group: str
    state: str
    members: tuple[Member, ...] = ()
    simple: bool | None = None
    assignor: str | None = None
