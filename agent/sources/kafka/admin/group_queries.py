"""What can be asked about many groups with one request, and what the last responses were."""

import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest

from agent.clock import now_ms
from agent.model.observations.kafka import GroupState, Member
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin import second_results as results
from agent.sources.kafka.admin.schemas import ConsumerGroupDescribeRequest
from agent.sources.kafka.admin.streams_assignment import UndecodableAssignmentError, decode_partitions

_GROUPS_PER_REQUEST = 50

_LIVE_S = 60.0
"""How long a group that has changed shares requests with others that have."""

_PASSED_ON_S = 600.0
"""How long a group is asked about with another query after this one: brokers are too old, or it is of another type."""


class Asked(NamedTuple):
    """A request about a group. complete: whether it has to be answered in full."""

    message: protocol.NumberedRequest
    complete: bool


Groups: TypeAlias = Mapping[str, Asked]
Queries: TypeAlias = Sequence["Query"]
"""In which ways groups can be asked about, the most likely first."""


class Answer(NamedTuple):
    """What a response says of a group. result: None if it says too little. facts: what there is to compare."""

    group: str
    code: int = 0
    result: protocol.Result | None = None
    facts: Hashable = None


class Batch(NamedTuple):
    """Groups that are asked about with one request. key: None if some of them have changed lately."""

    key: tuple[int, int] | None
    groups: Groups


class Query:
    """A kind of request about groups: how it is made and read, and what the last responses were."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._facts: dict[str, int] = {}
        self._live_until: dict[str, float] = {}
        self._passed_on_until: dict[str, float] = {}
        self._fingerprints: dict[int, dict[int, int]] = {}
        self._buckets = 1

    @property
    def remembered(self) -> tuple[dict[str, Any], ...]:
        """What is remembered by group."""
        return self._facts, self._live_until, self._passed_on_until

    def make_request(self, groups: list[str]) -> Any:
        """Return the request about these groups."""
        raise NotImplementedError

    def read(self, response: Any) -> Iterator[Answer]:
        """Yield what a decoded response says of each group."""
        raise NotImplementedError

    def batches(self, coordinator: int, groups: Groups, now: float) -> Iterator[Batch]:
        """Divide the groups of a coordinator into batches. Quiet groups keep theirs, whatever others do."""
        live: list[str] = []
        quiet: list[str] = []
        for group, asked in groups.items():
            is_live = asked.complete or now < self._live_until.get(group, 0)
            (live if is_live else quiet).append(group)
        for start in range(0, len(live), _GROUPS_PER_REQUEST):
            yield Batch(None, {group: groups[group] for group in live[start : start + _GROUPS_PER_REQUEST]})
        while self._buckets * _GROUPS_PER_REQUEST < len(quiet):
            self._buckets *= 2
        buckets: dict[int, dict[str, Asked]] = {}
        for group in quiet:
            buckets.setdefault(self._bucket(group), {})[group] = groups[group]
        for number, of_bucket in buckets.items():
            yield Batch((coordinator, number), of_bucket)

    def seen(self, batch: Batch) -> int | None:
        """Return the fingerprint of the batch's last response; None if another has shown something new since."""
        if batch.key is None:
            return None
        coordinator, bucket = batch.key
        return self._fingerprints.get(bucket, {}).get(coordinator)

    def remember(self, batch: Batch, fingerprint: int) -> None:
        """Take note of a response from which all requests were answered."""
        if batch.key is None:
            return
        coordinator, bucket = batch.key
        self._fingerprints.setdefault(bucket, {})[coordinator] = fingerprint

    def take(self, answer: Answer, now: float) -> bool:
        """Take note of what was read of a group; return whether it is new."""
        facts = hash(answer.facts)
        before = self._facts.get(answer.group)
        if before == facts:
            return False
        self.forget(answer.group)
        self._facts[answer.group] = facts
        if before is not None:
            self._live_until[answer.group] = now + _LIVE_S
        return True

    def shows(self, group: str, now: float) -> bool:
        """Return whether requests of this kind may show enough of a group."""
        return now >= self._passed_on_until.get(group, 0)

    def pass_on(self, group: str, now: float) -> None:
        """Take note that a request of this kind does not show enough of a group."""
        self._passed_on_until[group] = now + _PASSED_ON_S
        self.forget(group)

    def forget(self, group: str) -> None:
        """Forget what the last responses said of a group: something else has been said of it since."""
        self._facts.pop(group, None)
        self._fingerprints.pop(self._bucket(group), None)

    def _bucket(self, group: str) -> int:
        return zlib.crc32(group.encode()) % self._buckets


class ClassicDescriptions(Query):
    """Descriptions of the groups of consumers that use the classic protocol."""

    def make_request(self, groups: list[str]) -> Any:
        return DescribeGroupsRequest(groups=groups, include_authorized_operations=False, min_version=1)

    def read(self, response: Any) -> Iterator[Answer]:
        at = now_ms()
        for group in response.groups:
            name, is_simple = group.group_id, not group.protocol_type
            if group.error_code or group.group_state == "Dead" or not (is_simple or group.protocol_type == "consumer"):
                yield Answer(name, group.error_code)  # perhaps a group of the consumer protocol (KIP-848)
                continue
            try:
                members = [
                    Member(
                        id=member.member_id,
                        host=member.client_host,
                        partitions=decode_partitions(member.member_assignment),
                        client_id=member.client_id,
                    )
                    for member in group.members
                ]
            except UndecodableAssignmentError:
                yield Answer(name)
                continue
            state = GroupState(
                at=at,
                cluster=self._cluster,
                group=name,
                state=group.group_state,
                members=tuple(sorted(members, key=lambda member: member.id)),
                simple=is_simple,
                assignor=group.protocol_data or None,
            )
            yield Answer(name, 0, state, (state.state, state.members, state.simple, state.assignor))


class Descriptions(Query):
    """Descriptions of groups of the consumer protocol (KIP-848)."""

    def make_request(self, groups: list[str]) -> Any:
        return ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=False)

    def read(self, response: Any) -> Iterator[Answer]:
        at = now_ms()
        for group in response.groups:
            if group.error_code or group.group_state == "Dead":
                yield Answer(group.group_id, group.error_code)
                continue
            members = tuple(sorted(results.read_members(group), key=lambda member: member.id))
            state = GroupState(
                at=at,
                cluster=self._cluster,
                group=group.group_id,
                state=group.group_state,
                members=members,
                simple=False,
                assignor=group.assignor_name or None,
            )
            yield Answer(group.group_id, 0, state, (state.state, members, state.assignor))


class Offsets(Query):
    """Committed offsets of groups."""

    def make_request(self, groups: list[str]) -> Any:
        selected = [
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, member_id=None, member_epoch=-1, topics=None)
            for group in groups
        ]
        # Version 10 has ids instead of the names of topics.
        return OffsetFetchRequest(groups=selected, require_stable=False, min_version=8, max_version=9)

    def read(self, response: Any) -> Iterator[Answer]:
        at = now_ms()
        for group in response.groups:
            places = [(topic.name, partition) for topic in group.topics for partition in topic.partitions]
            if group.error_code or any(partition.error_code for _, partition in places):
                yield Answer(group.group_id, group.error_code)
                continue
            offsets: dict[str, list[int]] = {}
            for topic, partition in places:
                if partition.committed_offset >= 0:
                    numbers = (partition.partition_index, partition.committed_offset, partition.committed_leader_epoch)
                    offsets.setdefault(topic, []).extend(numbers)
            facts = tuple((topic, *numbers) for topic, numbers in offsets.items())
            yield Answer(group.group_id, 0, protocol.Commits(self._cluster, group.group_id, at, offsets, []), facts)
