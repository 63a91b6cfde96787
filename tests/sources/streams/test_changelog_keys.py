"""The last numbers of keys, against a plain dict; what gives way where memory is full."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.streams.changelog_keys import LastNumbers
from agent.sources.streams.key_table import NOTHING, PLACE_BYTES, SMALLEST, Table, sampled, table_bytes

_NUMBERS = st.one_of(st.just(NOTHING), st.integers(-5, 5), st.integers(-(2**63) + 1, 2**63 - 1))
_HASHES = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1), st.integers(2**64 - 40, 2**64 - 1))


def _take(last: LastNumbers, records: list[tuple[int, int]], changelog: str = "log") -> list[tuple[int, int]]:
    hashes = np.array([one for one, _ in records], np.uint64)
    falls = last.take(changelog, hashes, np.array([one for _, one in records], np.int64))
    return list(zip(falls.positions.tolist(), falls.before.tolist(), strict=True))


def _random(count: int, seed: int = 7) -> list[int]:
    drawn = np.random.default_rng(seed).integers(1, 2**64, count, np.uint64, endpoint=False)
    return list(dict.fromkeys(map(int, drawn)))


@given(st.lists(st.lists(st.tuples(_HASHES, _NUMBERS), max_size=60), max_size=8))
def test_falls_are_those_that_a_dict_finds(batches: list[list[tuple[int, int]]]) -> None:
    """Whatever keys and numbers come in whatever batches, tombstones among them."""
    last = LastNumbers(10_000_000, ["log"])
    known: dict[int, int] = {}
    for batch in batches:
        expected = []
        for position, (key, number) in enumerate(batch):
            before = known.get(max(key, 1))  # the hash 0 is taken for 1
            if number == NOTHING:
                known.pop(max(key, 1), None)
                continue
            if before is not None and number < before:
                expected.append((position, before))
            known[max(key, 1)] = number
        assert _take(last, batch) == expected


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 30), st.just(NOTHING) | st.integers(-5, 5) | st.integers(0, 2**40)), max_size=60
        ),
        max_size=8,
    ),
    st.none() | st.just(5),
)
def test_the_sum_changes_as_the_sum_of_a_dict(batches: list[list[tuple[int, int]]], windows: int | None) -> None:
    """Number by number: of new keys, tombstones, and keys that come again in the same batch; with windows too."""
    last = LastNumbers(10_000_000, ["log"])
    known: dict[int, int] = {}
    for batch in batches:
        expected = []
        for key, number in batch:
            before = sum(known.values())
            known[max(key, 1)] = 0 if number == NOTHING else number
            expected.append(sum(known.values()) - before)
        keys = np.array([max(key, 1) for key, _ in batch], np.int64)
        hours = None if windows is None else keys % windows
        changes = last.take("log", keys.astype(np.uint64), np.array([one for _, one in batch], np.int64), hours).changes
        assert changes is not None
        assert changes.tolist() == expected


def test_of_a_sample_no_sum_is_known() -> None:
    """From the batch on in which memory became too small, and again after the changelog began anew; of the other
    changelog all along, until it gives way itself.
    """
    last = LastNumbers(1_000_000, ["large", "small"])
    keys = np.array(_random(200_000), np.uint64)
    known = 0
    for first in range(0, len(keys), 10_000):
        some = keys[first : first + 10_000]
        changes = last.take("large", some, np.full(len(some), 5)).changes
        covered, total = last.coverage("large")
        assert (changes is None) == (covered < total)
        known += changes is not None and int(changes.sum()) == 5 * len(some)
    assert 1 < known < 10
    changes = last.take("small", keys[:100], np.full(100, 7)).changes
    assert changes is not None
    assert changes.tolist() == [7] * 100
    assert last.take("large", keys[:100], np.full(100, 7)).changes is None
    last.forget("large")
    changes = last.take("large", keys[:100], np.full(100, 7)).changes
    assert changes is not None
    assert int(changes.sum()) == 700


@given(
    st.lists(st.integers(0, 2**64 - 1).filter(bool), unique=True, max_size=300),
    st.lists(st.tuples(st.integers(8, 60), st.integers(0, 4)), max_size=4),
)
def test_a_table_holds_the_same_keys_however_it_is_rebuilt(hashes: list[int], steps: list[tuple[int, int]]) -> None:
    """Grown, shrunk or thinned out: what is in the sample is found with its number, and nothing else."""
    table = Table(40)
    keys = np.sort(np.array(hashes, np.uint64))
    numbers = np.arange(len(keys), dtype=np.int64)
    table.add(keys, numbers)
    below = 2**32
    for buckets, quarters in steps:
        below = min(below, 2**30 * quarters)
        table.rebuild(max(buckets, len(keys) // 12 + 1), below)
        places = table.find(keys)
        kept = sampled(keys, below)
        assert (places >= 0).tolist() == kept.tolist()
        assert table.numbers(places[kept]).tolist() == numbers[kept].tolist()
        assert table.used == kept.sum()


def test_a_table_grows_and_shrinks_over_many_chunks() -> None:
    """Tens of thousands of keys, so that keys cross from one chunk to the next."""
    last = LastNumbers(64_000_000, ["log"])
    keys = _random(300_000)
    for first in range(0, len(keys), 7_000):
        some = keys[first : first + 7_000]
        assert _take(last, [(key, number) for number, key in enumerate(some)]) == []
    assert last.coverage("log") == (len(keys), len(keys))
    assert last.size < len(keys) * PLACE_BYTES * 3
    fallen = _take(last, [(key, -1) for key in keys])
    assert [before for _, before in fallen] == [number % 7_000 for number in range(len(keys))]


def test_where_memory_is_full_a_sample_is_kept_and_the_rest_is_estimated() -> None:
    """It stays within the limit, and the keys that it keeps are followed for good: in each part alike."""
    memory = 1_000_000
    last = LastNumbers(memory, ["log"])
    keys = _random(200_000)
    for first in range(0, len(keys), 10_000):
        _take(last, [(key, 5) for key in keys[first : first + 10_000]])
        assert last.size <= memory
    kept, total = last.coverage("log")
    assert 0.5 * memory < kept * PLACE_BYTES < memory
    assert total == pytest.approx(len(keys), rel=0.05)
    fallen = _take(last, [(key, 4) for key in keys])
    assert len(fallen) == kept
    halves = sum(position < len(keys) // 2 for position, _ in fallen)
    assert halves == pytest.approx(kept / 2, rel=0.05)
    assert [position for position, _ in _take(last, [(key, 3) for key in keys])] == [one for one, _ in fallen]


def test_a_large_changelog_gives_way_to_a_small_one() -> None:
    """The one that came first does not keep the other out."""
    last = LastNumbers(1_000_000, ["large", "small"])
    keys = _random(200_000)
    _take(last, [(key, 5) for key in keys], "large")
    small = keys[:10_000]
    _take(last, [(key, 5) for key in small], "small")
    assert last.coverage("small") == (10_000, 10_000)
    kept, total = last.coverage("large")
    assert kept < 50_000
    assert total == pytest.approx(len(keys), rel=0.05)
    assert last.size <= 1_000_000
    last.forget("large")
    assert last.coverage("large") == (0, 0)
    assert _take(last, [(key, 1) for key in keys[:100]], "large") == []


def test_deleted_keys_make_room_before_the_table_grows() -> None:
    """Keys that come and go for ever take no more memory than those that are there at a time."""
    last = LastNumbers(10_000_000, ["log"])
    for seed in range(100):
        keys = _random(2_000, seed)
        _take(last, [(key, 1) for key in keys])
        _take(last, [(key, NOTHING) for key in keys])
    assert last.size <= 2 * table_bytes(SMALLEST)


def test_the_oldest_windows_go_first() -> None:
    """A windowed store's keys are never seen again once their windows are over: the newest are all kept."""
    memory = 600_000
    last = LastNumbers(memory, ["log"])
    by_hour = {hour: np.array(_random(2_000, hour), np.uint64) for hour in range(100, 120)}
    for hour, keys in by_hour.items():
        falls = last.take("log", keys, np.full(len(keys), 5), np.full(len(keys), hour))
        assert len(falls.positions) == 0
        assert last.size <= memory
        assert (falls.changes is None) == (last.earliest("log") > 0)
    assert 100 < last.earliest("log") < 120
    hours = np.repeat(list(by_hour), [len(keys) for keys in by_hour.values()])
    falls = last.take("log", np.concatenate(list(by_hour.values())), np.full(len(hours), 4), hours)
    assert set(hours[falls.positions].tolist()) == set(range(last.earliest("log"), 120))
    assert len(falls.positions) == sum(len(by_hour[one]) for one in range(last.earliest("log"), 120))
    kept, total = last.coverage("log")
    assert kept == total == len(falls.positions)


def test_an_hour_larger_than_memory_keeps_a_sample() -> None:
    """Windows of one hour, and of hours that have gone already."""
    last = LastNumbers(200_000, ["log"])
    keys = np.array(_random(30_000), np.uint64)
    for hour in (7, 6, 8):
        last.take("log", keys, np.full(len(keys), 5), np.full(len(keys), hour))
    assert last.earliest("log") == 8
    assert last.size <= 200_000
    kept, total = last.coverage("log")
    assert 3_000 < kept < 20_000
    assert total == pytest.approx(len(keys), rel=0.1)


def test_too_little_memory_is_refused() -> None:
    """A table has to begin with something."""
    with pytest.raises(ValueError, match="expected at least"):
        LastNumbers(2 * table_bytes(SMALLEST) - 1, ["one", "two"])
