"""What the journal says around decreases in a changelog: owners of tasks, when offsets were written, log lines."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from agent.model.declared_stores import DeclaredStore
from agent.model.observations.kafka import GroupState
from agent.model.observations.logs import LogLine
from agent.rules.queries.streams import store_changelog, thread
from agent.storage.journal.reader import read
from agent.storage.journal.segments import DAY_MS, FOREVER
from spark_checks.changelogs.decreases import Episode
from spark_checks.journal.files import DamagedFiles, JournalWindow, scan
from spark_checks.journal.given import given_journals
from spark_checks.options import Options

RESTORED = "store_restored"
RESTORE_PATTERNS = frozenset({RESTORED, "store_without_checkpoint"})
"""The patterns of log lines about restoring a store (agent/sources/logs/patterns.py)."""

_BEFORE_MS = DAY_MS
"""How long before the window the journal is read: unchanged facts are repeated every few minutes."""


class Reassignment(NamedTuple):
    """An input partition moved from one owner to another, between since and at (ms). Owners: their threads."""

    topic: str
    partition: int
    old: str
    new: str
    since: int
    at: int


class Rebalance(NamedTuple):
    """The group reached a new assignment, between since and at (ms)."""

    since: int
    at: int


class Ownership(NamedTuple):
    """All reassignments and rebalances of a group, oldest first.

    A task is its input's partition of the same number: its owner owns the changelog partition.
    """

    reassignments: Sequence[Reassignment] = ()
    rebalances: Sequence[Rebalance] = ()

    def of(self, partition: int) -> list[Reassignment]:
        """Return the reassignments of the inputs' partitions of this number."""
        return [reassignment for reassignment in self.reassignments if reassignment.partition == partition]

    def before(self, partition: int, at: int) -> tuple[list[Reassignment], Rebalance | None]:
        """Return the last reassignments, of one moment, and the last rebalance that began before a time (ms).

        At `since` the old owner was last observed.
        """
        earlier = [reassignment for reassignment in self.of(partition) if reassignment.since < at]
        last = max((reassignment.at for reassignment in earlier), default=0)
        rebalances = [rebalance for rebalance in self.rebalances if rebalance.since < at]
        return [found for found in earlier if found.at == last], rebalances[-1] if rebalances else None


class WriteTime(NamedTuple):
    """When a record was written: after since, at the latest at `at` (ms). None: not in the journal."""

    since: int | None
    at: int | None


UNKNOWN = WriteTime(None, None)


class Context(NamedTuple):
    """What the journal says about an episode. first, last: when its first and last decreases were written.

    lines: log lines about the store and its partition, oldest first. has_journal: whether a journal was read at all.
    """

    first: WriteTime = UNKNOWN
    last: WriteTime = UNKNOWN
    owners: Ownership = Ownership()
    lines: Sequence[LogLine] = ()
    has_journal: bool = False

    def started_at(self, episode: Episode) -> int:
        """Return when the first value decreased, at the latest (ms): by the journal, else by its record's timestamp.

        If the journal ends before it, that end counts.
        """
        since, at = self.first
        return episode.first_at if self.first == UNKNOWN else at or since or 0


class LogEnds:
    """The log end offsets of a topic in the journal, kept until the context manager ends. There may be millions."""

    def __init__(self, window: JournalWindow, topic: str) -> None:
        self._window, self._topic = window, topic
        self._readings: DataFrame = window.without_damaged(self._read)

    def _read(self) -> DataFrame:
        readings = scan(
            self._window.spark,
            "log_offsets",
            self._window.pieces("log_offsets"),
            ("partition", "at", "log_end"),
            since=self._window.since,
            until=self._window.until,
            only={"cluster": [self._window.cluster], "topic": [self._topic]},
            damaged=self._window.damaged,
        )
        kept: DataFrame = readings.persist(StorageLevel.DISK_ONLY)
        try:
            kept.count()  # reads all of it: a damaged file fails here
        except Exception:
            kept.unpersist()
            raise
        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._readings.unpersist()

    def at(self, moments: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Return for each (partition, time in ms) the log end offset as last read until then, if any."""
        wanted = self._join(moments, "partition long, moment long")
        last = (
            wanted.where("`at` <= moment")
            .groupBy("partition", "moment")
            .agg(sql.max_by("log_end", "at").alias("log_end"))
        )
        return {(row["partition"], row["moment"]): row["log_end"] for row in last.collect()}

    def write_times(self, offsets: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], WriteTime]:
        """Return for each (partition, offset) when the log end last passed it: a topic may have been re-created."""
        readings = self._join(offsets, "partition long, offset long")
        below = readings.groupBy("partition", "offset").agg(
            sql.max(sql.when(sql.col("log_end") <= sql.col("offset"), sql.col("at"))).alias("since")
        )
        found = (
            readings.join(sql.broadcast(below), ["partition", "offset"])
            .groupBy("partition", "offset", "since")
            .agg(sql.min(sql.when(sql.expr("since IS NULL OR `at` > since"), sql.col("at"))).alias("at"))
        )
        times = {(row["partition"], row["offset"]): WriteTime(row["since"], row["at"]) for row in found.collect()}
        return {place: times.get(place, UNKNOWN) for place in offsets}

    def _join(self, places: Sequence[tuple[int, int]], schema: str) -> DataFrame:
        wanted = self._readings.sparkSession.createDataFrame(sorted(set(places)), schema)
        return self._readings.join(sql.broadcast(wanted), "partition")


class JournalHistory(NamedTuple):
    """The journal, owners by group, log lines about restoring. since, until: the window asked for, ms.

    window: None without a journal; then nothing is known.
    """

    window: JournalWindow | None
    owners: Mapping[str, Ownership]
    lines: Sequence[LogLine]
    since: int
    until: int

    @contextmanager
    def log_ends(self, store: DeclaredStore) -> Iterator[LogEnds | None]:
        """Provide the log ends of the store's changelog while the body runs."""
        if self.window is None:
            yield None
        else:
            with LogEnds(self.window, store.changelog) as ends:
                yield ends

    def bounds(
        self, ends: LogEnds | None, store: DeclaredStore, partitions: Iterable[int]
    ) -> Mapping[int, Sequence[int]]:
        """Return the offsets in each partition at which a new episode begins.

        These are the log end when its task was last observed at an old owner, and when the window began.
        """
        if ends is None:
            return {}
        owners = self.owners.get(store.application, Ownership())
        moments = [
            (partition, at)
            for partition in partitions
            for at in (self.since, *(reassignment.since for reassignment in owners.of(partition)))
        ]
        bounds: dict[int, list[int]] = {}
        for (partition, _), offset in sorted(ends.at(moments).items()):
            bounds.setdefault(partition, []).append(offset)
        return bounds

    def contexts(
        self, ends: LogEnds | None, store: DeclaredStore, episodes: Sequence[Episode]
    ) -> Iterator[tuple[Episode, Context]]:
        """Yield each episode that may lie in the window, with its context."""
        owners = self.owners.get(store.application, Ownership())
        places = [(e.partition, offset) for e in episodes for offset in (e.first_offset, e.last_offset)]
        times = {} if ends is None else ends.write_times(places)
        for episode in episodes:
            context = Context()
            if ends is not None:
                first, last = (times[episode.partition, at] for at in (episode.first_offset, episode.last_offset))
                lines = [line for line in self.lines if _is_about(line, store, episode.partition)]
                context = Context(first, last, owners, lines, has_journal=True)
            if self._is_in_window(episode, context):
                yield episode, context

    def _is_in_window(self, episode: Episode, context: Context) -> bool:
        at = context.started_at(episode)
        begin = at if context.first.since is None else context.first.since
        last = episode.last_at if context.first == UNKNOWN else context.last.at or at
        return max(last, at) >= self.since and begin <= self.until


def read_history(spark: SparkSession, options: Options, groups: set[str], damaged: DamagedFiles) -> JournalHistory:
    """Return what the journal says about the groups."""
    since = -FOREVER if options.since is None else options.since
    until = FOREVER - 1 if options.until is None else options.until
    if options.own["journal"] is None:
        return JournalHistory(None, {}, (), since, until)
    journal = given_journals(options)[0]
    begin = since if options.since is None else since - _BEFORE_MS
    # What was written before --to may be observed later.
    window = JournalWindow(spark, journal, options.cluster, begin, FOREVER - 1, damaged)
    states: list[GroupState] = []
    lines: list[LogLine] = []
    for observation in read(journal, begin, None, ["group_state", "log_line"], damaged, skips_failures=False):
        match observation:
            case GroupState(cluster=options.cluster, group=group) if group in groups:
                states.append(observation)
            case LogLine(cluster=options.cluster, pattern=pattern) if pattern in RESTORE_PATTERNS:
                lines.append(observation)
    return JournalHistory(window, ownership_by_group(states), sorted(lines, key=lambda line: line.at), since, until)


def ownership_by_group(states: Iterable[GroupState]) -> dict[str, Ownership]:
    """Return the ownership of each group."""
    of_group: dict[str, list[GroupState]] = defaultdict(list)
    for state in states:
        of_group[state.group].append(state)
    return {group: find_ownership(sorted(own, key=lambda state: state.at)) for group, own in of_group.items()}


def find_ownership(states: Iterable[GroupState]) -> Ownership:
    """Return the reassignments and rebalances in a group's states, given in order of time.

    During a rebalance no partition has an owner (eager, Streams before 2.4), or briefly only those that move.
    """
    reassignments: list[Reassignment] = []
    rebalances: list[Rebalance] = []
    owners: dict[tuple[str, int], str] = {}
    released: dict[tuple[str, int], int] = {}
    stable: dict[tuple[str, int], str] | None = None
    unstable_since: int | None = None
    for state in states:
        since = state.at if state.since is None else state.since
        assigned = {place: thread(member) for member in state.members for place in member.partitions}
        for place in owners.keys() - assigned.keys():
            released.setdefault(place, since)
        if state.state.casefold() != "stable" or not assigned:
            unstable_since = since if unstable_since is None else unstable_since
            continue
        for place, owner in assigned.items():
            old = owners.get(place, owner)
            if old != owner:
                reassignments.append(Reassignment(*place, old, owner, released.get(place, since), state.at))
            released.pop(place, None)
        owners.update(assigned)
        if stable is not None and (assigned != stable or unstable_since is not None):
            rebalances.append(Rebalance(since if unstable_since is None else unstable_since, state.at))
        stable, unstable_since = assigned, None
    return Ownership(reassignments, rebalances)


def _is_about(line: LogLine, store: DeclaredStore, partition: int) -> bool:
    """Return whether the line is about the store's partition: by its changelog, or else by its task."""
    named = store_changelog(line)
    if named is not None:
        return named == (store.changelog, partition)
    return line.values.get("store") == store.store and line.values.get("task", "").endswith(f"_{partition}")
