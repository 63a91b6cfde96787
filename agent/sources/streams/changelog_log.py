"""One changelog as far as it has been read: its partitions, what fell in them, what could not be read. No I/O."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.model.declared_stores import DeclaredStore
from agent.model.observations import ChangelogDecreases, rfc3339
from agent.sources.availability import Unit
from agent.sources.streams.changelog_decreases import STRETCH_MS, Fallen, Stretch
from agent.sources.streams.changelog_keys import Coverage, LastNumbers
from agent.sources.streams.changelog_values import decoder, window_hours
from agent.sources.streams.key_table import Numbers

_NEVER = 2**63 - 1
_UNREADABLE_MS = 600_000
"""How long after the last value that could not be read its partition counts as out of sight."""

_HOUR_MS = 3_600_000
_WINDOWS_MS = 24 * _HOUR_MS
"""Windows that began earlier go untold: changelogs keep them for a day after their end by default
(windowstore.changelog.additional.retention.ms), and they are hardly written to.
"""

_READING_MS = 60_000
"""How long the first reading of a partition may take before it counts as out of sight."""


class Records(NamedTuple):
    """Records of the changelog, in the order of each partition's log: a column each."""

    partitions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


@dataclass
class Partition:
    """How far a partition has been read.

    begun: when, ms. live_from: the offset from which on falls are told, None until it is known. next: the offset of the
    record to be read next. clean_at: when it was last read without a fall. sum: of the last values of its keys, None
    where it is not known: not of a plain count, some could not be read, not all keys are followed, or it takes more
    than 64 bits. trouble: why it cannot be read. reading: whether the consumer is to read it.
    """

    begun: int
    salt: int = field(default_factory=lambda: secrets.randbits(64))
    live_from: int | None = None
    live: bool = False
    next: int | None = None
    clean_at: int | None = None
    sum: int | None = 0
    trouble: str | None = None
    reading: bool = False
    unreadable: int = 0
    unreadable_at: int = 0
    stretch: Stretch | None = None


class Changelog:
    """A declared store's changelog: takes records, keeps what is to be told of them."""

    def __init__(self, store: DeclaredStore, last: LastNumbers) -> None:
        self.store = store
        self.topic = store.changelog
        self.topic_id: str | None = None
        self.missing: str | None = None
        self.partitions: dict[int, Partition] = {}
        self._last = last
        self._decode = decoder(store.value)
        self._windowed: bool | None = None

    def found(self, topic_id: str | None, partitions: Iterable[int], now: int) -> bool:
        """The topic is there, with these partitions. Returns whether it is another one than before: nothing is known
        of it then.
        """
        anew = topic_id != self.topic_id or (self.missing is not None and topic_id is None)
        self.topic_id, self.missing = topic_id, None
        if anew:
            self.partitions.clear()
            self._last.forget(self.topic)
            self._windowed = None
        for number in partitions:
            self.partitions.setdefault(number, Partition(now))
        return anew

    def begin_anew(self, partition: int, now: int) -> None:
        """What is known of a partition's log is not in it any more. Its keys get other hashes, by another salt."""
        self.partitions[partition] = Partition(now)

    def ends_at(self, partition: int, offset: int) -> None:
        """The partition's log ends or ended here: what comes from here on is new."""
        one = self.partitions[partition]
        one.live_from = offset if one.live_from is None else min(one.live_from, offset)

    def reached_end(self, partition: int, now: int, drained: int | None) -> None:
        """All of the partition has been read, what came with this included. drained: as in `take`."""
        one = self.partitions[partition]
        one.live, one.trouble = True, None
        if one.stretch is None or one.stretch.at != now:
            one.clean_at = now
        if one.stretch is not None and one.sum is not None and drained is not None:
            one.stretch.sum_up(one.sum, drained)

    def take(self, records: Records, now: int, drained: int | None) -> None:
        """Records of partitions that are known. drained: when all that had come until then was read."""
        numbers, readable = self._decode(records.values)
        if None in records.keys:
            readable &= np.fromiter((key is not None for key in records.keys), np.bool_, len(numbers))
        if not readable.all():
            for number in records.partitions[~readable].tolist():
                self.partitions[number].unreadable += 1
                self.partitions[number].unreadable_at = now
                self.partitions[number].sum = None
        which = np.flatnonzero(readable)
        partitions, offsets = records.partitions[which], records.offsets[which]
        keys = [records.keys[at] or b"" for at in which.tolist()] if len(which) < len(numbers) else records.keys
        fallen, changes = self._fallen(partitions, offsets, keys, numbers[which])
        rises = np.zeros(max(self.partitions, default=0) + 1, np.int64)
        if changes is not None:
            np.add.at(rises, partitions, changes)
        for number, offset in zip(*_lasts(records.partitions, records.offsets), strict=True):
            one = self.partitions[number]
            one.next, one.trouble = offset + 1, None
            one.live = one.live or (one.live_from is not None and one.next >= one.live_from)
            fell, sum_before = fallen.get(number, ()), None
            if changes is None:
                one.sum = None
            elif fell:
                earlier = changes[(partitions == number) & (offsets < fell[0].offset)]
                sum_before = _sum(one.sum, int(earlier.sum()))
            one.sum = _sum(one.sum, int(rises[number]))
            self._read(one, fell, sum_before, now, drained)

    def _fallen(
        self, partitions: NDArray[np.int64], offsets: NDArray[np.int64], keys: Sequence[Any], numbers: Numbers
    ) -> tuple[dict[int, list[Fallen]], Numbers | None]:
        """What fell, by partition, where falls are told already; and by how much each number changed its sum, None
        where sums are not known or not wanted.
        """
        salts = np.zeros(max(self.partitions, default=0) + 1, np.uint64)
        live_from = np.full(len(salts), _NEVER)
        for number, one in self.partitions.items():
            salts[number] = one.salt
            live_from[number] = _NEVER if one.live_from is None else one.live_from
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys)).view(np.uint64) ^ salts[partitions]
        if self._windowed is None and keys:
            self._windowed = bool(window_hours(keys[:1])[0])
        taken = self._last.take(self.topic, hashes, numbers, window_hours(keys) if self._windowed else None)
        fallen: dict[int, list[Fallen]] = {}
        live = offsets[taken.positions] >= live_from[partitions[taken.positions]]
        for at, before in zip(taken.positions[live].tolist(), taken.before[live].tolist(), strict=True):
            one_fallen = Fallen(int(hashes[at]), keys[at], before, int(numbers[at]), int(offsets[at]))
            fallen.setdefault(int(partitions[at]), []).append(one_fallen)
        return fallen, None if self.store.counts is None else taken.changes

    def _read(
        self, partition: Partition, fallen: Sequence[Fallen], sum_before: int | None, now: int, drained: int | None
    ) -> None:
        if not fallen:
            partition.clean_at = now
            return
        stretch = partition.stretch
        if stretch is None or now - stretch.at > STRETCH_MS:
            stretch = partition.stretch = Stretch(now, fallen[0].offset, sum_before)
        clean = [at for at in (partition.clean_at, drained) if at is not None]
        stretch.take(now, max(clean, default=None), fallen)

    def untold(self, cluster: str) -> Iterator[tuple[Stretch, ChangelogDecreases]]:
        """Stretches of which there is more to tell than was told last."""
        for number, partition in self.partitions.items():
            stretch = partition.stretch
            if stretch is not None and stretch.news > stretch.told:
                yield stretch, stretch.fact(cluster, self.store, number)

    @property
    def coverage(self) -> Coverage:
        """How many keys are known, and how many there are."""
        return self._last.coverage(self.topic)

    def unseen(self, now: int) -> dict[Unit, str]:
        """What is out of sight, and why."""
        topic = self.topic
        if self.missing is not None:
            return {Unit(topic=topic): self.missing}
        unseen = {}
        keys, total = self.coverage
        if total > keys and all(one.live or one.trouble for one in self.partitions.values()):
            unseen[Unit(topic=topic)] = (
                f"the memory for last values is full: of {topic} it covers {keys:,} of about {total:,} keys"
            )
        earliest = self._last.earliest(topic) * _HOUR_MS
        if earliest and earliest > now - _WINDOWS_MS:
            unseen[Unit(topic=topic)] = (
                f"the memory for last values is full: of {topic} it covers windows from {rfc3339(earliest)} on"
            )
        for number, one in self.partitions.items():
            why = one.trouble
            if why is None and not one.live and now - one.begun > _READING_MS:
                why = (
                    f"{topic}-{number} is still being read from its start, since more than"
                    f" {_READING_MS // 1000} s: what falls there meanwhile is not told"
                )
            elif why is None and one.unreadable and now - one.unreadable_at < _UNREADABLE_MS:
                why = (
                    f"{one.unreadable:,} records of {topic}-{number} have no key, or a value that is no"
                    f' "{self.store.value}", and are passed over'
                )
            if why is not None:
                unseen[Unit(topic=topic, partition=number)] = why
        return unseen


def _sum(sum_: int | None, rise: int) -> int | None:
    """The sum when it has changed by so much; None where it is not known, or takes more than 64 bits."""
    return None if sum_ is None or abs(sum_ + rise) > _NEVER else sum_ + rise


def _lasts(partitions: NDArray[np.int64], offsets: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """The partitions, and the last offset of each."""
    found, from_end = np.unique(partitions[::-1], return_index=True)
    return found.tolist(), offsets[::-1][from_end].tolist()
