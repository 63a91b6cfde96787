"""Fixtures for tests of the Flink source."""

import pytest

from tests.sources.flink.recorded import RecordedResponses


@pytest.fixture(params=["1.4.2", "1.20.1"])
def recorded(request: pytest.FixtureRequest) -> RecordedResponses:
    """The responses of each version."""
    return RecordedResponses(request.param)
