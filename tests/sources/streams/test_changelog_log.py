"""What a changelog's records come to: stretches, their dates, what is out of sight."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.declared_stores import DeclaredStore
from agent.model.observations import ChangelogDecreases
from agent.sources.availability import Unit
from agent.sources.streams.changelog_keys import LastNumbers
from agent.sources.streams.changelog_log import Changelog, Records

_STORE = DeclaredStore(application="shop", store="counts")
_TOPIC = "shop-counts-changelog"
_MINUTE = 60_000


_COUNTS = _STORE.model_copy(update={"counts": "orders"})


def _changelog(memory: int = 1_000_000, partitions: int = 2, store: DeclaredStore = _STORE) -> Changelog:
    changelog = Changelog(store, LastNumbers(memory, [_TOPIC]))
    changelog.found("id", range(partitions), 0)
    for number in range(partitions):
        changelog.ends_at(number, 0)
        changelog.reached_end(number, 0, None)
    return changelog


class _Log:
    """Gives records their offsets."""

    def __init__(self, changelog: Changelog) -> None:
        self._changelog = changelog
        self._ends: dict[int, int] = {}

    def write(self, now: int, *records: tuple[int, str | None, int | None], drained: int | None = None) -> None:
        """Records (partition, key, value), read at once."""
        offsets = []
        for partition, _, _ in records:
            offsets.append(self._ends.get(partition, 0))
            self._ends[partition] = offsets[-1] + 1
        told = Records(
            np.array([one for one, _, _ in records]),
            np.array(offsets),
            [None if key is None else key.encode() for _, key, _ in records],
            [None if value is None else value.to_bytes(8, "big", signed=True) for _, _, value in records],
        )
        self._changelog.take(told, now, drained)


def _told(changelog: Changelog) -> list[ChangelogDecreases]:
    facts = []
    for stretch, fact in changelog.untold("main"):
        stretch.told = stretch.news
        facts.append(fact)
    return facts


def _live(changelog: Changelog, partition: int) -> bool:
    return changelog.partitions[partition].live


def test_a_stretch_grows_until_a_minute_has_passed_without_falls() -> None:
    """Told when it has grown; then another begins."""
    changelog = _changelog()
    log = _Log(changelog)
    log.write(10, (0, "a", 5), (0, "b", 5), (1, "a", 5))
    assert _told(changelog) == []
    log.write(20, (0, "a", 1))
    log.write(30, (0, "a", 9))
    log.write(30 + _MINUTE - 20, (0, "a", 2), (0, "b", 4))
    (told,) = _told(changelog)
    assert (told.began_at, told.at, told.since, told.first_offset) == (20, 10 + _MINUTE, 30, 2)
    assert (told.keys, told.total) == (2, 4 + 7 + 1)
    assert [(one.key, one.before, one.after) for one in told.worst] == [("a", 9, 2), ("b", 5, 4)]
    assert _told(changelog) == []
    log.write(11 + 2 * _MINUTE, (0, "b", 3))
    (told,) = _told(changelog)
    assert (told.began_at, told.keys, told.total, told.first_offset) == (11 + 2 * _MINUTE, 1, 1, 6)


def test_since_is_the_last_moment_at_which_nothing_had_fallen() -> None:
    """A read of the partition, or that nothing was left to be read; another partition's falls are its own."""
    changelog = _changelog()
    log = _Log(changelog)
    log.write(10, (0, "a", 5), (1, "a", 5))
    log.write(20, (1, "a", 4), drained=15)
    log.write(30, (0, "a", 4), drained=25)
    assert [(one.partition, one.since) for one in _told(changelog)] == [(0, 25), (1, 15)]


def test_the_past_is_silent_up_to_the_end_as_of_the_start() -> None:
    """What comes after falls against it."""
    changelog = Changelog(_STORE, LastNumbers(1_000_000, [_TOPIC]))
    assert changelog.found("id", [0], 0)
    assert not changelog.found("id", [0, 1], 5)
    changelog.ends_at(0, 2)
    log = _Log(changelog)
    log.write(10, (0, "a", 5))
    assert not _live(changelog, 0)
    assert list(changelog.unseen(_MINUTE)) == []
    assert list(changelog.unseen(_MINUTE + 6)) == [Unit(None, _TOPIC, 0), Unit(None, _TOPIC, 1)]
    log.write(20, (0, "a", 4), (0, "a", 3))
    assert _live(changelog, 0)
    assert [(one.total, one.first_offset) for one in _told(changelog)] == [(1, 2)]


def test_another_topic_of_the_same_name_begins_anew() -> None:
    """Nothing is told any more of the one before. A topic without an id is another one when it was missing."""
    changelog = _changelog()
    log = _Log(changelog)
    log.write(10, (0, "a", 5), (0, "a", 4))
    assert changelog.found("other", [0], 20)
    assert _told(changelog) == []
    changelog.ends_at(0, 0)
    log.write(30, (0, "a", 1))
    assert _told(changelog) == []
    assert changelog.found(None, [0], 40)
    assert not changelog.found(None, [0], 50)
    changelog.missing = "there is no such topic"
    assert list(changelog.unseen(55)) == [Unit(None, _TOPIC)]
    assert changelog.found(None, [0], 60)


def test_a_partition_that_begins_anew_leaves_the_others_alone() -> None:
    """Its keys are not held against what they were."""
    changelog = _changelog()
    log = _Log(changelog)
    log.write(10, (0, "a", 5), (1, "a", 5))
    changelog.begin_anew(0, 20)
    changelog.ends_at(0, 0)
    log.write(30, (0, "a", 1), (1, "a", 4))
    assert [one.partition for one in _told(changelog)] == [1]


def test_a_record_without_a_key_is_counted_and_passed_over() -> None:
    """Out of sight for ten minutes."""
    changelog = _changelog()
    _Log(changelog).write(10, (1, None, 5), (0, "a", 5), (1, None, 3))
    (unit,), (why,) = changelog.unseen(20).keys(), changelog.unseen(20).values()
    assert unit == Unit(None, _TOPIC, 1)
    assert why.startswith(f"2 records of {_TOPIC}-1 have no key, or a value that is no")
    assert changelog.unseen(10 + 10 * _MINUTE) == {}
    assert changelog.partitions[1].next == 2


def test_what_memory_does_not_cover_is_said() -> None:
    """By topic, with the numbers."""
    changelog = _changelog(memory=200_000, partitions=1)
    log = _Log(changelog)
    for first in range(0, 40_000, 10_000):
        log.write(10, *((0, f"key-{number}", 1) for number in range(first, first + 10_000)))
    keys, total = changelog.coverage
    assert changelog.unseen(20) == {
        Unit(
            None, _TOPIC
        ): f"the memory for last values is full: of {_TOPIC} it covers {keys:,} of about {total:,} keys"
    }
    assert total == pytest.approx(40_000, rel=0.1)


def test_recent_windows_that_memory_does_not_cover_are_said() -> None:
    """A day later they are no longer missed."""
    changelog = _changelog(memory=300_000, partitions=1)
    first, per_hour, hour_ms = 490_000, 3_000, 3_600_000
    count = 0
    for hour in range(first, first + 6):
        end = struct.pack(">qi", hour * hour_ms, 0)
        keys = [b"key-%d" % number + end for number in range(per_hour)]
        offsets = np.arange(count, count + per_hour)
        changelog.take(Records(np.zeros(per_hour, np.int64), offsets, keys, [bytes(8)] * per_hour), 10, None)
        count += per_hour
    now = (first + 6) * hour_ms
    (why,) = changelog.unseen(now).values()
    assert why.startswith(f"the memory for last values is full: of {_TOPIC} it covers windows from 20")
    assert changelog.unseen(now + 24 * hour_ms) == {}


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9) | st.none()), min_size=1), max_size=6)
)
def test_a_stretch_is_what_a_dict_finds(batches: list[list[tuple[str, int | None]]]) -> None:
    """Keys, total, first offset and the five deepest, each key once."""
    changelog = _changelog(partitions=1)
    log = _Log(changelog)
    known: dict[str, int] = {}
    falls: list[tuple[int, str, int]] = []
    offset = 0
    for batch in batches:
        log.write(10, *((0, key, value) for key, value in batch))
        for key, value in batch:
            if value is None:
                known.pop(key, None)
            else:
                if value < known.get(key, 0):
                    falls.append((known[key] - value, key, offset))
                known[key] = value
            offset += 1
    told = _told(changelog)
    assert bool(told) == bool(falls)
    for one in told:
        deepest = {key: max(depth for depth, other, _ in falls if other == key) for _, key, _ in falls}
        assert (one.keys, one.total, one.first_offset) == (
            len(deepest),
            sum(depth for depth, _, _ in falls),
            falls[0][2],
        )
        assert [fall.before - fall.after for fall in one.worst] == sorted(deepest.values(), reverse=True)[:5]
        assert all(deepest[fall.key] == fall.before - fall.after for fall in one.worst)


def _sums(changelog: Changelog) -> list[tuple[int, int | None, int | None, int | None]]:
    return [(one.partition, one.sum_before, one.sum_after, one.sum_at) for one in _told(changelog)]


def test_of_a_plain_count_the_sums_before_and_after_are_told() -> None:
    """Before the first record that fell, though that came with others; after, once the end has been reached."""
    changelog = _changelog(store=_COUNTS)
    log = _Log(changelog)
    log.write(10, (0, "a", 40), (1, "a", 7), (0, "b", 40), (0, "c", 1), (0, "c", None))
    log.write(20, (0, "b", 41), (1, "a", 8), (0, "a", 1), (0, "b", 2), (0, "d", 1))
    assert _sums(changelog) == [(0, 81, None, None)]
    changelog.reached_end(1, 30, 25)
    assert _sums(changelog) == []
    log.write(40, (0, "a", 2))
    changelog.reached_end(0, 40, 35)
    assert _sums(changelog) == [(0, 81, 5, 35)]
    log.write(50, (0, "a", 3))
    changelog.reached_end(0, 50, 45)
    assert _sums(changelog) == []
    log.write(60, (0, "a", 1))
    assert _sums(changelog) == [(0, 81, 5, 35)]
    changelog.reached_end(0, 70, 65)
    assert _sums(changelog) == [(0, 81, 4, 65)]
    log.write(80 + 2 * _MINUTE, (0, "a", 5), (0, "a", 0))
    assert _sums(changelog) == [(0, 8, None, None)]


def test_an_end_that_is_reached_long_after_a_stretch_says_nothing_of_it() -> None:
    """Nor one of which it is not known what had come by then."""
    changelog = _changelog(store=_COUNTS)
    _Log(changelog).write(20, (0, "a", 40), (0, "a", 1))
    assert _sums(changelog) == [(0, 40, None, None)]
    changelog.reached_end(0, 30, None)
    changelog.reached_end(0, 40 + _MINUTE, 30 + _MINUTE)
    assert _sums(changelog) == []


@pytest.mark.parametrize("unknown", ["of no count", "unreadable", "sampled", "beyond 64 bits"])
def test_a_sum_that_is_not_known_is_not_told(unknown: str) -> None:
    """Of a partition: one that begins anew, or another topic of the name, is known again."""
    changelog = _changelog(store=_STORE if unknown == "of no count" else _COUNTS, memory=200_000)
    log = _Log(changelog)
    log.write(10, (1, "a", 9), (0, "x", None if unknown != "unreadable" else 0))
    if unknown == "unreadable":
        log.write(11, (0, None, 5))
    elif unknown == "sampled":
        log.write(11, *((0, f"key-{number}", 40) for number in range(20_000)))
    elif unknown == "beyond 64 bits":
        log.write(11, (0, "high", 2**62), (0, "higher", 2**62))
    log.write(12, *((0, f"key-{number}", 40) for number in range(99)))
    log.write(13, *((0, f"key-{number}", 30) for number in range(99)))
    changelog.reached_end(0, 20, 19)
    assert _sums(changelog) == [(0, None, None, None)]
    if unknown in ("unreadable", "beyond 64 bits"):
        log.write(30, (1, "a", 8))
        changelog.begin_anew(0, 30)
        changelog.ends_at(0, 0)
        log.write(40, (0, "a", 40), (0, "a", 4))
        assert _sums(changelog) == [(0, 40, None, None), (1, 9, None, None)]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.integers(0, 9) | st.none()), min_size=1),
        max_size=6,
    ),
    st.sets(st.integers(0, 5)),
)
def test_sums_are_what_a_dict_sums_up_to(batches: list[list[tuple[int, str, int | None]]], ended: set[int]) -> None:
    """Before the first fall of each partition, and when its end was reached last since its last fall."""
    changelog = _changelog(partitions=3, store=_COUNTS)
    log = _Log(changelog)
    known: dict[tuple[int, str], int] = {}
    before: dict[int, int] = {}
    after: dict[int, tuple[int, int]] = {}
    unsummed = set()

    def total(partition: int) -> int:
        return sum(value for (of, _), value in known.items() if of == partition)

    for number, batch in enumerate(batches):
        log.write(10 + number, *batch)
        for partition, key, value in batch:
            if value is not None and value < known.get((partition, key), 0):
                before.setdefault(partition, total(partition))
                unsummed.add(partition)
            known[partition, key] = value or 0
        if number in ended:
            for partition in range(3):
                changelog.reached_end(partition, 10 + number, 9 + number)
                if partition in unsummed:
                    after[partition] = total(partition), 9 + number
                    unsummed.remove(partition)
    expected = [(partition, before[partition], *after.get(partition, (None, None))) for partition in sorted(before)]
    assert _sums(changelog) == expected
    assert [changelog.partitions[partition].sum for partition in range(3)] == [total(one) for one in range(3)]
