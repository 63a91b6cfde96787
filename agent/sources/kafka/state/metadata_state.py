"""Partitions and brokers according to the cluster's metadata. Makes no calls."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration, PartitionState
from agent.sources.availability import Reasons, Unit
from agent.sources.kafka.admin import protocol


class MetadataState:
    """Partitions and brokers according to the cluster's metadata, for clusters without a ZooKeeper to watch.

    unavailable: topics that cannot be described, and why.
    """

    def __init__(self, cluster: str, known: Iterable[Observation]) -> None:
        """Start from `known`, the last observation of each subject before this run."""
        self.unavailable: Reasons = {}
        self._cluster = cluster
        self._partitions: dict[str, dict[int, PartitionState]] = defaultdict(dict)
        self._unknown: set[str] = set()
        self._brokers: set[int] = set()
        self._missing: set[int] = set()
        for fact in known:
            match fact:
                case PartitionState() if fact.replicas:
                    self._partitions[fact.topic][fact.partition] = fact
                case BrokerRegistration() if not fact.gone:
                    self._brokers.add(fact.broker)

    @property
    def topics(self) -> set[str]:
        """The topics that existed when last described."""
        return set(self._partitions)

    def partitions(self, topic: str) -> list[tuple[int]]:
        """Return the numbers of the topic's partitions when last described, each as the rest of a subject."""
        return [(partition,) for partition in self._partitions.get(topic, ())]

    def keep_unavailable(self, topics: Collection[str]) -> None:
        """No longer list those as unavailable that are not among these topics, nor known: they are not described."""
        for unit in [
            unit for unit in self.unavailable if unit.topic not in topics and unit.topic not in self._partitions
        ]:
            del self.unavailable[unit]

    def apply_brokers(self, brokers: set[int], at: int) -> list[Observation]:
        """Return the brokers in the metadata, and those no longer in it. It has no sessions or epochs.

        A broker that is missing for the first time is left out: the metadata of the broker that responded may be old,
        as after a pause.
        """
        missing = self._brokers - brokers
        in_doubt, self._missing = missing - self._missing, missing
        known, self._brokers = self._brokers - in_doubt, brokers | in_doubt
        return [
            BrokerRegistration(
                at=at, cluster=self._cluster, broker=broker, session=None, epoch=-1 if broker in brokers else None
            )
            for broker in sorted(known | brokers)
        ]

    def apply_topics(self, topics: dict[str, protocol.Topic | protocol.Failure], at: int) -> list[Observation]:
        """Return the partitions of the topics described, and those deleted."""
        observations: list[Observation] = []
        for name, topic in topics.items():
            if isinstance(topic, protocol.Topic):
                observations += self._apply_topic(name, topic, at)
            elif topic.code == protocol.UNKNOWN_TOPIC_OR_PARTITION:
                observations += self._apply_unknown_topic(name, at)
            elif topic.is_from_broker and not topic.is_unauthorized:
                self.unavailable[Unit(topic=name)] = f"Cannot describe topic {name}: {topic.text}"
        return observations

    def _apply_topic(self, name: str, topic: protocol.Topic, at: int) -> list[Observation]:
        self.unavailable.pop(Unit(topic=name), None)
        self._unknown.discard(name)
        states = {state.partition: state for state in topic.partitions}
        before, self._partitions[name] = self._partitions[name], states
        return [*topic.partitions, *(last.deleted(at) for last in before.values() if last.partition not in states)]

    def _apply_unknown_topic(self, name: str, at: int) -> list[Observation]:
        """Delete a topic when a broker does not know it for the second time: one broker's metadata may lag."""
        if name not in self._unknown:
            self._unknown.add(name)
            return []
        self._unknown.discard(name)
        self.unavailable.pop(Unit(topic=name), None)
        return [state.deleted(at) for state in self._partitions.pop(name, {}).values()]
