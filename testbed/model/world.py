"""What a scenario consists of, and how its ordinary life and its faults choose their targets."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from testbed.model.clock import MINUTE, Clock
from testbed.model.flink import Flink, Job
from testbed.model.groups import Group, Reader
from testbed.model.kafka import Broker, Cluster, Log, Topic
from testbed.model.streams import Application
from testbed.model.truth import Effect, Event, Subject, Truth
from testbed.model.views import KafkaView
from testbed.model.zookeeper_view import ZooKeeperView

STANDSTILL = ("consumer_stalled", "consumer_stopped", "lag", "retention_margin", "rebalancing")
"""What may truly be reported of readers that do not read, whatever the reason."""

_NOTICED_MS = 6 * MINUTE
"""How long brokers must be watched to be reported as down."""


@dataclass
class World:
    """A cluster with all that reads it, the views of it, and the truth. plain: groups that faults may choose."""

    clock: Clock
    rng: random.Random
    truth: Truth
    cluster: Cluster
    kafka_view: KafkaView
    zookeeper_view: ZooKeeperView | None
    plain: list[Group] = field(default_factory=list)
    flink: Flink | None = None
    jobs: list[Job] = field(default_factory=list)
    application: Application | None = None
    brokers_quiet_from: int = 0
    asleep: list[tuple[int, int]] = field(default_factory=list)
    """When Backflow was suspended: from, until."""

    @property
    def now(self) -> int:
        return self.clock.now

    def begin(self, name: str, ms: float, **fields: object) -> Event:
        """Note an event that begins now and lasts so long."""
        return self.truth.begin(name, self.now, self.now + int(ms), self.cluster.name, **fields)

    def claim(self, group: Group, ms: float) -> None:
        """Keep ordinary life away from a group for so long."""
        group.disturbed_until = max(group.disturbed_until, self.now + int(ms))

    def claim_brokers(self, ms: float) -> bool:
        """Keep others from disturbing the brokers for so long; return whether they are undisturbed now."""
        if self.now < self.brokers_quiet_from:
            return False
        self.brokers_quiet_from = self.now + int(ms)
        return True

    def calm_group(self, wanted: Callable[[Group], bool] = lambda _: True) -> Group | None:
        """Return a running group that nothing else disturbs, or None."""
        calm = [
            group
            for group in self.plain
            if group.running and group.reading and group.exists and group.disturbed_until < self.now and wanted(group)
        ]
        return self.rng.choice(calm) if calm else None

    def finds_partitions(self, topic: Topic) -> bool:
        """Return whether all groups of a topic subscribe to it and read new partitions from their start."""
        groups = [reader.group for reader in topic.logs[0].readers]
        return all(group in self.plain and group.policy == "earliest" and not group.assigns for group in groups)

    def alive_broker(self) -> Broker | None:
        """Return a broker that is up, or None unless all are."""
        brokers = [broker for broker in self.cluster.brokers.values() if not broker.is_decommissioned]
        return self.rng.choice(brokers) if all(b.is_up and b.session for b in brokers) else None

    def permit_broker(self, event: Event, broker: Broker, ms: float) -> None:
        """Let the event explain what is reported of a broker and the elections that follow."""
        event.permit(("broker_session_lost", "broker_down", "brokers_down_together"), {"broker": broker.number},
                     self.now, self.now + int(ms))  # fmt: skip

    def replace_reader_log(self, reader: Reader, log: Log) -> None:
        """Let a reader read another incarnation of its partition."""
        reader.log = log
        log.readers.append(reader)

    def want_if_watched(self, effect: Effect, ms: float) -> None:
        """Want a report of an absence that lasts so long only if Backflow was not suspended for most of it."""
        begin = self.now

        def judge() -> None:
            slept = sum(max(min(until, self.now) - max(since, begin), 0) for since, until in self.asleep)
            effect.must = self.now - begin - slept > _NOTICED_MS

        self.clock.after(ms, judge)

    def seconds(self, low: float, high: float) -> float:
        """Return a duration in ms between two numbers of seconds."""
        return self.rng.uniform(low, high) * 1_000

    def polls(self, number: float) -> float:
        """Return how long so many polls last, ms."""
        return number * self.kafka_view.interval

    def standstill(self, event: Event, group: Group, ms: float) -> None:
        """Let the event explain that a group does not read, and its catching up."""
        subject = {"cluster": self.cluster.name, "group": group.name}
        kinds = (*STANDSTILL, "hidden_reset") if len(group.readers) == 1 else STANDSTILL
        event.permit(kinds, subject, self.now, self.now + int(ms) + 30 * MINUTE)


def permit_offline(world: World, event: Event, broker: Broker, ms: float) -> None:
    """Let the event explain that partitions with no other in-sync replica cannot be read while their broker is away."""
    for log in world.cluster.logs():
        if log.isr == (broker.number,):
            topic, partition = log.place
            where: Subject = {"cluster": world.cluster.name, "topic": topic, "partition": partition}
            kinds = ("partition_offline", "source_unavailable", "under_replicated")
            event.permit(kinds, where, world.now, world.now + int(ms))
            for reader in log.readers:
                world.standstill(event, reader.group, ms)
