"""The changelog source without brokers; with real ones: tests/integration/test_changelog_source.py."""

from contextlib import closing
from itertools import count

import pytest

from agent.config.sources import SMALLEST_MEMORY
from agent.model.declared_stores import DeclaredStore
from agent.sources.kafka.admin import protocol as wire
from agent.sources.kafka.admin.client import AdminClient, Call, CompletedCall
from agent.sources.streams import changelog_source
from agent.sources.streams.changelog_log import DecreaseEpisode, Partition
from agent.sources.streams.changelog_source import ChangelogSource


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 96,000,000 bytes"):
        ChangelogSource(
            "main",
            "127.0.0.1:1",
            dict,
            [DeclaredStore(application="shop", store="counts")],
            lambda _: None,
            memory=SMALLEST_MEMORY - 1,
            interval=1_000,
        )


def test_a_description_that_has_not_changed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """KRaft brokers describe topics, and the client sends no answer of theirs twice."""
    store = DeclaredStore(application="shop", store="counts")
    topic = wire.Topic("t1", [])
    results: list[wire.Result] = [wire.Topics({store.changelog: topic}), wire.Unchanged(), wire.Unchanged()]
    clock = count(1_000_000, 10_000)

    def collect(client: AdminClient, patience: int) -> list[CompletedCall]:
        del client, patience
        call = Call((), (), next(clock), wire.DescribeTopics([store.changelog]))
        return [CompletedCall(call, call.sent_at, results.pop(0))]

    monkeypatch.setattr(AdminClient, "collect", collect)
    monkeypatch.setattr(AdminClient, "send", lambda *_: True)
    monkeypatch.setattr(changelog_source, "now_ms", lambda: next(clock))
    source = ChangelogSource(
        "main", "127.0.0.1:1", lambda: {"log_level": "0"}, [store], lambda _: None, memory=100_000_000, interval=1_000
    )
    read_at = []
    for _ in range(3):
        source.poll()
        read_at.append(source.read_at or 0)
    source.close()
    assert results == []
    assert 0 < read_at[0] < read_at[1] < read_at[2]


def test_poll_ends_episodes_that_are_over() -> None:
    store = DeclaredStore(application="shop", store="counts")
    source = ChangelogSource(
        "main", "127.0.0.1:1", dict, [store], lambda _: None, memory=SMALLEST_MEMORY, interval=1_000
    )
    with closing(source):
        episode = DecreaseEpisode(began_at=0, first_offset=7, known_keys={3, 5, 8})
        source._changelogs[store.changelog].partitions[4] = Partition(0, episode=episode)
        source.poll()
    assert episode.is_over
    assert not episode.known_keys
