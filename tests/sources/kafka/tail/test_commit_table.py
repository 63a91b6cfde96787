"""What the commit table observes of the records that it takes in."""

import struct
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.batches import CommitKey
from agent.model.observations.kafka import Commit
from agent.sources.base import HEARTBEAT_MS
from agent.sources.kafka.tail.commit_table import CommitTable
from agent.sources.kafka.tail.records import Records, encode_key

NOW = 1_795_000_000_500
KEY = CommitKey("group", "topic", 3)


def value(offset: int, at: int, epoch: int = 4) -> bytes:
    return struct.pack(">hqihq", 3, offset, epoch, 0, at)


def records(*commits: tuple[CommitKey, int | None, int]) -> Records:
    """Return records of keys, offsets (None: a tombstone) and times, ms."""
    values = [None if offset is None else value(offset, at) for _, offset, at in commits]
    return Records([encode_key(key) for key, _, _ in commits], values, [at for *_, at in commits])


def commits(*steps: tuple[int | None, int]) -> Records:
    """Return records of one key."""
    return records(*((KEY, offset, at) for offset, at in steps))


def polled(offset: int, at: int = NOW) -> list[Commit]:
    return [Commit(at=at, cluster="c", group=KEY.group, topic=KEY.topic, partition=KEY.partition, offset=offset)]


def table(*, followed: int | None = None) -> CommitTable:
    """Return a table in which the group is followed from this offset on."""
    created = CommitTable("c", lambda group: not group.startswith("other"))
    if followed is not None:
        assert not created.follow(KEY.group, polled(followed), NOW, NOW)
    return created


def moves(observed: Iterable[Commit]) -> list[tuple[int | None, int]]:
    return [(commit.offset, commit.at - NOW) for commit in observed]


def test_progress_is_observed_once_a_second() -> None:
    watched = table(followed=10)
    steps = [(10 + step, NOW + 250 * step) for step in range(1, 9)]  # the seconds end at 500, 1,500 and 2,500
    taken = watched.apply(commits(*steps), NOW + 2_100)
    assert moves(taken.commits) == [(11, 250), (15, 1_250)]
    assert not watched.flush(NOW + 2_200)
    assert moves(watched.flush(NOW + 2_600)) == [(18, 2_000)]
    assert not watched.flush(NOW + 9_000)


def test_a_rewind_is_observed_at_once_after_the_commit_before_it() -> None:
    watched = table(followed=10)
    assert not watched.apply(commits((40, NOW + 10), (50, NOW + 20)), NOW + 30).commits
    taken = watched.apply(commits((5, NOW + 40), (6, NOW + 50)), NOW + 60)
    assert moves(taken.commits) == [(50, 20), (5, 40)]
    _before, rewind = taken.commits
    assert (rewind.cluster, rewind.group, rewind.topic, rewind.partition) == ("c", *KEY)
    assert (rewind.leader_epoch, rewind.seen_at, rewind.since) == (4, NOW + 60, None)
    assert moves(watched.flush(NOW + 1_000)) == [(6, 50)]


def test_a_rewind_and_back_within_a_batch_is_observed() -> None:
    taken = table(followed=10).apply(commits((20, NOW + 1), (3, NOW + 2), (30, NOW + 3)), NOW + 5)
    assert moves(taken.commits) == [(20, 1), (3, 2)]


def test_a_deletion_is_observed_and_the_key_is_forgotten() -> None:
    watched = table(followed=10)
    assert moves(watched.apply(commits((None, NOW + 7)), NOW + 8).commits) == [(None, 7)]
    assert len(watched) == 1
    watched.flush(NOW + 9)
    assert len(watched) == 0


@pytest.mark.parametrize("negative", [-1, -2, -1_001, -(1 << 63)])
def test_a_negative_offset_counts_as_none_as_in_polls(negative: int) -> None:
    watched = table(followed=10)
    assert moves(watched.apply(commits((negative, NOW + 300)), NOW + 310).commits) == [(None, 300)]
    assert moves(watched.take_changes()) == [(None, 300)]
    assert not watched.apply(commits((-3, NOW + 400)), NOW + 410).commits


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_commits_of_a_key_without_an_offset_are_held_until_a_poll(is_forgotten: bool) -> None:  # noqa: FBT001
    watched = table(followed=10)
    assert moves(watched.apply(commits((None, NOW + 30)), NOW + 30).commits) == [(None, 30)]
    if is_forgotten:
        watched.flush(NOW + 40)
    assert not watched.apply(commits((4, NOW + 50), (9, NOW + 60), (5, NOW + 70)), NOW + 80).commits
    assert not watched.flush(NOW + 1_000)
    assert not watched.release(NOW + 80)  # the poll had begun before
    held = [(9, 60), (5, 70)] if is_forgotten else [(4, 50), (9, 60), (5, 70)]
    assert moves(watched.release(NOW + 81)) == held
    assert not watched.release(NOW + 9_000)
    assert moves(watched.apply(commits((2, NOW + 2_000)), NOW + 2_000).commits) == [(2, 2_000)]


def test_only_followed_groups_are_observed_and_others_are_touched() -> None:
    watched = table()
    new, other = CommitKey("new", "topic", 0), CommitKey("other", "topic", 0)
    member = struct.pack(">hh6s", 5, 6, b"joined") + b"\0\1m"
    group_metadata = Records([member], [b"anything"], [NOW])
    for taken_in, touched in (
        (records((new, 5, NOW), (other, 6, NOW)), {"new"}),
        (records((new, 1, NOW)), set()),
        (group_metadata, {"joined"}),
    ):
        taken = watched.apply(taken_in, NOW)
        assert (list(taken.commits), taken.touched) == ([], touched)
    assert len(watched) == 1


def test_what_the_log_says_later_than_a_poll_is_observed_when_a_group_is_followed() -> None:
    watched = table()
    watched.apply(commits((50, NOW), (20, NOW + 10)), NOW + 20)
    assert moves(watched.follow(KEY.group, polled(50), NOW + 5, NOW + 30)) == [(20, 10)]
    assert moves(watched.apply(commits((7, NOW + 40)), NOW + 40).commits) == [(7, 40)]
    watched.unfollow(KEY.group, NOW + 45)
    assert not watched.apply(commits((3, NOW + 50)), NOW + 50).commits
    assert not watched.follow(KEY.group, polled(3), NOW + 60, NOW + 70)


def test_what_waits_of_a_group_that_is_lost_is_observed_and_polls_continue_from_there() -> None:
    watched = table(followed=10)
    watched.apply(commits((20, NOW + 10)), NOW + 20)
    assert moves(watched.unfollow(KEY.group, NOW + 30)) == [(20, 10)]
    assert moves(watched.take_changes()) == [(20, 10)]
    assert not watched.flush(NOW + 5_000)
    assert watched.take_changes() == []


def test_what_is_held_of_a_group_that_is_lost_is_observed() -> None:
    """Polls take over after the last of it, so they would never observe it."""
    watched, other = table(followed=10), CommitKey("group", "topic", 4)
    watched.apply(
        records((other, 500, NOW + 1), (KEY, 11, NOW + 2), (other, 20, NOW + 3), (other, 21, NOW + 4)), NOW + 5
    )
    assert (watched.held_since or 0) == NOW + 5
    lost = watched.unfollow(KEY.group, NOW + 6)
    assert [commit.offset for commit in lost if commit.partition == 4] == [500, 20, 21]
    assert [commit.offset for commit in lost if commit.partition == 3] == [11]
    assert watched.held_since is None
    assert not watched.release(NOW + 9_000)


def test_a_commit_of_a_clock_ahead_of_ours_does_not_wait_for_its_second() -> None:
    watched = table(followed=10)
    assert not watched.apply(commits((20, NOW + 30_000)), NOW + 10).commits
    assert moves(watched.flush(NOW + 20)) == [(20, 20)]
    assert watched.take_newest_at() == NOW + 30_000
    assert watched.take_newest_at() == 0


def test_deleted_offsets_of_groups_that_are_not_followed_are_forgotten_in_time() -> None:
    watched = table()
    watched.apply(commits((5, NOW), (None, NOW + 1)), NOW + 2)
    watched.flush(NOW + 300_000)
    deletion = watched.follow(KEY.group, polled(5, NOW), NOW, NOW + 300_001)
    assert [commit.offset for commit in deletion] == [None]
    watched = table()
    watched.apply(commits((5, NOW), (None, NOW + 1)), NOW + 2)
    watched.flush(NOW + 900_000)
    assert len(watched) == 0


def test_what_is_more_than_ordinary_progress_is_passed_on_to_polls() -> None:
    watched = table(followed=10)
    watched.apply(commits((20, NOW + 10), (None, NOW + 20), (5, NOW + 30), (6, NOW + 40)), NOW + 50)
    assert moves(watched.take_changes()) == [(None, 20), (5, 30)]
    watched.apply(commits((7, NOW + 50), (8, NOW + 60), (7, NOW + 70)), NOW + 80)
    assert moves(watched.take_changes()) == [(7, 70)]


def test_a_partition_is_stirred_when_a_group_commits_there_after_a_rest() -> None:
    watched, place = table(followed=10), (KEY.topic, KEY.partition)
    watched.apply(commits((11, NOW + 29_999)), NOW + 30_000)
    assert watched.take_stirred() == set()
    watched.apply(commits((12, NOW + 30_000), (13, NOW + 60_000)), NOW + 60_000)
    assert watched.take_stirred() == {place}
    assert watched.take_stirred() == set()


def test_a_group_that_is_forgotten_leaves_nothing_that_is_held() -> None:
    watched = table(followed=10)
    watched.apply(commits((None, NOW + 10), (5, NOW + 20)), NOW + 30)
    watched.forget(KEY.group)
    other = CommitKey("another", KEY.topic, KEY.partition)
    watched.follow(other.group, [], NOW, NOW)
    watched.apply(records((other, 7, NOW + 40)), NOW + 40)
    assert not watched.flush(NOW + 5_000)
    assert [(commit.group, commit.offset) for commit in watched.release(NOW + 9_000)] == [("another", 7)]


def test_partitions_on_which_a_followed_group_stands_still_below_the_log_end_are_found() -> None:
    watched = table(followed=10)
    place = (KEY.topic, KEY.partition)
    assert watched.standing(NOW - 1, {place: 11}) == set()
    assert watched.standing(NOW, {place: 11}) == {place}
    assert watched.standing(NOW, {place: 10}) == watched.standing(NOW, {}) == set()
    watched.unfollow(KEY.group, NOW)
    assert watched.standing(NOW, {place: 11}) == set()


def test_records_that_were_left_out_make_a_poll_the_truth() -> None:
    watched = table(followed=90)
    watched.forget(KEY.group)
    assert len(watched) == 0
    assert not watched.follow(KEY.group, polled(40), NOW, NOW)
    assert moves(watched.apply(commits((30, NOW + 1)), NOW + 1).commits) == [(30, 1)]


def test_commits_are_never_dated_before_those_known_nor_after_now() -> None:
    watched = table(followed=10)  # as of NOW
    taken = watched.apply(commits((5, NOW - 40_000), (9, NOW - 39_000), (3, NOW + 90_000)), NOW + 100)
    assert moves(taken.commits) == [(5, 0), (9, 0), (3, 100)]
    assert moves(watched.apply(commits((1, NOW + 200)), NOW + 20_200, behind=20_000).commits) == [(1, 20_200)]


def test_unchanged_commits_are_confirmed_after_ten_minutes() -> None:
    watched = table(followed=10)
    assert not watched.heartbeats(NOW + HEARTBEAT_MS - 1)
    assert moves(watched.heartbeats(NOW + HEARTBEAT_MS)) == [(10, HEARTBEAT_MS)]
    assert not watched.heartbeats(NOW + HEARTBEAT_MS)


def test_many_keys_that_went_make_room_and_batches_keep_their_keys() -> None:
    watched = table(followed=10)
    early = watched.apply(commits((3, NOW)), NOW).commits
    passing = [CommitKey(f"passing-{number}", "topic", 0) for number in range(3_000)]
    for group in passing:
        watched.follow(group.group, [], NOW, NOW)
    watched.apply(records(*((key, 5, NOW) for key in passing)), NOW)
    held = watched.apply(records((KEY._replace(partition=7), 8, NOW)), NOW)
    assert not held.commits  # until a poll
    for group in passing:
        watched.forget(group.group)
    assert moves(watched.flush(NOW + 600)) == []  # the one of partition 7 is held
    assert len(watched) == 2
    late = watched.apply(commits((2, NOW + 602)), NOW + 602).commits
    assert len(early.keys) > 3_000 > len(late.keys) == 2
    assert moves(early) == [(3, 0)]
    assert moves(late) == [(2, 602)]
    (released,) = watched.release(NOW + 603)
    assert (released.partition, released.offset) == (7, 8)
    assert moves(watched.apply(records((passing[0], 4, NOW + 604)), NOW + 604).commits) == []
    assert watched.apply(records((passing[1], 4, NOW + 604)), NOW + 604).touched == {"passing-1"}


def test_keys_of_groups_that_are_not_watched_are_forgotten_after_an_hour() -> None:
    asked: list[str] = []

    def is_watched(group: str) -> bool:
        asked.append(group)
        return False

    watched = CommitTable("c", is_watched)
    for at in (NOW, NOW + 1, NOW + 3_600_001):
        watched.apply(commits((3, at)), at)
        watched.flush(at)
    watched.apply(commits((3, NOW + 3_600_002)), NOW + 3_600_002)
    assert asked == [KEY.group] * 3
    assert len(watched) == 0


def test_undecodable_records_are_counted() -> None:
    watched = table(followed=10)
    good = commits((3, NOW))
    batch = Records([b"\x7f\xff", *good.keys, *good.keys], [b"x", b"\0\x09" + bytes(22), *good.values], [NOW] * 3)
    assert moves(watched.apply(batch, NOW).commits) == [(3, 0)]
    assert dict(watched.undecodable) == {"key of version 32767": 1, "value of version 9": 1}
    assert not watched.apply(Records([None, None], [b"x", None], [NOW, NOW]), NOW).commits
    assert sum(watched.undecodable.values()) == 4


keys = st.sampled_from([CommitKey(group, "topic", partition) for group in ("a", "b") for partition in (0, 1)])
steps = st.tuples(keys, st.one_of(st.none(), st.integers(0, 5)), st.integers(0, 900))


@given(st.lists(st.lists(steps, min_size=1, max_size=8), max_size=8))
def test_nothing_but_ordinary_progress_within_a_second_is_left_out(
    batches: list[list[tuple[CommitKey, int | None, int]]],
) -> None:
    """Whatever the batches: each move back is there with what preceded it, and the last offset of each second."""
    watched = CommitTable("c", lambda _: True)
    for group in ("a", "b"):
        watched.follow(group, [], NOW, NOW)
    written: dict[CommitKey, list[tuple[int | None, int]]] = {}
    observed: dict[CommitKey, list[tuple[int | None, int]]] = {}
    now = NOW

    def note(found: Iterable[Commit]) -> None:
        for commit in found:
            observed.setdefault(CommitKey(commit.group, commit.topic, commit.partition), []).append(
                (commit.offset, commit.at)
            )

    for batch in batches:
        dated = []
        for key, offset, pause in batch:
            now += pause
            dated.append((key, offset, now))
            past = written.setdefault(key, [])
            last = past[-1][0] if past else None
            if offset != last:
                past.append((offset, now))
        note(watched.apply(records(*dated), now).commits)
        note(watched.release(now + 1))
    note(watched.flush(now + 1_000))
    for key, past in written.items():
        assert observed.get(key, []) == list(expected(past))


def expected(past: Sequence[tuple[int | None, int]]) -> Iterator[tuple[int | None, int]]:
    """Yield the changes of an offset that have to be observed: `past` without progress within a second."""
    for number, (offset, at) in enumerate(past):
        before = past[number - 1] if number else None
        following = past[number + 1] if number + 1 < len(past) else None
        is_turn = before is not None and (before[0] is None or offset is None or offset < before[0])
        precedes_turn = following is None or following[0] is None or (offset or 0) > following[0]
        if is_turn or precedes_turn or (following is not None and following[1] // 1_000 > at // 1_000):
            yield offset, at
