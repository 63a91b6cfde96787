"""What findings ask of checks: once per root cause, about what was struck, in a window that reaches into the past."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.config.settings import load
from agent.engine.check_requests import LOOKBACK_MS, CheckRequest, request_checks
from agent.engine.correlation import Correlation, Step, find_chains
from agent.engine.facts import FINALIZATION_MS
from agent.model.findings import Finding, Severity
from tests.samples import at, dip, divergence, lost_together, move, rewind, session

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False).correlations
CHECKED = {"segments", "divergence", "history"}
SESSION = session(known_at=at("23:25:14.3"))
MOVE = move(8, 2005, 2011, "23:25:13", known_at=at("23:25:13"))
REWIND = rewind(known_at=at("23:25:15"))


def asked(*findings: Finding, correlations: Mapping[str, Correlation] = SHIPPED) -> list[CheckRequest]:
    """What the findings ask for."""
    return request_checks(find_chains(findings, correlations, CHECKED), correlations, CHECKED)


def test_a_reset_after_a_session_loss_asks_for_its_history() -> None:
    """What was struck, fourteen days back; due when the last that completes it is known."""
    (one,) = asked(SESSION, MOVE, REWIND)
    assert (one.check, one.cluster, one.finding) == ("offset_history", "main", SESSION.key)
    assert (one.topics, one.groups) == (("topic-124",), ("flink-job",))
    assert (one.since, one.until) == (SESSION.start - LOOKBACK_MS, REWIND.known_at + FINALIZATION_MS)
    assert one.due == REWIND.known_at


@pytest.mark.parametrize("findings", [(), (SESSION,), (SESSION, MOVE), (MOVE, REWIND), (SESSION, REWIND)])
def test_nothing_is_asked_before_the_steps_are_found(findings: tuple[Finding, ...]) -> None:
    """Nor when the last one is none that counts."""
    assert asked(*findings) == []
    assert asked(SESSION, MOVE, replace(REWIND, severity=Severity.INFO)) == []


def test_a_late_effect_widens_what_was_asked_and_asks_nothing_more() -> None:
    """Same id, same moment; its group and topic too."""
    (before,) = asked(SESSION, MOVE, REWIND)
    other = rewind(8, group="billing", known_at=at("23:26:30"))
    (after,) = asked(SESSION, MOVE, REWIND, other)
    assert (after.id, after.due) == (before.id, before.due)
    assert after.groups == ("billing", "flink-job")
    assert after.until > before.until


def test_two_losses_that_led_to_the_same_ask_once() -> None:
    """The follower's and the leader's, seconds apart; the first one asks."""
    follower = session(subject={"cluster": "main", "broker": 2011}, at=at("23:25:01"), known_at=at("23:25:01"))
    assert [one.finding for one in asked(SESSION, follower, MOVE, REWIND)] == [follower.key]


def test_another_loss_minutes_later_asks_anew() -> None:
    """What it did is not yet looked at."""
    later = at("23:30:05")
    again = session(at=at("23:30:00"), known_at=later)
    then = (again, move(8, 2005, 2011, "23:30:05", known_at=later), rewind(at=at("23:30:10"), known_at=later))
    assert [one.finding for one in asked(SESSION, MOVE, REWIND, *then)] == [SESSION.key, again.key]


def test_brokers_lost_together_ask_before_anything_is_wrong_to_see() -> None:
    """Only checks can find what the last step takes; it may be anything, hence they are asked about everything."""
    found = asked(lost_together(), MOVE)
    assert [one.check for one in found] == ["log_segments", "replica_divergence"]
    assert {(one.finding, one.topics, one.groups) for one in found} == {(lost_together().key, (), ())}


def test_what_the_checks_find_asks_nothing_more() -> None:
    """The same questions."""
    before, after = asked(lost_together(), MOVE), asked(lost_together(), MOVE, dip(), divergence())
    assert [one.id for one in after] == [one.id for one in before]


def test_a_correlation_without_asks_asks_nothing_and_one_of_checks_alone_has_nothing_to_ask_by() -> None:
    """A damaged log and a divergence may belong together; that is no reason to look for them."""
    chain = [Step(rule="session"), Step(rule="leader_moved", shares=["broker"])]
    checks = [Step(rule="segments"), Step(rule="divergence", shares=["topic"])]
    quiet = {"quiet": Correlation(steps=chain), "checks": Correlation(steps=checks, run_checks=["log_segments"])}
    assert asked(SESSION, MOVE, dip(), divergence(), correlations=quiet) == []
