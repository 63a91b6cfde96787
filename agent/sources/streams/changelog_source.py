"""Follows the changelogs of stores that are declared never to decrease, and reports values that decreased.

A thread (`ChangelogReader`) first reads each log from its start to its end as of then, to learn each key's last value;
then it compares each record with the key's value before. Polls report decreases and what is unavailable, and check that
the topics are still the ones that were read.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from agent.clock import now_ms
from agent.config.sources import SMALLEST_MEMORY
from agent.model.declared_stores import DeclaredStore
from agent.model.observations.base import Availability, Observation
from agent.model.observations.streams import ChangelogDecreases
from agent.model.topic_ids import is_other_incarnation
from agent.sources.availability import SOURCE, AvailabilityTracker
from agent.sources.base import ChangeDetector, Emit
from agent.sources.kafka.admin import protocol as wire
from agent.sources.kafka.admin.client import AdminClient
from agent.sources.streams.changelog_log import KEYS_REMEMBERED, Changelog, DecreaseEpisode
from agent.sources.streams.changelog_reader import ChangelogReader, Topics
from agent.sources.streams.key_table import LastNumbers

_DESCRIBE_MS = 5_000
"""How often the topics are described: their ids, partitions and leaders."""

_MIN_CLIENT_AGE_MS = 30_000
"""How often a client that is refused is started again at most, unless its secrets have changed."""

_TIMEOUT_MS = 10_000
_PATIENCE_MS = 500
"""How long a poll waits for the topics. A later response is used by the polls that follow."""

_REPORT_MS = 1_000
"""How often a growing episode of one partition is reported at most."""

_READING_BYTES = 72_000_000
"""The part of the memory for reading: records fetched and not yet applied, batches, tables being rebuilt, of which
bench.changelogs has seen 57 MB, and keys of episodes. The rest is for last values.
"""


class _PendingReport(NamedTuple):
    """Decreases of a partition to report once its topic is known to be the one that was read."""

    topic_id: str | None
    episode: DecreaseEpisode
    changes: int
    observation: ChangelogDecreases


class ChangelogSource:
    """The source of the declared changelogs of one Kafka cluster.

    A decrease is reported once the topic is known to be the same still: a topic that was re-created starts at 1 again.
    Before Kafka 2.8 topics have no ids, and only a log shorter than what was read of it shows that it was re-created.
    """

    name = "changelogs"
    problem = None

    def __init__(  # noqa: PLR0917 - every source is made in this way
        self,
        cluster: str,
        bootstrap_servers: str,
        read_properties: Callable[[], Mapping[str, str]],
        stores: Sequence[DeclaredStore],
        emit: Emit,
        known: Iterable[Observation] = (),
        *,
        memory: int,
        interval: int,
    ) -> None:
        """read_properties: returns librdkafka's client properties with the current secrets.

        known: the last observation of each subject before this run. memory: bytes, for last values and
        reading. interval: of polls, ms. Raises ValueError if memory is too small.
        """
        if memory < SMALLEST_MEMORY:
            msg = f"following changelogs takes at least {SMALLEST_MEMORY:,} bytes of memory, got {memory:,}"
            raise ValueError(msg)
        availability = [
            observation
            for observation in known
            if isinstance(observation, Availability)
            and (observation.source, observation.cluster) == (self.name, cluster)
        ]
        self.cluster = cluster
        self.interval = interval
        self.read_at: int | None = None
        self._emit = emit
        self._availability, self._changes = (
            AvailabilityTracker(self.name, cluster, availability),
            ChangeDetector(availability),
        )
        last_numbers = LastNumbers(memory - _READING_BYTES, [store.changelog for store in stores])
        limit = KEYS_REMEMBERED // max(len(stores), 1)
        self._changelogs = {store.changelog: Changelog(store, last_numbers, limit) for store in stores}
        log = structlog.get_logger("librdkafka").bind(cluster=cluster)
        self._bootstrap_servers = bootstrap_servers
        self._read_properties = read_properties
        self._client = AdminClient(self._read_setup, log)
        self._unreachable: str | None = None
        self._topics: Topics = {}
        """As last described: of those that have not changed since, brokers are not asked for more."""
        self._described_at = 0
        self._pending: dict[tuple[str, int], _PendingReport] = {}
        self._reported_at: dict[tuple[str, int], int] = {}
        self._polling = threading.Lock()
        self._closed = False
        self._reader = ChangelogReader(cluster, self._read_setup().properties, self._changelogs, log)

    def poll(self) -> None:
        """Report decreases and what is unavailable. Raises what ended the reading thread, after restarting it."""
        with self._polling:
            if self._closed:
                return
            if (crash := self._reader.crash) is not None:
                self._reader.restart()
                raise crash
            decreases = self._poll_topics()
            self._restart_denied_clients()
            now = now_ms()
            with self._reader.lock:
                for changelog in self._changelogs.values():
                    changelog.end_episodes(now)
                unavailable = {
                    unit: reason
                    for changelog in self._changelogs.values()
                    for unit, reason in changelog.find_unavailable(now).items()
                }
            failure = self._reader.failure or self._unreachable
            availability = self._availability.update(now, unavailable if failure is None else {SOURCE: failure})
            batch = [*self._changes.changes(availability), *decreases]
            if batch and not self._closed:
                self._emit(batch)

    def close(self) -> None:
        """End the reading thread and a running poll within a few seconds."""
        self._closed = True
        with self._polling:
            self._client.close()
        self._reader.close()

    def _read_setup(self) -> wire.Setup:
        properties = {**self._read_properties(), "bootstrap.servers": self._bootstrap_servers}
        return wire.Setup(self.cluster, properties, _TIMEOUT_MS)

    def _restart_denied_clients(self) -> None:
        """Restart clients that brokers refuse, or that refuse them: secrets and certificates may have changed."""
        if not self._client.connection_failures.is_access_denied(now_ms()):
            return
        has_failed = self._unreachable is not None and self._client.age_ms > _MIN_CLIENT_AGE_MS
        if self._client.is_outdated() or has_failed:
            self._client.restart()
            self._reader.set_properties(self._read_setup().properties)

    def _poll_topics(self) -> list[ChangelogDecreases]:
        """Describe the topics when due or when there are decreases; return the decreases that this confirms."""
        now = now_ms()
        self._collect_pending(now)
        if self._pending or self._reader.awaits_topics or now - self._described_at >= _DESCRIBE_MS:
            self._client.send(("topics",), wire.DescribeTopics(list(self._changelogs)))
        decreases: list[ChangelogDecreases] = []
        for answer in self._client.collect(_PATIENCE_MS):
            self._described_at = now
            failure = _find_failure(answer.result)
            if failure is not None:
                reason = self._client.connection_failures.reasons(now) or failure.text
                self._unreachable = f"cannot describe the changelog topics: {reason}"
            elif isinstance(answer.result, wire.Topics | wire.Unchanged):
                if isinstance(answer.result, wire.Topics):
                    self._topics = answer.result.topics
                self._reader.set_topics({**self._topics})  # another one, for which it tries again what failed
                self._unreachable = None
                self.read_at = now
                decreases += self._confirm_pending(self._topics, answer.call.sent_at)
        return decreases

    def _collect_pending(self, now: int) -> None:
        """Collect what is to be reported of partitions without a pending report, before the topics are described."""
        with self._reader.lock:
            for changelog in self._changelogs.values():
                for episode, observation in changelog.unreported(self.cluster):
                    partition = (observation.topic, observation.partition)
                    if partition not in self._pending and now - self._reported_at.get(partition, 0) >= _REPORT_MS:
                        pending = _PendingReport(changelog.topic_id, episode, episode.changes, observation)
                        self._pending[partition] = pending

    def _confirm_pending(self, topics: Topics, requested_at: int) -> list[ChangelogDecreases]:
        """Return the observations that were pending at the time of the request and whose topic is still the same.

        Of a topic that was re-created they are dropped. They stay pending while a topic cannot be described.
        """
        confirmed = []
        for partition, pending in list(self._pending.items()):
            topic = topics.get(pending.observation.topic)
            if pending.observation.at > requested_at or not isinstance(topic, wire.Topic):
                continue  # a late response to an earlier request, or none about this topic
            del self._pending[partition]
            if not is_other_incarnation(pending.topic_id, topic.id):
                pending.episode.reported = pending.changes
                self._reported_at[partition] = requested_at
                confirmed.append(pending.observation)
        return confirmed


def _find_failure(result: wire.Result) -> wire.Failure | None:
    """Return why no broker has answered, for a topic or at all; None if one has."""
    results = result.topics.values() if isinstance(result, wire.Topics) else (result,)
    return next(
        (failure for failure in results if isinstance(failure, wire.Failure) and not failure.is_from_broker), None
    )
