"""How far groups are: lag, rates, members, and how long the next record is kept."""

import pytest

from agent.daemon.groups import GroupProgress, by_lag, count_subjects, group_progress
from agent.engine.facts import Facts
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, Member, TopicSettings
from tests.builders import CLUSTER, after, commit, log_offsets, partition_state, registration

DAY_MS = 86_400_000


def progress(
    observations: list[Observation], now: float, pattern: str = "*", *, in_detail: bool = True
) -> list[GroupProgress]:
    facts = Facts()
    for observation in observations:
        facts.absorb(observation)
    return group_progress(facts.all_histories(), after(now), pattern, in_detail=in_detail)


def member(*places: tuple[str, int]) -> GroupState:
    reader = Member(id="c-1", client_id="app", host="/10.0.0.7", partitions=places)
    return GroupState(at=after(0), cluster=CLUSTER, group="g", state="Stable", members=(reader,))


def test_lag_is_the_distance_to_the_log_end() -> None:
    (group,) = progress([member(("t", 0)), commit(0, 40), log_offsets(1, 100, 10)], 5)
    assert (group.lag, group.members, group.state, group.partition_count) == (60, 1, "Stable", 1)
    (part,) = group.partitions
    assert (part.member, part.committed, part.log_start, part.log_end, part.lag) == ("app@10.0.0.7", 40, 10, 100, 60)


def test_lag_is_unknown_without_a_log_end_and_never_negative() -> None:
    (group,) = progress([commit(0, 40)], 5)
    assert (group.lag, group.state, group.partitions[0].log_end) == (None, None, None)
    (group,) = progress([commit(2, 40), log_offsets(1, 30)], 5)
    assert group.lag == 0


def test_rates_are_of_the_last_three_minutes() -> None:
    commits = [commit(second, 10 * second) for second in range(0, 401, 5)]
    ends = [log_offsets(second, 30 * second) for second in range(0, 401, 5)]
    (group,) = progress([*commits, *ends], 400)
    assert group.read_rate == pytest.approx(10, rel=0.03)
    assert group.write_rate == pytest.approx(30, rel=0.03)


def test_rate_of_a_group_that_stands_still_falls_to_zero() -> None:
    commits = [commit(second, 10 * second) for second in range(0, 101, 5)]
    assert progress(list(commits), 190)[0].read_rate == pytest.approx(1000 / 180, rel=0.2)
    assert progress(list(commits), 400)[0].read_rate == 0


def test_rate_counts_from_the_last_rewind_on() -> None:
    before = [commit(second, 5_000 + 10 * second) for second in range(0, 60, 5)]
    since = [commit(second, 20 * (second - 60)) for second in range(60, 101, 5)]
    assert progress([*before, *since], 100)[0].read_rate == pytest.approx(20)


def test_rate_of_an_offset_that_was_seen_once_is_unknown() -> None:
    assert progress([commit(0, 40)], 60)[0].read_rate is None
    assert progress([commit(0, 40)], 600)[0].read_rate == 0


def test_kept_is_the_time_until_retention_reaches_the_next_record() -> None:
    settings = TopicSettings(at=after(0), cluster=CLUSTER, topic="t", cleanup_policy="delete", retention_ms=DAY_MS)
    logs = [log_offsets(second, second) for second in range(0, 3_601, 60)]
    (group,) = progress([settings, commit(3_600, 120), *logs], 3_600)
    assert group.kept_ms is not None
    left = DAY_MS - 3_480_000
    # Interpolated, as readings of an hour ago are four minutes apart; the very next record may be a transaction's end.
    assert left <= group.kept_ms <= left + 1_000
    assert not group.kept_is_bound


def test_kept_is_not_measured_over_a_deleted_topic_of_that_name() -> None:
    settings = TopicSettings(
        at=after(0), cluster=CLUSTER, topic="t", cleanup_policy="delete", retention_ms=-1, retention_bytes=10**8
    )
    old = [log_offsets(100 * second, 30_000 + 700 * second, 700 * second) for second in range(5)]
    new = [log_offsets(450 + 400 * step, 6_000 * step, 1_400 if step > 1 else 0) for step in range(5)]
    (group,) = progress([settings, *old, *new, commit(470, 2_000)], 2_500)
    assert group.kept_ms is None
    new += [log_offsets(2_500 + 400 * step, 30_000 + 6_000 * step, 1_400 + 100 * step) for step in range(1, 4)]
    (group,) = progress([settings, *old, *new, commit(470, 2_000)], 3_700)
    # It rose by 300 from 1,250 s on, and has 300 to go.
    assert group.kept_ms == (3_700 - 1_250) * 1_000


def test_kept_is_a_bound_for_a_record_older_than_the_first_reading() -> None:
    settings = TopicSettings(at=after(0), cluster=CLUSTER, topic="t", cleanup_policy="delete", retention_ms=DAY_MS)
    (group,) = progress([settings, commit(0, 40), log_offsets(0, 100), log_offsets(3_600, 200)], 3_600)
    assert (group.kept_ms, group.kept_is_bound) == (DAY_MS - 3_600_000, True)


def test_deleted_groups_and_offsets_are_left_out() -> None:
    dead = GroupState(at=after(1), cluster=CLUSTER, group="dead", state="Dead")
    empty = GroupState(at=after(1), cluster=CLUSTER, group="empty", state="Empty")
    forgotten = [commit(0, 40, group="dead"), commit(1, None, group="dead")]
    assert [group.group for group in progress([dead, empty, *forgotten], 5)] == ["empty"]


def test_name_selects_a_group_or_matches_as_a_pattern() -> None:
    names = ["pay-1", "pay-2", "pay-*", "[x]"]
    commits: list[Observation] = [
        Commit(at=after(0), cluster=CLUSTER, group=name, topic="t", partition=0, offset=1) for name in names
    ]
    assert [group.group for group in progress(commits, 1, "pay-1")] == ["pay-1"]
    assert [group.group for group in progress(commits, 1, "[x]")] == ["[x]"]
    assert [group.group for group in progress(commits, 1, "pay-?")] == ["pay-*", "pay-1", "pay-2"]
    assert all(not group.partitions for group in progress(commits, 1, in_detail=False))


def test_groups_are_ordered_by_lag_the_unknown_last() -> None:
    groups = progress([commit(0, 90, group="a"), commit(0, 10, group="b"), log_offsets(1, 100)], 5)
    unknown = progress([commit(0, 10, group="c", topic="u")], 5)
    assert [group.group for group in by_lag([*unknown, *groups])] == ["b", "a", "c"]


def test_subjects_are_counted_without_what_is_gone() -> None:
    facts = Facts()
    for observation in (
        registration(0, "0x1"),
        registration(0, "0x2", 2),
        registration(1, None, 2),
        partition_state(0, 1),
        partition_state(0, 1, 1),
        partition_state(0, 1, 0, "deleted"),
        partition_state(1, 1, 0, "deleted").deleted(after(2)),
        log_offsets(0, 5),
        commit(0, 1),
    ):
        facts.absorb(observation)
    last_known = [history.changes[-1] for history in facts.open_histories()]
    assert count_subjects(last_known, facts.groups_with_offsets()) == {
        CLUSTER: {"brokers": 1, "topics": 1, "partitions": 2, "groups": 1}
    }
