"""The changelog source without brokers; with real ones: tests/integration/test_changelog_source.py."""

from contextlib import closing

import pytest

from agent.config.sources import SMALLEST_MEMORY
from agent.model.declared_stores import DeclaredStore
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
