"""The demo streams-state, which checks itself: what the live rule and Spark say of the real KAFKA-7672."""

from pathlib import Path

import pytest

from testbed.demos import streams

pytestmark = [pytest.mark.integration, pytest.mark.acceptance, pytest.mark.timeout(900)]


def test_the_demo_of_lost_state_is_as_it_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One critical incident; in its thread Spark's list of keys, which is exactly what fell, and the picture."""
    status = streams.run(tmp_path / "demo", None)
    told = capsys.readouterr().out
    assert status == 0, told
    assert "Spark, changelog_restore:" in told
    assert (tmp_path / "demo/evidence.png").exists()
