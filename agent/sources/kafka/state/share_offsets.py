"""How far share groups (KIP-932) have read, by their start offsets and lags.

The start offset that a broker stores is not a position: it moves only with the next acknowledgement, so that of an idle
group that has processed everything is below the log end. The lag (KIP-1226, Kafka 4.2) is how many offsets up to the
log end are not yet processed. Where the log ended when the broker computed it is known only to be between the ends
read before and after, and so is the position.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.model.observations.kafka import Commit
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.protocol import TopicPartition
from agent.sources.kafka.state.committed_offsets import Position


class _End(NamedTuple):
    """A log end offset, and when it was requested, ms."""

    offset: int
    sent_at: int


class _Reading(NamedTuple):
    """A response about a group, when it arrived, and the log ends that were known by then."""

    result: protocol.ShareOffsets
    at: int
    ends: Mapping[TopicPartition, _End]


class ShareGroupOffsets:
    """Responses about share groups, held until the log ends have been read once more."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._ends: dict[TopicPartition, _End] = {}
        self._held: dict[str, _Reading] = {}
        self._watched: dict[str, set[TopicPartition]] = {}

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions whose log ends are needed."""
        return set().union(*self._watched.values())

    def hold(self, group: str, result: protocol.ShareOffsets, at: int) -> None:
        """Hold a response about a group. at: when it arrived, ms."""
        watched = self._watched[group] = {(offset.topic, offset.partition) for offset in result.offsets}
        self._held[group] = _Reading(result, at, {place: self._ends[place] for place in watched & self._ends.keys()})

    def apply_end(self, partition: TopicPartition, offset: int, sent_at: int) -> None:
        """Note a log end offset, as of when it was requested."""
        self._ends[partition] = _End(offset, sent_at)

    def confirm_ends(self, partitions: Iterable[TopicPartition], sent_at: int) -> None:
        """Note that the log ends of these partitions have not changed, as of when they were requested."""
        for place in self.partitions.intersection(partitions):
            self._ends[place] = self._ends[place]._replace(sent_at=sent_at)

    def forget_group(self, group: str) -> None:
        """Forget a group that was deleted."""
        self._watched.pop(group, None)
        self._held.pop(group, None)

    def forget_partition(self, partition: TopicPartition) -> None:
        """Forget a partition that was deleted."""
        self._ends.pop(partition, None)

    def take(
        self, positions_of: Callable[[str], Mapping[TopicPartition, Position]]
    ) -> Iterator[tuple[str, list[Commit], list[protocol.PartitionFailure], int]]:
        """Yield the commits that follow from each response, its failures, and when it arrived; each response once.

        positions_of: returns those of a group that are known. Those that cannot be updated yet are repeated.
        """
        held, self._held = self._held, {}
        for group, (result, at, ends) in held.items():
            commits, positions = [], positions_of(group)
            for offset in result.offsets:
                place = (offset.topic, offset.partition)
                last = positions.get(place)
                before, after = ends.get(place), self._ends.get(place)
                position = None if last is None else last.offset
                if offset.unread >= 0 and before is not None and after is not None and after.sent_at >= at:
                    position = _find_position(offset, before.offset, after.offset, position)
                if position is not None:
                    commits.append(
                        Commit(
                            at=at,
                            cluster=self._cluster,
                            group=group,
                            topic=offset.topic,
                            partition=offset.partition,
                            offset=position,
                        )
                    )
            yield group, commits, result.failures, at


def _find_position(offset: protocol.ShareOffset, before: int, after: int, last: int | None) -> int:
    """Return the position between the bounds that is nearest to the last one: it moves only if it must have moved.

    before, after: log ends before and after the lag was computed.
    """
    low = max(offset.start_offset, min(before, after) - offset.unread)
    high = max(offset.start_offset, after - offset.unread)
    return low if last is None else min(max(last, low), high)
