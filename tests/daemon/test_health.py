"""What is wrong with the agent is reported once, and its end too."""

import pytest
import structlog

from agent.daemon.clock_watch import ClockWatch, describe_step, needs_restart
from agent.daemon.health import INHERITED_MS, QUIET_MS, SETTLED_MS, Health
from agent.model.encoding import encodable, to_json
from agent.model.observations.agent import AgentPart
from agent.model.observations.logs import LogFile


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: int = 1_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def test_problem_is_reported_once_until_it_is_over() -> None:
    clock = Clock()
    health = Health(clock)
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            health.failed("journal", "the disk is full.")
        health.failed("journal", "the disk is slow.")
    assert health.drain() == [AgentPart(at=1_000, part="journal", problem="the disk is full.")]
    assert [entry["problem"] for entry in logged] == ["the disk is full.", "the disk is slow."]
    health.works("journal")
    assert health.drain() == []
    clock.now += SETTLED_MS
    health.works("journal")
    health.works("journal")
    assert health.drain() == [AgentPart(at=clock.now, part="journal")]


def test_problem_that_nothing_shows_to_be_over_ends_by_itself() -> None:
    clock = Clock()
    health = Health(clock)
    health.failed("clock", "it was set.")
    health.drain()
    clock.now += QUIET_MS
    health.tick()
    assert health.drain() == []
    clock.now += 1
    health.tick()
    assert health.drain() == [AgentPart(at=clock.now, part="clock")]


def test_problem_of_an_earlier_run_is_not_reported_again() -> None:
    health = Health(Clock())
    health.resume([AgentPart(at=1, part="rule lag", problem="an error."), AgentPart(at=1, part="journal")])
    health.failed("rule lag", "an error.")
    health.failed("journal", "the disk is full.")
    assert [report.part for report in health.drain()] == ["journal"]


def test_defect_is_logged_once_with_its_traceback() -> None:
    health = Health(Clock())
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            try:
                int("x")
            except ValueError as error:
                health.set_aside("rule lag", error)
    assert [entry["event"] for entry in logged] == ["internal_error", "part_failed"]
    assert "Traceback" in logged[0]["traceback"]
    (report,) = health.drain()
    assert "ValueError" in str(report.problem)


@pytest.mark.parametrize(
    ("moved", "step", "restarts"),
    [
        (0, 0, False),
        (900, 0, False),
        (-7_200_000, -7_200_000, True),
        (5_000, 5_000, False),
        (86_400_000,) * 2 + (True,),
    ],
)
def test_step_of_the_wall_clock_is_seen_once(moved: int, step: int, restarts: bool) -> None:  # noqa: FBT001
    wall, monotonic = Clock(1_795_000_000_000), Clock()
    watch = ClockWatch(wall, monotonic)
    wall.now += 1_000 + moved
    monotonic.now += 1_000
    assert watch.step() == step
    assert needs_restart(step) is restarts
    assert watch.step() == 0


def test_step_is_described_with_its_size_and_direction() -> None:
    assert "set back by 2 h:" in describe_step(-7_200_000)
    assert "set forward by 5.0 s" in describe_step(5_000)


def test_name_that_is_not_utf_8_is_made_printable() -> None:
    file = LogFile(at=1, cluster="app", log="/var/log/a\udce9\ud83d.log", inode=1, read=0, head="", head_bytes=0)
    (safe,) = encodable([file])
    assert isinstance(safe, LogFile)
    assert safe.log == r"/var/log/a\xe9\ud83d.log"
    assert to_json(safe)
    batch = [safe]
    assert encodable(batch) is batch


def test_problem_of_an_earlier_run_that_this_one_has_not_ends_after_minutes() -> None:
    """The part may not be configured any more."""
    clock = Clock()
    health = Health(clock)
    health.resume([AgentPart(at=1, part=part, problem="the port is in use.") for part in ("HTTP", "journal")])
    health.failed("journal", "the port is in use.")
    clock.now += INHERITED_MS
    health.tick()
    assert health.drain() == []
    clock.now += 1
    health.tick()
    assert health.drain() == [AgentPart(at=clock.now, part="HTTP")]
