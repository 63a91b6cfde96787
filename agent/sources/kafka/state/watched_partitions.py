"""The partitions whose logs are watched: of topics that are selected, committed to, or changelogs. Makes no calls."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from agent.model.name_filter import NameFilter
from agent.sources.kafka.admin.protocol import TopicPartition


class WatchedPartitions:
    """Which partitions of a cluster are watched, and where they are led. What has not changed is not computed again.

    leaders: of all partitions by topic; -1: none. topics: with watched partitions. by_leader: the watched partitions;
    without_leader: those of them without a leader.
    """

    def __init__(self, selected: NameFilter, is_changelog: Callable[[str], bool]) -> None:
        """Start without any. selected: the topics that are watched besides those committed to, and changelogs."""
        self.leaders: Mapping[str, Mapping[int, int]] = {}
        self.topics: AbstractSet[str] = frozenset()
        self.by_leader: Mapping[int, Sequence[TopicPartition]] = {}
        self.without_leader: Sequence[TopicPartition] = ()
        self._selected, self._is_changelog = selected, is_changelog
        self._computed_from: tuple[object, ...] = ()

    def update(self, committed: AbstractSet[TopicPartition]) -> None:
        """Follow the leaders, and which topics are watched. committed: the partitions that groups commit to."""
        whole = {topic for topic in self.leaders if self._selected.match(topic) or self._is_changelog(topic)}
        if self._computed_from == (self.leaders, whole, committed):
            return
        self._computed_from = (self.leaders, whole, committed)
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        for topic, leaders in self.leaders.items():
            for partition, leader in leaders.items():
                place = (topic, partition)
                if topic in whole or place in committed:
                    led[leader].append(place)
        self.topics = {topic for places in led.values() for topic, _ in places}
        self.without_leader = led.pop(-1, [])
        self.by_leader = led
