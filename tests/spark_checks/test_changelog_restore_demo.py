"""The demo streams-state, which verifies itself: the live rule and Spark on the real KAFKA-7672."""

from pathlib import Path

import pytest

from testbed.demos import streams

pytestmark = [pytest.mark.integration, pytest.mark.acceptance, pytest.mark.timeout(900)]


def test_demo_of_lost_state_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = streams.run(tmp_path / "demo", None)
    output = capsys.readouterr().out
    assert status == 0, output
    assert "Spark, changelog_restore:" in output
    assert (tmp_path / "demo/plot.png").exists()
