"""Describes groups and lists their offsets, many groups per request (KIP-699, KIP-709: brokers from 3.0 on).

A response that equals the last one byte for byte is not decoded. Groups that have changed lately share requests with
each other only.
"""

import time
import traceback
import zlib
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kafka import errors
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest

from agent.model.observations.kafka import Commit, GroupState, Member
from agent.sources.availability import now_ms
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.coordinators import MOVED, Coordinators
from agent.sources.kafka.admin.repeated_request import COMPLETE_S, LazyResponse, RepeatedRequest
from agent.sources.kafka.admin.streams_assignment import UndecodableAssignmentError, decode_partitions

_GROUPS_PER_REQUEST = 50

_LIVE_S = 60.0
"""How long a group that has changed shares requests with others that have."""

_RETRY_S = 0.5
_LOOKUP_MS = 2_000
"""Any broker can look a coordinator up, so a frozen one is not waited for: another is asked next."""

_HANDED_BACK_S = 600.0
"""How long requests are handed back at once after a broker was too old for batches, or a group of another type."""

_OTHER = "librdkafka knows more of such groups"

_MANY = 1_000
"""How many groups more than there are may be remembered."""


class _Asked(NamedTuple):
    """A request about a group. complete: whether it has to be answered in full."""

    message: protocol.NumberedRequest
    complete: bool


_Groups: TypeAlias = Mapping[str, _Asked]


class Connections(NamedTuple):
    """What batches need of a client.

    send: a coroutine that sends a request to a broker, by default any. pause: one that waits, s. start: starts one.
    respond: takes the number of a request and its result. hand_back: takes a request for librdkafka, and why. clock:
    returns monotonic time, s.
    """

    send: Callable[..., Any]
    pause: Callable[[float], Any]
    start: Callable[[Any], Any]
    respond: Callable[[int, protocol.Result], None]
    hand_back: Callable[[protocol.NumberedRequest, str], None]
    clock: Callable[[], float] = time.monotonic


class _Answer(NamedTuple):
    """What a response says of a group. result: None if librdkafka has to be asked. facts: what there is to compare."""

    group: str
    code: int = 0
    result: protocol.Result | None = None
    facts: Hashable = None


class _Batch(NamedTuple):
    """Groups that are asked about with one request. key: None if some of them have changed lately."""

    key: tuple[int, int] | None
    groups: _Groups


class _Seen(NamedTuple):
    """The last response to a batch. until: the next one is sent on in full then, s of the monotonic clock."""

    fingerprint: int
    until: float


class GroupBatches:
    """Answers requests about groups; one whose coordinator does not answer, when it does, however long that takes."""

    def __init__(self, cluster: str, coordinators: Coordinators, connections: Connections) -> None:
        self._connections = connections
        self._coordinators = coordinators
        self._kinds = (protocol.DescribeGroup, _Descriptions(cluster)), (protocol.ListCommits, _Offsets(cluster))
        self._supported_from = 0.0

    async def ask(self, messages: Sequence[protocol.NumberedRequest], *, connected: bool) -> None:
        """Send requests of both kinds, at most one about a group of each kind. connected: or hand them back."""
        for request_type, kind in self._kinds:
            groups = {}
            for message in messages:
                request = message.request
                if isinstance(request, protocol.GROUP_REQUESTS) and isinstance(request, request_type):
                    groups[request.group] = _Asked(message, request.complete)
            if groups and connected:
                for remembered in (self._coordinators, *kind.remembered):
                    _forget_others(remembered, groups)
                await self._ask(kind, groups)
            else:
                self._hand_back(kind, groups, "kafka-python cannot connect")

    async def _ask(self, kind: "_Kind", groups: _Groups) -> None:
        now = self._connections.clock()
        if now < self._supported_from:
            self._hand_back(kind, groups, "the brokers are too old")
            return
        by_coordinator: dict[int, dict[str, _Asked]] = {}
        unknown = {}
        for group, asked in groups.items():
            if kind.is_handed_back(group, now):
                self._connections.hand_back(asked.message, _OTHER)
            elif group in self._coordinators:
                by_coordinator.setdefault(self._coordinators[group], {})[group] = asked
            else:
                unknown[group] = asked
        for coordinator, led in by_coordinator.items():
            for batch in kind.batches(coordinator, led, now):
                self._connections.start(self._ask_coordinator(kind, coordinator, batch))
        if unknown:
            self._connections.start(self._ask_unknown(kind, unknown))

    async def _ask_unknown(self, kind: "_Kind", groups: _Groups) -> None:
        """Look the coordinators of groups up, then ask them; the other groups do not wait for that."""
        try:
            failures = await self._coordinators.look_up(list(groups), _LOOKUP_MS)
        except errors.IncompatibleBrokerVersion as error:
            self._hand_back_all(kind, groups, error)
            return
        except errors.KafkaError:
            failures = {}
        refused = {group: groups[group] for group, (code, _) in failures.items() if code not in MOVED}
        self._hand_back(kind, refused, _OTHER)
        found = {group: asked for group, asked in groups.items() if group in self._coordinators}
        later = {group: asked for group, asked in groups.items() if group not in found and group not in refused}
        if found:
            await self._ask(kind, found)
        if later:
            await self._ask_later(kind, later)

    async def _ask_later(self, kind: "_Kind", groups: _Groups) -> None:
        await self._connections.pause(_RETRY_S)
        await self._ask(kind, groups)

    async def _ask_coordinator(self, kind: "_Kind", coordinator: int, batch: _Batch) -> None:
        """Send a request and answer; groups that have another coordinator meanwhile are sent again."""
        left = dict(batch.groups)
        try:
            response = await self._connections.send(RepeatedRequest(kind.make_request(list(left))), coordinator)
            self._answer(kind, batch, response, left)
        except errors.IncompatibleBrokerVersion as error:
            self._hand_back_all(kind, left, error)
            return
        except errors.KafkaError:
            pass
        except Exception as error:  # noqa: BLE001 - a defect must not leave requests without a response
            traceback.print_exception(error)
            self._hand_back(kind, left, f"{type(error).__name__}: {error}")
            return
        for group in left:
            self._coordinators.pop(group, None)
        if left:
            await self._ask_later(kind, left)

    def _answer(self, kind: "_Kind", batch: _Batch, response: LazyResponse, left: dict[str, _Asked]) -> None:
        """Respond to the requests of a batch, and leave those that its coordinator has not answered."""
        now, fingerprint = self._connections.clock(), hash((tuple(batch.groups), response.body))
        is_due = kind.is_due(batch, now)
        if not is_due and kind.seen(batch) == fingerprint:
            for asked in batch.groups.values():
                self._connections.respond(asked.message.number, protocol.Unchanged())
            left.clear()
            return
        is_complete = True
        for answer in kind.read(response.decode()):
            if answer.code in MOVED:
                continue
            message, is_wanted = left.pop(answer.group)
            if answer.result is None:
                is_complete = False
                kind.hand_back(answer.group, now)
                self._connections.hand_back(message, _OTHER)
            else:
                is_new = kind.take(answer, now)
                is_full = is_new or is_due or is_wanted
                self._connections.respond(message.number, answer.result if is_full else protocol.Unchanged())
        if is_complete and not left:
            kind.remember(batch, fingerprint, now)

    def _hand_back_all(self, kind: "_Kind", groups: _Groups, error: errors.KafkaError) -> None:
        """Hand back requests for which brokers are too old, and those that follow for some time."""
        self._supported_from = self._connections.clock() + _HANDED_BACK_S
        self._hand_back(kind, groups, str(error))

    def _hand_back(self, kind: "_Kind", groups: _Groups, reason: str) -> None:
        """Hand back requests, and forget what batches have shown of their groups."""
        for group, asked in groups.items():
            kind.forget(group)
            self._connections.hand_back(asked.message, reason)


class _Kind:
    """A kind of request about groups: how it is made and read, and what the last responses were."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._facts: dict[str, int] = {}
        self._live_until: dict[str, float] = {}
        self._handed_back_until: dict[str, float] = {}
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._buckets = 1

    @property
    def remembered(self) -> tuple[dict[str, Any], ...]:
        """What is remembered by group."""
        return self._facts, self._live_until, self._handed_back_until

    def make_request(self, groups: list[str]) -> Any:
        """Return the request about these groups."""
        raise NotImplementedError

    def read(self, response: Any) -> Iterator[_Answer]:
        """Yield what a decoded response says of each group."""
        raise NotImplementedError

    def batches(self, coordinator: int, groups: _Groups, now: float) -> Iterator[_Batch]:
        """Divide the groups of a coordinator into batches. Quiet groups keep theirs, whatever others do."""
        live: list[str] = []
        quiet: list[str] = []
        for group, asked in groups.items():
            is_live = asked.complete or now < self._live_until.get(group, 0)
            (live if is_live else quiet).append(group)
        for start in range(0, len(live), _GROUPS_PER_REQUEST):
            yield _Batch(None, {group: groups[group] for group in live[start : start + _GROUPS_PER_REQUEST]})
        while self._buckets * _GROUPS_PER_REQUEST < len(quiet):
            self._buckets *= 2
        buckets: dict[int, dict[str, _Asked]] = {}
        for group in quiet:
            buckets.setdefault(self._bucket(group), {})[group] = groups[group]
        for number, of_bucket in buckets.items():
            yield _Batch((coordinator, number), of_bucket)

    def seen(self, batch: _Batch) -> int | None:
        """Return the fingerprint of the batch's last response; None if it is not to be compared."""
        seen = None if batch.key is None else self._seen.get(batch.key)
        return None if seen is None else seen.fingerprint

    def is_due(self, batch: _Batch, now: float) -> bool:
        """Return whether the batch's results are to be sent on in full."""
        seen = None if batch.key is None else self._seen.get(batch.key)
        return seen is not None and now >= seen.until

    def remember(self, batch: _Batch, fingerprint: int, now: float) -> None:
        """Take note of a response from which all requests were answered."""
        if batch.key is not None:
            seen = self._seen.get(batch.key)
            share = batch.key[1] / self._buckets  # so that they are not all sent on in full at the same time
            until = now + (0.5 + share) * COMPLETE_S if seen is None or now >= seen.until else seen.until
            self._seen[batch.key] = _Seen(fingerprint, until)

    def take(self, answer: _Answer, now: float) -> bool:
        """Take note of what was read of a group; return whether it is new."""
        facts = hash(answer.facts)
        before = self._facts.get(answer.group)
        self._facts[answer.group] = facts
        if before is not None and before != facts:
            self._live_until[answer.group] = now + _LIVE_S
        return before != facts

    def is_handed_back(self, group: str, now: float) -> bool:
        """Return whether requests about a group are to be handed back at once."""
        return now < self._handed_back_until.get(group, 0)

    def hand_back(self, group: str, now: float) -> None:
        """Take note that a batch does not show enough of a group."""
        self._handed_back_until[group] = now + _HANDED_BACK_S
        self.forget(group)

    def forget(self, group: str) -> None:
        """Forget what the last responses said of a group: librdkafka is asked next."""
        self._facts.pop(group, None)
        number = self._bucket(group)
        for key in [key for key in self._seen if key[1] == number]:
            del self._seen[key]

    def _bucket(self, group: str) -> int:
        return zlib.crc32(group.encode()) % self._buckets


class _Descriptions(_Kind):
    """Descriptions of the groups of consumers that use the classic protocol."""

    def make_request(self, groups: list[str]) -> Any:
        return DescribeGroupsRequest(groups=groups, include_authorized_operations=False, min_version=1)

    def read(self, response: Any) -> Iterator[_Answer]:
        at = now_ms()
        for group in response.groups:
            name, is_simple = group.group_id, not group.protocol_type
            if group.error_code or group.group_state == "Dead" or not (is_simple or group.protocol_type == "consumer"):
                yield _Answer(name, group.error_code)  # perhaps a group of the consumer protocol (KIP-848)
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
                yield _Answer(name)
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
            yield _Answer(name, 0, state, (state.state, state.members, state.simple, state.assignor))


class _Offsets(_Kind):
    """Committed offsets of groups."""

    def make_request(self, groups: list[str]) -> Any:
        selected = [
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, member_id=None, member_epoch=-1, topics=None)
            for group in groups
        ]
        # Version 10 has ids instead of the names of topics.
        return OffsetFetchRequest(groups=selected, require_stable=False, min_version=8, max_version=9)

    def read(self, response: Any) -> Iterator[_Answer]:
        at = now_ms()
        for group in response.groups:
            places = [(topic.name, partition) for topic in group.topics for partition in topic.partitions]
            if group.error_code or any(partition.error_code for _, partition in places):
                yield _Answer(group.group_id, group.error_code)
                continue
            commits = [
                Commit(
                    at=at,
                    cluster=self._cluster,
                    group=group.group_id,
                    topic=topic,
                    partition=partition.partition_index,
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch if partition.committed_leader_epoch >= 0 else None,
                )
                for topic, partition in places
                if partition.committed_offset >= 0
            ]
            facts = tuple((commit.topic, commit.partition, commit.offset, commit.leader_epoch) for commit in commits)
            yield _Answer(group.group_id, 0, protocol.Commits(commits, []), facts)


def _forget_others(remembered: dict[str, Any], groups: Collection[str]) -> None:
    """Forget groups that no longer exist if there are many. groups: those that do, but for a few."""
    if len(remembered) > 2 * len(groups) + _MANY:
        for group in remembered.keys() - set(groups):
            del remembered[group]
