"""Kafka incidents made of several single faults; every step waits for its effect."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from testbed.consumers import Rewind
from testbed.kafka import Cluster
from testbed.views import PartitionView, Registration
from testbed.waiting import wait_until

Progress: TypeAlias = Callable[[str], None]


class Reader(Protocol):
    """A reader of the partition: a RecordingConsumer, or a Flink job (flink/faults.py)."""

    @property
    def group(self) -> str:
        """The consumer group."""

    def wait_until_at(self, topic: str, partition: int, offset: int) -> None:
        """Wait until it has read everything below this offset."""

    def wait_for_rewind(self, topic: str, partition: int) -> Rewind:
        """Wait until it has rewound in this partition, and return the first rewind."""


class UncleanReset(NamedTuple):
    """The leader's sessions before and after `flink_reset`, and the consumer's rewind."""

    leader: int
    follower: int
    leader_sessions: tuple[Registration, Registration]
    rewind: Rewind


def flink_reset(
    cluster: Cluster,
    topic: str,
    partition: int,
    consumer: Reader,
    *,
    unreplicated: int = 1500,
    progress: Progress = lambda _: None,
) -> UncleanReset:
    """Cause an unclean election by expiring the sessions of both replicas, and let the leader return.

    A consumer ahead of the new leader's log is reset: on 0.11 to auto.offset.reset, since KIP-320 (2.3) to the
    divergence point. The partition needs two replicas, a producer that keeps writing, and a consumer at its log end.
    unreplicated: how many records the consumer must have read that the follower does not have. Ends when the preferred
    leader leads again with both replicas in sync. Raises TimeoutError.
    """
    leader, follower = _replicas(cluster, topic, partition)
    before = cluster.wait_until_registered(leader)
    cluster.wait_until_registered(follower)
    behind = wait_until(lambda: cluster.log_end(topic, partition), f"the end of {topic}[{partition}]")

    progress(f"broker {follower}, follower of {topic}[{partition}], freezes at offset {behind}")
    cluster.freeze(follower)
    cluster.wait_until_gone(follower)
    cluster.wait_for_leader(topic, partition, leader, isr=[leader])
    progress(f"broker {follower}: session expired, out of the ISR; {consumer.group} continues to read from {leader}")
    consumer.wait_until_at(topic, partition, behind + unreplicated)

    progress(f"broker {leader}, the leader, freezes; broker {follower} resumes with an older log")
    cluster.freeze(leader)
    cluster.thaw(follower)
    cluster.wait_until_registered(follower)
    cluster.wait_until_gone(leader)
    progress(f"broker {leader}: session {before.session} expired")
    cluster.wait_for_leader(topic, partition, follower)
    progress(f"broker {follower} leads {topic}[{partition}], an unclean election: it was not in the ISR")
    rewind = consumer.wait_for_rewind(topic, partition)
    progress(f"{consumer.group} rewound {rewind.position} -> {rewind.to} on {topic}[{partition}]")

    cluster.thaw(leader)
    leader_after = cluster.wait_until_registered(leader)
    progress(f"broker {leader} resumes and re-registers with session {leader_after.session}")
    cluster.wait_for_leader(topic, partition, leader, isr=[leader, follower])
    progress(f"broker {leader} leads {topic}[{partition}] again")
    return UncleanReset(leader, follower, (before, leader_after), rewind)


def clean_failover(
    cluster: Cluster, topic: str, partition: int, *, progress: Progress = lambda _: None
) -> tuple[Registration, Registration]:
    """Expire the leader's session with a follower in the ISR, and return its registrations before and after.

    Nothing is lost. Ends when the preferred leader leads again with both replicas in sync. Raises TimeoutError.
    """
    leader, follower = _replicas(cluster, topic, partition)
    before = cluster.wait_until_registered(leader)
    progress(f"broker {leader}, leader of {topic}[{partition}], freezes")
    cluster.freeze(leader)
    cluster.wait_until_gone(leader)
    cluster.wait_for_leader(topic, partition, follower)
    progress(f"broker {follower}, which was in sync, leads; session {before.session} of broker {leader} expired")
    cluster.thaw(leader)
    after = cluster.wait_until_registered(leader)
    progress(f"broker {leader} resumes and re-registers with session {after.session}")
    cluster.wait_for_leader(topic, partition, leader, isr=[leader, follower])
    progress(f"broker {leader} leads {topic}[{partition}] again")
    return before, after


def _replicas(cluster: Cluster, topic: str, partition: int) -> tuple[int, int]:
    """Return the preferred leader and the other replica, once the first leads and both are in sync."""
    state: PartitionView | None = cluster.partition_state(topic, partition)
    if state is None or len(state.replicas) != 2:
        msg = f"{topic}[{partition}] must have two replicas for this fault; it is {state}."
        raise ValueError(msg)
    leader, follower = state.replicas
    cluster.wait_for_leader(topic, partition, leader, isr=state.replicas)
    return leader, follower
