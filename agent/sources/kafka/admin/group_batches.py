"""Describes groups and lists their offsets, many groups per request (KIP-699, KIP-709: brokers from 3.0 on).

A response that equals the last one byte for byte is not decoded. Groups that have changed lately share requests with
each other only.
"""

import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from kafka import errors

from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.coordinators import MOVED, Coordinators
from agent.sources.kafka.admin.group_queries import (
    Asked,
    Batch,
    ClassicDescriptions,
    Descriptions,
    Groups,
    Offsets,
    Queries,
    Query,
)
from agent.sources.kafka.admin.repeated_request import LazyResponse, RepeatedRequest

_RETRY_S = 0.5
_LOOKUP_MS = 2_000
"""Any broker can look a coordinator up, so a frozen one is not waited for: another is asked next."""

_OTHER = "librdkafka knows more of such groups"

_MANY = 1_000
"""How many groups more than there are may be remembered."""


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


class GroupBatches:
    """Answers requests about groups; one whose coordinator does not answer, when it does, however long that takes."""

    def __init__(self, cluster: str, coordinators: Coordinators, connections: Connections) -> None:
        self._connections = connections
        self._coordinators = coordinators
        self._queries: tuple[tuple[type[protocol.Request], tuple[Query, ...]], ...] = (
            (protocol.DescribeGroup, (ClassicDescriptions(cluster), Descriptions(cluster))),
            (protocol.ListCommits, (Offsets(cluster),)),
        )

    async def ask(self, messages: Sequence[protocol.NumberedRequest], *, connected: bool) -> None:
        """Answer requests, at most one of a kind about each group. connected: or hand them back."""
        for request_type, queries in self._queries:
            groups = {}
            for message in messages:
                request = message.request
                if isinstance(request, protocol.GROUP_REQUESTS) and isinstance(request, request_type):
                    groups[request.group] = Asked(message, request.complete)
            if groups and connected:
                for remembered in (self._coordinators, *(part for query in queries for part in query.remembered)):
                    _forget_others(remembered, groups)
                await self._ask(queries, groups)
            else:
                self._hand_back(queries, groups, "kafka-python cannot connect")

    async def _ask(self, queries: Queries, groups: Groups) -> None:
        """Ask about groups with the first query, about those it does not show with the next; hand back the rest."""
        if not queries:
            self._hand_back(queries, groups, _OTHER)
            return
        query, now = queries[0], self._connections.clock()
        by_coordinator: dict[int, dict[str, Asked]] = {}
        unknown, others = {}, {}
        for group, asked in groups.items():
            if not query.shows(group, now):
                others[group] = asked
            elif group in self._coordinators:
                by_coordinator.setdefault(self._coordinators[group], {})[group] = asked
            else:
                unknown[group] = asked
        for coordinator, led in by_coordinator.items():
            for batch in query.batches(coordinator, led, now):
                self._connections.start(self._ask_coordinator(queries, coordinator, batch))
        if unknown:
            self._connections.start(self._ask_unknown(queries, unknown))
        if others:
            await self._ask(queries[1:], others)

    async def _ask_unknown(self, queries: Queries, groups: Groups) -> None:
        """Look the coordinators of groups up, then ask them; the other groups do not wait for that."""
        try:
            failures = await self._coordinators.look_up(list(groups), _LOOKUP_MS)
        except errors.IncompatibleBrokerVersion:
            await self._pass_all(queries, groups)
            return
        except errors.KafkaError:
            failures = {}
        refused = {group: groups[group] for group, (code, _) in failures.items() if code not in MOVED}
        self._hand_back(queries, refused, _OTHER)
        found = {group: asked for group, asked in groups.items() if group in self._coordinators}
        later = {group: asked for group, asked in groups.items() if group not in found and group not in refused}
        if found:
            await self._ask(queries, found)
        if later:
            await self._ask_later(queries, later)

    async def _ask_later(self, queries: Queries, groups: Groups) -> None:
        await self._connections.pause(_RETRY_S)
        await self._ask(queries, groups)

    async def _ask_coordinator(self, queries: Queries, coordinator: int, batch: Batch) -> None:
        """Send a request and answer; groups that have another coordinator meanwhile are sent again."""
        left, query = dict(batch.groups), queries[0]
        try:
            response = await self._connections.send(RepeatedRequest(query.make_request(list(left))), coordinator)
            others = self._answer(queries, batch, response, left)
        except errors.IncompatibleBrokerVersion:
            await self._pass_all(queries, left)
            return
        except errors.KafkaError:
            others = {}
        except Exception as error:  # noqa: BLE001 - a defect must not leave requests without a response
            traceback.print_exception(error)
            self._hand_back(queries, left, f"{type(error).__name__}: {error}")
            return
        for group in left:
            self._coordinators.pop(group, None)
        if others:
            await self._ask(queries[1:], others)
        if left:
            await self._ask_later(queries, left)

    def _answer(
        self, queries: Queries, batch: Batch, response: LazyResponse, left: dict[str, Asked]
    ) -> dict[str, Asked]:
        """Respond to the requests of a batch; return those for other queries, leave those not answered."""
        query = queries[0]
        now, fingerprint = self._connections.clock(), hash((tuple(batch.groups), response.body))
        if query.seen(batch) == fingerprint:
            for asked in batch.groups.values():
                self._connections.respond(asked.message.number, protocol.Unchanged())
            left.clear()
            return {}
        passed_on = []
        for answer in query.read(response.decode()):
            if answer.code in MOVED:
                continue
            if answer.result is None:
                query.pass_on(answer.group, now)
                passed_on.append(answer.group)
            else:
                asked = left.pop(answer.group)
                is_new = query.take(answer, now)
                for other in queries[1:] if is_new else ():
                    other.forget(answer.group)
                is_full = is_new or asked.complete
                self._connections.respond(asked.message.number, answer.result if is_full else protocol.Unchanged())
        if not left:
            query.remember(batch, fingerprint)
        return {group: left.pop(group) for group in passed_on}

    async def _pass_all(self, queries: Queries, groups: Groups) -> None:
        """Ask about groups in another way: brokers are too old for this one."""
        for group in groups:
            queries[0].pass_on(group, self._connections.clock())
        await self._ask(queries[1:], groups)

    def _hand_back(self, queries: Queries, groups: Groups, reason: str) -> None:
        """Hand back requests, and forget what batches have shown of their groups."""
        for group, asked in groups.items():
            for query in queries:
                query.forget(group)
            self._connections.hand_back(asked.message, reason)


def _forget_others(remembered: dict[str, Any], groups: Collection[str]) -> None:
    """Forget groups that no longer exist if there are many. groups: those that do, but for a few."""
    if len(remembered) > 2 * len(groups) + _MANY:
        for group in remembered.keys() - set(groups):
            del remembered[group]
