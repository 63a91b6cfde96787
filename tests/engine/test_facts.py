"""Histories keep what rules need, in order, and take no old fact for news."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.engine.facts import FLOOR, LONG_AFTER, RETENTION_MS, Change, Facts, History
from agent.model.observations.base import Available, Tick, Unavailable
from agent.model.observations.checks import CheckFinding, CheckRun
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, Member, PartitionState
from agent.rules.queries.subjects import groups_of, partitions_in, partitions_of
from tests.strategies import BEGINNING, check_finding

DAY_MS = 86_400_000


def commit(at: int, offset: int | None, group: str = "g", partition: int = 0) -> Commit:
    """A commit, so many ms after the beginning."""
    return Commit(at=BEGINNING + at, cluster="main", group=group, topic="t", partition=partition, offset=offset)


def history(*commits: Commit) -> History[Commit]:
    """The history that these make."""
    made: History[Commit] = History()
    for one in commits:
        made.add(one)
    return made


def offsets(commits: list[Commit]) -> list[int | None]:
    """What was committed."""
    return [one.offset for one in commits]


def test_an_unchanged_fact_is_known_and_a_changed_one_is_news() -> None:
    """Times apart, the same fact is no change."""
    facts = Facts()
    assert facts.absorb(commit(0, 5)) is Change.CHANGED
    assert facts.absorb(commit(1_000, 5)) is Change.UNCHANGED
    assert facts.absorb(commit(2_000, 6)) is Change.CHANGED
    assert offsets(facts.history(Commit, "main", "g", "t", 0).changes) == [5, 6]


def test_a_fact_of_the_same_moment_is_news_in_the_order_it_came() -> None:
    """Equal times are not out of order."""
    assert offsets(history(commit(0, 5), commit(0, 7), commit(0, 6)).changes) == [5, 7, 6]


def test_a_fact_older_than_the_last_of_its_subject_is_history() -> None:
    """Whatever it says."""
    facts = Facts()
    facts.absorb(commit(10_000, 500))
    assert facts.absorb(commit(9_999, 0)) is Change.STALE
    assert offsets(facts.history(Commit, "main", "g", "t", 0).changes) == [500]


def test_a_fact_older_than_the_last_confirmation_is_history() -> None:
    """An unchanged poll counts as the last of its subject: what is dated before it cannot be a rewind."""
    facts = Facts()
    facts.absorb(commit(0, 500))
    facts.absorb(commit(60_000, 500))
    assert facts.absorb(commit(30_000, 0)) is Change.STALE
    assert offsets(facts.history(Commit, "main", "g", "t", 0).changes) == [500]


def test_subjects_do_not_hold_each_other_up() -> None:
    """A fact may be older than the last of another subject."""
    facts = Facts()
    facts.absorb(commit(60_000, 1))
    assert facts.absorb(commit(0, 1, partition=1)) is Change.CHANGED


def test_a_blind_and_a_sighted_source_are_two_facts() -> None:
    """They share their subject; what is blind now is told until it is sighted."""
    facts = Facts()
    blind = Unavailable(at=BEGINNING, source="kafka", cluster="main", reason="no answer")
    facts.absorb(blind)
    assert facts.unavailable() == [blind]
    assert facts.absorb(Available(at=BEGINNING + 1, source="kafka", cluster="main")) is Change.CHANGED
    assert facts.unavailable() == []


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(-1, 51), st.integers(-1, 51), st.integers(1, 5))
def test_looking_into_a_history_is_what_a_plain_search_would_find(
    times: list[int], begin: int, end: int, most: int
) -> None:
    """as_of, after, before and between against list comprehensions."""
    changes = [commit(at, number) for number, at in enumerate(sorted(times))]
    made = history(*changes)
    first, last = BEGINNING + begin, BEGINNING + end
    assert made.as_of(last) == next((one for one in reversed(changes) if one.at <= last), None)
    assert made.after(first) == [one for one in changes if one.at > first]
    assert made.before(last, most) == [one for one in changes if one.at < last][-most:]
    assert made.between(first, last) == [one for one in changes if first < one.at <= last]


def test_a_long_history_keeps_the_time_in_which_findings_settle_and_some_changes_before_it() -> None:
    """However dense it is, and however slow: a burst after a long silence does not push out what came before."""
    slow = [commit(600_000 * number, number) for number in range(40)]
    burst = [commit(600_000 * 40 + 100 * number, 1_000 + number) for number in range(10_000)]
    kept = history(*slow, *burst).changes
    newest = burst[-1].at
    recent = [one for one in burst if one.at >= newest - RETENTION_MS]
    assert kept[-len(recent) :] == recent
    assert FLOOR <= len(kept) - len(recent) <= 3 * FLOOR
    assert all(two.at >= one.at for one, two in pairwise(kept))


def test_a_short_history_is_kept_however_old() -> None:
    """The rhythm of a slow committer is needed."""
    slow = [commit(3_600_000 * number, number) for number in range(2 * FLOOR)]
    assert history(*slow).changes == slow


def test_what_a_group_commits_and_who_reads_a_partition_is_indexed_in_order() -> None:
    """Sorted, each once, whatever came first."""
    facts = Facts()
    for group, partition in (("h", 1), ("g", 1), ("g", 0), ("h", 1)):
        facts.absorb(commit(0, partition, group, partition))
    facts.absorb(
        PartitionState(at=BEGINNING, cluster="main", topic="t", partition=3, leader=1, replicas=(1,), isr=(1,))
    )
    assert list(groups_of(facts, "main", "t", 1)) == ["g", "h"]
    assert list(partitions_of(facts, "main", "g")) == [("t", 0), ("t", 1)]
    assert list(partitions_in(facts, "main", "t")) == [3]
    assert list(groups_of(facts, "other", "t", 1)) == []


def test_a_group_has_had_members_from_when_they_were_seen() -> None:
    """Not before; and no longer being there does not undo it."""
    facts = Facts()
    for at, members in ((10, ()), (20, (Member("m"),)), (30, ())):
        facts.absorb(GroupState(at=at, cluster="main", group="g", state="Stable", members=members))
    assert not facts.had_members("main", "g", 19)
    assert facts.had_members("main", "g", 20)
    assert facts.had_members("main", "g", LONG_AFTER)
    assert not facts.had_members("main", "h", LONG_AFTER)


def test_the_latest_of_each_subject_is_dated_when_it_was_last_seen_to_hold() -> None:
    """What a source starts from after a restart: the old value's last sighting, not its beginning."""
    facts = Facts()
    ends = LogOffsets(at=BEGINNING, cluster="main", topic="t", partition=0, log_start=0, log_end=9)
    for one in (ends, Tick(at=BEGINNING), commit(0, 5), commit(50_000, 5)):
        facts.absorb(one)
    assert list(facts.latest()) == [ends, commit(50_000, 5)]


def test_what_checks_found_is_kept_for_minutes_only() -> None:
    """Thousands of findings each day must not add up: of one subject those of the last run are there."""
    facts = Facts()
    for day in range(30):
        for number in range(100):
            finding = check_finding("log_segments", BEGINNING + day * DAY_MS, number, {"topic": "t", "partition": 0})
            assert facts.absorb(finding) is Change.CHANGED
    history = facts.history(CheckFinding, *finding.subject[1:])
    assert len(history.changes) == 100
    assert {one.at for one in history} == {BEGINNING + 29 * DAY_MS}


def test_each_run_of_a_check_is_news_and_so_is_what_it_found_again() -> None:
    """Else nobody could tell whether a finding still stands."""
    facts = Facts()
    found = check_finding("log_segments", BEGINNING, 7, {"topic": "t"})
    run = CheckRun(at=BEGINNING, cluster="main", check="log_segments", started_at=0, complete=True, outcome="found")
    for one in (found, run):
        assert facts.absorb(one) is Change.CHANGED
        assert facts.absorb(one) is Change.UNCHANGED
        assert facts.absorb(replace(one, at=BEGINNING + 60_000)) is Change.CHANGED
        assert facts.absorb(one) is Change.STALE
