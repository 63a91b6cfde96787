"""Faults made of several verbs, each step waiting for its effect. The verbs themselves: kafka.py."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from testbed.consumers import Rewind
from testbed.kafka import Cluster
from testbed.views import PartitionView, Registration
from testbed.waiting import wait_until

Progress: TypeAlias = Callable[[str], None]


class Reader(Protocol):
    """Whoever reads the partition: a RecordingConsumer, or a Flink job (flink/reset.py)."""

    @property
    def group(self) -> str:
        """Its consumer group."""

    def wait_until_at(self, topic: str, partition: int, offset: int) -> None:
        """Wait until it has read everything below this offset."""

    def wait_for_rewind(self, topic: str, partition: int) -> Rewind:
        """Wait until it has gone back in this partition, and tell the first time."""


class UncleanReset(NamedTuple):
    """What `flink_reset` did: the sessions of both brokers before and after, and where the consumer went back."""

    leader: int
    follower: int
    leader_sessions: tuple[Registration, Registration]
    follower_sessions: tuple[Registration, Registration]
    rewind: Rewind


def flink_reset(
    cluster: Cluster,
    topic: str,
    partition: int,
    consumer: Reader,
    *,
    unseen: int = 1500,
    progress: Progress = lambda _: None,
) -> UncleanReset:
    """Make a leader that loses its session come back after a replica that lagged was elected: an unclean election.

    A consumer that is further than the new leader's log is reset: on 0.11 to auto.offset.reset, since KIP-320 (2.3) to
    the point of divergence. The partition needs two replicas, a producer that keeps writing, and the consumer at its
    end. unseen: the records that the consumer must have read and the follower must not have. Ends when the preferred
    leader leads again with both replicas in sync. Raises TimeoutError.
    """
    leader, follower = _replicas(cluster, topic, partition)
    before = cluster.wait_until_registered(leader), cluster.wait_until_registered(follower)
    behind = wait_until(lambda: cluster.log_end(topic, partition), f"the end of {topic}[{partition}]")

    progress(f"broker {follower}, follower of {topic}[{partition}], freezes at offset {behind}")
    cluster.freeze(follower)
    cluster.wait_until_gone(follower)
    cluster.wait_for_leader(topic, partition, leader, isr=[leader])
    progress(f"broker {follower} has lost its session and left the ISR; {consumer.group} reads on behind {leader}")
    consumer.wait_until_at(topic, partition, behind + unseen)

    progress(f"broker {leader}, the leader, freezes; {follower} goes on with an older log")
    cluster.freeze(leader)
    cluster.thaw(follower)
    follower_after = cluster.wait_until_registered(follower)
    cluster.wait_until_gone(leader)
    progress(f"broker {leader} has lost its session {before[0].session}")
    cluster.wait_for_leader(topic, partition, follower)
    progress(f"broker {follower} leads {topic}[{partition}], elected although it was not in the ISR")
    rewind = consumer.wait_for_rewind(topic, partition)
    progress(f"{consumer.group} went back {rewind.position} -> {rewind.to} in {topic}[{partition}]")

    cluster.thaw(leader)
    leader_after = cluster.wait_until_registered(leader)
    progress(f"broker {leader} goes on and registers under a new session {leader_after.session}")
    cluster.wait_for_leader(topic, partition, leader, isr=[leader, follower])
    progress(f"broker {leader} has taken the leadership of {topic}[{partition}] back")
    return UncleanReset(leader, follower, (before[0], leader_after), (before[1], follower_after), rewind)


def clean_failover(
    cluster: Cluster, topic: str, partition: int, *, progress: Progress = lambda _: None
) -> tuple[Registration, Registration]:
    """The same loss of the leader's session with a follower in the ISR, which loses nothing: (before, after).

    Ends when the preferred leader leads again with both replicas in sync. Raises TimeoutError.
    """
    leader, follower = _replicas(cluster, topic, partition)
    before = cluster.wait_until_registered(leader)
    progress(f"broker {leader}, leader of {topic}[{partition}], freezes")
    cluster.freeze(leader)
    cluster.wait_until_gone(leader)
    cluster.wait_for_leader(topic, partition, follower)
    progress(f"broker {follower}, which was in sync, leads; {leader} has lost its session {before.session}")
    cluster.thaw(leader)
    after = cluster.wait_until_registered(leader)
    progress(f"broker {leader} goes on and registers under a new session {after.session}")
    cluster.wait_for_leader(topic, partition, leader, isr=[leader, follower])
    progress(f"broker {leader} has taken the leadership of {topic}[{partition}] back")
    return before, after


def _replicas(cluster: Cluster, topic: str, partition: int) -> tuple[int, int]:
    """The preferred leader and the other replica, as soon as the first leads and both are in sync."""
    state: PartitionView | None = cluster.partition_state(topic, partition)
    if state is None or len(state.replicas) != 2:
        msg = f"{topic}[{partition}] must have two replicas for this fault; it is {state}."
        raise ValueError(msg)
    leader, follower = state.replicas
    cluster.wait_for_leader(topic, partition, leader, isr=state.replicas)
    return leader, follower
