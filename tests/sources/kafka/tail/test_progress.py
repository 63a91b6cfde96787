"""Which groups are followed in the log, and when they are polled again; which groups are described when."""

import json
from typing import Any

import pytest

from agent.sources.kafka.tail.group_turns import GroupTurns
from agent.sources.kafka.tail.progress import BEHIND_MS, Poll, Progress, Reading, read_statistics
from agent.sources.kafka.tail.records import partition_of

NOW = 1_795_000_000_000
HOME = partition_of("group", 4)


def statistics(of_broker: dict[str, Any] | None = None, **partition: Any) -> str:
    """Return librdkafka's statistics of a partition read up to its end, with these differences."""
    of_broker = {"nodeid": 1, "state": "UP", "rxidle": 90_000, "more": "x"} | (of_broker or {})
    of_partition = {"broker": 1, "fetch_state": "active", "fetchq_cnt": 0, "more": 7}
    of_partition |= {"next_offset": 40, "hi_offset": 40, "ls_offset": 40} | partition
    topics = {"__consumer_offsets": {"partitions": {"3": of_partition}}}
    return json.dumps({"ts": 777, "brokers": {"127.0.0.1:9092/1": of_broker}, "topics": topics, "more": []})


def test_a_partition_read_up_to_its_end() -> None:
    at_end = Reading(3, 40, is_at_end=True, has_more=False)
    assert read_statistics(statistics()) == (777, [at_end])
    assert read_statistics(statistics(ls_offset=-1)) == (777, [at_end])  # Kafka 0.10
    assert read_statistics('{"ts": 1, "brokers": {}, "topics": {}}') == (1, [])


@pytest.mark.parametrize(
    "differences",
    [
        {"next_offset": 39},
        {"hi_offset": 41},  # a commit since, or one of an open transaction
        {"ls_offset": 38},
        {"fetchq_cnt": 1},
        {"fetch_state": "offset-query"},
        {"hi_offset": -1001, "ls_offset": -1001},  # nothing fetched yet
        {"broker": 2},
        {"broker": -1},
        {"of_broker": {"state": "DOWN"}},
        {"of_broker": {"rxidle": 2_500_000}},
        {"of_broker": {"rxidle": -1}},
    ],
)
def test_a_partition_that_may_have_more_to_read(differences: dict[str, Any]) -> None:
    _, (reading,) = read_statistics(statistics(**differences))
    assert not reading.is_at_end
    assert reading.has_more == ("fetchq_cnt" in differences)


def at_end(partition: int = HOME, offset: int = 5) -> list[Reading]:
    return [Reading(partition, offset, is_at_end=True, has_more=False)]


def behind(offset: int, *, has_more: bool = False) -> list[Reading]:
    return [Reading(HOME, offset, is_at_end=False, has_more=has_more)]


def poll(sent_at: int, completed_at: int) -> Poll:
    return Poll("group", [], sent_at, completed_at)


def current() -> Progress:
    """Return the progress of reading whose only known partition was read up to its end."""
    progress = Progress()
    progress.count = 4
    assert progress.update(at_end(), NOW) == []
    return progress


def following() -> Progress:
    """Return the progress of reading in which the group is followed since NOW + 100."""
    progress = current()
    progress.add_poll(poll(NOW + 10, NOW + 30))
    assert progress.update(at_end(), NOW + 100) == [poll(NOW + 10, NOW + 30)]
    return progress


def test_a_group_is_followed_once_its_partition_was_read_up_to_its_end_after_a_poll() -> None:
    progress = current()
    progress.add_poll(poll(NOW + 10, NOW + 30))
    assert progress.update(at_end(), NOW + 30) == []
    assert not progress.is_followed("group")
    assert progress.update(at_end(), NOW + 31) == [poll(NOW + 10, NOW + 30)]
    assert progress.groups == ["group"]
    assert progress.update(at_end(), NOW + 1_000) == []
    progress.forget("group")
    assert not progress.is_followed("group")


def test_a_poll_from_before_the_partition_was_read_does_not_count() -> None:
    progress = current()
    progress.add_poll(poll(NOW - 1, NOW + 30))
    assert progress.update(at_end(), NOW + 60) == []


def test_other_partitions_do_not_count() -> None:
    progress = current()
    progress.add_poll(poll(NOW + 10, NOW + 30))
    for other in {0, 1, 2, 3} - {HOME}:
        assert progress.update(at_end(other), NOW + 60) == []
    assert progress.is_current
    assert progress.held_at(NOW + 60) == NOW


def test_a_group_is_polled_again_while_the_reading_of_its_partition_stands_still() -> None:
    progress = following()
    progress.update(behind(5), NOW + 1_100)  # an open transaction
    assert progress.lose(NOW + 100 + BEHIND_MS) == []
    assert progress.lose(NOW + 101 + BEHIND_MS) == ["group"]
    assert not progress.is_followed("group")
    progress.add_poll(poll(NOW + 20_000, NOW + 20_010))
    assert progress.update(at_end(), NOW + 20_020) == []  # read up to its end after the poll was sent
    progress.add_poll(poll(NOW + 20_030, NOW + 20_040))
    assert len(progress.update(at_end(), NOW + 21_000)) == 1


def test_a_group_is_followed_through_what_was_written_while_nothing_was_read() -> None:
    progress = following()
    for second in range(1, 40):
        progress.update(behind(5 + second) if second % 2 else behind(4 + second, has_more=True), NOW + second * 1_000)
        assert progress.lose(NOW + second * 1_000 + 900) == []
    assert progress.held_at(NOW + 39_000) == NOW + 100


def test_a_group_stays_followed_while_the_agent_is_suspended() -> None:
    progress = following()
    assert progress.lose(NOW + 1_000) == []
    progress.update(behind(5), NOW + 60_000)  # as it was before
    assert progress.lose(NOW + 60_000) == []
    progress.update(behind(9, has_more=True), NOW + 61_000)
    assert progress.lose(NOW + 61_000) == []
    assert progress.held_at(NOW + 61_000) == NOW + 100
    for second in range(62, 65):
        assert progress.lose(NOW + second * 1_000) == []
    assert progress.lose(NOW + 65_000) == ["group"]


def test_a_group_is_polled_again_when_records_were_left_out() -> None:
    progress = following()
    progress.reset([HOME])
    assert not progress.is_followed("group")


def test_groups_are_described_when_polled_touched_or_in_turn() -> None:
    followed = {"a", "b"}
    turns = GroupTurns(followed.__contains__)
    everything = ["a", "b", "c"]
    assert turns.take_due(everything, NOW) == everything
    assert turns.take_due(everything, NOW + 1_000) == ["c"]
    turns.touch(["b", "unknown"])
    assert turns.take_due(everything, NOW + 2_000) == ["b", "c"]
    assert turns.take_due(everything, NOW + 10_000) == ["a", "c"]
    assert turns.take_due(everything, NOW + 12_000) == ["b", "c"]
    followed.clear()
    assert turns.take_due(everything, NOW + 12_001) == everything
