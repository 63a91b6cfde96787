"""One changelog as far as it has been read: its partitions, decreases in them, what could not be read. No I/O."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.model.declared_stores import DeclaredStore
from agent.model.observations.streams import ChangelogDecreases, Decrease
from agent.model.times import rfc3339
from agent.model.topic_ids import is_other_incarnation
from agent.sources.availability import Unit
from agent.sources.streams.changelog_values import key_text, make_decoder, window_hours
from agent.sources.streams.key_table import Coverage, LastNumbers, Numbers

EPISODE_MS = 60_000
"""An episode ends when no value has decreased for so long."""

FETCH_MS = 2_000
"""How old a record may be that arrives after an empty poll: a fetch with it was under way."""

KEYS_REMEMBERED = 100_000
"""How many keys of episodes are remembered, to count each once; they take about 10 MB."""

WORST = 5
_NEVER = 2**63 - 1
_UNREADABLE_MS = 600_000
"""How long after the last unreadable record its partition counts as unavailable."""

_HOUR_MS = 3_600_000
_HOURS_AHEAD = 24
"""Keys whose windows begin later count as keys without windows. Wrong clocks date their records; each of their hours
would take a table, and would never be the oldest.
"""

_WINDOWS_MS = 24 * _HOUR_MS
"""Dropped windows that began earlier are not reported: changelogs keep them for a day after their end by default
(windowstore.changelog.additional.retention.ms), and they are hardly written to.
"""

_FIRST_READ_MS = 60_000
"""How long the first reading of a partition may take before it counts as unavailable."""


class Records(NamedTuple):
    """Records of the changelog as columns, in the order of each partition's log."""

    partitions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


class KeyDecrease(NamedTuple):
    """A record whose value is lower than its key's before. key_hash: identifies the key."""

    key_hash: int
    key: bytes
    before: int
    after: int
    offset: int

    @property
    def depth(self) -> int:
        return self.before - self.after


@dataclass
class DecreaseEpisode:
    """Decreases in a partition, each at most a minute after the one before.

    since: when the partition was last read without a decrease, before the last one. sum_before, sum_after, sum_at: as
    in ChangelogDecreases. changes: how often there was something new to report; reported: how much of it has been.
    is_over: whether another decrease begins another episode. known_keys: hashes of its keys until then.
    """

    began_at: int
    first_offset: int
    sum_before: int | None = None
    sum_after: int | None = None
    sum_at: int | None = None
    at: int = 0
    since: int | None = None
    keys: int = 0
    total: int = 0
    changes: int = 0
    reported: int = 0
    worst: list[KeyDecrease] = field(default_factory=list)
    is_over: bool = False
    known_keys: set[int] = field(default_factory=set)
    _has_sum: bool = False

    def end(self) -> None:
        """End it and forget its keys."""
        self.is_over = True
        self.known_keys.clear()

    def add(self, at: int, since: int | None, decreases: Iterable[KeyDecrease], room: int) -> None:
        """Add decreases read at `at`, in the order of the log.

        room: how many more keys can be remembered. Another one that decreases again counts again.
        """
        limit = len(self.known_keys) + room
        self.at, self.since, self._has_sum = at, since, False
        for decrease in decreases:
            self.changes += 1
            self.total += decrease.depth
            if decrease.key_hash not in self.known_keys:
                self.keys += 1
                if len(self.known_keys) < limit:
                    self.known_keys.add(decrease.key_hash)
            if len(self.worst) < WORST or decrease.depth > self.worst[-1].depth:
                self._add_worst(decrease)

    def add_sum(self, sum_: int, drained_at: int) -> None:
        """Add the partition's sum as of `drained_at`; of interest within the episode, once after each decrease."""
        if self.sum_before is not None and not self._has_sum and drained_at - self.at <= EPISODE_MS:
            self.sum_after, self.sum_at, self._has_sum = sum_, drained_at, True
            self.changes += 1

    def _add_worst(self, new: KeyDecrease) -> None:
        """Keep the deepest decreases, one of each key."""
        deepest: dict[int, KeyDecrease] = {}
        for decrease in sorted([*self.worst, new], key=lambda decrease: -decrease.depth):
            deepest.setdefault(decrease.key_hash, decrease)
        self.worst = list(deepest.values())[:WORST]

    def observe(self, cluster: str, store: DeclaredStore, partition: int) -> ChangelogDecreases:
        """Return the episode so far as an observation."""
        return ChangelogDecreases(
            at=self.at,
            since=self.since,
            cluster=cluster,
            application=store.application,
            store=store.store,
            topic=store.changelog,
            partition=partition,
            began_at=self.began_at,
            keys=self.keys,
            total=self.total,
            first_offset=self.first_offset,
            sum_before=self.sum_before,
            sum_after=self.sum_after,
            sum_at=self.sum_at,
            worst=tuple(
                Decrease(key_text(decrease.key), decrease.before, decrease.after, decrease.offset)
                for decrease in self.worst
            ),
        )


@dataclass
class Partition:
    """How far a partition has been read.

    started_at: when reading began, ms. live_from: the offset from which on decreases are reported, None until known.
    live: it has been reached. next_offset: of the record to read next. clean_at: when it was last read without a
    decrease. sum: of its keys' last values, None if unknown: not a plain count, unreadable records, not all keys
    followed, or more than 64 bits. failure: why it cannot be read. assigned: whether the consumer reads it.
    """

    started_at: int
    salt: int = field(default_factory=lambda: secrets.randbits(64))
    live_from: int | None = None
    live: bool = False
    next_offset: int | None = None
    clean_at: int | None = None
    sum: int | None = 0
    failure: str | None = None
    assigned: bool = False
    unreadable: int = 0
    unreadable_at: int = 0
    episode: DecreaseEpisode | None = None


class Changelog:
    """A declared store's changelog: finds decreases in its records. missing: why the topic is unavailable."""

    def __init__(self, store: DeclaredStore, last_numbers: LastNumbers, limit: int = KEYS_REMEMBERED) -> None:
        """limit: how many keys of all partitions' episodes are remembered."""
        self.store = store
        self.topic = store.changelog
        self.topic_id: str | None = None
        self.missing: str | None = None
        self.partitions: dict[int, Partition] = {}
        self._last_numbers = last_numbers
        self._limit = limit
        self._decode = make_decoder(store.value)

    def set_topic(self, topic_id: str | None, partitions: Iterable[int], now: int) -> bool:
        """Set the topic's id and partitions; return whether the topic was re-created, which forgets all keys.

        A topic whose id has never been known was re-created if it was missing. A known id is kept while brokers that
        are not upgraded yet return none.
        """
        known_id = topic_id or self.topic_id
        is_new = is_other_incarnation(self.topic_id, topic_id) or (self.missing is not None and known_id is None)
        self.topic_id, self.missing = known_id, None
        if is_new:
            self.partitions.clear()
            self._last_numbers.forget(self.topic)
        for number in partitions:
            self.partitions.setdefault(number, Partition(now))
        return is_new

    def restart_partition(self, partition: int, now: int) -> None:
        """Forget a partition whose log was replaced. Another salt gives its keys other hashes."""
        self.partitions[partition] = Partition(now)

    def set_log_end(self, partition: int, offset: int) -> None:
        """Note that the partition's log ends or ended here: records from here on are new."""
        state = self.partitions[partition]
        state.live_from = offset if state.live_from is None else min(state.live_from, offset)

    def mark_caught_up(self, partition: int, now: int, drained_at: int | None) -> None:
        """Note that the partition has been read to its end. drained_at: as in `apply`."""
        state = self.partitions[partition]
        state.live, state.failure = True, None
        if state.episode is None or state.episode.at != now:
            state.clean_at = now
        if state.episode is not None and state.sum is not None and drained_at is not None:
            state.episode.add_sum(state.sum, drained_at)

    def apply(self, records: Records, now: int, drained_at: int | None) -> None:
        """Apply records of known partitions. drained_at: a time by which everything written before had been read."""
        numbers, readable = self._decode(records.values)
        if None in records.keys:
            readable &= np.fromiter((key is not None for key in records.keys), np.bool_, len(numbers))
        if not readable.all():
            for number in records.partitions[~readable].tolist():
                self.partitions[number].unreadable += 1
                self.partitions[number].unreadable_at = now
                self.partitions[number].sum = None
        rows = np.flatnonzero(readable)
        partitions, offsets = records.partitions[rows], records.offsets[rows]
        keys = [records.keys[row] or b"" for row in rows.tolist()] if len(rows) < len(numbers) else records.keys
        decreases, changes = self._find_decreases(partitions, offsets, keys, numbers[rows], now)
        if decreases:
            self.end_episodes(now)
        room = self._limit - self.remembered_keys if decreases else 0
        sum_changes = np.zeros(max(self.partitions, default=0) + 1, np.int64)
        if changes is not None:
            np.add.at(sum_changes, partitions, changes)
        for number, offset in zip(*_last_offsets(records.partitions, records.offsets), strict=True):
            state = self.partitions[number]
            state.next_offset, state.failure = offset + 1, None
            state.live = state.live or (state.live_from is not None and state.next_offset >= state.live_from)
            decreased, sum_before = decreases.get(number, ()), None
            if changes is None:
                state.sum = None
            elif decreased:
                earlier = changes[(partitions == number) & (offsets < decreased[0].offset)]
                sum_before = _add_to_sum(state.sum, int(earlier.sum()))
            state.sum = _add_to_sum(state.sum, int(sum_changes[number]))
            room -= _extend_episode(state, decreased, sum_before, now, drained_at, room=room)

    def _find_decreases(
        self, partitions: NDArray[np.int64], offsets: NDArray[np.int64], keys: Sequence[Any], numbers: Numbers, now: int
    ) -> tuple[dict[int, list[KeyDecrease]], Numbers | None]:
        """Store the numbers; return decreases in live partitions, and by how much each number changed the sum.

        The latter is None if sums are unknown or not wanted.
        """
        salts = np.zeros(max(self.partitions, default=0) + 1, np.uint64)
        live_from = np.full(len(salts), _NEVER)
        for number, state in self.partitions.items():
            salts[number] = state.salt
            live_from[number] = _NEVER if state.live_from is None else state.live_from
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys)).view(np.uint64) ^ salts[partitions]
        hours = window_hours(keys)
        hours[hours > now // _HOUR_MS + _HOURS_AHEAD] = 0
        update = self._last_numbers.update(self.topic, hashes, numbers, hours)
        decreases: dict[int, list[KeyDecrease]] = {}
        is_live = offsets[update.positions] >= live_from[partitions[update.positions]]
        for row, before in zip(update.positions[is_live].tolist(), update.before[is_live].tolist(), strict=True):
            decrease = KeyDecrease(int(hashes[row]), keys[row], before, int(numbers[row]), int(offsets[row]))
            decreases.setdefault(int(partitions[row]), []).append(decrease)
        return decreases, None if self.store.counts is None else update.changes

    def unreported(self, cluster: str) -> Iterator[tuple[DecreaseEpisode, ChangelogDecreases]]:
        """Yield the episodes that have changed since they were reported."""
        for number, partition in self.partitions.items():
            episode = partition.episode
            if episode is not None and episode.changes > episode.reported:
                yield episode, episode.observe(cluster, self.store, number)

    def end_episodes(self, now: int) -> None:
        """End the episodes without a decrease for a minute."""
        for partition in self.partitions.values():
            if partition.episode is not None and now - partition.episode.at > EPISODE_MS:
                partition.episode.end()

    @property
    def remembered_keys(self) -> int:
        """How many keys of episodes are remembered."""
        return sum(len(state.episode.known_keys) for state in self.partitions.values() if state.episode is not None)

    @property
    def coverage(self) -> Coverage:
        """How many keys are known, and how many there are."""
        return self._last_numbers.coverage(self.topic)

    def find_unavailable(self, now: int) -> dict[Unit, str]:
        """Return what is unavailable, and why."""
        topic = self.topic
        if self.missing is not None:
            return {Unit(topic=topic): self.missing}
        reasons = {}
        keys, total = self.coverage
        if total > keys and all(state.live or state.failure for state in self.partitions.values()):
            reasons[Unit(topic=topic)] = (
                f"`changelog_memory` is full: only {keys:,} of about {total:,} keys of {topic} are checked"
            )
        earliest = self._last_numbers.earliest_hour(topic) * _HOUR_MS
        if earliest and earliest > now - _WINDOWS_MS:
            reasons[Unit(topic=topic)] = (
                f"`changelog_memory` is full: only windows of {topic} from {rfc3339(earliest)} on are checked"
            )
        for number, state in self.partitions.items():
            reason = state.failure
            if reason is None and not state.live and now - state.started_at > _FIRST_READ_MS:
                reason = (
                    f"{topic}-{number} has been read from its start for more than {_FIRST_READ_MS // 1000} s: until its"
                    " end is reached, decreases there are not detected"
                )
            elif reason is None and state.unreadable and now - state.unreadable_at < _UNREADABLE_MS:
                reason = (
                    f"skipped {state.unreadable:,} records of {topic}-{number}: no key, or a value that is not"
                    f' "{self.store.value}"'
                )
            if reason is not None:
                reasons[Unit(topic=topic, partition=number)] = reason
        return reasons


def _extend_episode(
    partition: Partition,
    decreases: Sequence[KeyDecrease],
    sum_before: int | None,
    now: int,
    drained_at: int | None,
    *,
    room: int,
) -> int:
    """Add decreases to the partition's episode or to another one; return how many more keys are remembered."""
    if not decreases:
        partition.clean_at = now
        return 0
    episode = partition.episode
    if episode is None or episode.is_over:
        episode = partition.episode = DecreaseEpisode(now, decreases[0].offset, sum_before)
    drained = None if drained_at is None else drained_at - FETCH_MS
    clean_times = [at for at in (partition.clean_at, drained) if at is not None]
    before = len(episode.known_keys)
    episode.add(now, max(clean_times, default=None), decreases, room)
    return len(episode.known_keys) - before


def _add_to_sum(sum_: int | None, change: int) -> int | None:
    """Return the changed sum, or None if it is unknown or takes more than 64 bits."""
    return None if sum_ is None or abs(sum_ + change) > _NEVER else sum_ + change


def _last_offsets(partitions: NDArray[np.int64], offsets: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return the partitions, and the last offset of each."""
    numbers, from_end = np.unique(partitions[::-1], return_index=True)
    return numbers.tolist(), offsets[::-1][from_end].tolist()
