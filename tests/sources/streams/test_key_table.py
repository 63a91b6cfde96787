"""The last numbers of keys compared with a plain dict, and what is dropped if memory is full."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.streams.key_table import (
    MIN_BUCKETS,
    NO_NUMBER,
    SLOT_BYTES,
    KeyTable,
    LastNumbers,
    is_sampled,
    table_bytes,
)

_NUMBERS = st.one_of(st.just(NO_NUMBER), st.integers(-5, 5), st.integers(-(2**63) + 1, 2**63 - 1))
_HASHES = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1), st.integers(2**64 - 40, 2**64 - 1))


def _update(last: LastNumbers, records: list[tuple[int, int]], changelog: str = "log") -> list[tuple[int, int]]:
    hashes = np.array([key for key, _ in records], np.uint64)
    update = last.update(changelog, hashes, np.array([number for _, number in records], np.int64))
    return list(zip(update.positions.tolist(), update.before.tolist(), strict=True))


def _random(count: int, seed: int = 7) -> list[int]:
    drawn = np.random.default_rng(seed).integers(1, 2**64, count, np.uint64, endpoint=False)
    return list(dict.fromkeys(map(int, drawn)))


@given(st.lists(st.lists(st.tuples(_HASHES, _NUMBERS), max_size=60), max_size=8))
def test_decreases_are_those_that_a_dict_finds(batches: list[list[tuple[int, int]]]) -> None:
    last = LastNumbers(10_000_000, ["log"])
    known: dict[int, int] = {}
    for batch in batches:
        expected = []
        for position, (key, number) in enumerate(batch):
            before = known.get(max(key, 1))  # the hash 0 is taken for 1
            if number == NO_NUMBER:
                known.pop(max(key, 1), None)
                continue
            if before is not None and number < before:
                expected.append((position, before))
            known[max(key, 1)] = number
        assert _update(last, batch) == expected


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 30), st.just(NO_NUMBER) | st.integers(-5, 5) | st.integers(0, 2**40)), max_size=60
        ),
        max_size=8,
    ),
    st.none() | st.just(5),
)
def test_the_sum_changes_as_the_sum_of_a_dict(batches: list[list[tuple[int, int]]], windows: int | None) -> None:
    """Number by number, for new keys, tombstones and keys repeated in a batch; with windows too."""
    last = LastNumbers(10_000_000, ["log"])
    known: dict[int, int] = {}
    for batch in batches:
        expected = []
        for key, number in batch:
            before = sum(known.values())
            known[max(key, 1)] = 0 if number == NO_NUMBER else number
            expected.append(sum(known.values()) - before)
        keys = np.array([max(key, 1) for key, _ in batch], np.int64)
        hours = None if windows is None else keys % windows
        changes = last.update(
            "log", keys.astype(np.uint64), np.array([number for _, number in batch], np.int64), hours
        ).changes
        assert changes is not None
        assert changes.tolist() == expected


def test_sum_of_a_sample_is_unknown() -> None:
    """Unknown from the batch on in which memory was full until the changelog is forgotten; the other stays known."""
    last = LastNumbers(1_000_000, ["large", "small"])
    keys = np.array(_random(200_000), np.uint64)
    known = 0
    for first in range(0, len(keys), 10_000):
        batch = keys[first : first + 10_000]
        changes = last.update("large", batch, np.full(len(batch), 5)).changes
        covered, total = last.coverage("large")
        assert (changes is None) == (covered < total)
        known += changes is not None and int(changes.sum()) == 5 * len(batch)
    assert 1 < known < 10
    changes = last.update("small", keys[:100], np.full(100, 7)).changes
    assert changes is not None
    assert changes.tolist() == [7] * 100
    assert last.update("large", keys[:100], np.full(100, 7)).changes is None
    last.forget("large")
    changes = last.update("large", keys[:100], np.full(100, 7)).changes
    assert changes is not None
    assert int(changes.sum()) == 700


@given(
    st.lists(st.integers(0, 2**64 - 1).filter(bool), unique=True, max_size=300),
    st.lists(st.tuples(st.integers(8, 60), st.integers(0, 4)), max_size=4),
)
def test_table_keeps_its_keys_through_rebuilds(hashes: list[int], steps: list[tuple[int, int]]) -> None:
    """Grown, shrunk or thinned out: exactly the keys in the sample are found, with their numbers."""
    table = KeyTable(40)
    keys = np.sort(np.array(hashes, np.uint64))
    numbers = np.arange(len(keys), dtype=np.int64)
    table.add(keys, numbers)
    sample_below = 2**32
    for buckets, quarters in steps:
        sample_below = min(sample_below, 2**30 * quarters)
        table.rebuild(max(buckets, len(keys) // 12 + 1), sample_below)
        slots = table.find(keys)
        kept = is_sampled(keys, sample_below)
        assert (slots >= 0).tolist() == kept.tolist()
        assert table.numbers(slots[kept]).tolist() == numbers[kept].tolist()
        assert table.used == kept.sum()


def test_table_grows_and_shrinks_over_many_chunks() -> None:
    """With tens of thousands of keys, keys move from one chunk to the next."""
    last = LastNumbers(64_000_000, ["log"])
    keys = _random(300_000)
    for first in range(0, len(keys), 7_000):
        batch = keys[first : first + 7_000]
        assert _update(last, [(key, number) for number, key in enumerate(batch)]) == []
    assert last.coverage("log") == (len(keys), len(keys))
    assert last.size < len(keys) * SLOT_BYTES * 3
    decreases = _update(last, [(key, -1) for key in keys])
    assert [before for _, before in decreases] == [number % 7_000 for number in range(len(keys))]


def test_full_memory_keeps_a_sample_and_estimates_the_rest() -> None:
    """It stays within the limit, and the keys that it keeps are followed for good, evenly spread."""
    memory = 1_000_000
    last = LastNumbers(memory, ["log"])
    keys = _random(200_000)
    for first in range(0, len(keys), 10_000):
        _update(last, [(key, 5) for key in keys[first : first + 10_000]])
        assert last.size <= memory
    kept, total = last.coverage("log")
    assert 0.5 * memory < kept * SLOT_BYTES < memory
    assert total == pytest.approx(len(keys), rel=0.05)
    decreases = _update(last, [(key, 4) for key in keys])
    assert len(decreases) == kept
    halves = sum(position < len(keys) // 2 for position, _ in decreases)
    assert halves == pytest.approx(kept / 2, rel=0.05)
    assert [position for position, _ in _update(last, [(key, 3) for key in keys])] == [
        position for position, _ in decreases
    ]


def test_large_changelog_gives_way_to_a_small_one() -> None:
    last = LastNumbers(1_000_000, ["large", "small"])
    keys = _random(200_000)
    _update(last, [(key, 5) for key in keys], "large")
    small = keys[:10_000]
    _update(last, [(key, 5) for key in small], "small")
    assert last.coverage("small") == (10_000, 10_000)
    kept, total = last.coverage("large")
    assert kept < 50_000
    assert total == pytest.approx(len(keys), rel=0.05)
    assert last.size <= 1_000_000
    last.forget("large")
    assert last.coverage("large") == (0, 0)
    assert _update(last, [(key, 1) for key in keys[:100]], "large") == []


def test_deleted_keys_are_dropped_before_the_table_grows() -> None:
    """Keys that come and go take no more memory than those that exist at a time."""
    last = LastNumbers(10_000_000, ["log"])
    for seed in range(100):
        keys = _random(2_000, seed)
        _update(last, [(key, 1) for key in keys])
        _update(last, [(key, NO_NUMBER) for key in keys])
    assert last.size <= 2 * table_bytes(MIN_BUCKETS)


def test_oldest_windows_are_dropped_first() -> None:
    """A windowed store's keys do not occur again once their windows are over; the newest are all kept."""
    memory = 600_000
    last = LastNumbers(memory, ["log"])
    by_hour = {hour: np.array(_random(2_000, hour), np.uint64) for hour in range(100, 120)}
    for hour, keys in by_hour.items():
        update = last.update("log", keys, np.full(len(keys), 5), np.full(len(keys), hour))
        assert len(update.positions) == 0
        assert last.size <= memory
        assert (update.changes is None) == (last.earliest_hour("log") > 0)
    assert 100 < last.earliest_hour("log") < 120
    hours = np.repeat(list(by_hour), [len(keys) for keys in by_hour.values()])
    update = last.update("log", np.concatenate(list(by_hour.values())), np.full(len(hours), 4), hours)
    assert set(hours[update.positions].tolist()) == set(range(last.earliest_hour("log"), 120))
    assert len(update.positions) == sum(len(by_hour[hour]) for hour in range(last.earliest_hour("log"), 120))
    kept, total = last.coverage("log")
    assert kept == total == len(update.positions)


def test_hour_of_windows_larger_than_memory_keeps_a_sample() -> None:
    last = LastNumbers(230_000, ["log"])
    keys = np.array(_random(30_000), np.uint64)
    for hour in (7, 6, 8):
        last.update("log", keys, np.full(len(keys), 5), np.full(len(keys), hour))
    assert last.earliest_hour("log") == 8
    assert last.size <= 230_000
    kept, total = last.coverage("log")
    assert 3_000 < kept < 20_000
    assert total == pytest.approx(len(keys), rel=0.1)


def test_keys_like_windows_do_not_displace_plain_keys() -> None:
    """A sample is kept of both: most keys have no window."""
    memory = 1_000_000
    last = LastNumbers(memory, ["log"])
    keys = np.array(_random(120_000), np.uint64)
    hours = np.where(np.arange(len(keys)) % 20_000 < 3, 400 + np.arange(len(keys)) // 40_000, 0)
    for first in range(0, len(keys), 10_000):
        batch = slice(first, first + 10_000)
        last.update("log", keys[batch], np.full(10_000, 8), hours[batch])
        assert last.size <= memory
    kept, total = last.coverage("log")
    assert total == pytest.approx(len(keys), rel=0.05)
    assert last.earliest_hour("log") == 0
    update = last.update("log", keys, np.full(len(keys), 2), hours)
    assert len(update.positions) == kept > 0.4 * memory / SLOT_BYTES


def test_windows_are_dropped_before_the_few_keys_without_one() -> None:
    last = LastNumbers(600_000, ["log"])
    plain = np.array(_random(50, seed=3), np.uint64)
    last.update("log", plain, np.full(len(plain), 8), np.zeros(len(plain), np.int64))
    for hour in range(200, 220):
        keys = np.array(_random(2_000, hour), np.uint64)
        last.update("log", keys, np.full(len(keys), 8), np.full(len(keys), hour))
    assert 200 < last.earliest_hour("log") < 220
    assert len(last.update("log", plain, np.full(len(plain), 2)).positions) == len(plain)


def test_least_memory_is_enough_for_windows_of_each_changelog() -> None:
    """The next hour and keys without windows come before the last hour is dropped."""
    changelogs = ["orders", "payments"]
    least = 2 * 3 * table_bytes(MIN_BUCKETS)
    last = LastNumbers(least, changelogs)
    keys = np.array(_random(2_000), np.uint64)
    for hour in (0, 50, 51, 52, 0, 53):
        for changelog in changelogs:
            last.update(changelog, keys, np.full(len(keys), 4), np.full(len(keys), hour))
            assert last.size <= least
    with pytest.raises(ValueError, match="expected at least"):
        LastNumbers(least - 1, changelogs)
