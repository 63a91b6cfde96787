"""Log lines about each source at the agent's start."""

import sys
import tracemalloc
from typing import Any

import structlog

from agent.daemon.startup_log import STARTUP_MS, StartupLog, try_receivers
from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.flink import FlinkJob
from agent.model.observations.kafka import Commit, LogOffsets
from agent.model.observations.zookeeper import ZooKeeperHealth
from agent.notify.console import Console
from agent.notify.slack import Slack
from testbed.slack import Slack as Workspace
from testbed.waiting import wait_until

KNOWN = [
    Commit(at=1, cluster="main", group="old", topic="t", partition=0, offset=5),
    LogOffsets(at=1, cluster="main", topic="t", partition=0, log_start=0, log_end=9),
    LogOffsets(at=1, cluster="main", topic="t", partition=1, log_start=0, log_end=9),
    LogOffsets(at=1, cluster="other", topic="u", partition=0, log_start=0, log_end=9),
    FlinkJob(at=1, cluster="main", job="a1", name="clicks", state="RUNNING", started_at=0, tasks=1, tasks_running=1),
]


class StartingSource:
    """The start of a source of the cluster `main`, poll by poll."""

    def __init__(self, *known: Observation) -> None:
        self.passed: list[Observation] = []
        self.log = StartupLog("main", "kafka", self.passed.extend, known, now=0)

    def poll(self, now: int, *facts: Observation) -> list[dict[str, Any]]:
        with structlog.testing.capture_logs() as logs:
            if facts:
                self.log.emit(facts)
            self.log.polled(now)
        return [dict(line) for line in logs]


def test_source_ready_is_logged_once_with_counts() -> None:
    source = StartingSource(*KNOWN)
    assert source.poll(1_000, LogOffsets(at=2, cluster="main", topic="t2", partition=0, log_start=0, log_end=1)) == [
        {"event": "source_ready", "log_level": "info", "source": "main/kafka", "topics": 2, "partitions": 3}
    ]
    assert source.poll(2_000, Commit(at=3, cluster="main", group="g", topic="t", partition=0, offset=6)) == []
    assert len(source.passed) == 2


def test_a_source_that_is_never_ready_needs_no_more_memory() -> None:
    """As with a log file that cannot be read beside one that can."""
    source = StartingSource()
    source.poll(1_000, Unavailable(at=1, source="kafka", cluster="main", reason="no permission"))
    tracemalloc.start()
    try:
        for number in range(2_000):
            commit = Commit(at=number, cluster="main", group="g", topic="t", partition=0, offset=number)
            source.log.emit([commit])
            source.passed.clear()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 20_000


def test_unavailable_source_is_logged_once_then_ready() -> None:
    source = StartingSource()
    unavailable = Unavailable(at=1, source="kafka", cluster="main", reason="no broker answers")
    assert source.poll(1_000) == []
    assert source.poll(2_000, unavailable) == [
        {"event": "source_not_ready", "log_level": "warning", "source": "main/kafka", "reason": "no broker answers"}
    ]
    assert source.poll(STARTUP_MS) == []
    available = Available(at=2, source="kafka", cluster="main")
    commit = Commit(at=3, cluster="main", group="g", topic="t", partition=0, offset=6)
    assert source.poll(300_000, available, commit) == [
        {"event": "source_ready", "log_level": "info", "source": "main/kafka", "groups": 1}
    ]
    assert source.poll(400_000, unavailable) == []


def test_unavailable_part_of_a_source_is_logged() -> None:
    source = StartingSource()
    job = KNOWN[-1]
    group = Unavailable(at=1, source="kafka", cluster="main", group="g", reason="no coordinator")
    assert [line["event"] for line in source.poll(1_000, job, group)] == ["source_ready"]
    away = Unavailable(at=2, source="flink_zookeeper", cluster="main", reason="ZooKeeper does not answer")
    (line,) = source.poll(12_000, away)
    assert (line["event"], line["source"]) == ("source_not_ready", "main/flink_zookeeper")


def test_unchanged_source_is_logged_ready_after_a_restart() -> None:
    source = StartingSource(*KNOWN)
    assert source.poll(1_000) == []
    (line,) = source.poll(STARTUP_MS)
    assert (line["topics"], line["partitions"], line["groups"]) == (1, 2, 1)


def test_unreadable_source_is_not_ready_whatever_it_observes() -> None:
    source = StartingSource(*KNOWN)
    unavailable = Unavailable(at=1, source="kafka", cluster="main", reason="no broker has ever registered")
    commit = Commit(at=3, cluster="main", group="g", topic="t", partition=0, offset=6)
    assert [line["event"] for line in source.poll(1_000, unavailable, commit)] == ["source_not_ready"]
    assert source.poll(STARTUP_MS) == []
    assert [line["event"] for line in source.poll(40_000, Available(at=4, source="kafka", cluster="main"))] == [
        "source_ready"
    ]


def test_health_of_zookeeper_is_no_sign_of_a_right_path() -> None:
    source = StartingSource()
    assert source.poll(1_000, ZooKeeperHealth(at=1, cluster="main", serving=("zk-1:2181",))) == []


def test_receivers_are_tried_at_the_start(slack: Workspace) -> None:
    good = Slack(slack.token, lambda _: "", base_url=slack.url, channels=["#alerts"])
    bad = Slack(slack.token, lambda _: "", name="slack #typo", base_url=slack.url, channels=["#typo"])
    with structlog.testing.capture_logs() as logs:
        try_receivers([good, bad, Console(sys.stdout)])
        wait_until(lambda: len(logs) == 2, "both to be tried")
    assert sorted((line["event"], line["receiver"], line["log_level"]) for line in logs) == [
        ("receiver_not_ready", "slack #typo", "warning"),
        ("receiver_ready", "slack", "info"),
    ]
    (reason,) = (line["reason"] for line in logs if "reason" in line)
    assert reason.startswith("channel #typo: channel_not_found: no such channel")
