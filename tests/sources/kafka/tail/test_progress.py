"""Which groups are followed in the log, and when they are polled again; which groups are described when."""

import json
from typing import Any

import pytest

from agent.sources.kafka.tail.group_turns import GroupTurns
from agent.sources.kafka.tail.progress import BEHIND_MS, Poll, Progress, ends_reached
from agent.sources.kafka.tail.records import partition_of

NOW = 1_795_000_000_000
HOME = partition_of("group", 4)


def statistics(of_broker: dict[str, Any] | None = None, **partition: Any) -> str:
    """Return librdkafka's statistics of a partition read up to its end, with these differences."""
    of_broker = {"nodeid": 1, "state": "UP", "rxidle": 90_000, "more": "x"} | (of_broker or {})
    of_partition = {"broker": 1, "fetch_state": "active", "fetchq_cnt": 0, "more": 7}
    of_partition |= {"next_offset": 40, "hi_offset": 40, "ls_offset": 40} | partition
    topics = {"__consumer_offsets": {"partitions": {"3": of_partition}}}
    return json.dumps({"brokers": {"127.0.0.1:9092/1": of_broker}, "topics": topics, "more": []})


def test_a_partition_read_up_to_its_end() -> None:
    assert ends_reached(statistics()) == {3: 40}
    assert ends_reached(statistics(ls_offset=-1)) == {3: 40}  # Kafka 0.10
    assert ends_reached('{"brokers": {}, "topics": {}}') == {}


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
    assert ends_reached(statistics(**differences)) == {}


def current(*, at: int = NOW) -> Progress:
    progress = Progress()
    progress.set_count(4)
    assert progress.confirm([HOME], at) == []
    return progress


def poll(sent_at: int, completed_at: int) -> Poll:
    return Poll("group", [], sent_at, completed_at)


def test_a_group_is_followed_once_its_partition_was_read_up_to_its_end_after_a_poll() -> None:
    progress = current()
    progress.add_poll(poll(NOW + 10, NOW + 30))
    assert progress.confirm([HOME], NOW + 30) == []
    assert not progress.is_followed("group")
    assert progress.confirm([HOME], NOW + 31) == [poll(NOW + 10, NOW + 30)]
    assert progress.is_followed("group")
    assert progress.confirm([HOME], NOW + 1_000) == []


def test_a_poll_from_before_the_partition_was_read_does_not_count() -> None:
    progress = current()
    progress.add_poll(poll(NOW - 1, NOW + 30))
    assert progress.confirm([HOME], NOW + 60) == []


def test_other_partitions_do_not_count() -> None:
    progress = current()
    progress.add_poll(poll(NOW + 10, NOW + 30))
    assert progress.confirm({0, 1, 2, 3} - {HOME}, NOW + 60) == []
    assert not progress.is_current or progress.confirm([HOME], NOW + 61)


def test_a_group_is_polled_again_while_its_partition_is_not_read_up_to_its_end() -> None:
    progress = current()
    progress.add_poll(poll(NOW + 10, NOW + 30))
    progress.confirm([HOME], NOW + 100)
    assert progress.lose(NOW + 100 + BEHIND_MS) == set()
    assert progress.lose(NOW + 101 + BEHIND_MS) == {"group"}
    assert not progress.is_followed("group")
    progress.add_poll(poll(NOW + 20_000, NOW + 20_010))
    assert progress.confirm([HOME], NOW + 20_020) == []  # read up to its end after the poll was sent
    progress.add_poll(poll(NOW + 20_030, NOW + 20_040))
    assert len(progress.confirm([HOME], NOW + 21_000)) == 1


def test_a_group_is_polled_again_when_records_were_left_out() -> None:
    progress = current()
    progress.add_poll(poll(NOW + 10, NOW + 30))
    progress.confirm([HOME], NOW + 100)
    progress.reset(HOME)
    assert progress.lose(NOW + 101) == {"group"}


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
