"""What rules ask of a partition with every commit, in columns: its log offsets and when it last changed."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from agent.engine.compact_list import CompactList
from agent.engine.history import History
from agent.model.batches import Flags, Integers, PartitionKey
from agent.model.observations.kafka import Commit, LogOffsets, PartitionState

Partition: TypeAlias = tuple[str, str, int]
"""(cluster, topic, partition)."""

NEVER = -(1 << 62)
"""Instead of a time or an offset that is not known."""

ANY = 1 << 62
"""Instead of a log end that has not been read: it may be anywhere."""

Numbers: TypeAlias = NDArray[np.signedinteger[Any]]

_ROWS = 256


class LogsThen(NamedTuple):
    """What had been read of logs at some moments, and was read next.

    log_start, log_end: as read last until then; NEVER if not. next_end: the log end as read first after that; ANY if it
    has not been.
    """

    log_start: Integers
    log_end: Integers
    next_end: Integers

    def select(self, rows: Flags) -> "LogsThen":
        """Return these rows."""
        return LogsThen(*(column[rows] for column in self))


class NumbersByKeys:
    """Numbers of ours for keys of batches, by cluster: remembered while the same keys, which may grow, are used."""

    def __init__(self, kind: type[np.int32 | np.int64] = np.int32) -> None:
        """kind: of the numbers."""
        self._none: Numbers = np.zeros(0, kind)
        self._of: dict[str, tuple[Sequence[object], Numbers]] = {}

    def of(self, cluster: str, keys: Sequence[object]) -> Numbers:
        """Return the array to read and fill in, by the numbers of the keys in `keys`; -1 where nothing is known yet."""
        if isinstance(keys, tuple):  # is used once
            return np.full(len(keys), -1, self._none.dtype)
        known, numbers = self._of.get(cluster, (None, self._none))
        if known is not keys or len(numbers) < len(keys):
            before = numbers if known is keys else self._none
            room = np.full(len(keys) + len(keys) // 4 - len(before), -1, before.dtype)
            numbers = np.concatenate([before, room])
            self._of[cluster] = keys, numbers
        return numbers


class PartitionColumns:
    """Partitions by number. Times are ms; NEVER if nothing is known.

    read_at, log_start, log_end: of the newest reading of the log offsets; read_before_at, log_start_before,
    log_end_before: of the one before it. decreased_at: when the log end offset was last lower than before.
    leader_changed_at: when another leader than before was last seen; leader_changed_before_at: the time before that.
    furthest: the highest offset that any group has committed.
    """

    def __init__(self) -> None:
        self._numbers: dict[Partition, int] = {}
        self.names: list[Partition] = []
        self._by_keys = NumbersByKeys()
        self.read_at, self.read_before_at, self.decreased_at = (_filled() for _ in range(3))
        self.leader_changed_at, self.leader_changed_before_at = _filled(), _filled()
        self.log_start, self.log_end, self.log_start_before, self.log_end_before = (_filled() for _ in range(4))
        self.furthest = _filled()
        self._leader = _filled()

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self.names)

    def find(self, partition: Partition) -> int | None:
        """Return the number of a partition; None if it is unknown."""
        return self._numbers.get(partition)

    def find_all(self, cluster: str, keys: Sequence[PartitionKey], numbers: Integers) -> Integers:
        """Return the numbers of partitions, each named by its number in `keys`; -1 of one that is unknown."""
        found = self._by_keys.of(cluster, keys)
        unknown = numbers[found[numbers] < 0]
        if len(unknown):
            find = self._numbers.get
            found[unknown] = [find((cluster, *keys[number]), -1) for number in unknown.tolist()]
        return found[numbers].astype(np.int64)

    def number_of(self, partition: Partition) -> int:
        """Return the number of a partition, a new one if it is unknown."""
        number = self._numbers.get(partition)
        if number is None:
            number = self._numbers[partition] = len(self.names)
            self.names.append(partition)
            if number == len(self.read_at):
                for name, column in vars(self).items():
                    if isinstance(column, np.ndarray):
                        setattr(self, name, np.concatenate([column, np.full_like(column, NEVER)]))
        return number

    def update(self, observation: Commit | LogOffsets | PartitionState) -> None:
        """Take in a commit, or a change of the log offsets or of the state of a partition; those of each in order."""
        number = self.number_of((observation.cluster, observation.topic, observation.partition))
        if isinstance(observation, Commit):
            if observation.offset is not None:
                self.furthest[number] = max(self.furthest[number], observation.offset)
            return
        if isinstance(observation, PartitionState):
            if observation.leader is not None and observation.leader >= 0:
                if self._leader[number] not in (NEVER, observation.leader):
                    self.leader_changed_before_at[number] = self.leader_changed_at[number]
                    self.leader_changed_at[number] = observation.at
                self._leader[number] = observation.leader
            return
        self.read_before_at[number] = self.read_at[number]
        self.log_start_before[number], self.log_end_before[number] = self.log_start[number], self.log_end[number]
        self.read_at[number], self.log_start[number] = observation.at, observation.log_start
        self.log_end[number] = observation.log_end
        if observation.log_end < self.log_end_before[number]:
            self.decreased_at[number] = observation.at

    def forget_log(self, partition: Partition) -> None:
        """Forget the log offsets of a partition whose readings are forgotten: the topic may be created again."""
        number = self._numbers[partition]
        self.read_at[number] = self.log_start[number] = self.log_end[number] = NEVER
        self.read_before_at[number] = self.log_start_before[number] = self.log_end_before[number] = NEVER

    def grow(self, numbers: Integers, at: Integers, log_ends: Integers) -> None:
        """Take in readings of different partitions that differ from those before in a higher log end."""
        self.read_before_at[numbers] = self.read_at[numbers]
        self.log_start_before[numbers], self.log_end_before[numbers] = self.log_start[numbers], self.log_end[numbers]
        self.read_at[numbers], self.log_end[numbers] = at, log_ends

    def as_of(self, numbers: Integers, at: Integers, logs: Mapping[int, History[LogOffsets]]) -> LogsThen:
        """Return what was known of the logs of partitions, each at a moment (ms). logs: their readings, by number."""
        is_now = at >= self.read_at[numbers]
        then = LogsThen(
            np.where(is_now, self.log_start[numbers], self.log_start_before[numbers]),
            np.where(is_now, self.log_end[numbers], self.log_end_before[numbers]),
            np.where(is_now, ANY, self.log_end[numbers]),
        )
        earlier = np.flatnonzero(at < self.read_before_at[numbers])
        if len(earlier):
            earlier = earlier[np.argsort(numbers[earlier], kind="stable")]
            partitions, begins = np.unique(numbers[earlier], return_index=True)
            for partition, rows in zip(partitions.tolist(), np.split(earlier, begins[1:]), strict=True):
                readings = cast("CompactList[LogOffsets]", logs[partition].changes)
                read_at, log_start, log_end = readings.columns("at", "log_start", "log_end").T
                place = np.searchsorted(read_at, at[rows], side="right")
                then.log_start[rows] = np.where(place > 0, log_start[place - 1], NEVER)
                then.log_end[rows] = np.where(place > 0, log_end[place - 1], NEVER)
                then.next_end[rows] = log_end[place]
        return then

    def commit(self, numbers: Integers, offsets: Integers) -> None:
        """Take in committed offsets."""
        np.maximum.at(self.furthest, numbers, offsets)


def _filled() -> Integers:
    return np.full(_ROWS, NEVER, np.int64)
