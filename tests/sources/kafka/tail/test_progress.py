"""Which groups are followed in the log, and when they are polled again; which groups are described when."""

import json
from typing import Any

import pytest

from agent.model.group_partition import partition_of
from agent.model.observations.kafka import Commit
from agent.sources.kafka.tail.group_turns import GroupTurns
from agent.sources.kafka.tail.progress import (
    BEHIND_MS,
    CATCH_UP_MS,
    LATE_MS,
    LOST_MS,
    Poll,
    Progress,
    Reading,
    read_statistics,
)
from agent.sources.kafka.tail.resumption import End

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
    assert reading.is_held_back == (differences in ({"ls_offset": 38}, {"hi_offset": 41}))


def at_end(partition: int = HOME, offset: int = 5) -> list[Reading]:
    return [Reading(partition, offset, is_at_end=True, has_more=False)]


def behind(offset: int, *, has_more: bool = False, is_held_back: bool = False) -> list[Reading]:
    return [Reading(HOME, offset, is_at_end=False, has_more=has_more, is_held_back=is_held_back)]


def poll(sent_at: int, completed_at: int) -> Poll:
    return Poll("group", [], sent_at, completed_at)


def current() -> Progress:
    """Return the progress of reading whose only known partition was read up to its end."""
    progress = Progress()
    progress.set_count(4, NOW)
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


def test_polls_that_follow_each_other_faster_than_readings_do_not_keep_a_group_from_being_followed() -> None:
    """Readings are known late: another poll has been completed by then."""
    commits = [
        Commit(at=NOW, cluster="main", group="group", topic="t", partition=0, offset=offset) for offset in (7, 9)
    ]
    progress = current()
    for sent_at in range(NOW + 10, NOW + 130, 30):
        progress.add_poll(Poll("group", commits[:1], sent_at, sent_at + 5))
    assert [poll.sent_at for poll in progress.update(at_end(), NOW + 60)] == [NOW + 10]
    progress.forget("group")
    for sent_at, commit in zip(range(NOW + 210, NOW + 330, 30), (commits[0], *commits[1:] * 3), strict=True):
        progress.add_poll(Poll("group", [commit], sent_at, sent_at + 5))
    assert progress.update(at_end(), NOW + 240) == []  # what the log says until then is older than what was observed
    assert [poll.sent_at for poll in progress.update(at_end(), NOW + 250)] == [NOW + 240]


def test_other_partitions_do_not_count() -> None:
    progress = current()
    progress.add_poll(poll(NOW + 10, NOW + 30))
    for other in {0, 1, 2, 3} - {HOME}:
        assert progress.update(at_end(other), NOW + 60) == []
    assert progress.is_current
    assert progress.held_at(NOW + 60) == NOW


def test_a_group_is_polled_again_while_a_transaction_holds_its_partition_up() -> None:
    progress = following()
    progress.lose(NOW + 100)
    progress.update(behind(5, is_held_back=True), NOW + 1_100)
    watch(progress, NOW + 1_100, NOW + 100 + BEHIND_MS)
    assert progress.is_followed("group")
    assert progress.lose(NOW + 101 + BEHIND_MS) == ["group"]
    assert not progress.is_followed("group")
    progress.add_poll(poll(NOW + 20_000, NOW + 20_010))
    assert progress.update(at_end(), NOW + 20_020) == []  # read up to its end after the poll was sent
    progress.add_poll(poll(NOW + 20_030, NOW + 20_040))
    assert len(progress.update(at_end(), NOW + 21_000)) == 1


def test_a_group_stays_followed_while_the_leader_of_its_partition_is_away() -> None:
    progress = following()
    progress.lose(NOW + 100)
    watch(progress, NOW + 1_000, NOW + BEHIND_MS)
    assert progress.stalled_groups == []
    watch(progress, NOW + BEHIND_MS, NOW + LOST_MS)
    assert progress.stalled_groups == ["group"]
    progress.update(behind(7, has_more=True), NOW + LOST_MS)
    assert progress.lose(NOW + LOST_MS + 900) == []
    assert progress.stalled_groups == []
    watch(progress, NOW + LOST_MS + 900, NOW + 2 * LOST_MS)
    assert progress.lose(NOW + 2 * LOST_MS + 1) == ["group"]


def test_a_group_stays_followed_while_no_broker_answers_a_poll() -> None:
    progress = following()
    progress.lose(NOW + 100)
    watch(progress, NOW + 1_000, NOW + LOST_MS)
    progress.wait(NOW + LOST_MS)
    watch(progress, NOW + LOST_MS, NOW + 2 * LOST_MS)
    assert progress.is_followed("group")


def watch(progress: Progress, begin: int, end: int) -> None:
    """Look at the progress once a second, and find no group lost."""
    for now in range(begin, end, 1_000):
        assert progress.lose(now) == []


def test_a_group_is_followed_through_what_was_written_while_nothing_was_read() -> None:
    progress = following()
    progress.lose(NOW)
    for second in range(1, 40):
        progress.update(behind(5 + second) if second % 2 else behind(4 + second, has_more=True), NOW + second * 1_000)
        assert progress.lose(NOW + second * 1_000 + 900) == []
    assert progress.held_at(NOW + 39_000) == NOW + 100


def test_a_group_stays_followed_while_the_agent_is_suspended() -> None:
    progress = following()
    assert progress.lose(NOW + 1_000) == []
    progress.update(behind(5), NOW + 2 * LOST_MS)  # as it was before
    assert progress.lose(NOW + 2 * LOST_MS) == []
    progress.update(behind(9, has_more=True), NOW + 2 * LOST_MS + 1_000)
    assert progress.lose(NOW + 2 * LOST_MS + 1_000) == []
    assert progress.held_at(NOW + 2 * LOST_MS) == NOW + 100


def test_a_group_is_polled_again_when_records_were_left_out() -> None:
    progress = following()
    assert progress.reset([HOME]) == ["group"]
    assert not progress.is_followed("group")


def resumed() -> Progress:
    """Return the progress of a run that continues where an earlier one stopped."""
    progress = Progress()
    progress.resume({number: End(5, NOW - 90_000) for number in range(4)}, ["group"], (4,))
    return progress


def test_a_group_is_followed_from_where_an_earlier_run_stopped() -> None:
    progress = resumed()
    assert progress.lose(NOW) == []
    assert progress.set_count(4, NOW) is False
    assert progress.is_followed("group")
    assert progress.is_current
    assert progress.ends == {}
    assert progress.too_far_behind(NOW) == []
    progress.update(at_end(offset=60), NOW + 2_000)
    assert progress.ends == {HOME: End(60, NOW + 2_000)}
    assert progress.held_at(NOW) == NOW - 90_000  # other partitions have not been read yet
    others = sorted({0, 1, 2, 3} - {HOME})
    assert progress.too_far_behind(NOW + CATCH_UP_MS) == []
    assert progress.too_far_behind(NOW + CATCH_UP_MS + 1) == others
    progress.reset(others)
    assert progress.too_far_behind(NOW + CATCH_UP_MS + 2) == []


def read_on(progress: Progress, begin: int, end: int, *, is_held_back: bool = False) -> None:
    """A second at a time, without reaching the partition's end."""
    for at in range(begin, end + 1, 1_000):
        progress.update(behind(at - NOW, is_held_back=is_held_back), at)
        progress.lose(at)


def test_reading_is_late_while_a_partition_moves_on_for_long_without_reaching_its_end() -> None:
    progress, begin = following(), NOW + 1_000
    read_on(progress, begin, begin + LATE_MS)
    assert not progress.is_late(begin + LATE_MS)
    read_on(progress, begin, begin + LATE_MS + 1_000)
    assert progress.is_late(begin + LATE_MS + 1_000)
    progress.update(at_end(), begin + LATE_MS + 2_000)
    assert not progress.is_late(begin + LATE_MS + 2_000)


def test_reading_is_not_late_because_nothing_can_be_read() -> None:
    progress, begin = following(), NOW + 1_000
    read_on(progress, begin, begin + 30_000)
    assert not progress.is_late(begin + LATE_MS + 1_000)  # its leader is away
    held_back = following()
    read_on(held_back, begin, begin + LATE_MS + 10_000, is_held_back=True)
    assert not held_back.is_late(begin + LATE_MS + 10_000)


def test_reading_is_not_late_because_the_agent_was_suspended() -> None:
    progress, begin = following(), NOW + 600_000
    read_on(progress, begin, begin + 20_000)
    assert not progress.is_late(begin + 20_000)


def test_partitions_that_were_added_are_read_from_their_beginning() -> None:
    """Coordinators use the earlier count until they are restarted: both partitions of a group must be read."""
    progress = following()
    progress.lose(NOW + 100)
    assert progress.set_count(8, NOW + 200) is False
    assert progress.lose(NOW + 200) == []
    assert progress.is_followed("group")
    assert progress.partitions_of("group") == {HOME, partition_of("group", 8)}
    progress.reset([partition_of("group", 8)])
    assert not progress.is_followed("group")


def test_a_topic_with_fewer_partitions_than_before_is_another_one() -> None:
    progress = resumed()
    assert progress.set_count(2, NOW) is True
    assert not progress.is_followed("group")
    assert progress.partitions_of("group") == {partition_of("group", 2)}


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


def test_groups_are_read_in_turn() -> None:
    turns = GroupTurns(lambda _: False)
    everything = ["a", "b", "c", "d"]
    assert turns.take_to_read(everything, 3) == ["a", "b", "c"]
    assert turns.take_to_read(everything, 3) == ["d", "a", "b"]
    assert turns.take_to_read(["e", *everything], 2) == ["e", "c"]
    assert turns.take_to_read(everything, 9) == ["a", "b", "d", "c"]
