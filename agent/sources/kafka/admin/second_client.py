"""The admin process's second client, kafka-python: what librdkafka's AdminClient does not offer, and much at once.

See docs/decisions/0012. It is imported when the first such request arrives: it takes 20 MB.
"""

import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from kafka import errors
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeProducersRequest, ListGroupsRequest, ListTransactionsRequest

from agent.clock import now_ms
from agent.model.observations.kafka import GroupState, OpenTransaction
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin import second_results as results
from agent.sources.kafka.admin.client_choice import SECOND_CLIENT_ONLY
from agent.sources.kafka.admin.coordinators import MOVED, Coordinators
from agent.sources.kafka.admin.group_batches import Connections, GroupBatches
from agent.sources.kafka.admin.log_offsets import LogOffsetBatches
from agent.sources.kafka.admin.metadata_reader import MetadataReader
from agent.sources.kafka.admin.schemas import (
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
    StreamsGroupDescribeRequest,
)
from agent.sources.kafka.admin.topic_descriptions import TopicDescriptions

_DEFAULTS = {
    "client_id": "backflow",
    "reconnect_backoff_max_ms": 2_000,
    "metadata_max_age_ms": 30_000,
    "receive_message_max_bytes": 100_000_000,
    "max_in_flight_requests_per_connection": 1_000,
}

_GROUP_ID_NOT_FOUND = 69

_ANY_BROKER_MS = 3_000

_RETRY_SECONDS = 60
"""How long requests are handed back after no broker could be connected to."""

_CALL_TIMEOUTS = 3
"""How many request timeouts a call may take. One that takes longer has lost a request, as connections of kafka-python's
may while a broker starts: they are all replaced.
"""


class _NotConnectedError(Exception):
    """No broker could be connected to."""


class SecondClient:
    """Sends requests by kafka-python, each as a coroutine of its own on one thread."""

    def __init__(
        self,
        options: Mapping[str, Any],
        cluster: str,
        timeout: int,
        respond: Callable[[int, protocol.Result], None],
        hand_back: Callable[[protocol.NumberedRequest, str], None],
    ) -> None:
        """Start the thread; it connects with the first request.

        timeout: of a call, ms. respond: takes the number of a request and its result. hand_back: takes a request that
        cannot be sent, and why: the brokers are too old, or do not accept this client.
        """
        self._configuration = {**_DEFAULTS, **options, "request_timeout_ms": timeout}
        self._net = NetworkSelector(**self._configuration)
        self._manager = KafkaConnectionManager(self._net, **self._configuration)
        self._retry_at = 0.0
        self._cluster = cluster
        self._timeout = timeout
        self._respond = respond
        self._hand_back = hand_back
        self._coordinators = Coordinators(self._send)
        connections = Connections(self._send, self._net.sleep, self._start, respond, hand_back)
        self._batches = GroupBatches(cluster, self._coordinators, connections)
        self._forget_responses()
        self._net.start()

    def handle(self, messages: Sequence[protocol.NumberedRequest]) -> None:
        """Start the calls; each responds when it completes."""
        about_groups = [message for message in messages if isinstance(message.request, protocol.GROUP_REQUESTS)]
        for message in messages:
            if not isinstance(message.request, protocol.GROUP_REQUESTS):
                self._start_call(message)
        if about_groups:
            self._manager.call_soon(self._ask_about_groups, about_groups).add_errback(traceback.print_exception)

    def _start_call(self, message: protocol.NumberedRequest) -> None:
        def fail(error: BaseException) -> None:
            traceback.print_exception(error)
            self._fail(message, protocol.Failure(-1, f"{type(error).__name__}: {error}"))

        # A defect must not leave the request without a response.
        self._manager.call_soon(self._answer, message).add_errback(fail)

    async def _ask_about_groups(self, messages: Sequence[protocol.NumberedRequest]) -> None:
        await self._batches.ask(messages, connected=await self._is_connected())

    async def _answer(self, message: protocol.NumberedRequest) -> None:
        """Respond to a request, or hand it back."""
        call = self._start(self._connect_and_read(message))
        try:
            result = await self._manager.wait_for(call, _CALL_TIMEOUTS * self._timeout)
        except errors.IncompatibleBrokerVersion as error:
            self._hand_back(message, str(error))
        except _NotConnectedError as error:
            self._forget_responses()
            if isinstance(message.request, SECOND_CLIENT_ONLY):  # not refused: the brokers may be back soon
                self._respond(message.number, protocol.Failure(-1, str(error)))
            else:
                self._hand_back(message, str(error))
        except errors.KafkaError as error:
            # After a refused login, the manager would repeat the error without connecting again.
            if isinstance(error, errors.SaslAuthenticationFailedError) or not call.is_done:
                self._replace_manager()
            self._fail(message, results.failure_of(error))
        else:
            self._respond(message.number, result)

    def _fail(self, message: protocol.NumberedRequest, failure: protocol.Failure) -> None:
        """Respond with a failure, or hand the request back if librdkafka may show more."""
        if isinstance(message.request, protocol.ListOffsets | protocol.ListStableOffsets | protocol.FetchMetadata):
            self._hand_back(message, failure.text)
        else:
            self._respond(message.number, failure)

    async def _connect_and_read(self, message: protocol.NumberedRequest) -> protocol.Result:
        if not await self._is_connected():
            msg = "kafka-python cannot connect"
            raise _NotConnectedError(msg)
        return await self._read(message)

    async def _is_connected(self) -> bool:
        """Return whether the brokers are known, after trying to connect unless that has failed just now."""
        if not self._manager.bootstrapped and time.monotonic() >= self._retry_at:
            try:
                await self._manager.bootstrap_async(self._timeout)
            except errors.KafkaError:
                self._retry_at = time.monotonic() + _RETRY_SECONDS
        return bool(self._manager.bootstrapped)

    def _replace_manager(self) -> None:
        self._forget_responses()
        self._manager.close()
        self._manager = KafkaConnectionManager(self._net, **self._configuration)

    def _forget_responses(self) -> None:
        """Forget the last responses: librdkafka answers meanwhile, and what it says may change in between."""
        self._log_offsets = LogOffsetBatches(self._cluster, self._start, self._send)
        self._metadata = metadata = MetadataReader(self._send_to_any)
        self._descriptions = TopicDescriptions(
            self._cluster, self._timeout, self._start, self._send, lambda: metadata.states
        )

    async def _read(self, message: protocol.NumberedRequest) -> protocol.Result:
        match message.request:
            case protocol.ListTypedGroups():
                return await self._list_groups()
            case protocol.DescribeTypedGroup(group, kind):
                return await self._describe_group(group, kind)
            case protocol.FetchMetadata():
                return await self._metadata.read()
            case protocol.ListOffsets() as request:
                return await self._log_offsets.read(request, message.sent_at)
            case protocol.ListStableOffsets() as request:
                return await self._log_offsets.read_stable(request, message.sent_at)
            case protocol.ListShareOffsets(group):
                return await self._list_share_offsets(group)
            case protocol.DescribeTopics(topics):
                return await self._descriptions.read(topics)
            case protocol.DescribeOpenTransaction(topic, partition, leader, offset):
                return await self._describe_open_transaction(topic, partition, leader, offset)
            case other:
                msg = f"{type(other).__name__} is not a request for this client"
                raise TypeError(msg)

    # --- groups

    async def _list_groups(self) -> protocol.TypedGroups:
        """List the groups of all brokers that respond."""
        groups: dict[str, protocol.TypedGroup] = {}
        failure: errors.KafkaError | None = None
        brokers = [broker.node_id for broker in self._manager.cluster.brokers()]
        for call in [self._start(self._send(ListGroupsRequest(min_version=5), broker)) for broker in brokers]:
            try:
                response = await call
            except errors.KafkaError as error:
                failure = error
                continue
            groups |= {
                listed.group_id: protocol.TypedGroup(listed.group_type.lower(), listed.group_state)
                for listed in response.groups
            }
        if failure is not None and not groups:
            raise failure
        return protocol.TypedGroups(groups)

    async def _describe_group(self, group: str, kind: str) -> GroupState:
        request_type, read_members = (
            (StreamsGroupDescribeRequest, results.read_streams_members) if kind == "streams"
            else (ShareGroupDescribeRequest, results.read_members)
        )  # fmt: skip

        def make_request() -> Any:
            # Version 0 of ShareGroupDescribe was an early access version of another format.
            return request_type(
                group_ids=[group], include_authorized_operations=False, min_version=int(kind == "share")
            )

        try:
            described = await self._ask_coordinator(group, make_request, lambda response: response.groups[0])
        except errors.BrokerResponseError as error:
            if error.errno != _GROUP_ID_NOT_FOUND:
                raise
            return GroupState(at=now_ms(), cluster=self._cluster, group=group, state="Dead", type=kind)
        return GroupState(
            at=now_ms(),
            cluster=self._cluster,
            group=group,
            state=described.group_state,
            members=tuple(sorted(read_members(described), key=lambda member: member.id)),
            simple=False,
            assignor=None,
            type=kind,
        )

    async def _list_share_offsets(self, group: str) -> protocol.ShareOffsets:
        """List the start offsets and lags of a share group."""

        def make_request() -> Any:
            selected = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(
                group_id=group, topics=None
            )
            # A start offset without the lag (version 0, Kafka 4.1) does not show how far the group has read.
            return DescribeShareGroupOffsetsRequest(groups=[selected], min_version=1)

        described = await self._ask_coordinator(group, make_request, lambda response: response.groups[0])
        return results.read_share_offsets(described)

    async def _ask_coordinator(
        self, group: str, make_request: Callable[[], Any], find_result: Callable[[Any], Any]
    ) -> Any:
        """Return the group's part of the coordinator's response; look the coordinator up again if it has moved."""
        for is_last in (False, True):
            if group not in self._coordinators:
                for code, text in (await self._coordinators.look_up([group])).values():
                    results.raise_for(code, text)
            try:
                result = find_result(await self._send(make_request(), self._coordinators[group]))
            except errors.KafkaError:
                self._coordinators.pop(group, None)
                raise
            if result.error_code in MOVED:
                self._coordinators.pop(group, None)
            if not result.error_code or is_last or result.error_code not in MOVED:
                break
        results.raise_for(result.error_code, result.error_message)
        return result

    # --- transactions

    async def _describe_open_transaction(
        self, topic: str, partition: int, leader: int, offset: int
    ) -> protocol.OpenTransactions:
        """Describe the transaction that begins at an offset of a partition; none if it has ended."""
        selected = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])
        response = await self._send(DescribeProducersRequest(topics=[selected]), leader)
        described = response.topics[0].partitions[0]
        results.raise_for(described.error_code, described.error_message)
        for producer in described.active_producers:
            if producer.current_txn_start_offset == offset:
                break
        else:
            return protocol.OpenTransactions([])
        name, state = await self._find_transaction(producer.producer_id)
        return protocol.OpenTransactions(
            [
                OpenTransaction(
                    at=now_ms(),
                    cluster=self._cluster,
                    topic=topic,
                    partition=partition,
                    start_offset=offset,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_write_at=producer.last_timestamp if producer.last_timestamp >= 0 else None,
                    transactional_id=name,
                    state=state,
                )
            ]
        )

    async def _find_transaction(self, producer: int) -> tuple[str | None, str | None]:
        """Return a producer's transactional.id and the state of its transaction; None if no broker names them."""
        for broker in [broker.node_id for broker in self._manager.cluster.brokers()]:
            request = ListTransactionsRequest(state_filters=[], producer_id_filters=[producer])
            try:
                response = await self._send(request, broker)
            except errors.KafkaError:
                continue  # the broker is down, or the permission on transactional ids is missing
            for transaction in response.transaction_states:
                return transaction.transactional_id, transaction.transaction_state
        return None, None

    # --- sending

    def _start(self, call: Coroutine[Any, Any, Any]) -> Future:
        """Start a call that runs beside the current one."""
        return self._manager.call_soon(lambda: call)

    async def _send(self, request: Any, broker: int | None = None, timeout_ms: int | None = None) -> Any:
        """Send a request to a broker, by default any. Raises KafkaError."""
        return await self._manager.send(request, broker, request_timeout_ms=timeout_ms or self._timeout)

    async def _send_to_any(self, request: Any) -> Any:
        """Send a request to any broker; a frozen one is not waited for long, as another is asked next time."""
        timeout = min(_ANY_BROKER_MS, self._timeout)
        return await self._manager.wait_for(self._start(self._send(request)), timeout)
