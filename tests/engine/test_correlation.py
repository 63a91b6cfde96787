"""Findings that belong together are joined: by steps that share keys, by event time, else by rule and group."""

from collections.abc import Collection, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from agent.config.settings import load
from agent.engine.correlation import (
    CHECK_REACH_MS,
    Correlation,
    FindingCluster,
    Step,
    can_precede,
    cluster_findings,
    find_chains,
)
from agent.model.findings import Finding, Severity
from tests.samples import at, dip, divergence, lost_together, move, rewind, session

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False).correlations
RESET = "reset-after-session-loss"


def joined(
    *findings: Finding, correlations: Mapping[str, Correlation] = SHIPPED, checked: Collection[str] = ()
) -> list[FindingCluster]:
    """What becomes of the findings."""
    return cluster_findings(findings, correlations, find_chains(findings, correlations, checked))


def only(*findings: Finding, correlations: Mapping[str, Correlation] = SHIPPED) -> FindingCluster:
    """The one incident that they make."""
    (made,) = joined(*findings, correlations=correlations)
    return made


def on(rule: str, clock: str = "23:25:10", severity: Severity = Severity.WARNING, **subject: Any) -> Finding:
    """A finding about what is named, in cluster main."""
    return Finding(
        rule=rule, kind=rule, severity=severity, at=at(clock), subject={"cluster": "main", **subject}, detail=rule
    )


def steps(*made: Step) -> dict[str, Correlation]:
    """One correlation of these steps."""
    return {"chain": Correlation(steps=list(made))}


CAUSE_AND_EFFECT = steps(Step(rule="cause"), Step(rule="effect", shares=["broker"]))


def test_a_reset_is_joined_with_the_session_loss_that_moved_its_leader() -> None:
    """The session and the moves are causes, the rewind is the effect."""
    made = only(rewind(), move(8, 2005, 2011, "23:25:13"), session())
    assert made.correlation == RESET
    assert [one.rule for one in made.causes] == ["session", "leader_moved"]
    assert [one.rule for one in made.effects] == ["rewind"]


def test_the_order_in_which_findings_come_does_not_matter() -> None:
    """Every permutation gives the same."""
    findings = (rewind(), move(8, 2005, 2011, "23:25:13"), session(), move(8, 2011, 2005, "23:25:26"))
    assert {str(joined(*order)) for order in permutations(findings)} == {str(joined(*findings))}


def test_a_step_may_share_its_keys_with_any_earlier_step() -> None:
    """The rewind shares its partition with the leader move, not with the truncation of the step before it."""
    truncation = on("truncated", topic="topic-124", partition=2)
    moves = [move(8, 2005, 2011, "23:25:09"), move(2, 2005, 2011, "23:25:09")]
    assert len(only(session(), *moves, truncation, rewind()).findings) == 5


def test_what_shares_no_key_stays_apart() -> None:
    """A rewind of another partition, whose leader did not move."""
    made = joined(session(), move(8, 2005, 2011, "23:25:13"), rewind(), rewind(3, group="other"))
    assert [(one.correlation, len(one.findings)) for one in made] == [(RESET, 3), (None, 1)]


def test_the_same_names_in_another_cluster_stay_apart() -> None:
    """Every step shares the cluster too."""
    elsewhere = {**rewind().subject, "cluster": "backup"}
    made = joined(session(), move(8, 2005, 2011, "23:25:13"), rewind(subject=elsewhere))
    assert all(one.correlation is None for one in made)


@pytest.mark.parametrize("brokers", [[2005, 2011], [2011, 2005], [2005]])
def test_a_key_in_the_plural_is_shared_where_the_sets_meet(brokers: list[int]) -> None:
    """A leader move has two brokers, a lost session one."""
    found = only(on("cause", broker=2005), on("effect", brokers=brokers), correlations=CAUSE_AND_EFFECT)
    assert found.correlation == "chain"


def test_sets_that_do_not_meet_share_nothing() -> None:
    """Nor does a key that one of them lacks."""
    for effect in (on("effect", brokers=[2011, 2024]), on("effect", topic="t")):
        made = joined(on("cause", broker=2005), effect, correlations=CAUSE_AND_EFFECT)
        assert [one.correlation for one in made] == [None, None]


@pytest.mark.parametrize(("seconds", "incidents"), [(10, 1), (10.1, 2)])
def test_clocks_may_stand_five_seconds_apart_on_either_side(seconds: float, incidents: int) -> None:
    """An effect dated that much before its cause can still have followed it."""
    cause = on("cause", broker=1)
    effect = on("effect", broker=1)
    late_cause = Finding(**{**_fields(cause), "at": effect.at + round(seconds * 1000)})
    assert can_precede(late_cause, effect) is (incidents == 1)
    assert len(joined(late_cause, effect, correlations=CAUSE_AND_EFFECT)) == incidents


def test_a_cause_that_was_polled_may_have_happened_since_the_last_sighting() -> None:
    """Seen a minute after its effect, but not seen for longer."""
    effect = on("effect", broker=1)
    cause = Finding(**{**_fields(on("cause", "23:26:10", broker=1)), "since": effect.at - 1})
    assert only(cause, effect, correlations=CAUSE_AND_EFFECT).correlation == "chain"


def _fields(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in finding.__struct_fields__}


@pytest.mark.parametrize(("clock", "incidents"), [("23:35:10", 1), ("23:35:10.001", 2)])
def test_an_effect_follows_its_root_cause_within_the_time_given(clock: str, incidents: int) -> None:
    """Ten minutes by default, counted from the root."""
    made = joined(on("cause", broker=1), on("effect", clock, broker=1), correlations=CAUSE_AND_EFFECT)
    assert len(made) == incidents


def test_an_optional_step_may_be_missing_and_another_may_not() -> None:
    """A reset needs no truncation; but without a leader move the session loss explains nothing."""
    assert only(session(), move(8, 2005, 2011, "23:25:13"), rewind()).correlation == RESET
    assert [one.correlation for one in joined(session(), rewind())] == [None, None]


def test_a_cause_without_its_effect_explains_nothing() -> None:
    """A rolling restart makes no critical incident."""
    made = joined(session(), *(move(number, 2005, 2011, "23:25:13") for number in range(5)))
    assert [(one.correlation, len(one.findings)) for one in made] == [(None, 1), (None, 5)]


def test_the_last_step_takes_no_info_finding() -> None:
    """An operator's reset during a rolling restart has nothing to do with it."""
    by_hand = rewind(severity=Severity.INFO, labels=("to_earliest", "operator_reset"))
    made = joined(session(), move(8, 2005, 2011, "23:25:13"), by_hand)
    assert [one.correlation for one in made] == [None, None, None]


def test_an_earlier_step_takes_info_findings() -> None:
    """Sessions and leader moves are info: causes, never posted alone."""
    assert {one.severity for one in only(session(), move(8, 2005, 2011, "23:25:13"), rewind()).causes} == {
        Severity.INFO
    }


def test_one_lost_session_and_two_hundred_rewound_partitions_are_one_incident() -> None:
    """And an unrelated group's rewind on other brokers in the same window is its own."""
    moves = [move(number, 2005, 2011, "23:25:13") for number in range(200)]
    rewinds = [rewind(number) for number in range(200)]
    unrelated = rewind(0, group="payments", topic="other", at=at("23:25:14"))
    burst, alone = joined(session(), *moves, *rewinds, unrelated)
    assert (burst.correlation, len(burst.causes), len(burst.effects)) == (RESET, 201, 200)
    assert (alone.correlation, alone.effects) == (None, (unrelated,))


def test_two_brokers_losses_are_one_incident_through_the_leader_move_that_they_share() -> None:
    """The follower had lost its session before the leader did: both belong to the reset."""
    follower = session(subject={"cluster": "main", "broker": 2011}, at=at("23:25:01"), recovered_at=at("23:25:07"))
    made = only(follower, session(), move(8, 2005, 2011, "23:25:13"), rewind())
    assert [one.subject["broker"] for one in made.causes if one.rule == "session"] == [2011, 2005]


def test_what_else_the_cause_did_belongs_to_its_incident() -> None:
    """An unclean election of another partition is told with it, not in a message of its own."""
    moves = [move(8, 2005, 2011, "23:25:13"), move(2, 2005, 2011, "23:25:13")]
    unclean = [on("unclean", "23:25:13", topic="topic-124", partition=number) for number in (8, 2)]
    made = only(session(), *moves, *unclean, rewind())
    assert (made.correlation, made.effects) == (RESET, (rewind(),))
    assert [one.subject["partition"] for one in made.causes if one.rule == "unclean"] == [2, 8]


def test_the_gravest_correlation_names_an_incident_that_several_made() -> None:
    """Loss after session loss is a warning, a reset critical."""
    unclean = on("unclean", "23:25:13", topic="topic-124", partition=8)
    assert only(session(), move(8, 2005, 2011, "23:25:13"), unclean, rewind()).correlation == RESET
    assert only(session(), move(8, 2005, 2011, "23:25:13"), unclean).correlation == "loss-after-session-loss"


def test_where_no_session_loss_was_seen_the_unclean_election_is_the_cause() -> None:
    """KRaft shows no sessions."""
    made = only(on("unclean", "23:25:13", topic="topic-124", partition=8), rewind())
    assert made.correlation == "reset-after-unclean-election"
    assert [one.rule for one in made.causes] == ["unclean"]


def test_findings_of_one_rule_and_group_are_chained_within_a_minute() -> None:
    """Each within 60 s of the one before it, however long the chain gets."""
    chained = [rewind(number, at=at("23:25:00") + 60_000 * number) for number in range(5)]
    apart = rewind(9, at=chained[-1].at + 60_001)
    made = joined(*chained, apart, rewind(1, group="other", at=at("23:25:30")))
    assert sorted(len(one.findings) for one in made) == [1, 1, 5]
    assert all(one.correlation is None and not one.causes for one in made)


def test_findings_of_one_rule_without_a_group_are_chained_by_broker_else_by_topic() -> None:
    """Leader moves by either of their brokers; truncations by their topic."""
    made = joined(
        move(1, 2005, 2011, "23:25:13"),
        move(2, 2011, 2024, "23:25:14"),
        move(3, 1, 2, "23:25:14"),
        on("truncated", topic="a", partition=0),
        on("truncated", topic="a", partition=1),
        on("truncated", topic="b", partition=0),
    )
    assert sorted(len(one.findings) for one in made) == [1, 1, 2, 2]


def test_a_jobs_position_and_what_its_group_commits_are_one_incident() -> None:
    """On one partition within a minute; another group's rewind there is joined to neither by itself."""
    place: dict[str, Any] = {"topic": "orders", "partition": 3}
    read = on("rewind", "23:25:10", job="d779", **place)
    committed = on("rewind", "23:25:40", group="orders-job", **place)
    elsewhere = on("rewind", "23:25:40", group="audit", topic="orders", partition=4)
    late = on("rewind", "23:26:50", group="billing", **place)
    other = on("rewind", "23:25:41", group="search", topic="orders", partition=5)
    assert [one.findings for one in joined(read, committed, elsewhere, late, other)] == [
        (read, committed), (elsewhere,), (other,), (late,),
    ]  # fmt: skip
    assert len(joined(committed, on("rewind", "23:25:41", group="audit", **place))) == 2


def test_another_rule_about_the_same_group_is_another_incident() -> None:
    """Grouping is by rule and group."""
    subject = rewind().subject
    assert len(joined(rewind(), Finding(**{**_fields(rewind()), "rule": "jump", "subject": subject}))) == 2


def test_a_polled_finding_is_chained_from_when_it_can_have_happened() -> None:
    """Its interval begins within a minute of the one before."""
    late = rewind(2, at=at("23:30:00"), since=at("23:25:30"))
    assert len(joined(rewind(1), late)) == 1


def test_findings_known_too_far_apart_are_not_joined_however_their_intervals_lie() -> None:
    """By then the earlier incident is left alone; so whether they are joined cannot depend on what came late."""
    first = rewind(1, known_at=at("23:25:14"))
    second = rewind(2, at=at("23:59:00"), since=at("23:25:14"), known_at=at("23:59:00"))
    assert len(joined(first, second)) == 2


POWER_LOSS = (lost_together(), move(8, 2005, 2011, "23:25:13", known_at=at("23:25:13")))
CHECKED = {"segments", "divergence"}


def test_what_checks_find_after_a_power_loss_is_one_incident_with_it() -> None:
    """Both faults, known minutes later, are its effects."""
    (made,) = joined(*POWER_LOSS, dip(), divergence(), checked=CHECKED)
    assert made.correlation == "divergence-after-power-loss"
    assert [one.rule for one in made.causes] == ["brokers_down_together", "leader_moved"]
    assert sorted(one.rule for one in made.effects) == ["divergence", "segments"]


@pytest.mark.parametrize(("minutes", "incidents"), [(60, 1), (170, 1), (190, 3)])
def test_a_check_has_time_to_run(minutes: int, incidents: int) -> None:
    """Two hours more than other effects; then what it finds is an incident of its own."""
    root, moved = POWER_LOSS
    late = dip(known_at=root.known_at + minutes * 60_000)
    assert CHECK_REACH_MS == 7_200_000
    assert len(joined(root, moved, late, checked=CHECKED)) == incidents


@pytest.mark.parametrize(("clock", "incidents"), [("23:20:00", 1), ("22:20:00", 3)])
def test_records_found_on_a_disk_bear_their_producers_clocks(clock: str, incidents: int) -> None:
    """Dated before their cause they can still have followed it: by up to the correlation's time."""
    assert len(joined(*POWER_LOSS, dip(at=at(clock)), checked=CHECKED)) == incidents


def test_only_checks_are_given_that_time_and_that_doubt() -> None:
    """The same findings from a live rule are not joined."""
    assert len(joined(*POWER_LOSS, dip(at=at("23:20:00")))) == 3
    assert len(joined(*POWER_LOSS, dip(known_at=at("23:25:40") + 5_400_000))) == 3


def test_a_chain_is_followed_up_to_what_only_a_check_can_find() -> None:
    """It is worth asking about, and no incident yet; where nothing comes from checks it leads nowhere."""
    (chain,) = find_chains(POWER_LOSS, SHIPPED, CHECKED)
    assert [[one.rule for one in step] for step in chain.steps] == [["brokers_down_together"], ["leader_moved"]]
    assert all(one.correlation is None for one in joined(*POWER_LOSS, checked=CHECKED))
    assert find_chains(POWER_LOSS, SHIPPED) == []
