"""The changelog source without brokers; with real ones: tests/integration/test_changelog_source.py."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest
from confluent_kafka import KafkaError

from agent.config.sources import SMALLEST_MEMORY
from agent.model.declared_stores import DeclaredStore
from agent.model.observations.base import Observation
from agent.model.observations.streams import ChangelogDecreases
from agent.sources.kafka.admin import protocol as wire
from agent.sources.kafka.admin.client import AdminClient, Call, CompletedCall
from agent.sources.streams import changelog_source
from agent.sources.streams.changelog_log import DecreaseEpisode, Partition, Records
from agent.sources.streams.changelog_source import ChangelogSource

_STORE = DeclaredStore(application="shop", store="counts")
_TOPIC = "shop-counts-changelog"


@dataclass
class _Follower:
    """A source whose records, time and descriptions of the topic are given. description: None if there is none."""

    now: int = 1_000_000
    description: dict[str, wire.Topic | wire.Failure] | None = None
    emitted: list[Observation] = field(default_factory=list)

    def follow(self, topic_id: str | None) -> None:
        """Begin with a changelog of three partitions that has been read to its end."""
        self._source = ChangelogSource(
            "main", "127.0.0.1:1", dict, [_STORE], self.emitted.extend, memory=SMALLEST_MEMORY, interval=1_000
        )
        self._changelog = self._source._changelogs[_TOPIC]
        self._changelog.set_topic(topic_id, range(3), self.now)
        for partition in range(3):
            self._changelog.set_log_end(partition, 0)
            self._write(partition, [30, 30, 30])

    def _write(self, partition: int, values: list[int]) -> None:
        state = self._changelog.partitions[partition]
        offsets = np.arange(len(values)) + (state.next_offset or 0)
        keys = [b"key-%d" % number for number in range(len(values))]
        written = Records(np.full(len(values), partition), offsets, keys, [value.to_bytes(8) for value in values])
        with self._source._reader.lock:
            self._changelog.apply(written, self.now, None)

    def collect(self, patience: int) -> list[CompletedCall]:
        """Return the description, as AdminClient does."""
        del patience
        if self.description is None:
            return []
        call = Call((), (), self.now, wire.DescribeTopics([_TOPIC]))
        return [CompletedCall(call, self.now, wire.Topics(self.description))]

    def poll_after(self, seconds: int, decreases: dict[int, list[int]] | None = None) -> list[tuple[int, int, int]]:
        """Let time pass, write lower values by partition, and poll; return partition, time and keys of what is new."""
        self.now += seconds * 1_000
        for partition, values in (decreases or {}).items():
            self._write(partition, values)
        self.emitted.clear()
        self._source.poll()
        reports = [observation for observation in self.emitted if isinstance(observation, ChangelogDecreases)]
        return [(report.partition, report.at, report.keys) for report in reports]

    def close(self) -> None:
        """Close the source."""
        self._source.close()


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Follower]:
    follower = _Follower()
    monkeypatch.setattr(AdminClient, "send", lambda *_: True)
    monkeypatch.setattr(AdminClient, "collect", lambda _, patience: follower.collect(patience))
    monkeypatch.setattr(changelog_source, "now_ms", lambda: follower.now)
    with closing(follower):
        yield follower


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 96,000,000 bytes"):
        ChangelogSource(
            "main",
            "127.0.0.1:1",
            dict,
            [_STORE],
            lambda _: None,
            memory=SMALLEST_MEMORY - 1,
            interval=1_000,
        )


def test_a_description_that_has_not_changed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """KRaft brokers describe topics, and the client sends no answer of theirs twice."""
    topic = wire.Topic("t1", [])
    results: list[wire.Result] = [wire.Topics({_TOPIC: topic}), wire.Unchanged(), wire.Unchanged()]
    clock = count(1_000_000, 10_000)

    def collect(client: AdminClient, patience: int) -> list[CompletedCall]:
        del client, patience
        call = Call((), (), next(clock), wire.DescribeTopics([_TOPIC]))
        return [CompletedCall(call, call.sent_at, results.pop(0))]

    monkeypatch.setattr(AdminClient, "collect", collect)
    monkeypatch.setattr(AdminClient, "send", lambda *_: True)
    monkeypatch.setattr(changelog_source, "now_ms", lambda: next(clock))
    source = ChangelogSource(
        "main", "127.0.0.1:1", lambda: {"log_level": "0"}, [_STORE], lambda _: None, memory=100_000_000, interval=1_000
    )
    read_at = []
    for _ in range(3):
        source.poll()
        read_at.append(source.read_at or 0)
    source.close()
    assert results == []
    assert 0 < read_at[0] < read_at[1] < read_at[2]


def test_poll_ends_episodes_that_are_over() -> None:
    source = ChangelogSource(
        "main", "127.0.0.1:1", dict, [_STORE], lambda _: None, memory=SMALLEST_MEMORY, interval=1_000
    )
    with closing(source):
        episode = DecreaseEpisode(began_at=0, first_offset=7, known_keys={3, 5, 8})
        source._changelogs[_TOPIC].partitions[4] = Partition(0, episode=episode)
        source.poll()
    assert episode.is_over
    assert not episode.known_keys


def test_partitions_do_not_wait_for_each_other(follower: _Follower) -> None:
    """While topics are not described, the first report of each partition is kept; what came since follows it."""
    follower.follow("t1")
    assert follower.poll_after(1, {2: [7]}) == []
    assert follower.poll_after(4, {0: [30, 5]}) == []
    for value in range(4, 0, -1):
        assert follower.poll_after(20, {2: [value, value, value]}) == []
    follower.description = {_TOPIC: wire.Topic("t1", [])}
    assert follower.poll_after(1) == [(2, 1_001_000, 1), (0, 1_005_000, 1)]
    assert follower.poll_after(1) == [(2, 1_085_000, 3)]
    assert follower.poll_after(1) == []


@pytest.mark.parametrize("absence", [{}, {_TOPIC: wire.Failure(KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown topic")}])
@pytest.mark.parametrize(
    ("known_id", "described_id", "is_same"),
    [("t1", "t1", True), (None, "t1", True), ("t1", None, True), ("t1", "t2", False)],
)
def test_report_stays_pending_until_its_topic_is_described(
    follower: _Follower,
    absence: dict[str, wire.Topic | wire.Failure],
    known_id: str | None,
    described_id: str | None,
    *,
    is_same: bool,
) -> None:
    """It is dropped if the topic has another id than the one that was read, and confirmed otherwise."""
    follower.follow(known_id)
    follower.description = absence
    assert follower.poll_after(1, {1: [9]}) == []
    assert follower.poll_after(6, {1: [8, 8]}) == []
    follower.description = {_TOPIC: wire.Topic(described_id, [])}
    assert follower.poll_after(1) == ([(1, 1_001_000, 1)] if is_same else [])
    assert follower.poll_after(1) == ([(1, 1_007_000, 2)] if is_same else [])
