"""Series in columns hold what a history would, and rules find the same with and without them."""

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.config.loading import load
from agent.engine.commit_columns import CommitColumns, Progress
from agent.engine.commit_rings import LENGTHS
from agent.engine.engine import Engine
from agent.engine.evaluator import Evaluator
from agent.engine.facts import GONE_PARTITIONS, Facts
from agent.engine.history import FLOOR, RETENTION_MS, History
from agent.engine.partition_columns import ANY, PartitionColumns
from agent.engine.partition_columns import NEVER as UNREAD
from agent.engine.rule import GroupRule, Scope
from agent.model.batches import UNKNOWN, CommitBatch, CommitKey
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets, Member
from testbed.model.scenario import draw
from testbed.model.score import run
from tests.builders import after, commit, group_state, log_offsets, partition_state, tick

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False)
NEVER = 1 << 30


def engine(least_columns: int) -> Engine:
    return Engine(SHIPPED.rules, SHIPPED.correlations, SHIPPED.incidents, least_columns=least_columns)


def row(number: int, at: int, offset: int) -> Progress:
    values = (number, at, UNKNOWN, UNKNOWN, offset, UNKNOWN)
    return Progress(*(np.array([value], np.int64) for value in values))


def column_of(commits: list[Commit], put: int = 1) -> tuple[CommitColumns, int]:
    """Return columns with one series, and its id. put: how many commits are there from the start."""
    columns = CommitColumns(PartitionColumns())
    assert columns.put(commits[:put], commits[:put][-1].at)
    number = columns.find(commits[0].subject)
    assert number is not None
    for following in commits[put:]:
        added = row(number, following.at, following.offset or 0)
        assert columns.fit(added).all()
        columns.add(added)
    return columns, number


@given(
    st.sampled_from([(1, 40_000), (1, 2_000)]).flatmap(lambda limits: st.lists(st.integers(*limits), min_size=1)),
    st.integers(0, 300),
    st.integers(1, 200),
)
def test_columns_keep_what_a_history_keeps_or_do_not_fit(steps: list[int], more: int, put: int) -> None:
    steps = (steps * (1 + more))[: len(steps) + more]
    commits = [commit(at / 1000, 100 + index) for index, at in enumerate(np.cumsum(steps).tolist())]
    columns, number = column_of(commits[:put], put)
    length = next(length for length in LENGTHS if len(commits[:put]) <= length)
    history: History[Commit] = History(compact=True)
    for index, made in enumerate(commits):
        history.add(made)
        if index >= put:
            added = row(number, made.at, made.offset or 0)
            if not columns.fit(added).all():
                needed = [kept for kept in history if kept.at >= made.at - RETENTION_MS]
                assert len(needed) + FLOOR > length
                return
            columns.add(added)
    offsets = [offset for *_, offset, _ in columns.rows_of(number, columns.mark(number))]
    needed = [made for made in history if made.at >= commits[-1].at - RETENTION_MS]
    assert len(offsets) >= min(len(commits), len(needed) + FLOOR)
    assert offsets == [made.offset for made in commits[-len(offsets) :]]
    assert offsets[0] == int(columns.oldest_offsets(np.array([number]))[0])
    pauses = [later.at - earlier.at for earlier, later in pairwise(commits[-len(offsets) :])]
    for limit in (1, *pauses, max(pauses, default=0) + 1):
        assert columns.has_paused(np.array([number]), limit).tolist() == [max(pauses, default=0) >= limit]


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=150), st.data())
def test_columns_return_what_was_committed_as_of_a_moment(steps: list[int], data: st.DataObject) -> None:
    history: History[Commit] = History(compact=True)
    for index, at in enumerate(np.cumsum(steps).tolist()):
        history.add(commit(at / 1000, 100 + index))
    columns, number = column_of(list(history.changes), data.draw(st.sampled_from([1, 100])))
    times = data.draw(st.lists(st.integers(after(-1), after(sum(steps) / 1000 + 1)), max_size=5))
    kept = columns.rows_of(number, columns.mark(number))
    known = [[offset for at, _, _, offset, _ in kept if at is not None and at <= time] for time in times]
    wanted = [offsets[-1] if offsets else UNKNOWN for offsets in known]
    assert columns.offsets_as_of(np.array([number]), times).tolist() == [wanted]


def test_a_closed_history_is_what_its_columns_return() -> None:
    facts = Facts()
    for second in range(20):
        facts.absorb(commit(second, 100 + second))
    before = list(facts.history(Commit, "main", "g", "t", 0).changes)
    facts.close(facts.history(Commit, "main", "g", "t", 0))
    assert not facts.is_open(before[0].subject)
    history = facts.history(Commit, "main", "g", "t", 0)
    assert (list(history.changes), history.confirmed) == (before, before[-1].at)
    facts.record_reads()
    assert list(facts.history(Commit, "main", "g", "t", 0).changes) == before
    facts.stop_recording()
    assert not facts.is_open(before[0].subject)


def test_what_was_read_is_opened_and_nothing_that_was_read_before() -> None:
    facts = Facts()
    for partition in range(3):
        facts.absorb(replace(commit(1, 100), partition=partition))
        facts.close(facts.history(Commit, "main", "g", "t", partition))
    facts.record_reads()
    facts.history(Commit, "main", "g", "t", 0)
    facts.stop_recording()
    facts.record_reads()
    read = facts.history(Commit, "main", "g", "t", 1)
    facts.open_read()
    facts.stop_recording()
    assert [facts.is_open(("commit", "main", "g", "t", partition)) for partition in range(3)] == [False, True, False]
    facts.absorb(replace(commit(2, 200), partition=1))
    assert [made.offset for made in read] == [100, 200]


@pytest.mark.parametrize("times", [{"seen_at": after(86_400)}, {"since": after(-86_400)}, {}], ids=str)
def test_a_commit_that_was_seen_long_after_it_was_made_fits(times: dict[str, int]) -> None:
    """As after the agent was suspended, or was not running."""
    facts = Facts()
    made = [replace(commit(second, 100 + second), **times) for second in range(3)]
    for one in made:
        facts.absorb(one)
    facts.close(facts.history(Commit, "main", "g", "t", 0))
    assert not facts.is_open(made[0].subject)
    assert list(facts.history(Commit, "main", "g", "t", 0).changes) == made


@pytest.mark.parametrize(
    "commits",
    [
        [commit(0, 5), commit(1, 4)],
        [commit(0, 5), commit(1, None)],
        [commit(0, 5), replace(commit(1, 6), leader_epoch=3)],
    ],
    ids=["moved back", "deleted", "another leader epoch"],
)
def test_a_history_that_does_not_fit_stays_open(commits: list[Commit]) -> None:
    facts = Facts()
    for made in commits:
        facts.absorb(made)
    facts.close(facts.history(Commit, "main", "g", "t", 0))
    assert facts.is_open(commits[0].subject)
    assert list(facts.history(Commit, "main", "g", "t", 0).changes) == commits


def test_ordinary_progress_opens_no_history_and_a_rewind_does() -> None:
    watching = engine(1)
    facts = watching._evaluator.facts
    series = commit(0, 0).subject
    watching.take([partition_state(-60, 1), log_offsets(-60, 1_000_000)])
    for second in range(60):
        watching.take([commit(second, 10_000 + 10 * second)])
        assert not facts.is_open(series)
    assert watching.take([commit(61, 100)])
    assert facts.is_open(series)
    assert len(facts.history(Commit, "main", "g", "t", 0).changes) == 61


def test_a_consumer_that_reads_unevenly_opens_no_history_and_an_operator_does() -> None:
    """A move that is far for the group's pace, but that any consumer can make, is an operator's in an Empty group."""
    watching = engine(1)
    series = commit(0, 0).subject
    watching.take([group_state(-60, "Stable", (Member(id="m"),)), log_offsets(-60, 1_000_000)])
    offset = 10_000
    for second in range(60):
        offset += 30_000 if second % 9 == 8 else 1_100
        watching.take([commit(second, offset)])
        assert not watching._evaluator.facts.is_open(series)
    watching.take([group_state(62, "Empty"), commit(90, 800_000)])
    assert watching._evaluator.facts.is_open(series)
    watching.take([tick(300)])
    (found,) = [finding for incident in watching.incidents for finding in incident.findings]
    assert (found.kind, found.labels) == ("offset_jump", ("operator_reset",))


def test_late_commits_of_a_log_that_grows_open_no_history() -> None:
    watching = engine(1)
    for second in range(300):
        watching.take([log_offsets(second, 10_100 + 10 * second)])
        if second >= 20 and second % 5 == 0:
            made = replace(commit(second - 20, 9_800 + 10 * second), seen_at=after(second))
            watching.take([made])
            assert not watching._evaluator.facts.is_open(made.subject)


def test_a_group_that_commits_each_second_opens_no_history_and_all_that_rules_look_back_to_is_kept() -> None:
    watching = engine(1)
    facts = watching._evaluator.facts
    for second in range(900):
        watching.take([log_offsets(second, 10_100 + 10 * second)])
        watching.take([commit(second, 10_000 + 10 * second), commit(second, 10_000 + 10 * second, 1)])
        assert not any(facts.is_open(commit(0, 0, partition).subject) for partition in (0, 1))
    for partition in (0, 1):
        kept = list(facts.history(Commit, "main", "g", "t", partition))
        assert [made.offset for made in kept] == [10_000 + 10 * second for second in range(900 - len(kept), 900)]
        assert len(kept) >= RETENTION_MS // 1_000 + FLOOR
    watching.take([commit(900, 100)])
    assert facts.is_open(commit(0, 0).subject)


def test_a_leader_change_that_a_group_reads_across_opens_no_history() -> None:
    watching = engine(1)
    watching.take([partition_state(-60, 1), log_offsets(-60, 1_000_000)])
    for second in range(0, 600, 5):
        if second in (100, 105, 400):
            watching.take([partition_state(second, 1 + second % 2, isr=(2,))])
        if not 95 <= second <= 110:
            watching.take([commit(second, 10_000 + 10 * second)])
        watching.take([tick(second)])
        assert not watching._evaluator.facts.is_open(commit(0, 0).subject)


def test_empty_topic_created_again_long_after_is_taken_in() -> None:
    """What is forgotten of a deleted partition leaves no log offsets behind that would seem to grow."""
    watching = engine(1)
    facts = watching._evaluator.facts
    places = range(GONE_PARTITIONS + 1)
    for made in (partition_state(0, 1), log_offsets(1, 0), partition_state(0, 1).deleted(after(10))):
        watching.take([replace(made, partition=partition) for partition in places])
    watching.take([tick(second) for second in range(20, 2_000, 60)])
    assert not facts.history(LogOffsets, "main", "t", 0).changes
    watching.take([partition_state(2_000, 1, topic_id="second")])
    watching.take([log_offsets(2_001, 0), replace(log_offsets(2_001, 5), partition=GONE_PARTITIONS + 1)])
    assert [reading.log_end for reading in facts.history(LogOffsets, "main", "t", 0)] == [0]
    assert [reading.log_end for reading in facts.history(LogOffsets, "main", "t", GONE_PARTITIONS + 1)] == [5]


def test_logs_then_are_what_their_readings_say() -> None:
    facts = Facts()
    readings = [(10, 0, 100), (20, 0, 140), (30, 50, 120), (40, 60, 200), (50, 60, 260)]
    for second, log_start, log_end in readings:
        facts.absorb(log_offsets(second, log_end, log_start))
    at = np.array([after(second) for second in (5, 10, 29, 30, 44, 49, 50, 70)])
    logs = facts.partitions.as_of(np.zeros(len(at), np.int64), at, facts.logs)
    assert logs.log_start.tolist() == [UNREAD, 0, 0, 50, 60, 60, 60, 60]
    assert logs.log_end.tolist() == [UNREAD, 100, 140, 120, 200, 200, 260, 260]
    assert logs.next_end.tolist() == [100, 140, 120, 200, 260, 260, ANY, ANY]


READINGS = st.tuples(st.sampled_from([-900, -40, 0, 10, 100]), st.sampled_from([0, 0, 0, 5_000]))
"""By how much a log end and a log start rise in a second."""


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(READINGS, min_size=30, max_size=90),
    st.lists(st.sampled_from([0, 10, 100, 5_000]), min_size=90, max_size=90),
    st.sampled_from([0, 1, 3, 20]),
)
def test_late_commits_give_the_same_findings(rises: list[tuple[int, int]], advances: list[int], late: int) -> None:
    ends = np.cumsum([20_000, *(end for end, _ in rises)]).clip(min=0).tolist()
    starts = np.minimum(np.cumsum([0, *(start for _, start in rises)]), ends).tolist()
    offsets = np.cumsum([15_000, *advances]).tolist()
    batches: list[list[Observation]] = [
        [
            log_offsets(second, end, start),
            *([] if second < late else [replace(commit(second - late, offsets[second - late]), seen_at=after(second))]),
            tick(second),
        ]
        for second, (end, start) in enumerate(zip(ends, starts, strict=True))
    ]
    batches.append([tick(len(ends) + 400)])
    with_columns, without = (run(engine(least), batches).incidents for least in (1, NEVER))
    assert with_columns == without


class Watchful(GroupRule):
    """A rule that looks at each commit and ignores none."""

    kind = "watchful"
    observes = (Commit,)

    def scopes(self, observation: Observation, facts: Facts) -> list[Scope]:
        assert isinstance(observation, Commit)
        assert facts.history_of(observation).last is observation
        raise LookupError(observation.offset)


def test_a_rule_that_names_nothing_is_asked_about_each_commit() -> None:
    asked: list[str] = []
    evaluator = Evaluator({"watchful": Watchful()}, lambda _, error: asked.append(str(error)))
    for second in range(5):
        batch = CommitBatch.of([commit(second, second)])
        assert batch is not None
        evaluator.absorb_columns(batch)
    assert asked == ["0", "1", "2", "3", "4"]


def test_several_commits_of_a_key_are_taken_in_their_order() -> None:
    watching = engine(1)
    watching.take([commit(second / 10, offset) for second, offset in enumerate((5, 6, 9, 7, 8))])
    assert [made.offset for made in watching.history(Commit, "main", "g", "t", 0)] == [5, 6, 9, 7, 8]


def test_groups_in_columns_are_found_by_partition_and_by_group() -> None:
    watching = engine(1)
    watching.take([commit(0, 5, partition, group) for group in ("b", "a") for partition in (0, 1)])
    facts = watching._evaluator.facts
    assert len(facts.commits) == 4
    by_partition = facts.histories(Commit, cluster="main", topic="t", partition=1)
    assert [history.subject[2] for history in by_partition] == ["a", "b"]
    assert [history.subject[4] for history in facts.histories(Commit, cluster="main", group="a")] == [0, 1]
    assert [history.subject[2] for history in facts.commits_beyond("main", "t", 0, 4)] == ["b", "a"]
    assert facts.commits_beyond("main", "t", 0, 5) == []


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 3)), max_size=40), st.data())
def test_series_are_found_by_the_numbers_of_their_keys_whatever_came_and_went(
    steps: list[tuple[bool, str, int]], data: st.DataObject
) -> None:
    """Also if a series of another cluster whose key has the same number took the place of one that went."""
    columns = CommitColumns(PartitionColumns())
    names_of: dict[str, list[CommitKey]] = {"a": [], "b": []}
    for is_added, cluster, partition in steps:
        key = CommitKey("g", "t", partition)
        number = columns.find((Commit.subject_kind, cluster, *key))
        if is_added and number is None:
            columns.put([msgspec.structs.replace(commit(1, 5, partition), cluster=cluster)], after(1))
        elif not is_added and number is not None:
            columns.remove(number)
        names = names_of[cluster]
        if key not in names:
            names.append(key)
        if data.draw(st.booleans(), "replaced"):
            names = names_of[cluster] = list(names)
        if not data.draw(st.booleans(), "asked"):
            continue
        asked = np.array(data.draw(st.permutations(range(len(names)))), np.int64)
        given_keys = tuple(names) if data.draw(st.booleans(), "used once") else names
        found = columns.ids_of(cluster, given_keys, asked).tolist()
        wanted = [columns.find((Commit.subject_kind, cluster, *names[number])) for number in asked.tolist()]
        assert found == [-1 if number is None else number for number in wanted]


@pytest.mark.parametrize("used", [list, tuple])
def test_a_series_is_not_taken_for_one_that_had_its_id_and_the_same_key_number(used: type) -> None:
    columns, numbers = CommitColumns(PartitionColumns()), np.array([0])
    ours, theirs = [CommitKey("g", "t", 0)], used([CommitKey("h", "u", 0)])
    columns.put([commit(1, 5)], after(1))
    (place,) = columns.ids_of("main", ours, numbers).tolist()
    columns.remove(place)
    columns.put([Commit(at=after(1), cluster="other", group="h", topic="u", partition=0, offset=5)], after(1))
    assert columns.ids_of("other", theirs, numbers).tolist() == [place]
    assert columns.ids_of("main", ours, numbers).tolist() == [-1]


def test_a_batch_becomes_the_same_commits_again() -> None:
    made = [commit(1, 5), commit(2, None), commit(3, 7, 1)]
    batch = CommitBatch.of(made)
    assert batch is not None
    assert list(batch) == made
    assert batch.keys == (CommitKey("g", "t", 0), CommitKey("g", "t", 1))
    assert batch.latest == after(3)
    assert CommitBatch.of([]) is None


@pytest.mark.parametrize("tails", [False, True], ids=["polled", "from the log"])
@pytest.mark.parametrize("seed", [11, 1004, 1007])
def test_simulated_clusters_give_the_same_findings(seed: int, *, tails: bool) -> None:
    scenario = draw(seed, tails=tails, hours=0.5)
    with_columns, without = (run(engine(least), scenario.batches).incidents for least in (1, NEVER))
    assert without
    assert with_columns == without
