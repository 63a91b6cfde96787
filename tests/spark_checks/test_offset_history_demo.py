"""offset_history over the journal of a real incident: the demo's reset is found from the journal alone."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_checks import offset_history
from spark_checks.options import Options
from testbed.demos import reset

pytestmark = [pytest.mark.integration, pytest.mark.acceptance, pytest.mark.timeout(900)]


def test_the_demos_reset_is_found_from_the_journal_alone(spark: SparkSession, tmp_path: Path) -> None:
    """The partition, the offsets, the log's start, the session losses and the leader moves; no other rewind."""
    seed = 7
    draw = reset.Draw.of(seed)
    assert reset.run(tmp_path, seed) == 0
    own = {"journal": str(tmp_path / "agent/state/journal"), "store": None, "min_records": 1_000}
    asked = Options(cluster="demo", own={**own, "baseline": "14d", "compact": False, "retention": None})
    report = offset_history.run(spark, asked, lambda _: None)
    (found,) = (one for one in report.findings if "gap" not in one.labels)
    assert found.subject == {"cluster": "demo", "group": reset.GROUP, "topic": reset.TOPIC, "partition": draw.partition}
    assert set(found.labels) >= {"rewind", "to_earliest", "after_session_loss", "after_leader_move", "seen_live"}
    assert found.previous["offset"] >= reset.BACKLOG > found.current["offset"]
    assert f"broker {draw.leader} lost its session" in found.detail
    assert f"changed leader {draw.leader} -> {draw.follower}" in found.detail
    assert report.plot is not None
