"""Partitions, topic ids and brokers as a cluster's metadata shows them, for clusters whose ZooKeeper we cannot ask."""

from collections import defaultdict
from collections.abc import Iterable

from agent.model.observations import BrokerRegistration, Observation, PartitionState
from agent.sources.availability import Unit
from agent.sources.kafka import admin_protocol as wire

_UNKNOWN_TOPIC = 3
"""UNKNOWN_TOPIC_OR_PARTITION in Kafka's protocol."""


class PartitionsView:
    """Turns metadata into observations; what was there before and no longer is, is told as gone.

    trouble: the topics that cannot be described, and why.
    """

    def __init__(self, cluster: str, known: Iterable[Observation]) -> None:
        """known: the last observation of each subject before this run."""
        self.trouble: dict[Unit, str] = {}
        self._cluster = cluster
        self._partitions: dict[str, dict[int, PartitionState]] = defaultdict(dict)
        self._absent: set[str] = set()
        self._brokers: set[int] = set()
        for one in known:
            match one:
                case PartitionState() if one.replicas:
                    self._partitions[one.topic][one.partition] = one
                case BrokerRegistration() if not one.gone:
                    self._brokers.add(one.broker)

    @property
    def topics(self) -> set[str]:
        """The topics that were there when last seen."""
        return set(self._partitions)

    def take_brokers(self, here: set[int], at: int) -> list[Observation]:
        """The brokers in the metadata, and those no longer in it. Sessions and epochs are not in it."""
        known, self._brokers = self._brokers, here
        return [
            BrokerRegistration(
                at=at, cluster=self._cluster, broker=broker, session=None, epoch=-1 if broker in here else None
            )
            for broker in sorted(known | here)
        ]

    def take_topics(self, topics: dict[str, wire.Topic | wire.Failure], at: int) -> list[Observation]:
        """The topics' partitions as described, and those that are no more."""
        found: list[Observation] = []
        for name, topic in topics.items():
            if isinstance(topic, wire.Topic):
                found += self._take_topic(name, topic, at)
            elif topic.code == _UNKNOWN_TOPIC:
                found += self._miss(name, at)
            elif topic.told:
                self.trouble[Unit(topic=name)] = f"Topic {name} cannot be described: {topic.text}"
        return found

    def _take_topic(self, name: str, topic: wire.Topic, at: int) -> list[Observation]:
        self.trouble.pop(Unit(topic=name), None)
        self._absent.discard(name)
        states = {
            one.id: PartitionState(
                at=at,
                cluster=self._cluster,
                topic=name,
                partition=one.id,
                leader=one.leader,
                replicas=tuple(one.replicas),
                isr=tuple(one.isr),
                topic_id=topic.id,
            )
            for one in topic.partitions
        }
        before, self._partitions[name] = self._partitions[name], states
        return [*states.values(), *self._deleted((one for one in before.values() if one.partition not in states), at)]

    def _miss(self, name: str, at: int) -> list[Observation]:
        """A topic is unknown to the broker asked. That one's metadata may lag, so only the second time counts."""
        if name not in self._absent:
            self._absent.add(name)
            return []
        self._absent.discard(name)
        self.trouble.pop(Unit(topic=name), None)
        return self._deleted(self._partitions.pop(name, {}).values(), at)

    def _deleted(self, lasts: Iterable[PartitionState], at: int) -> list[Observation]:
        return [
            PartitionState(
                at=at,
                cluster=self._cluster,
                topic=last.topic,
                partition=last.partition,
                leader=None,
                replicas=(),
                isr=(),
                topic_id=last.topic_id,
            )
            for last in lasts
        ]
