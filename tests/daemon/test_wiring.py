"""What the parts made from the configuration do about an earlier one."""

from types import SimpleNamespace
from typing import Any

from agent.daemon.wiring import find_unwatched
from agent.model.observations.base import Available, Unavailable


def test_what_the_configuration_no_longer_names_is_not_unavailable() -> None:
    """ZooKeeper after the change to KRaft, and a cluster that was removed. Flink clusters report all their parts."""
    outages = [
        Unavailable(at=5, source=source, cluster=cluster, group=group, reason="r")
        for source, cluster, group in (
            ("zookeeper", "main", None),
            ("kafka", "main", "g"),
            ("kafka", "gone", "g"),
            ("flink_zookeeper", "jobs", None),
        )
    ]
    sources: list[Any] = [SimpleNamespace(name="kafka", cluster="main"), SimpleNamespace(name="flink", cluster="jobs")]
    assert find_unwatched(sources, outages, 70) == [
        Available(at=70, source="zookeeper", cluster="main"),
        Available(at=70, source="kafka", cluster="gone", group="g"),
    ]
