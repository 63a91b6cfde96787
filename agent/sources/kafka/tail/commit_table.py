"""The last commit of each group and partition, in columns, and which commits are worth an observation. Makes no calls.

A key is a group and a partition. Ordinary progress becomes one observation per key and second; a commit that moves
backwards or deletes the offset becomes one at once, after the commit before it. Those of a key that had no offset are
held until a poll has shown whether the topic is still the same: a topic that is re-created loses its offsets.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, cast

import numpy as np

from agent.model.batches import UNKNOWN, CommitBatch, CommitKey, CommitKeys, Flags, Integers, differ_from_before
from agent.model.observations.kafka import Commit
from agent.sources.base import HEARTBEAT_MS
from agent.sources.kafka.tail.held_commits import NOTHING, HeldCommits, ObservedCommits
from agent.sources.kafka.tail.key_numbers import KeyNumbers
from agent.sources.kafka.tail.records import (
    GroupKey,
    Records,
    UndecodableError,
    decode_key,
    decode_values,
    encode_key,
)

_UNREAD, _DELETED = -2, UNKNOWN
"""Instead of an offset: no commit has been read; the offset was deleted or has expired."""

_IGNORED = -1
"""Instead of a key's number: the record is no commit of a watched group."""

_THINNED_MS = 1_000
_REST_MS = 30_000
"""After so long without a commit, a group may have read what was written since the log offsets were read."""
_HEARTBEATS = 300
"""Heartbeats of all keys are spread over about so many calls."""

_DELETED_MS = 600_000
"""For how long a deleted offset of a group that is not followed is remembered."""

_IGNORED_MS = 3_600_000
"""For how long at most keys of groups that are not watched are remembered: many groups come and go."""

_MOST = (1 << 63) - 1
_ROWS = 1_024
_REASONS = 20


class Taken(NamedTuple):
    """What records brought: commits to observe, and groups that are new or whose members may have changed."""

    commits: CommitBatch
    touched: set[str]


class _Rows(NamedTuple):
    """Commits. at: commit timestamps, ms. order: sorts them as they were written."""

    keys: Integers
    offsets: Integers
    leader_epochs: Integers
    at: Integers
    order: Integers

    def select(self, which: Flags | Integers) -> "_Rows":
        """Return these rows."""
        return _Rows(*(column[which] for column in self))


class CommitTable:
    """The keys of a cluster's watched groups. Only commits of followed groups become observations.

    undecodable: why records could not be decoded -> how many.
    """

    def __init__(self, cluster: str, is_watched: Callable[[str], bool]) -> None:
        self.undecodable: dict[str, int] = defaultdict(int)
        self._newest_at = 0
        self._cluster = cluster
        self._is_watched = is_watched
        self._numbers = KeyNumbers(self._add)
        self._keys = CommitKeys()
        self._removed = self._ignored_since = 0
        self._keys_of: dict[str, array[int]] = defaultdict(lambda: array("i"))
        self._followed_groups: set[str] = set()
        self._held = HeldCommits()
        self._changes: list[Commit] = []
        self._stirred: set[tuple[str, int]] = set()
        self._touched: set[str] = set()
        self._offset, self._at, self._dated = (np.zeros(_ROWS, np.int64) for _ in range(3))
        self._leader_epoch = np.zeros(_ROWS, np.int32)
        self._waits, self._followed = np.zeros(_ROWS, np.bool_), np.zeros(_ROWS, np.bool_)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._keys) - self._removed

    # --- records

    def apply(self, records: Records, now: int, behind: int = 0) -> Taken:
        """Take records in. now: ms, no commit is dated later. behind: how far the brokers' clocks are behind, ms."""
        numbers = self._numbers.of(records.keys)
        touched, self._touched = self._touched, set()
        return Taken(self._take(self._rows(numbers, records), now, behind), touched)

    def _add(self, raw: bytes) -> int:
        """Return the number of a key that has none, and remember it."""
        try:
            key = decode_key(raw)
        except UndecodableError as error:
            self._count_undecodable(str(error))
            return _IGNORED
        if isinstance(key, GroupKey):  # not remembered: members have keys of their own and come and go
            self._touched.add(key.group)
            return _IGNORED
        number = _IGNORED
        if self._is_watched(key.group):
            number = self._number_of(key)
            if key.group not in self._followed_groups:
                self._touched.add(key.group)
        self._numbers.set(raw, number)
        return number

    def _number_of(self, key: CommitKey) -> int:
        raw = encode_key(key)
        number = self._numbers.get(raw)
        if number >= 0:
            return number
        number = len(self._keys)
        self._keys.append(key)
        if number == len(self._offset):
            self._grow()
        self._numbers.set(raw, number)
        self._keys_of[key.group].append(number)
        self._offset[number], self._at[number], self._dated[number], self._waits[number] = _UNREAD, 0, 0, False
        self._followed[number] = key.group in self._followed_groups
        return number

    def _grow(self) -> None:
        more = len(self._offset) // 16 + _ROWS
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(self, name, np.concatenate([column, np.zeros(more, column.dtype)]))

    def _count_undecodable(self, reason: str) -> None:
        is_listed = reason in self.undecodable or len(self.undecodable) < _REASONS
        self.undecodable[reason if is_listed else "others"] += 1

    def _rows(self, numbers: Integers, records: Records) -> _Rows:
        """Return the commits among the records, sorted by key; those whose values are undecodable are left out."""
        order = np.flatnonzero(numbers != _IGNORED)
        values = records.values if len(order) == len(numbers) else [records.values[place] for place in order.tolist()]
        deleted = [] if all(values) else [place for place, value in enumerate(values) if value is None]
        decoded = decode_values([value or b"" for value in values] if deleted else cast("Sequence[bytes]", values))
        is_valid = np.ones(len(order), np.bool_)
        for place in decoded.undecodable.keys() - set(deleted):
            self._count_undecodable(decoded.undecodable[place])
            is_valid[place] = False
        decoded.offsets[deleted] = _DELETED
        decoded.offsets[decoded.offsets < 0] = _DELETED  # brokers store what clients commit, and polls show none
        decoded.timestamps[deleted] = [records.timestamps[place] for place in order[deleted].tolist()]
        rows = _Rows(numbers[order], decoded.offsets, decoded.leader_epochs, decoded.timestamps, order).select(is_valid)
        return rows.select(np.argsort(rows.keys, kind="stable"))

    def _take(self, rows: _Rows, now: int, behind: int) -> CommitBatch:
        """Put rows that are sorted by key into the columns; return the commits to observe, in order of their records.

        Of a second, the last commit is observed, once a later one shows that it is the last.
        """
        if not len(rows.keys):
            return self._batch(NOTHING)
        self._newest_at = max(self._newest_at, int(rows.at.max()))
        before, _ = self._before(rows)
        rows = rows.select((rows.offsets != before) & ~((rows.offsets == _DELETED) & (before == _UNREAD)))
        if not len(rows.keys):
            return self._batch(NOTHING)
        before, is_first = self._before(rows)
        is_last = np.append(is_first[1:], True)
        is_urgent = (rows.offsets < before) | (before == _DELETED)
        at_before = np.where(is_first, self._at[rows.keys], np.roll(rows.at, 1))
        completes = is_urgent | (rows.at // _THINNED_MS > at_before // _THINNED_MS)
        followed = self._followed[rows.keys]
        is_observed = followed & (is_urgent | (~is_last & np.append(completes[1:], False)))
        stored = rows.select(followed & is_first & completes & self._waits[rows.keys])
        stored = self._stored(stored.keys)._replace(order=2 * stored.order)
        self._held.hold(np.unique(rows.keys[followed & (before < 0)]).tolist(), now)
        self._changes += self._as_commits(rows.select(followed & ((before < 0) | (rows.offsets < before))))
        rested = np.unique(rows.keys[followed & (rows.at - at_before >= _REST_MS)]).tolist()
        self._stirred |= {(key.topic, key.partition) for key in map(self._keys.__getitem__, rested)}
        observed = rows.select(is_observed)
        observed = observed._replace(order=2 * observed.order + 1)
        self._put(rows.select(is_last), ~is_observed[is_last])
        together = _Rows(*(np.concatenate(columns) for columns in zip(stored, observed, strict=True)))
        return self._observe(together.select(np.argsort(together.order)), now, behind)

    def _before(self, rows: _Rows) -> tuple[Integers, Flags]:
        """Return the offset before each row, and whether the row is the first of its key."""
        is_first = differ_from_before(rows.keys)
        return np.where(is_first, self._offset[rows.keys], np.roll(rows.offsets, 1)), is_first

    def _put(self, rows: _Rows, waits: Flags) -> None:
        """Replace the last commits of these keys, each of which has one row."""
        self._offset[rows.keys], self._at[rows.keys] = rows.offsets, rows.at
        self._leader_epoch[rows.keys], self._waits[rows.keys] = rows.leader_epochs, waits

    def _stored(self, keys: Integers) -> _Rows:
        return _Rows(keys, self._offset[keys], self._leader_epoch[keys].astype(np.int64), self._at[keys], keys)

    def _observe(self, rows: _Rows, now: int, behind: int = 0) -> CommitBatch:
        """Return rows as observations; those of held keys are held."""
        return self._batch(self._held.add(self._as_observed(rows, now, behind)))

    def _observe_last(self, keys: Integers, now: int, at: int | None = None) -> CommitBatch:
        """Return the last commits of keys as observations. at: as of that moment, ms; by default, when they were made.

        There mostly are none, and then this is cheap.
        """
        if not len(keys):
            return self._batch(NOTHING)
        rows = self._stored(keys)
        return self._observe(rows if at is None else rows._replace(at=np.full(len(keys), at)), now)

    def _as_observed(self, rows: _Rows, now: int, behind: int = 0) -> ObservedCommits:
        """Return rows as observations; those of a key are dated in order."""
        at = self._date(rows.keys, np.minimum(rows.at + behind, now))
        return ObservedCommits(rows.keys, at, np.where(at < now, now, UNKNOWN), rows.offsets, rows.leader_epochs)

    def _date(self, numbers: Integers, at: Integers) -> Integers:
        """Return the times (ms) of commits, none before an earlier one of its key, and keep the last of each."""
        at = np.maximum(at, self._dated[numbers])
        if not len(numbers):
            return at
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        is_first = differ_from_before(ordered)
        if not is_first.all():
            start = at.min()
            apart = np.cumsum(is_first) * (at.max() - start + 1)  # so that no key's times reach the next key's
            at[order] = np.maximum.accumulate(at[order] - start + apart) - apart + start
        is_last = np.append(is_first[1:], True)
        self._dated[ordered[is_last]] = at[order][is_last]
        return at

    def _batch(self, observed: ObservedCommits) -> CommitBatch:
        numbers, at, seen_at, offsets, leader_epochs = observed
        since = np.full(len(numbers), UNKNOWN)
        return CommitBatch(self._cluster, self._keys, numbers, at, seen_at, since, offsets, leader_epochs)

    def _as_commits(self, rows: _Rows) -> list[Commit]:
        """Return rows as observations that say where a key stands, without having been observed."""
        observed = ObservedCommits(
            rows.keys, rows.at, np.full(len(rows.keys), UNKNOWN), rows.offsets, rows.leader_epochs
        )
        return list(self._batch(observed))

    # --- time

    def take_newest_at(self) -> int:
        """Return the latest commit timestamp that was taken in since the last call, ms; 0 if none was."""
        newest_at, self._newest_at = self._newest_at, 0
        return newest_at

    @property
    def held_since(self) -> int | None:
        """When the first of the commits that are held was taken in, ms; None if none is."""
        return self._held.since

    def release(self, before: int) -> CommitBatch:
        """Return, in order, the commits of keys that have been held since before that moment (ms)."""
        return self._batch(self._held.release(self._held.held_before(before)))

    def flush(self, now: int) -> CommitBatch:
        """Return the commits of earlier seconds that have not been observed yet. Call it about once a second."""
        used = slice(0, len(self._keys))
        due = np.flatnonzero(self._waits[used] & self._followed[used])
        if len(due):  # A coordinator's clock may be ahead: no commit waits for its second to be over by ours.
            at = self._at[due]
            due = due[(at < now // _THINNED_MS * _THINNED_MS) | (at > now)]
        self._waits[due] = False
        commits = self._observe_last(due, now)
        deleted = np.flatnonzero(self._offset[used] == _DELETED)
        # The deletion is observed if the group is followed; else it is remembered for a poll that was made before.
        for number in deleted[self._followed[deleted] | (self._at[deleted] < now - _DELETED_MS)].tolist():
            if number not in self._held:
                self._remove(number)
        if len(self._keys) > 2 * len(self) + _ROWS:
            self._renumber()
        if now - self._ignored_since >= _IGNORED_MS:
            self._ignored_since = now
            self._numbers.remove_all(_IGNORED)
        return commits

    def heartbeats(self, held_at: int) -> CommitBatch:
        """Return commits that have not changed for long, as of a moment (ms) by which all records had been read."""
        due = np.flatnonzero(self._dated[: len(self._keys)] <= held_at - HEARTBEAT_MS)
        due = due[self._followed[due] & (self._offset[due] >= 0) & ~self._waits[due]]
        oldest = due[np.argsort(self._dated[due], kind="stable")][: len(self) // _HEARTBEATS + 1]
        return self._observe_last(oldest, held_at, held_at)

    # --- groups

    @property
    def groups(self) -> list[str]:
        """The groups of all keys."""
        return list(self._keys_of)

    def take_changes(self) -> list[Commit]:
        """Return, each once, the commits of followed groups that did not just advance their key.

        They are its first, move back, or delete its offset. Also the last ones of groups that are no longer followed.
        """
        changes, self._changes = self._changes, []
        return changes

    def take_stirred(self) -> set[tuple[str, int]]:
        """Return, each once, the partitions in which a followed group has committed after a rest."""
        stirred, self._stirred = self._stirred, set()
        return stirred

    def standing(self, since: int, ends: Mapping[tuple[str, int], int]) -> set[tuple[str, int]]:
        """Return the partitions in which a followed group has stood still below the log end since that moment (ms).

        ends: the log ends by topic and partition.
        """
        used = slice(0, len(self._keys))
        stands = self._followed[used] & (self._offset[used] >= 0) & (self._at[used] <= since)
        numbers = np.flatnonzero(stands)
        lowest = np.full(len(self._keys.partitions), _MOST)
        np.minimum.at(lowest, self._keys.partition_numbers()[numbers], self._offset[numbers])
        return {
            partition
            for partition, offset in zip(self._keys.partitions, lowest.tolist(), strict=True)
            if offset < ends.get(partition, 0)
        }

    def follow(self, group: str, polled: Iterable[Commit], at: int, now: int) -> CommitBatch:
        """Follow a group from now on; return its last commits in the log that differ from those polled.

        polled: its commits, as read at `at` (ms). All records that had been written by then have been taken in.
        """
        offsets = {}
        for commit in polled:
            number = self._number_of(CommitKey(group, commit.topic, commit.partition))
            offsets[number] = commit.offset
            if self._offset[number] == _UNREAD and commit.offset is not None:
                self._offset[number], self._at[number] = commit.offset, commit.at
                self._leader_epoch[number] = -1 if commit.leader_epoch is None else commit.leader_epoch
        self._followed_groups.add(group)
        keys = np.array(self._keys_of.get(group, []), np.int64)
        self._followed[keys], self._waits[keys] = True, False
        self._dated[keys] = np.maximum(self._dated[keys], at)
        differs = [number for number in keys.tolist() if self._offset[number] not in (_UNREAD, offsets.get(number))]
        return self._observe_last(np.array(differs, np.int64), now)

    def unfollow(self, group: str, now: int) -> CommitBatch:
        """Observe no more commits of a group until it is followed again; return those that were held or had to wait."""
        keys = np.array(self._keys_of.get(group, []) if group in self._followed_groups else [], np.int64)
        held = self._held.release(keys.tolist())
        waiting = self._as_observed(self._stored(keys[self._waits[keys]]), now)
        self._changes += self._as_commits(self._stored(keys[self._offset[keys] >= 0])._replace(at=self._dated[keys]))
        self._followed_groups.discard(group)
        self._waits[keys] = self._followed[keys] = False
        return self._batch(held.followed_by(waiting))

    def forget(self, group: str) -> None:
        """Forget the last commits of a group: it no longer exists, or records of it may have been left out."""
        self._followed_groups.discard(group)
        for number in list(self._keys_of.get(group, [])):
            self._remove(number)

    def _remove(self, number: int) -> None:
        """Forget a key, and its commits that are held."""
        self._held.release([number])
        raw = encode_key(self._keys[number])
        for version in (b"\0\0", b"\0\1"):
            self._numbers.remove(version + raw[2:])
        group = self._keys[number].group
        self._keys_of[group].remove(number)
        if not self._keys_of[group]:
            del self._keys_of[group]
        self._offset[number], self._followed[number] = _UNREAD, False
        self._removed += 1

    def _renumber(self) -> None:
        """Renumber the keys without those that were removed. Batches keep the list that they were made with."""
        kept = np.array(sorted(chain.from_iterable(self._keys_of.values())), np.int64)
        number_of = np.full(len(self._keys) + 1, _IGNORED)  # the last one: of _IGNORED itself
        number_of[kept] = np.arange(len(kept))
        self._keys, self._removed = CommitKeys(map(self._keys.__getitem__, kept.tolist())), 0
        self._numbers.replace(number_of)
        for group, numbers in self._keys_of.items():
            self._keys_of[group] = array("i", number_of[numbers].tolist())
        self._held.renumber(number_of)
        for column in (self._offset, self._at, self._dated, self._leader_epoch, self._waits, self._followed):
            column[: len(kept)] = column[kept]
