"""The changelog source without brokers; with real ones: tests/integration/test_changelog_source.py."""

import pytest

from agent.config.sources import SMALLEST_MEMORY
from agent.model.declared_stores import DeclaredStore
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
