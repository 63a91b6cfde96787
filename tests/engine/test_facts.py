"""Facts keep the history that rules need, in order, and refuse stale observations."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.engine.facts import GONE_GROUPS, GONE_MS, GONE_PARTITIONS, Facts
from agent.engine.history import FLOOR, LONG_AFTER, RETENTION_MS, Change, History
from agent.model.observations.base import Available, Unavailable
from agent.model.observations.checks import CheckFinding
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, Member
from agent.rules.queries.subjects import groups_of, partitions_in, partitions_of
from tests.builders import BEGINNING, after, check_finding, check_run, commit, log_offsets, partition_state, tick

DAY_MS = 86_400_000


def history_of(*commits: Commit) -> History[Commit]:
    history: History[Commit] = History(compact=True)
    for change in commits:
        history.add(change)
    return history


def offsets(commits: Sequence[Commit]) -> list[int | None]:
    return [change.offset for change in commits]


def test_absorb_distinguishes_unchanged_from_changed_facts() -> None:
    facts = Facts()
    assert facts.absorb(commit(0, 5)) is Change.CHANGED
    assert facts.absorb(commit(1, 5)) is Change.UNCHANGED
    assert facts.absorb(commit(2, 6)) is Change.CHANGED
    assert offsets(facts.history(Commit, "main", "g", "t", 0).changes) == [5, 6]


def test_facts_of_the_same_time_keep_their_order() -> None:
    assert offsets(history_of(commit(0, 5), commit(0, 7), commit(0, 6)).changes) == [5, 7, 6]


def test_fact_older_than_the_last_of_its_subject_is_stale() -> None:
    facts = Facts()
    facts.absorb(commit(10, 500))
    assert facts.absorb(commit(9.999, 0)) is Change.STALE
    assert offsets(facts.history(Commit, "main", "g", "t", 0).changes) == [500]


def test_fact_older_than_the_last_confirmation_is_stale() -> None:
    """An unchanged poll counts: a fact dated before it cannot be a rewind."""
    facts = Facts()
    facts.absorb(commit(0, 500))
    facts.absorb(commit(60, 500))
    assert facts.absorb(commit(30, 0)) is Change.STALE
    assert offsets(facts.history(Commit, "main", "g", "t", 0).changes) == [500]


def test_order_matters_only_within_a_subject() -> None:
    facts = Facts()
    facts.absorb(commit(60, 1))
    assert facts.absorb(commit(0, 1, partition=1)) is Change.CHANGED


def test_unavailable_lasts_until_the_source_is_available() -> None:
    facts = Facts()
    unavailable = Unavailable(at=BEGINNING, source="kafka", cluster="main", reason="no answer")
    facts.absorb(unavailable)
    assert facts.unavailable() == [unavailable]
    assert facts.absorb(Available(at=BEGINNING + 1, source="kafka", cluster="main")) is Change.CHANGED
    assert facts.unavailable() == []


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(-1, 51), st.integers(-1, 51), st.integers(1, 5))
def test_history_lookups_equal_a_linear_search(times: list[int], begin: int, end: int, most: int) -> None:
    changes = [commit(at / 1000, number) for number, at in enumerate(sorted(times))]
    history = history_of(*changes)
    first, last = BEGINNING + begin, BEGINNING + end
    assert history.as_of(last) == next((change for change in reversed(changes) if change.at <= last), None)
    assert history.after(first) == [change for change in changes if change.at > first]
    assert history.before(last, most) == [change for change in changes if change.at < last][-most:]
    assert history.between(first, last) == [change for change in changes if first < change.at <= last]


def test_long_history_keeps_the_retention_and_some_before_it() -> None:
    """A burst after a long silence does not push out earlier changes."""
    slow = [commit(600 * number, number) for number in range(40)]
    burst = [commit(600 * 40 + number / 10, 1_000 + number) for number in range(10_000)]
    kept = history_of(*slow, *burst).changes
    newest = burst[-1].at
    recent = [change for change in burst if change.at >= newest - RETENTION_MS]
    assert kept[-len(recent) :] == recent
    assert FLOOR <= len(kept) - len(recent) <= 3 * FLOOR
    assert all(older.at <= newer.at for older, newer in pairwise(kept))


def test_log_offsets_are_remembered_more_sparsely_the_older() -> None:
    facts = Facts()
    for second in range(0, 7_200, 2):
        facts.absorb(log_offsets(second, second))
    history = facts.history(LogOffsets, "main", "t", 0)
    times = [reading.at for reading in history.older]
    assert times[0] == after(0)
    assert times == sorted(times)
    assert times[-1] < history.changes[0].at
    assert 20 < len(times) < 60


def test_other_histories_remember_nothing_older() -> None:
    facts = Facts()
    for second in range(7_200):
        facts.absorb(commit(second, second))
    assert list(facts.history(Commit, "main", "g", "t", 0).older) == []


def test_short_history_is_kept_however_old() -> None:
    """Rules need the commit interval of slow committers."""
    slow = [commit(3_600 * number, number) for number in range(2 * FLOOR)]
    assert history_of(*slow).changes[:] == slow


def test_indexes_list_groups_and_partitions_in_order() -> None:
    facts = Facts()
    for group, partition in (("h", 1), ("g", 1), ("g", 0), ("h", 1)):
        facts.absorb(commit(0, partition, partition, group))
    facts.absorb(partition_state(0, 1, 3))
    assert list(groups_of(facts, "main", "t", 1)) == ["g", "h"]
    assert list(partitions_of(facts, "main", "g")) == [("t", 0), ("t", 1)]
    assert list(partitions_in(facts, "main", "t")) == [3]
    assert list(groups_of(facts, "other", "t", 1)) == []


def test_group_had_members_from_when_they_were_observed() -> None:
    facts = Facts()
    for at, members in ((10, ()), (20, (Member("m"),)), (30, ())):
        facts.absorb(GroupState(at=at, cluster="main", group="g", state="Stable", members=members))
    assert not facts.had_members("main", "g", 19)
    assert facts.had_members("main", "g", 20)
    assert facts.had_members("main", "g", LONG_AFTER)
    assert not facts.had_members("main", "h", LONG_AFTER)


def _gone_group(facts: Facts, group: str, seconds: float) -> None:
    """Let a group commit in two partitions and be deleted."""
    for step in range(10):
        facts.absorb(commit(seconds + step, step, 0, group))
    facts.absorb(commit(seconds, 7, 1, group))
    facts.absorb(Unavailable(at=after(seconds), source="kafka", cluster="main", group=group, reason="?"))
    for partition in (0, 1):
        facts.absorb(commit(seconds + 20, None, partition, group))
    facts.absorb(GroupState(at=after(seconds + 20), cluster="main", group=group, state="Dead"))


def _forget_gone(facts: Facts, seconds: float, *read: str) -> None:
    """Forget groups that are long gone at a moment; read: groups that evaluations depend on."""
    facts.now = after(seconds)
    facts.forget_gone(lambda subject: subject[2] in read)


def test_groups_that_are_long_gone_are_forgotten_but_for_the_last() -> None:
    facts = Facts()
    facts.absorb(commit(0, 5, 0, "alive"))
    assert list(groups_of(facts, "main", "t", 1)) == []
    groups = [f"g{number:04}" for number in range(GONE_GROUPS + 10)]
    for group in groups:
        _gone_group(facts, group, 0)
    _forget_gone(facts, 20 + GONE_MS / 1000)
    assert facts.history(Commit, "main", groups[0], "t", 0).changes[0].offset == 0
    _forget_gone(facts, 21 + GONE_MS / 1000, groups[3])
    kept = [groups[3], *groups[-GONE_GROUPS:]]
    assert list(groups_of(facts, "main", "t", 1)) == kept
    assert list(groups_of(facts, "main", "t", 0)) == ["alive", *kept]
    assert {history.subject[2] for history in facts.all_histories()} == {"alive", "main", *kept}
    assert {report.group for report in facts.unavailable()} == set(kept)
    assert offsets(facts.history(Commit, "main", groups[-1], "t", 0).changes) == [8, 9, None]
    assert len(facts.history(Commit, "main", groups[3], "t", 0).changes) == 11


def test_a_group_that_returns_is_not_gone() -> None:
    facts = Facts()
    for number in range(GONE_GROUPS + 1):
        _gone_group(facts, f"g{number:04}", 0)
    facts.absorb(GroupState(at=after(30), cluster="main", group="g0000", state="Empty"))
    _forget_gone(facts, 21 + GONE_MS / 1000)
    assert len(list(groups_of(facts, "main", "t", 1))) == GONE_GROUPS + 1
    facts.absorb(GroupState(at=after(GONE_MS), cluster="main", group="g0001", state="Empty"))
    facts.absorb(GroupState(at=after(GONE_MS), cluster="main", group="g0000", state="Dead"))
    _forget_gone(facts, 3 * GONE_MS / 1000 + GONE_MS)
    assert len(list(groups_of(facts, "main", "t", 1))) == GONE_GROUPS + 1


def test_partitions_that_were_deleted_are_forgotten_but_for_the_last() -> None:
    facts = Facts()
    places = range(GONE_PARTITIONS + 10)
    for partition in places:
        facts.absorb(partition_state(0, 1, partition))
        facts.absorb(replace(log_offsets(1, 9), partition=partition))
        facts.absorb(commit(2, 5, partition, "alive"))
        facts.absorb(commit(3, 6, partition, "other"))
        facts.absorb(partition_state(0, 1, partition).deleted(after(4)))
        facts.absorb(commit(5, None, partition, "alive"))
    facts.absorb(partition_state(20, 1, 2))  # was created again
    facts.now = after(4 + GONE_MS / 1000)
    facts.forget_gone(lambda _: False)
    assert len(partitions_in(facts, "main", "t")) == len(places)
    facts.now += 1
    facts.forget_gone(lambda subject: subject[-1] == 3)
    kept = [2, 3, *places[-GONE_PARTITIONS:]]
    assert partitions_in(facts, "main", "t") == kept
    assert {history.subject[-1] for history in facts.logs.values()} == set(kept)
    assert [history.subject[4] for history in facts.histories(Commit, cluster="main", group="alive")] == kept
    assert [history.subject[4] for history in facts.histories(Commit, cluster="main", group="other")] == [*places]


def test_peak_is_kept_however_long_the_group_reads_behind_it() -> None:
    facts = Facts()
    assert facts.peaks(commit(0, 0)) == []
    peaks = [commit(0, 9_000), commit(2, 9_500)]
    for change in (peaks[0], commit(1, 100), peaks[1], commit(3, 0)):
        facts.absorb(change)
    for second in range(4, 4_000):
        facts.absorb(commit(second, second))
    assert peaks[0] not in facts.history(Commit, "main", "g", "t", 0).changes
    assert facts.peaks(commit(1, 100)) == peaks[:1]
    assert facts.peaks(commit(4_000, 9_600)) == peaks[:2]
    assert facts.peaks(commit(4_000, 9_600, partition=1)) == []


def test_peak_counts_across_a_forgotten_offset() -> None:
    facts = Facts()
    for change in (commit(0, 900), commit(1, None), commit(2, 100)):
        facts.absorb(change)
    assert facts.peaks(commit(2, 100)) == [commit(0, 900)]


def test_old_peaks_are_dropped_except_the_furthest() -> None:
    facts = Facts()
    for hour in range(200):
        facts.absorb(commit(3_600 * hour, 5_000 - hour))
        facts.absorb(commit(3_600 * hour + 60, 1_000))
    assert facts.peaks(commit(3_600 * 200, 9_000)) == [commit(0, 5_000), commit(3_600 * 199, 4_801)]


def test_latest_state_is_dated_by_its_last_confirmation() -> None:
    facts = Facts()
    ends = log_offsets(0, 9)
    for observation in (ends, tick(0), commit(0, 5), commit(50, 5)):
        facts.absorb(observation)
    assert list(facts.latest()) == [ends, commit(50, 5)]


def test_check_findings_are_kept_for_minutes_only() -> None:
    facts = Facts()
    for day in range(30):
        for number in range(100):
            finding = check_finding("log_segments", BEGINNING + day * DAY_MS, number, {"topic": "t", "partition": 0})
            assert facts.absorb(finding) is Change.CHANGED
    history = facts.history(CheckFinding, *finding.subject[1:])
    assert len(history.changes) == 100
    assert {finding.at for finding in history} == {BEGINNING + 29 * DAY_MS}


def test_every_check_run_and_repeated_finding_is_a_change() -> None:
    """A rule needs to know whether a finding still holds."""
    facts = Facts()
    finding = check_finding("log_segments", BEGINNING, 7, {"topic": "t"})
    for observation in (finding, check_run(0, "log_segments")):
        assert facts.absorb(observation) is Change.CHANGED
        assert facts.absorb(observation) is Change.UNCHANGED
        assert facts.absorb(replace(observation, at=after(60))) is Change.CHANGED
        assert facts.absorb(observation) is Change.STALE
