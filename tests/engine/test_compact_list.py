"""A compact list holds what a list would hold."""

from bisect import bisect_left, bisect_right

from hypothesis import given
from hypothesis import strategies as st

from agent.engine.compact_list import CompactList
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
    max_size=40,
)
PLACES = st.none() | st.integers(-45, 45)


def filled(commits: list[Commit]) -> CompactList[Commit]:
    compact: CompactList[Commit] = CompactList()
    for commit in commits:
        compact.append(commit)
    return compact


@given(COMMITS, PLACES, PLACES, st.sampled_from([None, 1, 2, -1, -3]))
def test_slices_equal_those_of_a_list(
    commits: list[Commit], begin: int | None, end: int | None, step: int | None
) -> None:
    assert filled(commits)[begin:end:step] == commits[begin:end:step]


@given(COMMITS)
def test_items_equal_those_of_a_list(commits: list[Commit]) -> None:
    for compact in (filled(commits), CompactList(commits)):
        assert len(compact) == len(commits)
        assert list(compact) == commits
        assert [compact[place] for place in range(-len(commits), len(commits))] == commits + commits


@given(COMMITS, st.integers(0, 40), st.integers(0, 1 << 62))
def test_bisection_after_removal_equals_that_of_a_list(commits: list[Commit], count: int, at: int) -> None:
    commits.sort(key=lambda commit: commit.at)
    compact = filled(commits)
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
