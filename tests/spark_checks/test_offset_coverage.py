"""offset_history: what an unavailable source hides."""

from typing import Any

import pytest

from agent.model.observations.base import Available, Unavailable
from spark_checks.offsets.coverage import Gap, source_gaps
from spark_checks.offsets.findings import gap_finding


def gap(**names: Any) -> Gap:
    """Return the gap of a source that could not read a subject from 1 s to 101 s."""
    begin = Unavailable(at=1_000, cluster="main", reason="refused", **names)
    (found,) = source_gaps([begin, Available(at=101_000, cluster="main", **names)], until=200_000)
    return found


@pytest.mark.parametrize(
    ("names", "group", "hidden"),
    [
        ({"source": "kafka"}, "billing", True),
        ({"source": "kafka", "group": "billing"}, "billing", True),
        ({"source": "kafka", "group": "billing"}, "audit", False),
        ({"source": "kafka", "topic": "orders", "partition": 0}, "billing", False),
        ({"source": "zookeeper"}, "billing", False),
    ],
)
def test_only_what_reads_commits_hides_them(names: dict[str, Any], group: str, *, hidden: bool) -> None:
    assert gap(**names).may_hide(group, 50_000, 60_000) is hidden


def test_a_gap_of_zookeeper_says_that_causes_may_be_missing() -> None:
    detail = gap_finding(gap(source="zookeeper"), "main").detail
    assert detail.startswith("Causes may be missing: zookeeper could not be read between")
    assert gap_finding(gap(source="kafka"), "main").detail.startswith("Not compared: the journal has no observations")
