"""Rings give back the steps that were put in, short or long, of the last commits of each series."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agent.engine.commit_rings import _SHARES, LENGTHS, CommitRings, Steps

Step = tuple[int, int, int, bool]

VALUES = st.one_of(st.integers(0, 24).flatmap(lambda bits: st.integers(0, 1 << bits)), st.integers(0, 1 << 45))
STEPS = st.tuples(VALUES, VALUES, VALUES, st.booleans())
SERIES, SPREAD = 5, 300
SHORT, LONG = LENGTHS


def steps_of(rows: list[Step]) -> Steps:
    took, advance, apart, is_since = (np.array(column) for column in zip(*rows, strict=True))
    return Steps(took, advance, apart, is_since)


def rows_of(steps: Steps) -> list[Step]:
    return list(zip(*(column.tolist() for column in steps), strict=True))


def is_long(step: Step) -> bool:
    return not any(all(value < 1 << bits for value, bits in zip(step, share, strict=False)) for share in _SHARES)


@given(
    st.lists(st.tuples(st.integers(0, SERIES - 1), st.integers(0, 100), STEPS), min_size=1, max_size=40),
    st.lists(st.sampled_from(LENGTHS), min_size=SERIES, max_size=SERIES),
)
def test_rings_give_back_the_last_steps_of_each_series(
    actions: list[tuple[int, int, Step]], lengths: list[int]
) -> None:
    rings = CommitRings()
    numbers: list[int] = []
    length_of: dict[int, int] = {}
    known: defaultdict[int, list[Step]] = defaultdict(list)
    for series, count, step in actions:
        while len(numbers) <= series:  # each in a block of its own
            numbers.append(rings.add_block(lengths[len(numbers)])[SPREAD * len(numbers)])
            length_of[numbers[-1]] = lengths[len(numbers) - 1]
        number = numbers[series]
        if count == 0:
            rings.end(number)
            known[number] = []
        elif not known[number]:
            known[number] = [step] * min(count, SHORT)
            rings.begin(number, steps_of(known[number]))
        else:
            others = [other for other, steps in known.items() if steps and other != number]
            for _ in range(count):  # each time a commit of every series
                rings.add(np.array([number, *others]), steps_of([step, *([(1, 2, 3, False)] * len(others))]))
                known[number].append(step)
                for other in others:
                    known[other].append((1, 2, 3, False))
    remaining = {number: steps[-length_of[number] :] for number, steps in known.items()}
    for number, steps in known.items():
        assert rings.written[number] == len(steps)
        if steps:
            assert rows_of(rings.series(number, len(steps))) == remaining[number]
            wanted = np.arange(len(steps) - len(remaining[number]), len(steps))
            assert rows_of(rings.steps(np.full(len(wanted), number), wanted)) == remaining[number]
    assert len(rings._long) == sum(is_long(step) for steps in remaining.values() for step in steps)


def test_what_was_read_before_more_commits_came_is_what_they_left_of_it() -> None:
    rings, only = CommitRings(), np.array([0])
    rings.add_block(SHORT)
    rings.begin(0, steps_of([(0, 0, 0, False)]))
    for number in range(1, SHORT + 3):
        rings.add(only, steps_of([(number, 0, 0, False)]))
    assert [step[0] for step in rows_of(rings.series(0, 5))] == [3, 4]
    assert len(rings.series(0, 2).took) == 1


def test_steps_of_most_groups_take_six_bytes() -> None:
    """Each: how long it took, ms, how far it went, how long after it was made it was seen, ms."""
    rings = CommitRings()
    rings.add_block(LONG)
    rings.begin(0, steps_of([(0, 0, 0, False)]))
    usual = [(5_000, 10_000, 30), (100, 900_000, 900), (5_000, 500, 240_000), (300_000, 10_000, 200)]
    rare = [(1_800_000, 4_000, 1_500), (900_000, 60_000, 200), (3_600_000, 200, 9_000), (60_000, 10_000, 10_000)]
    for step in [*usual, *rare]:
        rings.add(np.array([0]), steps_of([(*step, True)]))
    assert not rings._long
    assert rings._words.values.dtype.itemsize == 6
    long = [(10_000_000, 1, 0), (1, 3_000_000, 0), (1, 1, 300_000)]
    for number, step in enumerate(long, 1):
        rings.add(np.array([0]), steps_of([(*step, True)]))
        assert len(rings._long) == number
    assert [row[:3] for row in rows_of(rings.series(0, 12))[9:]] == long
