"""Polls of many partitions with kafka-python: what is decoded, and what is sent on, without brokers."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any
from uuid import UUID

import pytest
from kafka import errors
from kafka.protocol.admin import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ListPartitionReassignmentsResponse,
)
from kafka.protocol.consumer import ListOffsetsResponse
from kafka.protocol.metadata import MetadataResponse

from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.log_offsets import LogOffsetBatches
from agent.sources.kafka.admin.metadata_reader import MetadataReader
from agent.sources.kafka.admin.repeated_request import LazyResponse
from agent.sources.kafka.admin.topic_descriptions import TopicDescriptions

_EARLIEST = -2
_NOT_LEADER = 6


class Leader:
    """A broker that leads partitions of topic t, and answers what it is asked about them.

    logs: start and end by partition. stable: the last stable offset where it is lower. codes: errors of partitions.
    order: of the topics in metadata. topic_id: of both. isr: of all partitions. described: how many pages of
    descriptions were read.
    """

    def __init__(self, logs: Mapping[int, tuple[int, int]]) -> None:
        self.logs = dict(logs)
        self.stable: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        self.order = ["t", "u"]
        self.leader, self.isr, self.topic_id = 1, [1], UUID(int=7)
        self.reassignments = ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=[])
        self.decoded = self.described = 0
        self.failure: Exception | None = None
        self.now = 0.0
        self._offsets = LogOffsetBatches("main", _start, self._send, lambda: self.now)
        self._metadata = MetadataReader(self._send)
        self._descriptions = TopicDescriptions(
            "main", 1_000, _start, self._send, lambda: self._metadata.states, clock=lambda: self.now
        )

    def list_offsets(self, *partitions: int, complete: bool = False) -> dict[int, tuple[int, int]]:
        """Return the offsets that are sent on."""
        request = protocol.ListOffsets(1, [("t", partition) for partition in partitions], complete=complete)
        result = asyncio.run(self._offsets.read(request, 7))
        assert result.failures == []
        assert {log.at for log in result.logs} <= {7}
        return {log.partition: (log.log_start, log.log_end) for log in result.logs}

    def list_stable_offsets(self, *partitions: int) -> dict[int, int] | None:
        """Return the last stable offsets; None if they are said to be the log ends."""
        request = protocol.ListStableOffsets(1, [("t", partition) for partition in partitions])
        result = asyncio.run(self._offsets.read_stable(request, 7))
        return None if result.at_end else {fact.partition: fact.offset for fact in result.offsets if fact.at == 7}

    def describe(self) -> protocol.Topics | protocol.Unchanged:
        """Describe topic t."""
        return asyncio.run(self._descriptions.read(["t"]))

    def metadata(self) -> protocol.Metadata | protocol.Unchanged:
        """List all topics."""
        return asyncio.run(self._metadata.read())

    async def _send(self, request: Any, broker: int | None = None) -> Any:
        assert broker in {None, 1}
        if self.failure is not None:
            raise self.failure
        if request.name == "ListOffsetsRequest":
            return self._counted(ListOffsetsResponse, self._offsets_of(request), 2)
        if request.name == "MetadataRequest":
            return self._counted(MetadataResponse, self._all_topics(), 12)
        if request.name == "DescribeTopicPartitionsRequest":
            self.described += 1
            return self._counted(DescribeTopicPartitionsResponse, self._page(request), 0)
        return self.reassignments

    def _counted(self, message: Any, response: Any, version: int) -> LazyResponse:
        leader = self

        class Counted(LazyResponse):
            def decode(self) -> Any:
                leader.decoded += 1
                return super().decode()

        return Counted(message[version], 0, bytes(response.encode(version=version)[4:]))

    def _offsets_of(self, request: Any) -> Any:
        message = ListOffsetsResponse.ListOffsetsTopicResponse
        stable = self.stable if request.isolation_level else {}
        return ListOffsetsResponse(
            throttle_time_ms=0,
            topics=[
                message(
                    name=topic.name,
                    partitions=[
                        message.ListOffsetsPartitionResponse(
                            partition_index=partition.partition_index,
                            error_code=self.codes.get(partition.partition_index, 0),
                            timestamp=-1,
                            offset=stable.get(
                                partition.partition_index,
                                self.logs[partition.partition_index][partition.timestamp != _EARLIEST],
                            ),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )

    def _all_topics(self) -> Any:
        message = MetadataResponse.MetadataResponseTopic
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="kafka-1", port=9092, rack=None)],
            cluster_id="c",
            controller_id=1,
            topics=[
                message(
                    error_code=0,
                    name=topic,
                    topic_id=self.topic_id,
                    is_internal=False,
                    partitions=[
                        message.MetadataResponsePartition(
                            error_code=0,
                            partition_index=0,
                            leader_id=self.leader,
                            leader_epoch=1,
                            replica_nodes=[1],
                            isr_nodes=self.isr,
                            offline_replicas=[],
                        )
                    ],
                )
                for topic in self.order
            ],
        )

    def _page(self, request: DescribeTopicPartitionsRequest) -> Any:
        """Return one partition per page."""
        message = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
        number = request.cursor.partition_index if request.cursor is not None else 0
        is_last = number == max(self.logs)
        return DescribeTopicPartitionsResponse(
            throttle_time_ms=0,
            topics=[
                message(
                    error_code=self.codes.get(number, 0),
                    name="t",
                    topic_id=self.topic_id,
                    is_internal=False,
                    partitions=[
                        message.DescribeTopicPartitionsResponsePartition(
                            error_code=0,
                            partition_index=number,
                            leader_id=self.leader,
                            leader_epoch=1,
                            replica_nodes=[1],
                            isr_nodes=self.isr,
                            eligible_leader_replicas=None,
                            last_known_elr=None,
                            offline_replicas=[],
                        )
                    ],
                )
            ],
            next_cursor=None
            if is_last
            else DescribeTopicPartitionsResponse.Cursor(topic_name="t", partition_index=number + 1),
        )


def _start(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(call)
    task.add_done_callback(lambda done: done.exception())  # of two calls that fail, the first one's error is raised
    return task


def test_only_log_offsets_that_have_changed_are_sent_on() -> None:
    leader = Leader({0: (3, 9), 1: (0, 5)})
    assert leader.list_offsets(0, 1) == {0: (3, 9), 1: (0, 5)}
    assert leader.list_offsets(0, 1) == {}
    assert leader.decoded == 2
    leader.logs[1] = (0, 4)
    assert leader.list_offsets(0, 1) == {1: (0, 4)}
    leader.logs[0] = (4, 9)
    assert leader.list_offsets(0, 1) == {0: (4, 9)}
    assert leader.decoded == 4


def test_last_stable_offsets_are_those_of_partitions_without_an_error() -> None:
    leader = Leader({0: (3, 9), 1: (0, 5), 2: (0, 7)})
    leader.codes[1] = _NOT_LEADER
    assert leader.list_stable_offsets(0, 1, 2) == {0: 9, 2: 7}
    leader.failure = errors.KafkaConnectionError()
    with pytest.raises(errors.KafkaConnectionError):
        leader.list_stable_offsets(0)


def test_last_stable_offsets_that_are_the_log_ends_are_not_decoded() -> None:
    leader = Leader({0: (3, 9), 1: (0, 5)})
    assert leader.list_stable_offsets(0, 1) == {0: 9, 1: 5}
    leader.list_offsets(0, 1)
    decoded = leader.decoded
    assert leader.list_stable_offsets(0, 1) is None
    assert leader.decoded == decoded
    assert leader.list_stable_offsets(1) == {1: 5}
    leader.stable[1] = 4
    assert leader.list_stable_offsets(0, 1) == {0: 9, 1: 4}
    leader.stable.clear()
    leader.logs[0] = (3, 11)
    assert leader.list_stable_offsets(0, 1) == {0: 11, 1: 5}  # an end that has not been sent on
    leader.list_offsets(0, 1)
    assert leader.list_stable_offsets(0, 1) is None


def test_after_an_error_last_stable_offsets_are_listed() -> None:
    leader = Leader({0: (3, 9), 1: (0, 5)})
    leader.list_offsets(0, 1)
    leader.failure = errors.KafkaConnectionError()
    with pytest.raises(errors.KafkaConnectionError):
        leader.list_offsets(0, 1)
    leader.failure = None
    assert leader.list_stable_offsets(0, 1) == {0: 9, 1: 5}


def test_all_log_offsets_are_sent_on_when_asked_for() -> None:
    leader = Leader({0: (3, 9), 1: (0, 5)})
    leader.list_offsets(0, 1)
    leader.decoded = 0
    assert leader.list_offsets(0, 1, complete=True) == {0: (3, 9), 1: (0, 5)}
    assert leader.decoded == 0


def test_other_partitions_together_are_sent_on_in_full() -> None:
    leader = Leader({0: (3, 9), 1: (0, 5)})
    leader.list_offsets(0)
    assert leader.list_offsets(0, 1) == {0: (3, 9), 1: (0, 5)}


def test_log_offsets_that_return_with_a_former_leader_are_sent_on() -> None:
    """What it says is what it said last, but something else has been said since of one of the partitions."""
    leader = Leader({0: (0, 5), 1: (0, 5), 2: (0, 5)})
    leader.list_offsets(0, 1)
    leader.logs[1] = (0, 9)
    leader.list_offsets(1, 2)
    leader.logs[1] = (0, 5)
    assert leader.list_offsets(0, 1) == {0: (0, 5), 1: (0, 5)}


@pytest.mark.parametrize("logs", [{0: (3, 9), 1: (-1, -1)}, {0: (3, 9), 1: (0, 5)}])
def test_after_an_error_all_log_offsets_are_sent_on(logs: Mapping[int, tuple[int, int]]) -> None:
    """An offset of -1 is one: the leader is away."""
    leader = Leader({0: (3, 9), 1: (0, 5)})
    leader.list_offsets(0, 1)
    leader.logs, leader.codes = dict(logs), {1: _NOT_LEADER} if logs[1] == (0, 5) else {}
    with pytest.raises(errors.BrokerResponseError):
        leader.list_offsets(0, 1)
    leader.logs, leader.codes = {0: (3, 9), 1: (0, 5)}, {}
    assert leader.list_offsets(0, 1) == {0: (3, 9), 1: (0, 5)}
    leader.failure = errors.KafkaConnectionError("gone")
    with pytest.raises(errors.KafkaConnectionError):
        leader.list_offsets(0, 1)
    leader.failure = None
    assert leader.list_offsets(0, 1) == {0: (3, 9), 1: (0, 5)}


def test_descriptions_are_unchanged_until_a_page_or_the_reassignments_differ() -> None:
    leader = Leader(dict.fromkeys(range(3), (0, 5)))
    first = leader.describe()
    assert isinstance(first, protocol.Topics)
    assert leader.describe() == protocol.Unchanged()
    leader.decoded = 0
    assert leader.describe() == protocol.Unchanged()
    assert leader.decoded == 0
    message = ListPartitionReassignmentsResponse.OngoingTopicReassignment
    moving = message.OngoingPartitionReassignment(
        partition_index=2, replicas=[1, 2], adding_replicas=[2], removing_replicas=[]
    )
    leader.reassignments = ListPartitionReassignmentsResponse(
        error_code=0, error_message=None, topics=[message(name="t", partitions=[moving])]
    )
    moved = leader.describe()
    assert isinstance(moved, protocol.Topics)
    topic = moved.topics["t"]
    assert isinstance(topic, protocol.Topic)
    assert [state.adding for state in topic.partitions] == [(), (), (2,)]
    leader.leader = 2
    assert isinstance(leader.describe(), protocol.Topics)


class Poll:
    """Reads metadata and descriptions once a second."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def __call__(self, seconds: int) -> int:
        """Return how many times topics were described in that time."""
        before = self._leader.described
        for _ in range(seconds):
            self._leader.now += 1
            self._leader.metadata()
            self._leader.describe()
        return self._leader.described - before


def test_topics_whose_partitions_do_not_change_in_the_metadata_are_described_every_ten_seconds() -> None:
    leader = Leader({0: (0, 5)})
    poll = Poll(leader)
    assert poll(11) == 10
    assert poll(40) == 4
    leader.isr = []
    assert poll(11) == 10
    assert poll(40) == 4
    leader.order.reverse()
    assert poll(40) == 4
    leader.topic_id = UUID(int=8)
    assert poll(1) == 1
    leader.isr = [1]
    leader.now += 1
    leader.metadata()
    described = leader.describe()
    assert isinstance(described, protocol.Topics)
    topic = described.topics["t"]
    assert isinstance(topic, protocol.Topic)
    assert [state.isr for state in topic.partitions] == [(1,)]


def test_topics_are_described_in_each_poll_without_metadata_or_after_a_failure() -> None:
    leader = Leader({0: (0, 5)})
    poll = Poll(leader)
    poll(30)
    leader.failure = errors.KafkaConnectionError("gone")
    with pytest.raises(errors.KafkaConnectionError):
        leader.metadata()
    leader.failure = None
    before = leader.described
    for _ in range(30):
        leader.now += 1
        leader.describe()
    assert leader.described == before + 30
    assert poll(11) == 10
    assert poll(20) == 2


def test_other_topics_are_described_at_once() -> None:
    leader = Leader({0: (0, 5)})
    Poll(leader)(30)
    before = leader.described
    asyncio.run(leader._descriptions.read(["t", "u"]))
    assert leader.described == before + 1


def test_a_topic_that_cannot_be_described_is_never_unchanged() -> None:
    leader = Leader({0: (0, 5)})
    leader.codes[0] = protocol.UNKNOWN_TOPIC_OR_PARTITION
    for _ in range(3):
        described = leader.describe()
        assert isinstance(described, protocol.Topics)
        assert isinstance(described.topics["t"], protocol.Failure)


def test_after_a_failed_call_everything_is_sent_on() -> None:
    leader = Leader({0: (0, 5)})
    leader.metadata()
    leader.describe()
    leader.failure = errors.KafkaConnectionError("gone")
    for call in (leader.metadata, leader.describe):
        with pytest.raises(errors.KafkaConnectionError):
            call()
    leader.failure = None
    assert isinstance(leader.metadata(), protocol.Metadata)
    assert isinstance(leader.describe(), protocol.Topics)


def test_metadata_in_another_order_is_the_same() -> None:
    leader = Leader({0: (0, 5)})
    assert leader.metadata() == protocol.Metadata([1], {"t": {0: 1}, "u": {0: 1}})
    leader.order = ["u", "t"]
    assert leader.metadata() == protocol.Unchanged()
    leader.order = ["t", "u"]
    leader.decoded = 0
    assert leader.metadata() == protocol.Unchanged()
    assert leader.decoded == 0
    leader.leader = 2
    assert leader.metadata() == protocol.Metadata([1], {"t": {0: 2}, "u": {0: 2}})
    leader.leader = 1
    assert isinstance(leader.metadata(), protocol.Metadata)
