"""A compact list holds what a list would hold."""

from bisect import bisect_left, bisect_right

from hypothesis import given
from hypothesis import strategies as st

from agent.engine.compact_list import CompactList, packed_rows
from agent.model.batches import UNKNOWN, CommitBatch
from agent.model.observations.kafka import Commit, LogOffsets

COMMITS = st.lists(
    st.builds(
        Commit,
        at=st.integers(0, 1 << 62),
        seen_at=st.none() | st.integers(0, 1 << 62),
        since=st.none() | st.integers(0, 1 << 62),
        cluster=st.just("main"),
        group=st.just("g"),
        topic=st.just("orders"),
        partition=st.just(3),
        offset=st.none() | st.integers(0, (1 << 63) - 1),
        leader_epoch=st.none() | st.integers(0, (1 << 31) - 1),
    ),
    max_size=200,
)
ROWS = st.sets(st.integers(0, 200)) | st.just(set(range(200)))
"""The places of what is added as rows."""
PLACES = st.none() | st.integers(-210, 210)


def filled(commits: list[Commit], rows: set[int]) -> CompactList[Commit]:
    """Return a list to which those at these places were added as rows, and read after each fifth."""
    compact: CompactList[Commit] = CompactList()
    for place, commit in enumerate(commits):
        batch = CommitBatch.of([commit]) if place and place in rows else None
        if batch is None:
            compact.append(commit)
        else:
            (row,) = packed_rows(Commit, batch.fields())
            compact.append_row(row)
        if place % 5 == 0:
            assert compact[-1] == commit
    return compact


@given(COMMITS, ROWS, PLACES, PLACES, st.sampled_from([None, 1, 2, -1, -3]))
def test_slices_equal_those_of_a_list(
    commits: list[Commit], rows: set[int], begin: int | None, end: int | None, step: int | None
) -> None:
    assert filled(commits, rows)[begin:end:step] == commits[begin:end:step]


class _Appended(list[Commit]):
    """A list to which another thread appends as soon as somebody has asked how long it is."""

    def __len__(self) -> int:
        length = super().__len__()
        self.append(self[-1])
        return length


def test_an_index_means_the_same_while_another_thread_appends() -> None:
    commits = [
        Commit(at=at, cluster="main", group="g", topic="orders", partition=3, offset=700 + at) for at in range(5)
    ]
    compact = CompactList(commits)
    rows, packed, objects, added = compact._parts
    compact._parts = rows, packed, _Appended(objects), added
    assert compact[2] == commits[2]
    assert compact[3:][0] == commits[3]


@given(COMMITS, ROWS, st.integers(0, 210), st.none() | st.integers(0, (1 << 63) - 1))
def test_a_value_is_found_where_a_list_has_it(
    commits: list[Commit], rows: set[int], begin: int, least: int | None
) -> None:
    """Also a deleted offset, which rules know as UNKNOWN."""
    found = filled(commits, rows).find(
        "offset", lambda offset: offset == UNKNOWN if least is None else offset >= least, begin
    )
    wanted = (
        place
        for place, commit in enumerate(commits)
        if place >= begin
        and (commit.offset is None if least is None else commit.offset is not None and commit.offset >= least)
    )
    assert found == next(wanted, None)


@given(COMMITS, ROWS)
def test_items_equal_those_of_a_list(commits: list[Commit], rows: set[int]) -> None:
    for compact in (filled(commits, rows), CompactList(commits)):
        assert [compact.at(place) for place in range(len(commits))] == [commit.at for commit in commits]
        assert len(compact) == len(commits)
        assert list(compact) == commits
        assert [compact[place] for place in range(-len(commits), len(commits))] == commits + commits


@given(COMMITS, ROWS, st.integers(0, 200), st.integers(0, 1 << 62))
def test_bisection_after_removal_equals_that_of_a_list(
    commits: list[Commit], rows: set[int], count: int, at: int
) -> None:
    commits.sort(key=lambda commit: commit.at)
    compact = filled(commits, rows)
    del compact[:count]
    times = [commit.at for commit in commits[count:]]
    assert [commit.at for commit in compact] == times
    assert compact.bisect(at, bisect_left) == bisect_left(times, at)
    assert compact.bisect(at, bisect_right) == bisect_right(times, at)


def test_offset_too_large_for_64_bits_is_kept() -> None:
    readings = [
        LogOffsets(at=at, cluster="main", topic="t", partition=0, log_start=0, log_end=1 << 64) for at in range(20)
    ]
    compact: CompactList[LogOffsets] = CompactList(readings)
    compact.append(readings[-1])
    assert list(compact) == [*readings, readings[-1]]


MINUTE = 60_000


def first_of_each_step(times: list[int], now: int, memory: int) -> list[int]:
    """Return the moments that are thinned out to, one at a time: the step is what the age of each calls for."""
    kept, last = [], None
    for at in times:
        age = now - at
        if age <= memory:
            step = MINUTE
            while age >= 16 * step:
                step *= 2
            if (step, at // step) != last:
                kept.append(at)
            last = step, at // step
    return kept


@given(
    st.lists(st.integers(0, 20_000 * MINUTE), min_size=1, max_size=100),
    st.sampled_from([0, 1]),
    st.sampled_from([7, 1 << 64]),
)
def test_older_observations_are_thinned_out(times: list[int], count: int, end: int) -> None:
    """Also if log ends do not fit into integers."""
    times.sort()
    readings = [
        LogOffsets(at=at, cluster="main", topic="t", partition=0, log_start=0, log_end=end + place)
        for place, at in enumerate(times)
    ]
    older, newer = CompactList(readings[:-1]), CompactList(readings[-1:])
    thinned = newer.thinned(older or (), count, times[-1] + 1)
    wanted = times[: len(times) - 1 + count]
    assert [reading.at for reading in thinned] == first_of_each_step(wanted, times[-1] + 1, LogOffsets.memory_ms)
    assert set(thinned) <= set(readings)
