"""Check requests: one per root cause, about the topics and groups affected, in a window that reaches into the past."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.config.loading import load
from agent.engine.check_requests import LOOKBACK_MS, CheckRequest, request_checks
from agent.engine.correlation import Correlation, Step, find_chains
from agent.engine.history import FINALIZATION_MS
from agent.model.findings import Finding, Severity
from tests.samples import at, brokers_down_together, divergence, leader_change, offset_decrease, rewind, session_expiry

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False).correlations
CHECKED = {"segments", "divergence", "history"}
SESSION = session_expiry(known_at=at("23:25:14.3"))
MOVE = leader_change(8, 2005, 2011, "23:25:13", known_at=at("23:25:13"))
REWIND = rewind(known_at=at("23:25:15"))


def requests_for(*findings: Finding, correlations: Mapping[str, Correlation] = SHIPPED) -> list[CheckRequest]:
    return request_checks(find_chains(findings, correlations, CHECKED), correlations, CHECKED)


def test_reset_after_session_loss_requests_offset_history() -> None:
    (request,) = requests_for(SESSION, MOVE, REWIND)
    assert (request.check, request.cluster, request.finding) == ("offset_history", "main", SESSION.key)
    assert (request.topics, request.groups) == (("topic-124",), ("flink-job",))
    assert (request.since, request.until) == (SESSION.start - LOOKBACK_MS, REWIND.known_at + FINALIZATION_MS)
    assert request.due == REWIND.known_at


@pytest.mark.parametrize("findings", [(), (SESSION,), (SESSION, MOVE), (MOVE, REWIND), (SESSION, REWIND)])
def test_incomplete_chain_requests_no_checks(findings: tuple[Finding, ...]) -> None:
    assert requests_for(*findings) == []
    assert requests_for(SESSION, MOVE, replace(REWIND, severity=Severity.INFO)) == []


def test_late_effect_widens_the_check_request() -> None:
    (before,) = requests_for(SESSION, MOVE, REWIND)
    other = rewind(8, group="billing", known_at=at("23:26:30"))
    (after,) = requests_for(SESSION, MOVE, REWIND, other)
    assert (after.id, after.due) == (before.id, before.due)
    assert after.groups == ("billing", "flink-job")
    assert after.until > before.until


def test_two_session_losses_of_one_reset_make_one_request() -> None:
    follower = session_expiry(subject={"cluster": "main", "broker": 2011}, at=at("23:25:01"), known_at=at("23:25:01"))
    assert [request.finding for request in requests_for(SESSION, follower, MOVE, REWIND)] == [follower.key]


def test_session_loss_minutes_later_makes_another_request() -> None:
    later = at("23:30:05")
    again = session_expiry(at=at("23:30:00"), known_at=later)
    effects = (
        again,
        leader_change(8, 2005, 2011, "23:30:05", known_at=later),
        rewind(at=at("23:30:10"), known_at=later),
    )
    assert [request.finding for request in requests_for(SESSION, MOVE, REWIND, *effects)] == [SESSION.key, again.key]


def test_brokers_down_together_request_checks_of_all_topics() -> None:
    requests = requests_for(brokers_down_together(), MOVE)
    assert [request.check for request in requests] == ["log_segments", "replica_divergence"]
    assert {(request.finding, request.topics, request.groups) for request in requests} == {
        (brokers_down_together().key, (), ())
    }


def test_findings_of_checks_make_no_further_requests() -> None:
    before, after = (
        requests_for(brokers_down_together(), MOVE),
        requests_for(brokers_down_together(), MOVE, offset_decrease(), divergence()),
    )
    assert [request.id for request in after] == [request.id for request in before]


def test_correlation_without_checks_or_live_steps_requests_none() -> None:
    chain = [Step(rule="session"), Step(rule="leader_moved", shares=["broker"])]
    checks = [Step(rule="segments"), Step(rule="divergence", shares=["topic"])]
    correlations = {"quiet": Correlation(steps=chain), "checks": Correlation(steps=checks, run_checks=["log_segments"])}
    assert requests_for(SESSION, MOVE, offset_decrease(), divergence(), correlations=correlations) == []
