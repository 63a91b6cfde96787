"""Requests about many groups in few: what is answered how, without brokers."""

import asyncio
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from kafka import errors
from kafka.protocol.admin import DescribeGroupsResponse
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from agent.model.observations.kafka import GroupState, Member
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.coordinators import Coordinators
from agent.sources.kafka.admin.group_batches import Connections, GroupBatches
from agent.sources.kafka.admin.group_queries import Answer, ClassicDescriptions
from agent.sources.kafka.admin.repeated_request import LazyResponse
from agent.sources.kafka.admin.schemas import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

_MOVED = 16
_REFUSED = 30
_NOT_FOUND = 69


class Brokers:
    """Coordinators of groups, and what was asked of them and answered.

    offsets: by group, one for each partition of topic t. codes: errors of groups. states: of groups, besides Stable.
    lookups: how often coordinators were looked up. answers_before_lookup: whether that takes until a group is answered.
    asked: the groups of each other request. new: groups of the consumer protocol, whose members have their partitions
    as bytes.
    """

    def __init__(self, *groups: str) -> None:
        self.offsets = {group: [5] for group in groups}
        self.codes: dict[str, int] = {}
        self.states: dict[str, str] = {}
        self.new: set[str] = set()
        self.members: dict[str, list[tuple[str, bytes]]] = {}
        self.coordinator = 1
        self.failure: Exception | None = None
        self.lookups = 0
        self.asked: list[list[str]] = []
        self.decoded = 0
        self.results: dict[str, protocol.Result] = {}
        self.handed_back: list[str] = []
        self.now = 0.0
        self.answers_before_lookup = False
        self._by_number: dict[int, str] = {}
        self._done, self._answered = asyncio.Event(), asyncio.Event()
        self._batches = GroupBatches(
            "main",
            Coordinators(self._send),
            Connections(
                self._send, self._pause, asyncio.ensure_future, self._respond, self._hand_back, lambda: self.now
            ),
        )

    def list_commits(self, *groups: str, complete: bool = False, connected: bool = True) -> dict[str, protocol.Result]:
        """Ask for the offsets of groups and return the results."""
        return self._ask([protocol.ListCommits(group, complete=complete) for group in groups], connected=connected)

    def describe(self, *groups: str) -> dict[str, protocol.Result]:
        """Ask for the states of groups and return the results."""
        return self._ask([protocol.DescribeGroup(group, complete=False) for group in groups])

    def _ask(
        self, requests: Sequence[protocol.ListCommits | protocol.DescribeGroup], *, connected: bool = True
    ) -> dict[str, protocol.Result]:
        self.results, self.handed_back, self.asked = {}, [], []
        self._by_number = {number: request.group for number, request in enumerate(requests)}
        messages = [protocol.NumberedRequest(number, 0, request) for number, request in enumerate(requests)]

        async def run() -> None:
            self._done, self._answered = asyncio.Event(), asyncio.Event()
            await self._batches.ask(messages, connected=connected)
            await self._done.wait()

        asyncio.run(asyncio.wait_for(run(), 30))
        return self.results

    async def _send(self, request: Any, broker: int | None = None, timeout_ms: int | None = None) -> Any:  # noqa: ARG002
        if self.failure is not None:
            failure = self.failure
            if not isinstance(failure, errors.IncompatibleBrokerVersion):
                self.failure = None
            raise failure
        if isinstance(request, FindCoordinatorRequest):
            self.lookups += 1
            if self.answers_before_lookup:
                await self._answered.wait()
            coordinator = FindCoordinatorResponse.Coordinator
            return FindCoordinatorResponse(
                coordinators=[
                    coordinator(key=key, node_id=self.coordinator, error_code=0) for key in request.coordinator_keys
                ]
            )
        is_offsets = request.API_KEY == OffsetFetchRequest.API_KEY
        is_new = request.API_KEY == ConsumerGroupDescribeRequest.API_KEY
        groups = list(request.group_ids if is_new else request.groups)
        if is_offsets:
            groups = [group.group_id for group in groups]
        self.asked.append(groups)
        codes = {group: self.codes.get(group, 0) if broker == self.coordinator else _MOVED for group in groups}
        if is_new:
            return self._counted(self._new_states(codes))
        return self._counted(self._offsets(codes) if is_offsets else self._states(codes))

    def _counted(self, response: LazyResponse) -> Any:
        brokers = self

        class Counted(LazyResponse):
            def decode(self) -> Any:
                brokers.decoded += 1
                return super().decode()

        return Counted(*response)

    def _offsets(self, codes: Mapping[str, int]) -> LazyResponse:
        message = OffsetFetchResponse
        encoded = message(
            throttle_time_ms=0,
            groups=[
                message.OffsetFetchResponseGroup(
                    group_id=group,
                    error_code=code,
                    topics=[
                        message.OffsetFetchResponseGroup.OffsetFetchResponseTopics(
                            name="t",
                            partitions=[
                                message.OffsetFetchResponseGroup.OffsetFetchResponseTopics.OffsetFetchResponsePartitions(
                                    partition_index=number,
                                    committed_offset=offset,
                                    committed_leader_epoch=-1,
                                    metadata="",
                                    error_code=0,
                                )
                                for number, offset in enumerate(self.offsets[group])
                            ],
                        )
                    ],
                )
                for group, code in codes.items()
            ],
        ).encode(version=8)
        return LazyResponse(message[8], 0, bytes(encoded[4:]))

    def _states(self, codes: Mapping[str, int]) -> LazyResponse:
        message = DescribeGroupsResponse
        encoded = message(
            throttle_time_ms=0,
            groups=[
                message.DescribedGroup(
                    error_code=code or (_NOT_FOUND if group in self.new else 0),
                    group_id=group,
                    group_state=self.states.get(group, "Stable"),
                    protocol_type="consumer",
                    protocol_data="range",
                    members=[
                        message.DescribedGroup.DescribedGroupMember(
                            member_id=member,
                            client_id="c",
                            client_host="/10.0.0.1",
                            member_metadata=b"",
                            member_assignment=assignment,
                        )
                        for member, assignment in self.members.get(group, [])
                    ],
                )
                for group, code in codes.items()
            ],
        ).encode(version=5)
        return LazyResponse(message[5], 0, bytes(encoded[4:]))

    def _new_states(self, codes: Mapping[str, int]) -> LazyResponse:
        message = ConsumerGroupDescribeResponse
        encoded = message(
            throttle_time_ms=0,
            groups=[
                message.DescribedGroup(
                    error_code=code or (0 if group in self.new else _NOT_FOUND),
                    group_id=group,
                    group_state=self.states.get(group, "Stable"),
                    assignor_name="uniform",
                    members=[
                        message.DescribedGroup.Member(
                            member_id=member,
                            client_id="c",
                            client_host="/10.0.0.1",
                            assignment=message.DescribedGroup.Member.Assignment(
                                topic_partitions=[
                                    message.DescribedGroup.Member.Assignment.TopicPartitions(
                                        topic_id=UUID(int=7), topic_name="t", partitions=list(assignment)
                                    )
                                ]
                            ),
                            target_assignment=message.DescribedGroup.Member.Assignment(topic_partitions=[]),
                        )
                        for member, assignment in self.members.get(group, [])
                    ],
                )
                for group, code in codes.items()
            ],
        ).encode(version=1)
        return LazyResponse(message[1], 0, bytes(encoded[4:]))

    async def _pause(self, _: float) -> None:
        await asyncio.sleep(0)

    def _respond(self, number: int, result: protocol.Result) -> None:
        group = self._by_number[number]
        assert group not in self.results, "answered twice"
        self.results[group] = result
        self._answered.set()
        self._check_done()

    def _hand_back(self, message: protocol.NumberedRequest, _: str) -> None:
        self.handed_back.append(self._by_number[message.number])
        self._check_done()

    def _check_done(self) -> None:
        if len(self.results) + len(self.handed_back) == len(self._by_number):
            self._done.set()


def _read_offsets(result: protocol.Result) -> list[int | None]:
    assert isinstance(result, protocol.Commits)
    return [commit.offset for commit in result]


def _assignment(*partitions: int) -> bytes:
    numbers = b"".join(struct.pack(">i", partition) for partition in partitions)
    return struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">i", len(partitions)) + numbers + struct.pack(">i", -1)


def test_what_has_not_changed_is_neither_decoded_nor_sent_again() -> None:
    brokers = Brokers("a", "b", "c")
    assert all(_read_offsets(result) == [5] for result in brokers.list_commits("a", "b", "c").values())
    assert brokers.decoded == 1
    assert set(brokers.list_commits("a", "b", "c").values()) == {protocol.Unchanged()}
    assert (brokers.decoded, brokers.lookups) == (1, 1)


def test_a_group_that_changes_shares_no_request_with_quiet_ones() -> None:
    """Only its own results are sent."""
    brokers = Brokers("a", "b", "c")
    brokers.list_commits("a", "b", "c")
    brokers.offsets["b"] = [3]
    results = brokers.list_commits("a", "b", "c")
    assert _read_offsets(results.pop("b")) == [3]
    assert set(results.values()) == {protocol.Unchanged()}
    brokers.list_commits("a", "b", "c")
    assert sorted(brokers.asked) == [["a", "c"], ["b"]]
    decoded = brokers.decoded
    results = brokers.list_commits("a", "b", "c")
    assert set(results.values()) == {protocol.Unchanged()}
    assert brokers.decoded == decoded + 1


def test_a_result_is_sent_in_full_when_that_is_asked_for() -> None:
    brokers = Brokers("a", "b")
    brokers.list_commits("a", "b")
    assert _read_offsets(brokers.list_commits("a", complete=True)["a"]) == [5]


def test_results_that_stay_the_same_are_not_sent_again() -> None:
    brokers = Brokers("a", "b")
    brokers.list_commits("a", "b")
    for brokers.now in range(10, 1_000, 10):
        assert set(brokers.list_commits("a", "b").values()) == {protocol.Unchanged()}


def test_groups_follow_their_coordinator() -> None:
    brokers = Brokers("a", "b")
    brokers.list_commits("a", "b")
    brokers.coordinator = 2
    brokers.offsets["a"] = [6]
    results = brokers.list_commits("a", "b")
    assert _read_offsets(results["a"]) == [6]
    assert results["b"] == protocol.Unchanged()
    assert brokers.lookups == 2


@pytest.mark.parametrize("failure", [errors.RequestTimedOutError(), errors.KafkaConnectionError("closed")])
def test_requests_are_sent_until_the_coordinator_answers(failure: Exception) -> None:
    brokers = Brokers("a", "b")
    brokers.list_commits("a", "b")
    brokers.failure = failure
    assert set(brokers.list_commits("a", "b").values()) == {protocol.Unchanged()}
    brokers = Brokers("a")
    brokers.failure = failure  # while the coordinator is looked up
    assert _read_offsets(brokers.list_commits("a")["a"]) == [5]


def test_no_group_waits_for_the_coordinator_of_another() -> None:
    """A frozen broker may have been asked for it."""
    brokers = Brokers("a", "b")
    brokers.list_commits("a")
    brokers.answers_before_lookup = True
    results = brokers.list_commits("b", "a")
    assert results["a"] == protocol.Unchanged()
    assert _read_offsets(results["b"]) == [5]


def test_requests_handed_back_leave_other_groups_undecoded() -> None:
    brokers = Brokers("a", "b")
    brokers.codes["a"] = _REFUSED
    for _ in range(2):
        brokers.list_commits("a", "b")
    decoded = brokers.decoded
    assert brokers.list_commits("a", "b") == {"b": protocol.Unchanged()}
    assert (brokers.handed_back, brokers.decoded) == (["a"], decoded)


def test_what_a_batch_does_not_show_is_handed_back() -> None:
    """For some time at once; then the result is sent in full, for librdkafka's were others."""
    brokers = Brokers("a", "b")
    brokers.list_commits("a", "b")
    brokers.codes["a"] = _REFUSED
    assert brokers.list_commits("a", "b") == {"b": protocol.Unchanged()}
    assert brokers.handed_back == ["a"]
    brokers.list_commits("a", "b")
    assert (brokers.handed_back, brokers.asked) == (["a"], [["b"]])


def test_a_group_that_was_handed_back_is_sent_in_full_afterwards() -> None:
    brokers = Brokers("a")
    brokers.list_commits("a")
    brokers.codes["a"] = _REFUSED
    brokers.list_commits("a")
    brokers.codes.clear()
    brokers.now = 601
    assert _read_offsets(brokers.list_commits("a")["a"]) == [5]


def test_all_is_handed_back_while_brokers_are_too_old() -> None:
    brokers = Brokers("a", "b")
    brokers.failure = errors.IncompatibleBrokerVersion("old")
    assert brokers.list_commits("a", "b") == {}
    assert sorted(brokers.handed_back) == ["a", "b"]
    brokers.failure = None
    brokers.list_commits("a")
    assert (brokers.handed_back, brokers.asked) == (["a"], [])


def test_all_is_handed_back_without_a_connection() -> None:
    brokers = Brokers("a")
    brokers.list_commits("a")
    assert brokers.list_commits("a", connected=False) == {}
    assert brokers.handed_back == ["a"]
    assert _read_offsets(brokers.list_commits("a")["a"]) == [5]


def test_groups_are_described_with_what_their_members_read() -> None:
    brokers = Brokers("a", "b")
    brokers.members["a"] = [("m-2", _assignment(1)), ("m-1", _assignment(2, 0))]
    state = brokers.describe("a", "b")["a"]
    assert isinstance(state, GroupState)
    assert (state.state, state.simple, state.assignor) == ("Stable", False, "range")
    assert state.members == (
        Member(id="m-1", host="/10.0.0.1", partitions=(("t", 0), ("t", 2)), client_id="c"),
        Member(id="m-2", host="/10.0.0.1", partitions=(("t", 1),), client_id="c"),
    )
    assert set(brokers.describe("a", "b").values()) == {protocol.Unchanged()}
    brokers.members["a"].pop()
    results = brokers.describe("a", "b")
    assert isinstance(results["a"], GroupState)
    assert results["b"] == protocol.Unchanged()


@pytest.mark.parametrize("assignment", [b"\0", _assignment(1)[:-6]])
def test_an_undecodable_assignment_is_handed_back(assignment: bytes) -> None:
    brokers = Brokers("a")
    brokers.members["a"] = [("m", assignment)]
    assert brokers.describe("a") == {}
    assert brokers.handed_back == ["a"]


def test_a_dead_group_is_described_by_librdkafka() -> None:
    """It may be one of the consumer protocol."""
    brokers = Brokers("a")
    brokers.states["a"] = "Dead"
    assert brokers.describe("a") == {}
    assert brokers.handed_back == ["a"]


def test_a_thousand_groups_take_few_requests() -> None:
    groups = [f"group-{number}" for number in range(1_000)]
    brokers = Brokers(*groups)
    assert len(brokers.list_commits(*groups)) == 1_000
    assert len(brokers.asked) <= 32
    decoded = brokers.decoded
    assert set(brokers.list_commits(*groups).values()) == {protocol.Unchanged()}
    assert brokers.decoded == decoded


def test_groups_that_are_gone_are_forgotten() -> None:
    groups = [f"group-{number}" for number in range(3_000)]
    brokers = Brokers(*groups)
    brokers.list_commits(*groups)
    brokers.list_commits("group-0")
    assert [
        len(remembered) for remembered in (brokers._batches._coordinators, brokers._batches._queries[1][1][0]._facts)
    ] == [1, 1]


def test_groups_of_the_consumer_protocol_are_described_in_batches() -> None:
    brokers = Brokers("a", "b", "c")
    brokers.new = {"b", "c"}
    brokers.members["b"] = [("m-2", bytes([2])), ("m-1", bytes([0, 1]))]
    brokers.states["b"] = "Reconciling"
    states = brokers.describe("a", "b", "c")
    assert brokers.asked == [["a", "b", "c"], ["b", "c"]]
    state = states["b"]
    assert isinstance(state, GroupState)
    assert (state.state, state.simple, state.assignor) == ("Reconciling", False, "uniform")
    assert [(member.id, member.partitions) for member in state.members] == [
        ("m-1", (("t", 0), ("t", 1))),
        ("m-2", (("t", 2),)),
    ]
    brokers.describe("a", "b", "c")
    decoded = brokers.decoded
    assert set(brokers.describe("a", "b", "c").values()) == {protocol.Unchanged()}
    assert sorted(brokers.asked) == [["a"], ["b", "c"]]
    assert brokers.decoded == decoded
    assert brokers.handed_back == []


def test_a_group_may_change_its_protocol_and_back() -> None:
    """It is sent in full each time, also if it looks as it did before."""
    brokers = Brokers("a")
    brokers.describe("a")
    for number in range(1, 7):
        brokers.new = {"a"} if number % 2 else set()
        brokers.now = 700 * number
        (state,) = brokers.describe("a").values()
        assert isinstance(state, GroupState)
        assert state.assignor == ("uniform" if number % 2 else "range")
        assert brokers.describe("a") == {"a": protocol.Unchanged()}


def test_a_group_that_no_query_shows_is_handed_back() -> None:
    brokers = Brokers("a", "b")
    brokers.codes["a"] = _NOT_FOUND
    assert list(brokers.describe("a", "b")) == ["b"]
    assert brokers.handed_back == ["a"]


def test_offsets_that_return_with_a_former_coordinator_are_sent_again() -> None:
    """Its response is the same as its last one, but another coordinator has shown something else since."""
    brokers = Brokers("a", "b")
    brokers.list_commits("a", "b")
    brokers.list_commits("a", "b")
    brokers.coordinator, brokers.offsets["a"] = 2, [9]
    assert _read_offsets(brokers.list_commits("a", "b")["a"]) == [9]
    brokers.coordinator, brokers.offsets["a"] = 1, [5]
    brokers.now = 61
    assert _read_offsets(brokers.list_commits("a", "b")["a"]) == [5]


def test_offsets_that_return_when_a_group_falls_quiet_are_sent_again() -> None:
    brokers = Brokers("a", "b")
    brokers.list_commits("a", "b")
    brokers.list_commits("a", "b")
    brokers.offsets["a"] = [6]
    brokers.list_commits("a", "b")
    brokers.offsets["a"] = [9]
    assert _read_offsets(brokers.list_commits("a", "b")["a"]) == [9]
    brokers.now, brokers.offsets["a"] = 61, [6]
    assert _read_offsets(brokers.list_commits("a", "b")["a"]) == [6]


def test_a_defect_leaves_no_request_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of a group that would have been asked about in another way."""

    def read(*_: object) -> Iterator[Answer]:
        yield Answer("a", _NOT_FOUND)
        raise RuntimeError

    monkeypatch.setattr(ClassicDescriptions, "read", read)
    brokers = Brokers("a", "b")
    assert brokers.describe("a", "b") == {}
    assert sorted(brokers.handed_back) == ["a", "b"]
