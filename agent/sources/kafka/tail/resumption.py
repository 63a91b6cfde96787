"""Where reading `__consumer_offsets` stopped, for the journal, and how a later run continues there. Makes no calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Message

from agent.model.batches import CommitKey
from agent.model.group_partition import partition_of
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, OffsetsPosition
from agent.sources.base import HEARTBEAT_MS
from agent.sources.kafka.tail.records import decode_values, encode_key

_EVERY_MS = 10_000
"""How often the position of a partition that moves is put in the journal."""

_SETTLED_MS = 5_000
"""How long after a position was reached all commits before it have been observed, but for those that are held: some
wait for the end of their second."""

_SKEW_MS = 60_000
"""How much later than a sighting a commit may be dated by the coordinator's clock, if it is not known to be less."""
_LATENCY_MS = 1_000
"""How long reading a commit may take: by so much the coordinators' clocks may be more ahead than was seen."""


class End(NamedTuple):
    """A partition's end when it had been read up to there. at: ms."""

    next_offset: int
    at: int


class _Observed(NamedTuple):
    """The last commit that an earlier run observed of a key. homes: partitions that may hold it.

    offset: None if it was deleted. until: a record with a later commit timestamp is not that commit, ms.
    """

    homes: set[int]
    offset: int | None
    until: int


class Resumption:
    """What an earlier run had read and observed. Records that it observed after its last position are left out.

    positions: by partition. counts: how many partitions the topic had, the last one last; empty if nothing is known.
    commits: the last ones of each group whose partitions have positions.
    """

    def __init__(self, known: Iterable[Observation], is_watched: Callable[[str], bool]) -> None:
        """known: the last observation of each subject of a cluster before this run."""
        known = list(known)
        found = [fact for fact in known if isinstance(fact, OffsetsPosition)]
        count = max(found, key=lambda fact: fact.seen).partitions if found else 0
        found = [fact for fact in found if fact.partitions <= count]  # more are of a topic that has been replaced
        self.counts = tuple(sorted({fact.partitions for fact in found}))
        self.positions = {fact.partition: End(fact.next_offset, fact.at) for fact in found}
        self.commits: dict[str, list[Commit]] = {}
        ahead = [_SKEW_MS if fact.clock_ahead is None else fact.clock_ahead + _LATENCY_MS for fact in found]
        self._skew = min(max(ahead, default=0), _SKEW_MS)
        self._observed: dict[bytes, _Observed] = {}
        self._waiting: dict[bytes, list[Message]] = {}
        shares = {fact.group for fact in known if isinstance(fact, GroupState) and fact.type == "share"}
        for commit in known:
            if isinstance(commit, Commit) and commit.group not in shares and is_watched(commit.group):
                self._add(commit)

    def _add(self, commit: Commit) -> None:
        homes = {partition_of(commit.group, count) for count in self.counts}
        if not homes or not homes <= self.positions.keys():
            return
        if commit.offset is not None:
            self.commits.setdefault(commit.group, []).append(commit)
        if commit.seen > min(self.positions[home].at for home in homes):  # it may be a record that is read once more
            # A poll, a heartbeat, or a clock ahead of ours, dates a commit otherwise than its record does.
            until = commit.at + (self._skew if commit.seen_at is None else 0)
            key = encode_key(CommitKey(commit.group, commit.topic, commit.partition))
            self._observed[key] = _Observed(homes, commit.offset, until)

    def select_new(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages whose commits have not been observed; some only with a later call, or with `release`.

        A key's messages are left out up to the last one that may be the commit that was observed last.
        """
        if not self._observed:
            return list(messages)
        new: list[Message] = []
        for message in messages:
            key = message.key() or b""
            observed = self._observed.get(key)
            if observed is None:
                new.append(message)
                continue
            offset, at = _offset_and_time(message)
            if at > observed.until:
                new += [*self._end(key), message]
            elif offset == observed.offset:
                self._waiting.pop(key, None)
            else:
                self._waiting.setdefault(key, []).append(message)
        return new

    def release(self, partitions: Iterable[int]) -> list[Message]:
        """Return what waits of partitions that have been read up to their ends: it is new."""
        if not self._observed:
            return []
        chosen = set(partitions)
        keys = [key for key, observed in self._observed.items() if observed.homes & chosen]
        return [message for key in keys for message in self._end(key)]

    def _end(self, key: bytes) -> list[Message]:
        del self._observed[key]
        return self._waiting.pop(key, [])


def _offset_and_time(message: Message) -> tuple[int | None, int]:
    """Return the offset that a record commits (None: deleted; -1: undecodable) and its commit timestamp, ms."""
    value = message.value()
    if value is None:
        return None, message.timestamp()[1]
    decoded = decode_values([value])
    return int(decoded.offsets[0]), int(decoded.timestamps[0])


class _Reached(NamedTuple):
    """A position, and when all commits before it had been taken in, ms."""

    end: End
    taken_at: int


class PositionJournal:
    """Which positions to put in the journal, each once all commits before it have been observed."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._last: dict[int, OffsetsPosition] = {}
        self._reached: dict[int, _Reached] = {}

    def take_due(
        self,
        ends: Mapping[int, End],
        count: int,
        now: int,
        held_since: int | None = None,
        clock_ahead: int | None = None,
    ) -> list[OffsetsPosition]:
        """Return the positions to emit now (ms).

        ends: of partitions, when they were last read up to there; all records before have been taken in. held_since:
        when the first commit was taken in that is held, ms; None if none is. clock_ahead: see OffsetsPosition.
        """
        due = []
        for partition, end in ends.items():
            reached = self._reached.get(partition)
            if reached is None:
                if self._is_worth(partition, end, count, now):
                    self._reached[partition] = _Reached(end, now)
            elif held_since is not None and held_since <= reached.taken_at:
                continue  # it may be before this position
            elif _has_passed(_SETTLED_MS, reached.end.at, now):
                del self._reached[partition]
                position = OffsetsPosition(
                    at=reached.end.at,
                    seen_at=now,
                    cluster=self._cluster,
                    partition=partition,
                    next_offset=reached.end.next_offset,
                    partitions=count,
                    clock_ahead=clock_ahead,
                )
                self._last[partition] = position
                due.append(position)
        return due

    def _is_worth(self, partition: int, end: End, count: int, now: int) -> bool:
        last = self._last.get(partition)
        if last is None or last.partitions != count:
            return True
        has_moved = end.next_offset != last.next_offset
        return _has_passed(_EVERY_MS - _SETTLED_MS if has_moved else HEARTBEAT_MS, last.seen, now)

    def discard(self, partitions: Iterable[int]) -> None:
        """Drop what has not been emitted of partitions of which records are left out."""
        for partition in partitions:
            self._reached.pop(partition, None)


def _has_passed(duration: int, since: int, now: int) -> bool:
    """Return whether this time has passed, or the clock has been set back. All ms."""
    return not 0 <= now - since < duration
