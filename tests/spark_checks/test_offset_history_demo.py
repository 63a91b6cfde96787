"""offset_history on the journal of a real incident: finds the demo's reset from the journal alone."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_checks import offset_history
from spark_checks.options import Options
from testbed.demos import reset

pytestmark = [pytest.mark.integration, pytest.mark.acceptance, pytest.mark.timeout(900)]


def test_demo_reset_is_found_from_the_journal_alone(spark: SparkSession, tmp_path: Path) -> None:
    seed = 7
    draw = reset.Draw.of(seed)
    assert reset.run(tmp_path, seed) == 0
    own = {"journal": str(tmp_path / "agent/state/journal"), "store": None, "min_records": 1_000}
    options = Options(cluster="demo", own={**own, "baseline": "14d", "compact": False, "retention": None})
    report = offset_history.run(spark, options, lambda _: None)
    (found,) = (finding for finding in report.findings if "gap" not in finding.labels)
    assert found.subject == {"cluster": "demo", "group": reset.GROUP, "topic": reset.TOPIC, "partition": draw.partition}
    assert set(found.labels) >= {"rewind", "to_earliest", "after_session_loss", "after_leader_move", "seen_live"}
    assert found.previous["offset"] >= reset.BACKLOG > found.current["offset"]
    assert f"broker {draw.leader} session expired" in found.detail
    assert f"leader changed {draw.leader} -> {draw.follower}" in found.detail
    assert report.plot is not None
