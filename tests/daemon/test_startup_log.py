"""What the agent's own log says of each source at its start: what it sees, or why it sees nothing."""

from typing import Any

import structlog

from agent.daemon.startup_log import SETTLED_MS, StartupLog
from agent.model.observations import Available, Commit, FlinkJob, LogOffsets, Observation, Unavailable

KNOWN = [
    Commit(at=1, cluster="main", group="old", topic="t", partition=0, offset=5),
    LogOffsets(at=1, cluster="main", topic="t", partition=0, log_start=0, log_end=9),
    LogOffsets(at=1, cluster="main", topic="t", partition=1, log_start=0, log_end=9),
    LogOffsets(at=1, cluster="other", topic="u", partition=0, log_start=0, log_end=9),
    FlinkJob(at=1, cluster="main", job="a1", name="clicks", state="RUNNING", started_at=0, tasks=1, tasks_running=1),
]


class Watched:
    """A source's look at the cluster `main`, poll by poll."""

    def __init__(self, *known: Observation) -> None:
        """The agent has just started."""
        self.passed: list[Observation] = []
        self.look = StartupLog("main", "kafka", self.passed.extend, known, now=0)

    def poll(self, now: int, *told: Observation) -> list[dict[str, Any]]:
        """What is logged after a poll that told this."""
        with structlog.testing.capture_logs() as logs:
            if told:
                self.look.emit(told)
            self.look.polled(now)
        return [dict(one) for one in logs]


def test_what_a_source_sees_first_is_one_line_with_how_much_it_is() -> None:
    """What it has told, and what is known from before of the kinds that it tells; never again."""
    watched = Watched(*KNOWN)
    assert watched.poll(1_000, LogOffsets(at=2, cluster="main", topic="t2", partition=0, log_start=0, log_end=1)) == [
        {"event": "sees", "log_level": "info", "source": "main/kafka", "topics": 2, "partitions": 3}
    ]
    assert watched.poll(2_000, Commit(at=3, cluster="main", group="g", topic="t", partition=0, offset=6)) == []
    assert len(watched.passed) == 2


def test_a_source_that_sees_nothing_says_why_once_and_that_it_sees_at_last() -> None:
    """The cluster comes minutes later than the agent."""
    watched = Watched()
    blind = Unavailable(at=1, source="kafka", cluster="main", reason="no broker answers")
    assert watched.poll(1_000) == []
    assert watched.poll(2_000, blind) == [
        {"event": "cannot see yet", "log_level": "warning", "source": "main/kafka", "reason": "no broker answers"}
    ]
    assert watched.poll(SETTLED_MS) == []
    seen = Available(at=2, source="kafka", cluster="main")
    commit = Commit(at=3, cluster="main", group="g", topic="t", partition=0, offset=6)
    assert watched.poll(300_000, seen, commit) == [
        {"event": "sees", "log_level": "info", "source": "main/kafka", "groups": 1}
    ]
    assert watched.poll(400_000, blind) == []


def test_a_part_of_a_source_that_cannot_see_says_so_though_the_rest_sees() -> None:
    """Flink's ZooKeeper, told after its session timeout; a group's own blindness is not the source's."""
    watched = Watched()
    job = KNOWN[-1]
    group = Unavailable(at=1, source="kafka", cluster="main", group="g", reason="no coordinator")
    assert [one["event"] for one in watched.poll(1_000, job, group)] == ["sees"]
    away = Unavailable(at=2, source="flink_zookeeper", cluster="main", reason="ZooKeeper does not answer")
    (line,) = watched.poll(12_000, away)
    assert (line["event"], line["source"]) == ("cannot see yet", "main/flink_zookeeper")


def test_a_source_that_finds_all_as_it_was_before_a_restart_says_what_that_is() -> None:
    """Nothing new is told then; that it cannot see would have been said by then."""
    watched = Watched(*KNOWN)
    assert watched.poll(1_000) == []
    (line,) = watched.poll(SETTLED_MS)
    assert (line["topics"], line["partitions"], line["groups"]) == (1, 2, 1)
