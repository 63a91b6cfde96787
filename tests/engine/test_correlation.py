"""Findings are joined by steps that share keys and by event time, else by rule and group."""

from collections.abc import Collection, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from agent.config.loading import load
from agent.engine.correlation import CHECK_REACH_MS, Correlation, FindingCluster, Step, cluster_findings, find_chains
from agent.engine.precedence import can_precede
from agent.model.findings import Finding, Severity
from tests.samples import at, brokers_down_together, divergence, leader_change, offset_decrease, rewind, session_expiry

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False).correlations
RESET = "reset-after-session-loss"


def clusters_of(
    *findings: Finding, correlations: Mapping[str, Correlation] = SHIPPED, checked: Collection[str] = ()
) -> list[FindingCluster]:
    return cluster_findings(findings, correlations, find_chains(findings, correlations, checked))


def single_cluster(*findings: Finding, correlations: Mapping[str, Correlation] = SHIPPED) -> FindingCluster:
    (cluster,) = clusters_of(*findings, correlations=correlations)
    return cluster


def finding(rule: str, clock: str = "23:25:10", severity: Severity = Severity.WARNING, **subject: Any) -> Finding:
    return Finding(
        rule=rule, kind=rule, severity=severity, at=at(clock), subject={"cluster": "main", **subject}, detail=rule
    )


def correlation_of(*steps: Step) -> dict[str, Correlation]:
    return {"chain": Correlation(steps=list(steps))}


CAUSE_AND_EFFECT = correlation_of(Step(rule="cause"), Step(rule="effect", shares=["broker"]))


def test_reset_joins_the_session_loss_that_moved_its_leader() -> None:
    cluster = single_cluster(rewind(), leader_change(8, 2005, 2011, "23:25:13"), session_expiry())
    assert cluster.correlation == RESET
    assert [finding.rule for finding in cluster.causes] == ["session", "leader_moved"]
    assert [finding.rule for finding in cluster.effects] == ["rewind"]


def test_order_of_findings_does_not_matter() -> None:
    findings = (
        rewind(),
        leader_change(8, 2005, 2011, "23:25:13"),
        session_expiry(),
        leader_change(8, 2011, 2005, "23:25:26"),
    )
    assert {str(clusters_of(*order)) for order in permutations(findings)} == {str(clusters_of(*findings))}


def test_step_may_share_keys_with_any_earlier_step() -> None:
    truncation = finding("truncated", topic="topic-124", partition=2)
    moves = [leader_change(8, 2005, 2011, "23:25:09"), leader_change(2, 2005, 2011, "23:25:09")]
    assert len(single_cluster(session_expiry(), *moves, truncation, rewind()).findings) == 5


def test_findings_without_a_shared_key_stay_apart() -> None:
    clusters = clusters_of(
        session_expiry(), leader_change(8, 2005, 2011, "23:25:13"), rewind(), rewind(3, group="other")
    )
    assert [(cluster.correlation, len(cluster.findings)) for cluster in clusters] == [(RESET, 3), (None, 1)]


def test_same_names_in_another_cluster_stay_apart() -> None:
    elsewhere = {**rewind().subject, "cluster": "backup"}
    clusters = clusters_of(session_expiry(), leader_change(8, 2005, 2011, "23:25:13"), rewind(subject=elsewhere))
    assert all(cluster.correlation is None for cluster in clusters)


@pytest.mark.parametrize("brokers", [[2005, 2011], [2011, 2005], [2005]])
def test_plural_key_is_shared_if_the_sets_overlap(brokers: list[int]) -> None:
    """A leader change has two brokers, an expired session finding."""
    cluster = single_cluster(
        finding("cause", broker=2005), finding("effect", brokers=brokers), correlations=CAUSE_AND_EFFECT
    )
    assert cluster.correlation == "chain"


def test_disjoint_sets_and_missing_keys_share_nothing() -> None:
    for effect in (finding("effect", brokers=[2011, 2024]), finding("effect", topic="t")):
        clusters = clusters_of(finding("cause", broker=2005), effect, correlations=CAUSE_AND_EFFECT)
        assert [cluster.correlation for cluster in clusters] == [None, None]


@pytest.mark.parametrize(("seconds", "incidents"), [(10, 1), (10.1, 2)])
def test_clocks_may_differ_by_five_seconds_on_either_side(seconds: float, incidents: int) -> None:
    cause = finding("cause", severity=Severity.INFO, broker=1)
    effect = finding("effect", broker=1)
    late_cause = Finding(**{**_fields(cause), "at": effect.at + round(seconds * 1000)})
    assert can_precede(late_cause, effect) is (incidents == 1)
    assert len(clusters_of(late_cause, effect, correlations=CAUSE_AND_EFFECT)) == incidents


def test_polled_cause_may_date_back_to_the_poll_before() -> None:
    effect = finding("effect", broker=1)
    cause = Finding(**{**_fields(finding("cause", "23:26:10", broker=1)), "since": effect.at - 1})
    assert single_cluster(cause, effect, correlations=CAUSE_AND_EFFECT).correlation == "chain"


def _fields(original: Finding) -> dict[str, Any]:
    return {name: getattr(original, name) for name in original.__struct_fields__}


@pytest.mark.parametrize(("clock", "incidents"), [("23:35:10", 1), ("23:35:10.001", 2)])
def test_effect_follows_its_root_cause_within_the_window(clock: str, incidents: int) -> None:
    clusters = clusters_of(
        finding("cause", broker=1), finding("effect", clock, broker=1), correlations=CAUSE_AND_EFFECT
    )
    assert len(clusters) == incidents


def test_only_optional_steps_may_be_missing() -> None:
    assert single_cluster(session_expiry(), leader_change(8, 2005, 2011, "23:25:13"), rewind()).correlation == RESET
    assert [cluster.correlation for cluster in clusters_of(session_expiry(), rewind())] == [None, None]


def test_cause_without_its_effect_makes_no_correlation() -> None:
    clusters = clusters_of(session_expiry(), *(leader_change(number, 2005, 2011, "23:25:13") for number in range(5)))
    assert [(cluster.correlation, len(cluster.findings)) for cluster in clusters] == [(None, 1), (None, 5)]


def test_last_step_takes_no_info_finding() -> None:
    """An operator's reset during a rolling restart is not an effect of it."""
    by_hand = rewind(severity=Severity.INFO, labels=("to_earliest", "operator_reset"))
    clusters = clusters_of(session_expiry(), leader_change(8, 2005, 2011, "23:25:13"), by_hand)
    assert [cluster.correlation for cluster in clusters] == [None, None, None]


def test_earlier_steps_take_info_findings() -> None:
    assert {
        finding.severity
        for finding in single_cluster(session_expiry(), leader_change(8, 2005, 2011, "23:25:13"), rewind()).causes
    } == {Severity.INFO}


def test_session_loss_with_200_rewinds_is_one_incident() -> None:
    """An unrelated rewind on other brokers in the same window is an incident of its own."""
    moves = [leader_change(number, 2005, 2011, "23:25:13") for number in range(200)]
    rewinds = [rewind(number) for number in range(200)]
    unrelated = rewind(0, group="payments", topic="other", at=at("23:25:14"))
    burst, alone = clusters_of(session_expiry(), *moves, *rewinds, unrelated)
    assert (burst.correlation, len(burst.causes), len(burst.effects)) == (RESET, 201, 200)
    assert (alone.correlation, alone.effects) == (None, (unrelated,))


def test_session_losses_join_through_a_shared_leader_change() -> None:
    """The follower's session expires before the leader's."""
    follower = session_expiry(
        subject={"cluster": "main", "broker": 2011}, at=at("23:25:01"), recovered_at=at("23:25:07")
    )
    cluster = single_cluster(follower, session_expiry(), leader_change(8, 2005, 2011, "23:25:13"), rewind())
    assert [finding.subject["broker"] for finding in cluster.causes if finding.rule == "session"] == [2011, 2005]


def test_other_effects_of_a_cause_belong_to_its_incident() -> None:
    moves = [leader_change(8, 2005, 2011, "23:25:13"), leader_change(2, 2005, 2011, "23:25:13")]
    unclean = [finding("unclean", "23:25:13", topic="topic-124", partition=number) for number in (8, 2)]
    cluster = single_cluster(session_expiry(), *moves, *unclean, rewind())
    assert (cluster.correlation, cluster.effects) == (RESET, (rewind(),))
    assert [finding.subject["partition"] for finding in cluster.causes if finding.rule == "unclean"] == [2, 8]


def test_most_severe_correlation_names_the_incident() -> None:
    """loss-after-session-loss is a warning, reset-after-session-loss is critical."""
    unclean = finding("unclean", "23:25:13", topic="topic-124", partition=8)
    assert (
        single_cluster(session_expiry(), leader_change(8, 2005, 2011, "23:25:13"), unclean, rewind()).correlation
        == RESET
    )
    assert (
        single_cluster(session_expiry(), leader_change(8, 2005, 2011, "23:25:13"), unclean).correlation
        == "loss-after-session-loss"
    )


def test_unclean_election_is_the_cause_without_a_session_loss() -> None:
    """KRaft has no sessions."""
    cluster = single_cluster(finding("unclean", "23:25:13", topic="topic-124", partition=8), rewind())
    assert cluster.correlation == "reset-after-unclean-election"
    assert [finding.rule for finding in cluster.causes] == ["unclean"]


def test_findings_of_one_rule_and_group_chain_within_a_minute() -> None:
    chained = [rewind(number, at=at("23:25:00") + 60_000 * number) for number in range(5)]
    apart = rewind(9, at=chained[-1].at + 60_001)
    clusters = clusters_of(*chained, apart, rewind(1, group="other", at=at("23:25:30")))
    assert sorted(len(cluster.findings) for cluster in clusters) == [1, 1, 5]
    assert all(cluster.correlation is None and not cluster.causes for cluster in clusters)


def test_findings_without_a_group_chain_by_broker_or_topic() -> None:
    clusters = clusters_of(
        leader_change(1, 2005, 2011, "23:25:13"),
        leader_change(2, 2011, 2024, "23:25:14"),
        leader_change(3, 1, 2, "23:25:14"),
        finding("truncated", topic="a", partition=0),
        finding("truncated", topic="a", partition=1),
        finding("truncated", topic="b", partition=0),
    )
    assert sorted(len(cluster.findings) for cluster in clusters) == [1, 1, 2, 2]


def test_position_and_commits_of_a_job_are_one_incident() -> None:
    place: dict[str, Any] = {"topic": "orders", "partition": 3}
    read = finding("rewind", "23:25:10", job="d779", **place)
    committed = finding("rewind", "23:25:40", group="orders-job", **place)
    elsewhere = finding("rewind", "23:25:40", group="audit", topic="orders", partition=4)
    late = finding("rewind", "23:26:50", group="billing", **place)
    other = finding("rewind", "23:25:41", group="search", topic="orders", partition=5)
    assert [cluster.findings for cluster in clusters_of(read, committed, elsewhere, late, other)] == [
        (read, committed), (elsewhere,), (other,), (late,),
    ]  # fmt: skip
    assert len(clusters_of(committed, finding("rewind", "23:25:41", group="audit", **place))) == 2


def test_another_rule_on_another_partition_of_the_group_is_another_incident() -> None:
    subject = {**rewind().subject, "partition": 3}
    assert len(clusters_of(rewind(), Finding(**{**_fields(rewind()), "rule": "jump", "subject": subject}))) == 2


def test_polled_finding_chains_from_its_earliest_time() -> None:
    late = rewind(2, at=at("23:30:00"), since=at("23:25:30"))
    assert len(clusters_of(rewind(1), late)) == 1


def test_findings_known_too_far_apart_are_not_joined() -> None:
    """The earlier incident is final by then; a join would depend on the order of arrival."""
    first = rewind(1, known_at=at("23:25:14"))
    second = rewind(2, at=at("23:59:00"), since=at("23:25:14"), known_at=at("23:59:00"))
    assert len(clusters_of(first, second)) == 2


POWER_LOSS = (brokers_down_together(), leader_change(8, 2005, 2011, "23:25:13", known_at=at("23:25:13")))
CHECKED = {"segments", "divergence"}


def test_check_findings_after_a_power_loss_join_its_incident() -> None:
    (cluster,) = clusters_of(*POWER_LOSS, offset_decrease(), divergence(), checked=CHECKED)
    assert cluster.correlation == "divergence-after-power-loss"
    assert [finding.rule for finding in cluster.causes] == ["brokers_down_together", "leader_moved"]
    assert sorted(finding.rule for finding in cluster.effects) == ["divergence", "segments"]


@pytest.mark.parametrize(("minutes", "incidents"), [(60, 1), (170, 1), (190, 3)])
def test_check_findings_join_within_two_extra_hours(minutes: int, incidents: int) -> None:
    root, moved = POWER_LOSS
    late = offset_decrease(known_at=root.known_at + minutes * 60_000)
    assert CHECK_REACH_MS == 7_200_000
    assert len(clusters_of(root, moved, late, checked=CHECKED)) == incidents


@pytest.mark.parametrize(("clock", "incidents"), [("23:20:00", 1), ("22:20:00", 3)])
def test_records_on_disk_may_be_dated_before_their_cause(clock: str, incidents: int) -> None:
    assert len(clusters_of(*POWER_LOSS, offset_decrease(at=at(clock)), checked=CHECKED)) == incidents


def test_live_findings_get_no_extra_time() -> None:
    assert len(clusters_of(*POWER_LOSS, offset_decrease(at=at("23:20:00")))) == 3
    assert len(clusters_of(*POWER_LOSS, offset_decrease(known_at=at("23:25:40") + 5_400_000))) == 3


def test_chain_that_lacks_only_check_findings_is_kept() -> None:
    (chain,) = find_chains(POWER_LOSS, SHIPPED, CHECKED)
    assert [[finding.rule for finding in step] for step in chain.steps] == [["brokers_down_together"], ["leader_moved"]]
    assert all(cluster.correlation is None for cluster in clusters_of(*POWER_LOSS, checked=CHECKED))
    assert find_chains(POWER_LOSS, SHIPPED) == []
