"""Rewinds and jumps found in arrays, by chunk and share, against the same found row by row."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agent.storage.journal.clock_steps import ClockStep
from spark_checks.offsets.arrays import (
    EDGE_NUMBERS,
    MAX_RATE,
    NO_OFFSET,
    NO_TIME,
    PRIOR,
    SURGE,
    Ints,
    Move,
    Moves,
    Rows,
    Share,
    join_shares,
)
from spark_checks.offsets.coverage import Clock

LEAST = 10

Row = tuple[int, int, int, int]
"""Key, time, position, offset."""

offsets = st.one_of(st.just(NO_OFFSET), st.integers(0, 60), st.sampled_from([100, 2_000, 3_000_000]))
arrivals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), offsets), max_size=60)
steady = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), offsets), max_size=60)


def expected(rows: list[Row]) -> set[tuple[int, Move]]:
    """Return the moves to find, row by row, with their keys."""
    found = set()
    for key in {row[0] for row in rows}:
        series: list[Row] = []
        for row in sorted((row for row in rows if row[0] == key), key=lambda row: row[1:3]):
            if not series or series[-1][3] != row[3]:
                series.append(row)
        for index, (_, time, position, offset) in enumerate(series):
            before = next((entry for entry in (index - 1, index - 2) if entry >= 0 and series[entry][3] >= 0), None)
            if offset < 0 or before is None:
                continue
            expired = before == index - 2
            moved = offset - series[before][3]
            four = [entry[3] for entry in series[max(before - 3, 0) : before + 1]]
            surge = (
                not expired
                and len(four) == PRIOR
                and min(four) >= 0
                and all(moved > SURGE * max(late - early, 1) for early, late in pairwise(four))
            )
            fast = moved * 1000 > MAX_RATE * max(time - series[before][1], 1000)
            if moved <= -LEAST or (moved >= LEAST and (expired or fast or surge)):
                earlier = [series[before - back] for back in range(1, PRIOR) if before >= back]
                known = tuple((entry[1], entry[3]) for entry in earlier if entry[3] >= 0)
                found.add((key, Move(time, position, offset, None, *series[before][1:], expired, known)))
    return found


def arrays(rows: list[Row]) -> Rows:
    """Return rows as columns."""
    code, time, position, offset = np.array(rows, np.int64).reshape(-1, 4).T
    return Rows(code, time, position, offset, np.full(len(rows), NO_TIME))


def with_keys(moves: Moves) -> list[tuple[int, Move]]:
    """Return moves with their keys."""
    return [(code, Move.of(numbers)) for code, numbers in zip(moves.code.tolist(), moves.numbers.tolist(), strict=True)]


def search(rows: list[Row], chunk: int, chunks: int) -> list[tuple[int, Move]]:
    """Search as Spark does: shares of `chunks` chunks, then the edges between shares, then late keys as a whole."""
    found: list[tuple[int, Move]] = []
    edges: list[Ints] = []
    late_keys: set[int] = set()
    for number, first in enumerate(range(0, len(rows), chunk * chunks)):
        share = Share(LEAST)
        for begin in range(first, min(first + chunk * chunks, len(rows)), chunk):
            found += with_keys(share.search(arrays(rows[begin : min(begin + chunk, first + chunk * chunks)])))
        code, numbers, lengths = share.edges()
        lines = numbers.reshape(-1, EDGE_NUMBERS)
        codes = np.repeat(code, lengths // EDGE_NUMBERS)
        edges.append(np.column_stack((codes, lines, np.full(codes.size, number))))
        late_keys |= set(share.late_keys().tolist())
    if not edges:
        return []
    code, time, position, offset, since, head, owner = np.concatenate(edges).T
    moves, late = join_shares(Rows(code, time, position, offset, since), owner, head.astype(np.bool_), LEAST)
    found += with_keys(moves)
    late_keys |= set(late.tolist())
    whole = arrays([row for row in rows if row[0] in late_keys])
    again, _ = join_shares(whole, np.zeros_like(whole.code), np.ones(whole.code.size, np.bool_), LEAST)
    return [entry for entry in found if entry[0] not in late_keys] + with_keys(again)


@given(arrivals, st.integers(1, 12), st.integers(1, 3))
def test_late_observations_do_not_change_the_moves_found(
    arrived: list[tuple[int, int, int]], chunk: int, chunks: int
) -> None:
    rows = [(key, time, position, offset) for position, (key, time, offset) in enumerate(arrived)]
    assert sorted(search(rows, chunk, chunks), key=str) == sorted(expected(rows), key=str)


@given(steady, st.integers(1, 12), st.integers(1, 3))
def test_moves_are_found_wherever_the_journal_is_cut(
    arrived: list[tuple[int, int, int]], chunk: int, chunks: int
) -> None:
    time, rows = 0, []
    for position, (key, passed, offset) in enumerate(arrived):
        time += passed * 400
        rows.append((key, time, position, offset))
    assert sorted(search(rows, chunk, chunks), key=str) == sorted(expected(rows), key=str)


def test_ninety_thousand_keys_are_sorted() -> None:
    rows = [(key, turn, turn * 90_000 + key, 1_000 - 100 * turn) for turn in range(3) for key in range(90_000)]
    share = Share(LEAST)
    assert share.search(arrays(rows)).code.size == 0
    code, numbers, lengths = share.edges()
    assert code.size == 90_000
    assert set(lengths.tolist()) == {3 * EDGE_NUMBERS}
    assert numbers.size == 3 * 90_000 * EDGE_NUMBERS


def test_clock_step_is_distinguished_from_late_observations() -> None:
    clock = Clock([ClockStep(before=10, after=20, old=100_000, new=60_000)])
    positions, times = np.array([9, 11, 12, 20, 30]), np.array([99_000, 100_500, 60_500, 60_000, 70_000])
    steady_times = times + clock.shifts(positions, times)
    assert steady_times.tolist() == [99_000, 100_500, 100_500, 100_000, 110_000]
    original_times = [
        clock.original_time(*entry) for entry in zip(positions.tolist(), steady_times.tolist(), strict=True)
    ]
    assert [original_times[0], *original_times[2:]] == [99_000, 60_500, 60_000, 70_000]


def test_a_minute_without_ticks_is_a_gap() -> None:
    times = np.array([0, 1_000, 62_000, 63_000, 3_000, 4_000])
    positions = np.arange(times.size)
    assert Clock.of(positions, times).tick_gaps(positions, times) == [(1_000, 62_000)]
