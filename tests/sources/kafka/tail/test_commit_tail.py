"""Where reading the log of commits goes on after errors that brokers seldom show, and what it reports then."""

import json
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from agent.clock import now_ms
from agent.model.batches import CommitKey
from agent.model.observations.base import Observation
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit, OffsetsPosition, OffsetsUnread
from agent.sources.kafka.tail.commit_tail import CommitTail
from agent.sources.kafka.tail.progress import COMPACTED_MS, Poll
from agent.sources.kafka.tail.records import encode_key

_STATISTICS_S = 0.1
_WAIT_S = 20
_KEY = CommitKey("group", "topic", 0)


def record(place: int, committed: int) -> Message:
    """Return a commit of the group, at this offset of the log."""
    at = now_ms()
    value = struct.pack(">hqihq", 3, committed, -1, 0, at)
    return Message(OFFSETS_TOPIC, 0, place, key=encode_key(_KEY), value=value, timestamp=(1, at))


class Log:
    """The only partition of the topic, and its consumer. assigned: the offsets from which it was to be read.

    transaction: the first offset of an open one, up to which can be read.
    """

    def __init__(self, start: int = 0, end: int = 0) -> None:
        self.start, self.end = start, end
        self.records: dict[int, Message] = {}
        self.errors: list[Message] = []
        self.assigned: list[int] = []
        self.has_leader = self.has_watermarks = True
        self.transaction: int | None = None
        self._next, self._reached, self._reported_at = end, -1_001, 0.0
        self._tell: Callable[[str], None] = lambda _: None

    def consumer(self, *_: Any, required: dict[str, Any], **__: Any) -> "Log":
        self._tell = required["stats_cb"]
        return self

    def append(self, *committed: int) -> None:
        for offset in committed:
            self.records[self.end] = record(self.end, offset)
            self.end += 1

    def truncate(self, end: int) -> None:
        self.end = end
        self.records = {place: message for place, message in self.records.items() if place < end}

    def refuse(self, code: int) -> None:
        self.errors.append(Message(OFFSETS_TOPIC, 0, error=KafkaError(code)))

    # --- as confluent-kafka's Consumer

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        (place,) = places
        self.assigned.append(place.offset)
        self._next, self._reached = self.end if place.offset == OFFSET_END else place.offset, -1_001

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        pass

    def position(self, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        return [TopicPartition(OFFSETS_TOPIC, place.partition, self._reached) for place in places]

    def get_watermark_offsets(self, place: TopicPartition, _timeout: float) -> tuple[int, int]:
        assert place.topic == OFFSETS_TOPIC
        if not self.has_watermarks:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self.start, self.end

    def poll(self, _timeout: float) -> Message | None:
        if time.monotonic() - self._reported_at > _STATISTICS_S:
            self._reported_at = time.monotonic()
            self._tell(self._statistics())
        if self.errors:
            return self.errors.pop(0)
        found = min((place for place in self.records if self._next <= place < self._stable), default=None)
        if found is None or not self.has_leader:
            time.sleep(_STATISTICS_S / 5)
            return None
        self._next = self._reached = found + 1
        return self.records[found]

    def consume(self, _count: int, _timeout: float) -> list[Message]:
        return []

    def close(self) -> None:
        pass

    @property
    def _stable(self) -> int:
        return self.end if self.transaction is None else self.transaction

    def _statistics(self) -> str:
        partition = {"broker": 1, "fetch_state": "active", "fetchq_cnt": 0, "next_offset": self._next}
        ends = {"hi_offset": self.end, "ls_offset": self._stable}
        broker = {"nodeid": 1, "state": "UP" if self.has_leader else "DOWN", "rxidle": 10}
        topics = {OFFSETS_TOPIC: {"partitions": {"0": partition | ends}}}
        return json.dumps({"ts": time.monotonic_ns() // 1_000, "brokers": {"b": broker}, "topics": topics})


class Run:
    """A run of CommitTail on this log."""

    def __init__(self, known: Sequence[Observation] = ()) -> None:
        self.emitted: list[Observation] = []
        self.tail = CommitTail("c", dict, lambda _: True, self.emitted.extend, known)

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """Poll without results until the condition holds."""
        deadline = time.monotonic() + _WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"timed out waiting for {what}"
            self.tail.set_partitions(1, now_ms())
            self.tail.raise_crash()
            self.tail.take_over([_KEY.group])
            self.tail.add_polls([], now_ms())
            time.sleep(_STATISTICS_S / 2)

    def follow(self, offset: int) -> None:
        """Poll the group, which has this offset, until it is followed."""

        def is_followed() -> bool:
            now = now_ms()
            commit = Commit(at=now, cluster="c", group=_KEY.group, topic=_KEY.topic, partition=0, offset=offset)
            self.tail.add_polls([Poll(_KEY.group, [commit], now, now)], now)
            return self.tail.is_followed(_KEY.group)

        self.wait_for(is_followed, "the group to be followed")

    def commits(self) -> list[int | None]:
        return [fact.offset for fact in self.emitted if isinstance(fact, Commit)]

    def unread(self) -> list[OffsetsUnread]:
        return [fact for fact in self.emitted if isinstance(fact, OffsetsUnread)]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    """Return a function that starts to read a log, after what is known of an earlier run."""
    runs: list[Run] = []

    def begin(log: Log, *known: Observation) -> Run:
        monkeypatch.setattr("agent.sources.kafka.tail.commit_tail.make_log_consumer", log.consumer)
        runs.append(Run(known))
        return runs[-1]

    yield begin
    for run in runs:
        run.tail.close()


def stopped(next_offset: int, committed: int, ago: int = 60_000) -> tuple[OffsetsPosition, Commit]:
    """Return what an earlier run has left: where it stopped so many ms ago, and the group's offset."""
    at = now_ms() - ago
    return (
        OffsetsPosition(at=at, seen_at=at + 5_000, cluster="c", partition=0, next_offset=next_offset, partitions=1),
        Commit(at=at - 1_000, cluster="c", group=_KEY.group, topic=_KEY.topic, partition=0, offset=committed),
    )


@pytest.mark.parametrize("log_start", [0, 500])
def test_a_truncation_before_anything_was_read_repeats_no_commit(start: Callable[..., Run], log_start: int) -> None:
    """The client does not know how far it was then: it began at the end."""
    log = Log(start=log_start, end=570)
    log.append(*range(30))
    run = start(log)
    run.follow(29)
    log.truncate(580)
    log.refuse(KafkaError._AUTO_OFFSET_RESET)
    run.wait_for(run.unread, "the unread records to be reported")
    (unread,) = run.unread()
    assert (unread.first_offset, unread.last_offset) == (None, None)
    assert unread.reason == "the log ends at 580, and 600 was to be read next: it was truncated or replaced"
    run.follow(10)
    log.append(11)
    run.wait_for(run.commits, "the next commit")
    assert (log.assigned, run.commits()) == ([OFFSET_END, 580], [11])


def test_a_refused_offset_is_tried_again_while_the_log_cannot_be_asked_for_its_ends(start: Callable[..., Run]) -> None:
    log = Log(end=600)
    run = start(log)
    run.follow(29)
    log.has_watermarks = False
    log.refuse(KafkaError._AUTO_OFFSET_RESET)
    run.wait_for(lambda: len(log.assigned) > 1, "another try")
    assert log.assigned == [OFFSET_END, 600]
    assert run.tail.is_followed(_KEY.group)


def test_records_before_a_permission_is_granted_are_reported_as_unread(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.sources.kafka.tail.commit_tail._REFUSED_MS", 100)
    log = Log()
    log.append(5, 900)
    log.refuse(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    run = start(log, *stopped(0, 1_000))
    run.wait_for(run.unread, "the unread records to be reported")
    (unread,) = run.unread()
    assert (unread.partition, unread.first_offset, unread.last_offset) == (0, 0, 1)
    assert unread.reason.startswith("brokers refused to let them be read: ")
    assert run.commits() == []


def test_records_of_a_downtime_are_reported_if_their_broker_comes_back_too_late(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.sources.kafka.tail.progress.LOST_MS", 300)
    log = Log()
    log.append(5, 900)
    log.has_leader = False
    run = start(log, *stopped(1, 1_000))
    run.wait_for(lambda: not run.tail.is_followed(_KEY.group), "the group to be polled")
    log.has_leader = True
    run.wait_for(run.unread, "the unread records to be reported")
    (unread,) = run.unread()
    assert (unread.first_offset, unread.last_offset, unread.reason) == (1, 1, "their broker was away")


def test_a_transaction_open_at_the_start_is_named_as_the_reason(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.sources.kafka.tail.progress.BEHIND_MS", 1_000)
    log = Log()
    log.append(5, 900)
    log.transaction = 1
    run = start(log, *stopped(1, 1_000))
    run.wait_for(lambda: not run.tail.is_followed(_KEY.group), "the group to be polled")
    log.transaction = None
    run.wait_for(run.unread, "the unread records to be reported")
    (unread,) = run.unread()
    assert (unread.first_offset, unread.last_offset) == (1, 1)
    assert unread.reason == "an open transaction held them back"


def test_offsets_deleted_in_a_long_downtime_are_polled(start: Callable[..., Run]) -> None:
    """Their deletions may have been compacted away: the log would never show that they are gone."""
    log = Log(end=7)
    log.append(400)
    run = start(log, *stopped(7, 1_000, ago=2 * COMPACTED_MS))
    run.wait_for(lambda: not run.tail.is_followed(_KEY.group), "the group to be polled")
    run.wait_for(run.commits, "what was written meanwhile")
    assert run.commits() == [400]
    run.follow(5)
    log.append(6)
    run.wait_for(lambda: len(run.commits()) > 1, "the next commit")
    assert (log.assigned, run.commits(), run.unread()) == ([7], [400, 6], [])


def test_records_that_end_the_thread_are_reported_and_left_out(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(end=7)
    run = start(log)
    run.follow(29)
    with monkeypatch.context() as patched:
        patched.setattr("agent.sources.kafka.tail.commit_table.CommitTable.apply", lambda *_: 1 / 0)
        log.append(30, 31)
        with pytest.raises(ZeroDivisionError):
            run.wait_for(lambda: False, "the defect")
    run.wait_for(run.unread, "the unread records to be reported")
    (unread,) = run.unread()
    assert (unread.first_offset, unread.last_offset) == (7, 8)
    assert unread.reason == "the agent failed to read them: ZeroDivisionError('division by zero')"
    run.follow(31)
    log.append(32)
    run.wait_for(run.commits, "the next commit")
    assert run.commits() == [32]
