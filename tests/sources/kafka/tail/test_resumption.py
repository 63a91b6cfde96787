"""Which positions are put in the journal, and which records a later run takes as new."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from agent.model.batches import CommitKey
from agent.model.group_partition import partition_of
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, OffsetsPosition
from agent.sources.base import HEARTBEAT_MS
from agent.sources.kafka.tail.records import encode_key
from agent.sources.kafka.tail.resumption import End, PositionJournal, Resumption

NOW = 1_795_000_000_000
COUNT = 4
HOME = partition_of("group", COUNT)


class Record:
    """A record of `__consumer_offsets` as a consumer returns it."""

    def __init__(self, offset: int | None, at: int, topic: str = "topic") -> None:
        self.offset = offset
        self._at = at
        self._key = encode_key(CommitKey("group", topic, 0))

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return None if self.offset is None else struct.pack(">hqihq", 3, self.offset, -1, 0, self._at)

    def timestamp(self) -> tuple[int, int]:
        return 1, self._at


def position(at: int = NOW, **more: Any) -> OffsetsPosition:
    fields: dict[str, Any] = {"cluster": "c", "partition": HOME, "next_offset": 7, "partitions": COUNT} | more
    return OffsetsPosition(at=at, seen_at=at + 5_000, **fields)


def commit(offset: int | None, at: int, seen_at: int | None = None, **more: Any) -> Commit:
    fields: dict[str, Any] = {"cluster": "c", "group": "group", "topic": "topic", "partition": 0} | more
    return Commit(at=at, seen_at=seen_at, offset=offset, **fields)


def resumption(*known: Observation) -> Resumption:
    return Resumption([position(), *known], lambda group: group != "other")


def new(resumed: Resumption, *records: Record) -> list[int | None]:
    messages: Any = records
    return offsets(resumed.select_new(messages))


def offsets(messages: Sequence[Any]) -> list[int | None]:
    return [message.offset for message in messages]


def test_records_are_new_if_all_before_the_position_had_been_observed() -> None:
    resumed = resumption(commit(100, NOW - 10, NOW))
    assert resumed.positions == {HOME: End(7, NOW)}
    assert [known.offset for known in resumed.commits["group"]] == [100]
    assert new(resumed, Record(90, NOW + 1), Record(100, NOW + 2)) == [90, 100]


def test_records_up_to_the_one_observed_last_are_left_out() -> None:
    resumed = resumption(commit(100, NOW + 300, NOW + 310), commit(5, NOW - 500, NOW - 400, topic="quiet"))
    records = [Record(80, NOW + 100), Record(4, NOW + 150, "quiet"), Record(90, NOW + 200), Record(100, NOW + 300)]
    assert new(resumed, *records) == [4]
    assert new(resumed, Record(70, NOW + 400), Record(100, NOW + 500)) == [70, 100]


def test_a_deletion_observed_last_is_found_too() -> None:
    resumed = resumption(commit(None, NOW + 300, NOW + 310))
    assert resumed.commits == {}
    assert new(resumed, Record(80, NOW + 100), Record(None, NOW + 300), Record(3, NOW + 400)) == [3]


def test_records_are_new_once_a_later_one_shows_that_the_one_observed_last_came_before() -> None:
    """It waited for the end of its second when the position was reached."""
    resumed = resumption(commit(100, NOW - 400, NOW + 400))
    assert new(resumed, Record(80, NOW - 400)) == []
    assert new(resumed, Record(100, NOW + 100)) == [80, 100]


def test_records_that_wait_are_new_when_their_partition_has_been_read_up_to_its_end() -> None:
    resumed = resumption(commit(100, NOW + 600_000))  # a heartbeat
    assert new(resumed, Record(80, NOW + 100), Record(90, NOW + 200)) == []
    assert offsets(resumed.release({0, 1, 2, 3} - {HOME})) == []
    assert offsets(resumed.release([HOME])) == [80, 90]
    assert offsets(resumed.release([HOME])) == []
    assert new(resumed, Record(95, NOW + 300)) == [95]


@pytest.mark.parametrize("ahead", [0, 20_000])
def test_a_polled_commit_is_recognized_though_it_is_dated_otherwise(ahead: int) -> None:
    resumed = resumption(commit(100, NOW + 900))
    records = Record(80, NOW + ahead), Record(100, NOW + ahead), Record(60, NOW + ahead)
    assert new(resumed, *records) == []
    assert offsets(resumed.release([HOME])) == [60]


def test_a_rewind_that_was_observed_before_the_restart_is_not_new() -> None:
    resumed = resumption(commit(100, NOW + 3_000, NOW + 3_010))
    assert new(resumed, Record(100, NOW + 1_000), Record(50, NOW + 2_000), Record(100, NOW + 3_000)) == []
    assert offsets(resumed.release([HOME])) == []


@pytest.mark.parametrize("known", [NOW + 800, NOW + 600_000])
def test_a_rewind_during_the_downtime_that_regains_its_offset_is_new(known: int) -> None:
    """A poll or a heartbeat has shown the offset at that moment, and no clock is known to be ahead by as much."""
    resumed = Resumption([position(clock_ahead=250), commit(100, known)], lambda _: True)
    assert new(resumed, Record(100, known + 900), Record(40, known + 5_000), Record(100, known + 9_000)) == [40, 100]


def test_only_groups_whose_commits_are_in_the_log_are_resumed() -> None:
    share = GroupState(at=NOW, cluster="c", group="group", state="Stable", type="share")
    assert resumption(commit(1, NOW), share).commits == {}
    assert resumption(commit(1, NOW, group="other")).commits == {}
    elsewhere = next(name for name in map(str, range(99)) if partition_of(name, COUNT) != HOME)
    assert resumption(commit(1, NOW, group=elsewhere)).commits == {}
    assert Resumption([commit(1, NOW)], lambda _: True).commits == {}


def test_positions_of_a_topic_that_had_more_partitions_are_not_used() -> None:
    other = next(number for number in range(COUNT) if number != HOME)
    known = [position(partitions=2 * COUNT), position(NOW + 1, partition=other)]
    assert Resumption(known, lambda _: True).positions == {other: End(7, NOW + 1)}
    known = [position(partitions=COUNT - 1), position(NOW + 1, partition=other)]
    assert Resumption(known, lambda _: True).positions == {HOME: End(7, NOW), other: End(7, NOW + 1)}


def test_a_position_is_put_in_the_journal_once_its_commits_have_been_observed() -> None:
    journal = PositionJournal("c")
    assert journal.take_due({HOME: End(7, NOW)}, COUNT, NOW + 100) == []
    assert journal.take_due({HOME: End(9, NOW + 4_000)}, COUNT, NOW + 4_900) == []
    assert journal.take_due({HOME: End(9, NOW + 5_000)}, COUNT, NOW + 5_000) == [position()]
    taken = []
    for second in range(6, 40):
        at = NOW + second * 1_000
        taken += journal.take_due({HOME: End(second, at)}, COUNT, at)
    assert [(fact.at - NOW, fact.next_offset) for fact in taken] == [(10_000, 10), (20_000, 20), (30_000, 30)]


def test_a_position_waits_for_the_commits_that_are_held_until_a_poll() -> None:
    journal = PositionJournal("c")
    taken = []
    for second, held in enumerate([None, 700, 700, 700, 700, 700, 700, 700, 1_500, None]):
        now, held_since = NOW + second * 1_000, None if held is None else NOW + held
        taken.append(journal.take_due({HOME: End(7, NOW)}, COUNT, now + 800, held_since, 20))
    assert [len(due) for due in taken] == [0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert [(fact.next_offset, fact.at, fact.clock_ahead) for due in taken for fact in due] == [(7, NOW, 20)]


def test_positions_are_put_in_the_journal_after_the_clock_was_set_back() -> None:
    journal = PositionJournal("c")
    assert journal.take_due({HOME: End(7, NOW)}, COUNT, NOW) == []
    assert [fact.next_offset for fact in journal.take_due({HOME: End(7, NOW)}, COUNT, NOW + 5_000)] == [7]
    taken = []
    for second in range(30):
        at = NOW - 3_600_000 + second * 1_000
        taken += journal.take_due({HOME: End(8 + second, at)}, COUNT, at)
    assert [fact.next_offset for fact in taken] == [8, 18, 28]


def test_a_position_that_stands_still_is_repeated_so_that_the_journal_has_it() -> None:
    journal = PositionJournal("c")
    taken = []
    for second in range(0, 2 * HEARTBEAT_MS // 1_000 + 60, 5):
        at = NOW + second * 1_000
        taken += journal.take_due({HOME: End(7, at)}, COUNT, at)
    assert [(fact.at - NOW) // HEARTBEAT_MS for fact in taken] == [0, 1, 2]


def test_a_position_is_dropped_when_records_of_its_partition_are_left_out() -> None:
    journal = PositionJournal("c")
    journal.take_due({HOME: End(7, NOW)}, COUNT, NOW)
    journal.discard([HOME])
    assert journal.take_due({HOME: End(9, NOW + 6_000)}, COUNT, NOW + 6_000) == []
