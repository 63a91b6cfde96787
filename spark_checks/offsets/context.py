"""What the journal says around rewinds and jumps: log offsets, truncations, partition states, session losses."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar, cast

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql

from agent.engine.facts import Facts
from agent.engine.history import History
from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration, PartitionState
from agent.rules.queries.partitions import CLOCK_SLACK_MS
from agent.storage.journal.reader import entries
from spark_checks.journal.files import JournalWindow, scan

T = TypeVar("T", bound=Observation)


class Place(NamedTuple):
    """An interval (ms) in which something about a partition is wanted. number: what the answer is found by."""

    number: int
    topic: str
    partition: int
    begin: int
    end: int


class Reading(NamedTuple):
    """The log start and log end offsets as last read."""

    log_start: int
    log_end: int


class Truncation(NamedTuple):
    """A log end offset that fell and was still lower 5 s later. since: when the old one was read, ms."""

    since: int
    at: int
    old: int
    new: int


class SessionLoss(NamedTuple):
    """A broker's session expired (session: None under KRaft). back: when it re-registered, ms; None if it did not."""

    broker: int
    at: int
    session: str | None
    back: int | None


class States(Facts):
    """Partition states over any length of time; the agent's own facts go back minutes."""

    def __init__(self, states: Iterable[PartitionState]) -> None:
        """Take changes only, oldest first."""
        super().__init__()
        self._of: defaultdict[tuple[Hashable, ...], History[PartitionState]] = defaultdict(History)
        for state in states:
            self._of[state.cluster, state.topic, state.partition].changes.append(state)

    def history(self, kind: type[T], *key: Hashable) -> History[T]:
        """Return the partition's states, oldest first."""
        return cast("History[T]", self._of[key]) if kind is PartitionState else super().history(kind, *key)


def read_log_offsets(window: JournalWindow, places: Sequence[Place]) -> dict[int, Reading]:
    """Return, by the number of the place, the log as last read in its interval."""
    if not places:
        return {}

    def read() -> list[Row]:
        last = sql.max_by(sql.struct("log_start", "log_end"), sql.struct("at", "position")).alias("log")
        return _scan(window, "log_offsets", places, _LOGS).groupBy("number").agg(last).collect()

    return {row["number"]: Reading(*row["log"]) for row in window.without_damaged(read)}


def read_truncations(window: JournalWindow, places: Sequence[Place]) -> dict[tuple[str, int], list[Truncation]]:
    """Return the truncations in the intervals of the places, by partition."""
    if not places:
        return {}
    found = defaultdict(list)
    for row in _query(window, "log_offsets", places, _LOGS, _TRUNCATIONS):
        found[row["topic"], row["partition"]].append(Truncation(row["since"], row["at"], row["old"], row["new"]))
    return found


def read_states(window: JournalWindow, places: Sequence[Place]) -> States:
    """Return the partition states in the intervals of the places, changes only."""
    if not places:
        return States(())
    return States(
        PartitionState(
            cluster=window.cluster,
            **{name: row[name] for name in ("topic", "partition", "at", "since", "leader", "leader_epoch", "topic_id")},
            replicas=tuple(row["replicas"]),
            isr=tuple(row["isr"]),
        )
        for row in _query(window, "partition_state", places, _STATES, _STATE_CHANGES)
    )


def read_session_losses(window: JournalWindow) -> list[SessionLoss]:
    """Return the session losses of the cluster's brokers, oldest first."""
    kinds = ["broker_registration"]
    registrations = entries(window.journal, window.since, window.until, kinds, window.damaged, skips_failures=False)
    own = (
        registration
        for _, registration in registrations
        if isinstance(registration, BrokerRegistration) and registration.cluster == window.cluster
    )
    ordered = sorted(own, key=lambda registration: (registration.broker, registration.at))
    by_broker = groupby(ordered, lambda registration: registration.broker)
    return sorted((loss for _, of_broker in by_broker for loss in _losses(of_broker)), key=lambda loss: loss.at)


def _losses(registrations: Iterable[BrokerRegistration]) -> Iterator[SessionLoss]:
    """Yield the losses of one broker. A broker that comes back under its old session never lost it."""
    known = gone = None
    for registration in registrations:
        if registration.gone:
            gone = gone or registration
            continue
        if known is not None and (registration.session, registration.epoch) != (known.session, known.epoch):
            yield SessionLoss(registration.broker, (gone or registration).at, known.session, registration.at)
        known, gone = registration, None
    if known is not None and gone is not None:
        yield SessionLoss(gone.broker, gone.at, known.session, None)


def _query(window: JournalWindow, kind: str, places: Sequence[Place], columns: Sequence[str], query: str) -> list[Row]:
    """Return the rows of a query over the observations at the places, each once: the view `observed`."""

    def read() -> list[Row]:
        observed = _scan(window, kind, places, columns).drop("number", "first", "last").distinct()
        observed.createOrReplaceTempView("observed")
        return window.spark.sql(query.format(steady=CLOCK_SLACK_MS)).collect()

    return window.without_damaged(read)


def _scan(window: JournalWindow, kind: str, places: Sequence[Place], columns: Sequence[str]) -> DataFrame:
    """Return the observations of the places' partitions in their intervals, with the number of the place."""
    begin, end = min(place.begin for place in places), max(place.end for place in places) + 1
    intervals = {(place.begin, place.end) for place in places}
    pieces = [
        piece
        for piece in window.pieces(kind, begin, end)
        if any(piece.low <= last and piece.high >= first for first, last in intervals)
    ]
    only = {"cluster": [window.cluster], "topic": sorted({place.topic for place in places})}
    found = scan(window.spark, kind, pieces, columns, since=begin, until=end, only=only, damaged=window.damaged)
    around = window.spark.createDataFrame(
        list(places), "number int, topic string, partition long, first long, last long"
    )
    return found.join(sql.broadcast(around), ["topic", "partition"]).where("`at` between first and last")


_LOGS = ("topic", "partition", "at", "position", "log_start", "log_end")
_STATES = (
    *("topic", "partition", "at", "since", "position"),
    *("leader", "leader_epoch", "replicas", "isr", "topic_id"),
)
_TRUNCATIONS = """
SELECT topic, partition, since, `at`, old, log_end AS new FROM (
    SELECT *, lag(log_end) OVER (PARTITION BY topic, partition ORDER BY `at`, position) AS old,
        lag(`at`) OVER (PARTITION BY topic, partition ORDER BY `at`, position) AS since,
        max(log_end) OVER (
            PARTITION BY topic, partition ORDER BY `at` RANGE BETWEEN CURRENT ROW AND {steady} FOLLOWING
        ) AS regained
    FROM observed
) WHERE regained < old ORDER BY `at`
"""
_STATE_CHANGES = """
SELECT * FROM (
    SELECT *, lag(struct(leader, leader_epoch, replicas, isr, topic_id)) OVER (
        PARTITION BY topic, partition ORDER BY `at`, position
    ) AS old
    FROM observed
) WHERE NOT old <=> struct(leader, leader_epoch, replicas, isr, topic_id)
ORDER BY topic, partition, `at`, position
"""
