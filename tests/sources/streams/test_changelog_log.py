"""Episodes of decreases in a changelog's records, their times, and what is unavailable."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.declared_stores import DeclaredStore
from agent.model.observations.streams import ChangelogDecreases
from agent.sources.availability import Unit
from agent.sources.streams.changelog_log import FETCH_MS, Changelog, Records
from agent.sources.streams.key_table import LastNumbers

_STORE = DeclaredStore(application="shop", store="counts")
_TOPIC = "shop-counts-changelog"
_MINUTE = 60_000
_HOUR = 60 * _MINUTE

_COUNTS = _STORE.model_copy(update={"counts": "orders"})


def _changelog(memory: int = 1_000_000, partitions: int = 2, store: DeclaredStore = _STORE) -> Changelog:
    changelog = Changelog(store, LastNumbers(memory, [_TOPIC]))
    changelog.set_topic("id", range(partitions), 0)
    for number in range(partitions):
        changelog.set_log_end(number, 0)
        changelog.mark_caught_up(number, 0, None)
    return changelog


class _Log:
    """Writes records with offsets to a changelog."""

    def __init__(self, changelog: Changelog) -> None:
        self._changelog = changelog
        self._ends: dict[int, int] = {}

    def write(self, now: int, *records: tuple[int, str | None, int | None], drained_at: int | None = None) -> None:
        """Write records (partition, key, value) that are read at once."""
        offsets = []
        for partition, _, _ in records:
            offsets.append(self._ends.get(partition, 0))
            self._ends[partition] = offsets[-1] + 1
        written = Records(
            np.array([partition for partition, _, _ in records]),
            np.array(offsets),
            [None if key is None else key.encode() for _, key, _ in records],
            [None if value is None else value.to_bytes(8, "big", signed=True) for _, _, value in records],
        )
        self._changelog.apply(written, now, drained_at)


def _report(changelog: Changelog) -> list[ChangelogDecreases]:
    observations = []
    for episode, observation in changelog.unreported("main"):
        episode.reported = episode.changes
        observations.append(observation)
    return observations


def _is_live(changelog: Changelog, partition: int) -> bool:
    return changelog.partitions[partition].live


def test_episode_ends_after_a_minute_without_decreases() -> None:
    """It is reported when it has grown; then another begins."""
    changelog = _changelog()
    log = _Log(changelog)
    log.write(10, (0, "a", 5), (0, "b", 5), (1, "a", 5))
    assert _report(changelog) == []
    log.write(20, (0, "a", 1))
    log.write(30, (0, "a", 9))
    log.write(30 + _MINUTE - 20, (0, "a", 2), (0, "b", 4))
    (episode,) = _report(changelog)
    assert (episode.began_at, episode.at, episode.since, episode.first_offset) == (20, 10 + _MINUTE, 30, 2)
    assert (episode.keys, episode.total) == (2, 4 + 7 + 1)
    assert [(decrease.key, decrease.before, decrease.after) for decrease in episode.worst] == [("a", 9, 2), ("b", 5, 4)]
    assert _report(changelog) == []
    log.write(11 + 2 * _MINUTE, (0, "b", 3))
    (episode,) = _report(changelog)
    assert (episode.began_at, episode.keys, episode.total, episode.first_offset) == (11 + 2 * _MINUTE, 1, 1, 6)


def test_since_is_the_last_time_without_a_decrease() -> None:
    """A read of the partition, or a fetch before the time when nothing was left to read."""
    changelog = _changelog()
    log = _Log(changelog)
    log.write(10_000, (0, "a", 5), (1, "a", 5))
    log.write(11_000, (1, "a", 4), drained_at=10_900)
    log.write(30_000, (0, "a", 4), drained_at=25_000)
    episodes = [(episode.partition, episode.since) for episode in _report(changelog)]
    assert episodes == [(0, 25_000 - FETCH_MS), (1, 10_000)]


def test_decreases_before_the_first_log_end_are_not_reported() -> None:
    changelog = Changelog(_STORE, LastNumbers(1_000_000, [_TOPIC]))
    changelog.set_topic("id", [0], 0)
    assert not changelog.set_topic("id", [0, 1], 5)
    changelog.set_log_end(0, 2)
    log = _Log(changelog)
    log.write(10, (0, "a", 5))
    assert not _is_live(changelog, 0)
    assert list(changelog.find_unavailable(_MINUTE)) == []
    assert list(changelog.find_unavailable(_MINUTE + 6)) == [Unit(None, _TOPIC, 0), Unit(None, _TOPIC, 1)]
    log.write(20, (0, "a", 4), (0, "a", 3))
    assert _is_live(changelog, 0)
    assert [(episode.total, episode.first_offset) for episode in _report(changelog)] == [(1, 2)]


def test_recreated_topic_starts_again() -> None:
    """Nothing more is reported of the old one."""
    changelog = _changelog()
    log = _Log(changelog)
    log.write(10, (0, "a", 5), (0, "a", 4))
    assert changelog.set_topic("other", [0], 20)
    assert _report(changelog) == []
    changelog.set_log_end(0, 0)
    log.write(30, (0, "a", 1))
    assert _report(changelog) == []


def test_topic_without_an_id_was_recreated_if_it_was_missing() -> None:
    changelog = Changelog(_STORE, LastNumbers(1_000_000, [_TOPIC]))
    assert not changelog.set_topic(None, [0], 40)
    assert not changelog.set_topic(None, [0], 50)
    changelog.missing = "there is no such topic"
    assert list(changelog.find_unavailable(55)) == [Unit(None, _TOPIC)]
    assert changelog.set_topic(None, [0], 60)


def test_keys_are_kept_during_an_upgrade_to_topic_ids() -> None:
    """Brokers that are not upgraded yet return no id, and a restarted one may not know the topic for a moment."""
    changelog = Changelog(_STORE, LastNumbers(1_000_000, [_TOPIC]))
    changelog.set_topic(None, [0], 0)
    changelog.set_log_end(0, 0)
    log = _Log(changelog)
    log.write(10, (0, "a", 12))
    for now, topic_id in enumerate(("id", None, "id", None), 20):
        assert not changelog.set_topic(topic_id, [0], now)
        changelog.missing = "there is no such topic"
    log.write(30, (0, "a", 3))
    assert [episode.total for episode in _report(changelog)] == [9]
    assert changelog.set_topic("other", [0], 40)
    assert changelog.coverage.keys == 0


def test_restarted_partition_does_not_affect_others() -> None:
    changelog = _changelog()
    log = _Log(changelog)
    log.write(10, (0, "a", 5), (1, "a", 5))
    changelog.restart_partition(0, 20)
    changelog.set_log_end(0, 0)
    log.write(30, (0, "a", 1), (1, "a", 4))
    assert [episode.partition for episode in _report(changelog)] == [1]


def test_records_without_a_key_are_counted_and_skipped() -> None:
    """The partition is unavailable for ten minutes."""
    changelog = _changelog()
    _Log(changelog).write(10, (1, None, 5), (0, "a", 5), (1, None, 3))
    (unit,), (reason,) = changelog.find_unavailable(20).keys(), changelog.find_unavailable(20).values()
    assert unit == Unit(None, _TOPIC, 1)
    assert reason == f'skipped 2 records of {_TOPIC}-1: no key, or a value that is not "long"'
    assert changelog.find_unavailable(10 + 10 * _MINUTE) == {}
    assert changelog.partitions[1].next_offset == 2


def test_keys_that_exceed_memory_are_unavailable() -> None:
    changelog = _changelog(memory=230_000, partitions=1)
    log = _Log(changelog)
    for first in range(0, 40_000, 10_000):
        log.write(10, *((0, f"key-{number}", 1) for number in range(first, first + 10_000)))
    keys, total = changelog.coverage
    assert changelog.find_unavailable(20) == {
        Unit(None, _TOPIC): f"`changelog_memory` is full: only {keys:,} of about {total:,} keys of {_TOPIC} are checked"
    }
    assert total == pytest.approx(40_000, rel=0.1)


class _Windows:
    """A store of windows of an hour, written at the time of its windows."""

    first = 490_000 * _HOUR

    def __init__(self, memory: int) -> None:
        self.changelog = _changelog(memory, partitions=1)
        self._end = 0

    def write(self, now: int, start: int, keys: int, value: int = 6) -> None:
        """Write the value of so many keys for the window that begins at `start`."""
        written = Records(
            np.zeros(keys, np.int64),
            np.arange(self._end, self._end + keys),
            [b"key-%d" % number + struct.pack(">qi", start, 0) for number in range(keys)],
            [value.to_bytes(8)] * keys,
        )
        self._end += keys
        self.changelog.apply(written, now, None)


def test_recent_windows_that_exceed_memory_are_unavailable() -> None:
    """A day later they no longer matter."""
    windows = _Windows(memory=300_000)
    changelog = windows.changelog
    for start in range(windows.first, windows.first + 6 * _HOUR, _HOUR):
        windows.write(start, start, keys=3_000)
    now = windows.first + 6 * _HOUR
    (reason,) = changelog.find_unavailable(now).values()
    assert reason.startswith(f"`changelog_memory` is full: only windows of {_TOPIC} from 20")
    assert changelog.find_unavailable(now + 24 * _HOUR) == {}


@pytest.mark.parametrize("wrong", [0, -7 * _HOUR, 946_684_799_999])
def test_first_window_does_not_decide_that_a_store_has_none(wrong: int) -> None:
    """It may begin before 2000, as that of a record with the timestamp 0."""
    windows = _Windows(memory=500_000)
    windows.write(windows.first, wrong, keys=1)
    for start in range(windows.first, windows.first + 40 * _HOUR, _HOUR):
        windows.write(start, start, keys=2_000)
    windows.write(start, start, keys=300, value=1)
    windows.write(start, wrong, keys=1, value=5)
    assert [(episode.keys, episode.total) for episode in _report(windows.changelog)] == [(301, 300 * 5 + 1)]


def test_windows_dated_by_wrong_clocks_do_not_displace_current_ones() -> None:
    """Windows up to a day ahead count as all others."""
    windows = _Windows(memory=8_000_000)
    for number, start in enumerate(range(windows.first, windows.first + 40 * _HOUR, _HOUR)):
        windows.write(start, start, keys=150)
        for device in range(6):
            windows.write(start, start + (3_000 + number * 6 + device) * _HOUR, keys=device + 1)
    windows.write(start, start, keys=150, value=2)
    windows.write(start, start + 24 * _HOUR, keys=10)
    windows.write(start, start + 24 * _HOUR, keys=10, value=5)
    assert [(episode.keys, episode.total) for episode in _report(windows.changelog)] == [(160, 150 * 4 + 10)]
    assert windows.changelog.find_unavailable(start) == {}


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9) | st.none()), min_size=1), max_size=6)
)
def test_episode_is_what_a_dict_finds(batches: list[list[tuple[str, int | None]]]) -> None:
    """Keys, total, first offset and the five deepest, each key once."""
    changelog = _changelog(partitions=1)
    log = _Log(changelog)
    known: dict[str, int] = {}
    decreases: list[tuple[int, str, int]] = []
    offset = 0
    for batch in batches:
        log.write(10, *((0, key, value) for key, value in batch))
        for key, value in batch:
            if value is None:
                known.pop(key, None)
            else:
                if value < known.get(key, 0):
                    decreases.append((known[key] - value, key, offset))
                known[key] = value
            offset += 1
    episodes = _report(changelog)
    assert bool(episodes) == bool(decreases)
    for episode in episodes:
        deepest = {key: max(depth for depth, other, _ in decreases if other == key) for _, key, _ in decreases}
        assert (episode.keys, episode.total, episode.first_offset) == (
            len(deepest),
            sum(depth for depth, _, _ in decreases),
            decreases[0][2],
        )
        assert [worst.before - worst.after for worst in episode.worst] == sorted(deepest.values(), reverse=True)[:5]
        assert all(deepest[worst.key] == worst.before - worst.after for worst in episode.worst)


def _sums(changelog: Changelog) -> list[tuple[int, int | None, int | None, int | None]]:
    return [
        (episode.partition, episode.sum_before, episode.sum_after, episode.sum_at) for episode in _report(changelog)
    ]


def test_plain_count_has_sums_before_and_after() -> None:
    """Before the first decrease, even if it came with other records; after, once the end has been reached."""
    changelog = _changelog(store=_COUNTS)
    log = _Log(changelog)
    log.write(10, (0, "a", 40), (1, "a", 7), (0, "b", 40), (0, "c", 1), (0, "c", None))
    log.write(20, (0, "b", 41), (1, "a", 8), (0, "a", 1), (0, "b", 2), (0, "d", 1))
    assert _sums(changelog) == [(0, 81, None, None)]
    changelog.mark_caught_up(1, 30, 25)
    assert _sums(changelog) == []
    log.write(40, (0, "a", 2))
    changelog.mark_caught_up(0, 40, 35)
    assert _sums(changelog) == [(0, 81, 5, 35)]
    log.write(50, (0, "a", 3))
    changelog.mark_caught_up(0, 50, 45)
    assert _sums(changelog) == []
    log.write(60, (0, "a", 1))
    assert _sums(changelog) == [(0, 81, 5, 35)]
    changelog.mark_caught_up(0, 70, 65)
    assert _sums(changelog) == [(0, 81, 4, 65)]
    log.write(80 + 2 * _MINUTE, (0, "a", 5), (0, "a", 0))
    assert _sums(changelog) == [(0, 8, None, None)]


def test_log_end_reached_long_after_an_episode_adds_no_sum() -> None:
    """Nor does one without a time by which everything had been read."""
    changelog = _changelog(store=_COUNTS)
    _Log(changelog).write(20, (0, "a", 40), (0, "a", 1))
    assert _sums(changelog) == [(0, 40, None, None)]
    changelog.mark_caught_up(0, 30, None)
    changelog.mark_caught_up(0, 40 + _MINUTE, 30 + _MINUTE)
    assert _sums(changelog) == []


def test_keys_of_an_episode_are_forgotten_when_it_is_over() -> None:
    """Also if nothing is written after it. A clock that goes back does not continue it."""
    changelog = _changelog()
    log = _Log(changelog)
    log.write(10, *((number % 2, f"k{number}", 9) for number in range(60)))
    log.write(20, *((number % 2, f"k{number}", 3) for number in range(60)))
    log.write(50, (1, "k1", 2))
    assert changelog.remembered_keys == 60
    changelog.end_episodes(20 + _MINUTE)
    assert changelog.remembered_keys == 60
    changelog.end_episodes(21 + _MINUTE)
    assert changelog.remembered_keys == 30
    changelog.end_episodes(51 + _MINUTE)
    assert changelog.remembered_keys == 0
    assert [(episode.keys, episode.total) for episode in _report(changelog)] == [(30, 180), (30, 181)]
    log.write(40 + _MINUTE, (1, "k1", 0))
    assert [(episode.began_at, episode.keys, episode.total) for episode in _report(changelog)] == [(40 + _MINUTE, 1, 2)]


def test_remembered_keys_of_all_partitions_are_limited() -> None:
    """Those beyond the limit count each time; there is room again for others when an episode is over."""
    changelog = Changelog(_STORE, LastNumbers(1_000_000, [_TOPIC]), limit=25)
    changelog.set_topic("id", range(2), 0)
    log = _Log(changelog)
    for number in range(2):
        changelog.set_log_end(number, 0)
    for now, value in ((10, 9), (20, 7), (30, 4)):
        log.write(now, *((partition, f"k{number}", value) for partition in range(2) for number in range(20)))
        assert changelog.remembered_keys == (0 if value == 9 else 25)
    assert [(episode.keys, episode.total) for episode in _report(changelog)] == [(20, 100), (20 + 15, 100)]
    log.write(40 + _MINUTE, *((1, f"k{number}", 1) for number in range(20)))
    assert changelog.remembered_keys == 20
    assert [(episode.partition, episode.keys) for episode in _report(changelog)] == [(1, 20)]


@pytest.mark.parametrize("unknown", ["not a count", "unreadable", "sampled", "beyond 64 bits"])
def test_unknown_sum_is_not_reported(unknown: str) -> None:
    """The sum of a restarted partition is known again."""
    changelog = _changelog(store=_STORE if unknown == "not a count" else _COUNTS, memory=230_000)
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
    changelog.mark_caught_up(0, 20, 19)
    assert _sums(changelog) == [(0, None, None, None)]
    if unknown in ("unreadable", "beyond 64 bits"):
        log.write(30, (1, "a", 8))
        changelog.restart_partition(0, 30)
        changelog.set_log_end(0, 0)
        log.write(40, (0, "a", 40), (0, "a", 4))
        assert _sums(changelog) == [(0, 40, None, None), (1, 9, None, None)]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.integers(0, 9) | st.none()), min_size=1),
        max_size=6,
    ),
    st.sets(st.integers(0, 5)),
)
def test_sums_are_those_of_a_dict(batches: list[list[tuple[int, str, int | None]]], ended: set[int]) -> None:
    """Before the first decrease of each partition, and when its end was last reached since its last decrease."""
    changelog = _changelog(partitions=3, store=_COUNTS)
    log = _Log(changelog)
    known: dict[tuple[int, str], int] = {}
    before: dict[int, int] = {}
    after: dict[int, tuple[int, int]] = {}
    awaiting_sum = set()

    def total(partition: int) -> int:
        return sum(value for (of, _), value in known.items() if of == partition)

    for number, batch in enumerate(batches):
        log.write(10 + number, *batch)
        for partition, key, value in batch:
            if value is not None and value < known.get((partition, key), 0):
                before.setdefault(partition, total(partition))
                awaiting_sum.add(partition)
            known[partition, key] = value or 0
        if number in ended:
            for partition in range(3):
                changelog.mark_caught_up(partition, 10 + number, 9 + number)
                if partition in awaiting_sum:
                    after[partition] = total(partition), 9 + number
                    awaiting_sum.remove(partition)
    expected = [(partition, before[partition], *after.get(partition, (None, None))) for partition in sorted(before)]
    assert _sums(changelog) == expected
    assert [changelog.partitions[partition].sum for partition in range(3)] == [
        total(partition) for partition in range(3)
    ]
