"""Falls and leaps found in arrays, chunk after chunk and share after share, against the same told row by row."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_checks.history.clock import Clock, Step
from spark_checks.history.moves import BACK, FORGOTTEN, LEAP, MAX_RATE, NEVER, Ints, Rows
from spark_checks.history.stitch import EDGE_NUMBERS, Hit, Hits, Share, joined

LEAST = 10

Row = tuple[int, int, int, int]
"""Key, time, position, offset."""

offsets = st.one_of(st.just(FORGOTTEN), st.integers(0, 60), st.sampled_from([100, 2_000, 3_000_000]))
arrivals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), offsets), max_size=60)
steady = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), offsets), max_size=60)


def told(rows: list[Row]) -> set[tuple[int, Hit]]:
    """What must be found, row by row, with key."""
    found = set()
    for key in {row[0] for row in rows}:
        series: list[Row] = []
        for row in sorted((row for row in rows if row[0] == key), key=lambda one: one[1:3]):
            if not series or series[-1][3] != row[3]:
                series.append(row)
        for index, (_, time, position, offset) in enumerate(series):
            before = next((one for one in (index - 1, index - 2) if one >= 0 and series[one][3] >= 0), None)
            if offset < 0 or before is None:
                continue
            forgotten = before == index - 2
            moved = offset - series[before][3]
            four = [one[3] for one in series[max(before - 3, 0) : before + 1]]
            surge = (
                not forgotten
                and len(four) == BACK
                and min(four) >= 0
                and all(moved > LEAP * max(late - early, 1) for early, late in pairwise(four))
            )
            fast = moved * 1000 > MAX_RATE * max(time - series[before][1], 1000)
            if moved <= -LEAST or (moved >= LEAST and (forgotten or fast or surge)):
                earlier = [series[before - back] for back in range(1, BACK) if before >= back]
                known = tuple((one[1], one[3]) for one in earlier if one[3] >= 0)
                found.add((key, Hit(time, position, offset, None, *series[before][1:], forgotten, known)))
    return found


def arrays(rows: list[Row]) -> Rows:
    """The same as columns."""
    code, time, position, offset = np.array(rows, np.int64).reshape(-1, 4).T
    return Rows(code, time, position, offset, np.full(len(rows), NEVER))


def listed(hits: Hits) -> list[tuple[int, Hit]]:
    """Hits with their keys."""
    return [(code, Hit.of(numbers)) for code, numbers in zip(hits.code.tolist(), hits.numbers.tolist(), strict=True)]


def searched(rows: list[Row], chunk: int, chunks: int) -> list[tuple[int, Hit]]:
    """As Spark searches: shares of so many chunks, then where shares meet, then unruly keys as a whole."""
    found: list[tuple[int, Hit]] = []
    edges: list[Ints] = []
    unruly: set[int] = set()
    for number, first in enumerate(range(0, len(rows), chunk * chunks)):
        share = Share(LEAST)
        for begin in range(first, min(first + chunk * chunks, len(rows)), chunk):
            found += listed(share.take(arrays(rows[begin : min(begin + chunk, first + chunk * chunks)])))
        code, numbers, lengths = share.edges()
        lines = numbers.reshape(-1, EDGE_NUMBERS)
        codes = np.repeat(code, lengths // EDGE_NUMBERS)
        edges.append(np.column_stack((codes, lines, np.full(codes.size, number))))
        unruly |= set(share.unruly().tolist())
    if not edges:
        return []
    code, time, position, offset, since, head, owner = np.concatenate(edges).T
    hits, late = joined(Rows(code, time, position, offset, since), owner, head.astype(np.bool_), LEAST)
    found += listed(hits)
    unruly |= set(late.tolist())
    whole = arrays([row for row in rows if row[0] in unruly])
    again, _ = joined(whole, np.zeros_like(whole.code), np.ones(whole.code.size, np.bool_), LEAST)
    return [one for one in found if one[0] not in unruly] + listed(again)


@given(arrivals, st.integers(1, 12), st.integers(1, 3))
def test_late_observations_change_nothing_of_what_is_found(
    arrived: list[tuple[int, int, int]], chunk: int, chunks: int
) -> None:
    """In whatever order commits come, and wherever chunks and shares are cut, each hit is found once."""
    rows = [(key, time, position, offset) for position, (key, time, offset) in enumerate(arrived)]
    assert sorted(searched(rows, chunk, chunks), key=str) == sorted(told(rows), key=str)


@given(steady, st.integers(1, 12), st.integers(1, 3))
def test_what_comes_in_order_is_found_wherever_the_journal_is_cut(
    arrived: list[tuple[int, int, int]], chunk: int, chunks: int
) -> None:
    """Commits whose times never fall are found without reading any key again."""
    time, rows = 0, []
    for position, (key, passed, offset) in enumerate(arrived):
        time += passed * 400
        rows.append((key, time, position, offset))
    assert sorted(searched(rows, chunk, chunks), key=str) == sorted(told(rows), key=str)


def test_ninety_thousand_keys_are_sorted_as_well_as_ninety() -> None:
    """Codes above 16 bits take a second pass of the sort."""
    rows = [(key, turn, turn * 90_000 + key, 1_000 - 100 * turn) for turn in range(3) for key in range(90_000)]
    share = Share(LEAST)
    assert share.take(arrays(rows)).code.size == 0
    code, numbers, lengths = share.edges()
    assert code.size == 90_000
    assert set(lengths.tolist()) == {3 * EDGE_NUMBERS}
    assert numbers.size == 3 * 90_000 * EDGE_NUMBERS


def test_a_clock_that_was_set_back_is_told_from_late_observations() -> None:
    """After the step times go on as if it had not been; between the two ticks each belongs to the nearer one."""
    clock = Clock([Step(before=10, after=20, old=100_000, new=60_000)])
    positions, times = np.array([9, 11, 12, 20, 30]), np.array([99_000, 100_500, 60_500, 60_000, 70_000])
    steady_times = times + clock.shifts(positions, times)
    assert steady_times.tolist() == [99_000, 100_500, 100_500, 100_000, 110_000]
    told_times = [clock.told(*one) for one in zip(positions.tolist(), steady_times.tolist(), strict=True)]
    assert [told_times[0], *told_times[2:]] == [99_000, 60_500, 60_000, 70_000]


def test_a_hole_is_told_where_no_tick_came_for_a_minute() -> None:
    """A clock that is set back makes none."""
    times = np.array([0, 1_000, 62_000, 63_000, 3_000, 4_000])
    positions = np.arange(times.size)
    assert Clock.of(positions, times).holes(positions, times) == [(1_000, 62_000)]
