"""Follows the changelogs of stores that are declared never to decrease, and tells of values that fell.

A thread reads (changelog_reader): from its start to the end as of then a log is read in silence, for the last value of
each key; then each record is held against it. Polls tell what fell and what is out of sight, and ask whether the topics
are still the ones that were read.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from agent.config.sections import SMALLEST_MEMORY
from agent.model.declared_stores import DeclaredStore
from agent.model.observations import Availability, ChangelogDecreases, Observation
from agent.sources.availability import SOURCE, AvailabilityTracker, now_ms
from agent.sources.base import ChangeDetector, Emit
from agent.sources.kafka import admin_protocol as wire
from agent.sources.kafka.admin_client import AdminClient
from agent.sources.streams.changelog_decreases import Stretch
from agent.sources.streams.changelog_keys import LastNumbers
from agent.sources.streams.changelog_log import Changelog
from agent.sources.streams.changelog_reader import Reader, Topics

_LOOK_MS = 5_000
"""How often the topics are looked at: their ids, partitions and leaders."""

_TIMEOUT_MS = 10_000
_PATIENCE_MS = 500
"""How long a poll waits for the topics. A later answer is taken by the polls that follow."""

_TOLD_MS = 1_000
"""How often the falls of a partition are told at most, while they grow."""

_READING_BYTES = 72_000_000
"""Of the memory, what is for reading: records fetched and not yet taken, batches, tables being rebuilt. The rest is for
keys. bench.changelogs has seen 57 MB.
"""


class _Held(NamedTuple):
    """Falls that wait to be told until their topic is known to be the one that was read."""

    topic_id: str | None
    stretch: Stretch
    news: int
    fact: ChangelogDecreases


class ChangelogSource:
    """The changelogs of one cluster. A fall is told once the topic is known to be the same still: one that was deleted
    and made again begins at 1 by right. Before Kafka 2.8 topics have no ids, and only a log that is shorter than what
    was read of it shows that it is another.
    """

    name = "changelogs"

    def __init__(  # noqa: PLR0917 - where, what, to whom: as every source is made
        self,
        cluster: str,
        bootstrap_servers: str,
        properties: Mapping[str, str],
        stores: Sequence[DeclaredStore],
        emit: Emit,
        known: Iterable[Observation] = (),
        *,
        memory: int,
        interval: int,
    ) -> None:
        """properties: librdkafka's client properties. known: the last observation of each subject before this run.

        memory: bytes, for last values and reading. interval: of polls, ms. Raises ValueError: the memory is too small.
        """
        if memory < SMALLEST_MEMORY:
            msg = f"following changelogs takes at least {SMALLEST_MEMORY:,} bytes of memory, got {memory:,}"
            raise ValueError(msg)
        sights = [
            one for one in known if isinstance(one, Availability) and (one.source, one.cluster) == (self.name, cluster)
        ]
        self.cluster = cluster
        self.interval = interval
        self._emit = emit
        self._sights, self._polled = AvailabilityTracker(self.name, cluster, sights), ChangeDetector(sights)
        last = LastNumbers(memory - _READING_BYTES, [store.changelog for store in stores])
        self._changelogs = {store.changelog: Changelog(store, last) for store in stores}
        log = structlog.get_logger("librdkafka").bind(cluster=cluster)
        properties = {**properties, "bootstrap.servers": bootstrap_servers}
        self._client = AdminClient(wire.Setup(cluster, properties, _TIMEOUT_MS), log)
        self._away: str | None = None
        self._looked_at = 0
        self._held: list[_Held] = []
        self._told: dict[tuple[str, int], int] = {}
        self._polling = threading.Lock()
        self._closed = False
        self._reader = Reader(cluster, properties, self._changelogs, log)

    def poll(self) -> None:
        """Tell what fell and what is out of sight. Raises what has ended the reading thread, a defect."""
        with self._polling:
            if self._closed:
                return
            if self._reader.defect is not None:
                raise self._reader.defect
            told = self._look()
            now = now_ms()
            with self._reader.lock:
                unseen = {unit: why for one in self._changelogs.values() for unit, why in one.unseen(now).items()}
            away = self._reader.refused or self._away
            sights = self._sights.update(now, unseen if away is None else {SOURCE: away})
            batch = [*self._polled.changes(sights), *told]
            if batch and not self._closed:
                self._emit(batch)

    def close(self) -> None:
        """End the reading within a few seconds, and a poll that is under way with it."""
        self._closed = True
        with self._polling:
            self._client.close()
        self._reader.close()

    def _look(self) -> list[ChangelogDecreases]:
        """Ask for the topics where it is time, or something fell; returns the falls that the answer lets tell."""
        now = now_ms()
        if not self._held:
            self._hold(now)
        if self._held or self._reader.stuck or now - self._looked_at >= _LOOK_MS:
            self._client.send(("topics",), wire.DescribeTopics(list(self._changelogs)))
        told: list[ChangelogDecreases] = []
        for answer in self._client.collect(_PATIENCE_MS):
            self._looked_at = now
            failure = _unanswered(answer.result)
            if failure is not None:
                self._away = f"no broker tells of the changelog topics: {self._client.last_error or failure.text}"
            elif isinstance(answer.result, wire.Topics):
                self._reader.look(answer.result.topics)
                self._away = self._client.last_error = None
                told += self._confirmed(answer.result.topics, answer.call.sent_at)
        return told

    def _hold(self, now: int) -> None:
        """What is to be told, as of before the topics are asked for."""
        with self._reader.lock:
            for one in self._changelogs.values():
                for stretch, fact in one.untold(self.cluster):
                    if now - self._told.get((fact.topic, fact.partition), 0) >= _TOLD_MS:
                        self._held.append(_Held(one.topic_id, stretch, stretch.news, fact))

    def _confirmed(self, topics: Topics, asked: int) -> list[ChangelogDecreases]:
        """What was held when the topics were asked for, of those that are the same."""
        told = []
        for one in self._held:
            topic = topics.get(one.fact.topic)
            if one.fact.at > asked:
                continue  # a late answer to an earlier question
            if isinstance(topic, wire.Topic) and topic.id == one.topic_id:
                one.stretch.told = one.news
                self._told[one.fact.topic, one.fact.partition] = asked
                told.append(one.fact)
        self._held = [one for one in self._held if one.fact.at > asked]
        return told


def _unanswered(result: wire.Result) -> wire.Failure | None:
    """Why no broker has answered, for each topic or at all; None where one has."""
    told = result.topics.values() if isinstance(result, wire.Topics) else (result,)
    return next((one for one in told if isinstance(one, wire.Failure) and not one.is_from_broker), None)
