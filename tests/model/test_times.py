"""Times as text, also those that no calendar has."""

import pytest

from agent.model.times import clock, minute, rfc3339


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_795_411_027_314, "2026-11-23T05:17:07.314Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1 << 62, "9999-12-31T23:59:59"),
        (-(1 << 63), "0001-01-01T00:00:00"),
    ],
)
def test_times_are_written_whatever_they_are(at: int, text: str) -> None:
    assert rfc3339(at).startswith(text)
    assert minute(at) == text[:16].replace("T", " ")
    assert clock(at).startswith(text[11:19])
