"""Findings of one event are one incident, however many places it shows in; independent events are not."""

from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from agent.engine.correlation import FindingCluster, cluster_findings, find_chains
from agent.engine.grouping import RECURRENCE_MS
from agent.engine.storms import STORM_SIZE
from agent.model.findings import Finding, Records, Severity
from tests.engine.test_correlation import SHIPPED
from tests.samples import at, rewind, session_expiry

HOUR = 3_600_000

DELAY_RULES = ("lag", "consumer_stalled", "consumer_stopped", "retention_margin", "retention")


def clusters_of(*findings: Finding) -> list[FindingCluster]:
    return cluster_findings(findings, SHIPPED, find_chains(findings, SHIPPED), delay_rules=DELAY_RULES)


def finding(rule: str, clock: str, until: str | None = None, **subject: Any) -> Finding:
    severity = subject.pop("severity", Severity.WARNING)
    return Finding(
        rule=rule, kind=rule, severity=severity, at=at(clock), recovered_at=None if until is None else at(until),
        subject={"cluster": "main", **subject}, detail=rule, known_at=at(clock) + 300_000,
    )  # fmt: skip


DOWN = finding("broker_down", "04:10:00", "04:40:00", broker=7)
OFFLINE = [
    finding("partition_offline", "04:10:00.8", "04:40:09", topic="bills", partition=number, brokers=[7])
    for number in range(3)
]
UNREADABLE = [
    finding("source_unavailable", "04:10:04", "04:40:12", topic="bills", partition=number, source="kafka")
    for number in range(3)
]


def test_broker_down_and_what_it_takes_along_are_one_incident() -> None:
    (cluster,) = clusters_of(DOWN, *OFFLINE, *UNREADABLE)
    assert len(cluster.findings) == 7


def test_order_of_findings_does_not_matter() -> None:
    findings = (DOWN, OFFLINE[0], UNREADABLE[0], finding("truncated", "04:40:10", topic="bills", partition=2))
    assert {str(clusters_of(*order)) for order in permutations(findings)} == {str(clusters_of(*findings))}


def test_what_begins_when_the_broker_returns_belongs_to_its_outage() -> None:
    """A disk was replaced: the broker comes back with an empty log."""
    truncation = finding("truncated", "04:40:11", topic="bills", partition=1)
    lagging = finding("under_replicated", "04:40:30", topic="carts", partition=4, brokers=[7])
    assert len(clusters_of(DOWN, OFFLINE[1], truncation, lagging)) == 1


def test_partition_that_its_dead_leader_does_not_answer_for_belongs_to_its_outage() -> None:
    """It is of another topic; what it shares is the broker that led it."""
    unread = finding("source_unavailable", "04:10:30", "04:40:12", topic="carts", partition=4, source="kafka")
    led = replace(unread, current={"led_by": 7})
    assert len(clusters_of(DOWN, led)) == 1
    assert len(clusters_of(DOWN, replace(unread, current={"led_by": 8}))) == 2


@pytest.mark.parametrize(("clock", "incidents"), [("04:16:00", 1), ("06:16:00", 2)])
def test_election_soon_after_replicas_fell_out_of_sync_is_one_event(clock: str, incidents: int) -> None:
    lagging = finding("under_replicated", "04:10:00", "07:00:00", topic="bills", partition=1, brokers=[5])
    election = finding("unclean", clock, topic="bills", partition=1, brokers=[7, 5])
    elsewhere = finding("truncated", "09:16:00", topic="bills", partition=2)
    assert len(clusters_of(lagging, election, elsewhere)) == incidents + 1


@pytest.mark.parametrize("clock", ["04:25:00", "06:10:00"])
def test_later_trouble_of_a_broker_that_is_down_is_another_incident(clock: str) -> None:
    """It must not be an edit of a message from long ago."""
    later = finding("partition_offline", clock, topic="carts", partition=1, brokers=[7, 8])
    assert len(clusters_of(DOWN, later)) == 2


def test_two_events_on_one_topic_hours_apart_are_two_incidents() -> None:
    first = finding("truncated", "01:00:00", "01:00:40", topic="bills", partition=0)
    second = finding("truncated", "03:30:00", "03:30:40", topic="bills", partition=0)
    assert len(clusters_of(first, second)) == 2


def test_trouble_of_other_brokers_and_topics_at_the_same_time_is_another_incident() -> None:
    elsewhere = finding("truncated", "04:10:02", topic="carts", partition=0)
    assert len(clusters_of(DOWN, elsewhere)) == 2
    backup = replace(OFFLINE[0], subject={**OFFLINE[0].subject, "cluster": "backup"})
    assert len(clusters_of(DOWN, backup)) == 2


def test_cluster_that_cannot_be_read_joins_its_brokers_but_not_another_clusters() -> None:
    """A power loss: the source notices at once, sessions expire later."""
    unreadable = finding("source_unavailable", "04:09:49", source="kafka")
    group = finding("source_unavailable", "04:10:20", source="kafka", group="bill-writer")
    other = finding("broker_down", "04:10:00", "04:40:00", broker=8)
    assert len(clusters_of(DOWN, other)) == 2
    assert len(clusters_of(DOWN, other, unreadable, group)) == 1
    assert len(clusters_of(DOWN, replace(unreadable, subject={"cluster": "backup", "source": "kafka"}))) == 2


def test_unclean_election_and_the_loss_that_it_cost_are_one_incident() -> None:
    election = finding("unclean", "02:00:01", topic="bills", partition=5, brokers=[3, 4])
    loss = finding("truncated", "02:00:03", topic="bills", partition=5)
    assert len(clusters_of(election, loss)) == 1


def test_loud_incident_is_not_swallowed_by_info_findings() -> None:
    """A rolling restart moves leaders for minutes before a log is truncated."""
    moves = [
        finding("leader_moved", f"05:{minute:02}:00", topic="bills", partition=minute, brokers=[1, 2], severity="info")
        for minute in range(12)
    ]
    moves = [replace(move, severity=Severity.INFO) for move in moves]
    loss = finding("truncated", "05:11:10", topic="bills", partition=60)
    loud, quiet = sorted(clusters_of(*moves, loss), key=lambda cluster: len(cluster.findings))
    assert (loud.findings, len(quiet.findings)) == ((loss,), 12)


def test_effects_of_one_election_join_across_partitions() -> None:
    """Without sessions each partition has a cause of its own."""
    elections = [
        finding("unclean", "02:00:01", topic="bills", partition=number, brokers=[3, 4]) for number in range(20)
    ]
    rewinds = [rewind(number, topic="bills", at=at("02:00:04"), known_at=at("02:00:04")) for number in range(20)]
    (cluster,) = clusters_of(*elections, *rewinds)
    assert (cluster.correlation, len(cluster.causes), len(cluster.effects)) == ("reset-after-unclean-election", 20, 20)


def test_rewind_of_another_group_without_the_cause_stays_apart() -> None:
    election = finding("unclean", "02:00:01", topic="bills", partition=1, brokers=[3, 4])
    caused = rewind(1, topic="bills", at=at("02:00:04"), known_at=at("02:00:04"))
    unrelated = rewind(9, topic="bills", group="audit", at=at("02:00:04"))
    assert [len(cluster.findings) for cluster in clusters_of(election, caused, unrelated)] == [2, 1]


# One reader's repeated trouble


def fall(clock: str, until: str | None = None, records: int = 40_000, partition: int = 2, **more: Any) -> Finding:
    recovered_at = None if until is None else at(until)
    fields = {"at": at(clock), "known_at": at(clock), "recovered_at": recovered_at, "severity": Severity.WARNING}
    return rewind(partition, records, **{**fields, "labels": (), **more})


def test_rewinds_of_a_reader_that_has_not_caught_up_are_one_incident() -> None:
    falls = [fall("02:00:00", records=900_000), fall("02:07:00", "02:10:00"), fall("02:31:00", "02:33:00")]
    assert len(clusters_of(*falls)) == 1
    assert len(clusters_of(*[replace(later, severity=Severity.CRITICAL) for later in falls])) == 1


@pytest.mark.parametrize("partition", [2, 3])
def test_rewinds_after_catching_up_are_two_incidents_unless_they_are_alike(partition: int) -> None:
    first, second = fall("02:00:00", "02:04:00"), fall("02:20:00", "02:30:00", 100_000, partition)
    assert len(clusters_of(first, second)) == 2


def test_rewind_of_another_partition_while_one_catches_up_is_another_incident() -> None:
    assert len(clusters_of(fall("02:00:00"), fall("02:20:00", partition=3))) == 2


def test_seek_back_every_hour_is_one_incident() -> None:
    falls = [fall(f"{hour:02}:00:10", f"{hour:02}:04:00", 40_000 + 900 * hour) for hour in range(2, 8)]
    assert len(clusters_of(*falls)) == 1


@pytest.mark.parametrize(
    ("change", "incidents"),
    [
        ({}, 1),
        ({"severity": Severity.CRITICAL}, 2),
        ({"records": Records(reread=90_000)}, 2),
        ({"at": at("02:00:00") + RECURRENCE_MS + 1}, 2),
    ],
)
def test_habit_is_the_same_again_within_two_hours(change: dict[str, Any], incidents: int) -> None:
    assert len(clusters_of(fall("02:00:00", "02:04:00"), replace(fall("03:00:00", "03:04:00"), **change))) == incidents


def test_later_rewind_of_a_habit_may_be_known_in_part() -> None:
    """A poll showed the reader when it was nearly back where it was: at least so many records."""
    earlier, later = fall("02:00:00", "02:04:00"), fall("03:00:00", "03:04:00")
    part = Records(reread=earlier.records.reread // 5)
    assert len(clusters_of(earlier, replace(later, records=part))) == 2
    assert len(clusters_of(earlier, replace(later, records=part, since=later.at - 30_000))) == 1


def test_habit_may_be_known_as_critical_only_later() -> None:
    """Two polls showed the reader nearly back where it was, a third one that it had been reset to the log start."""
    times = (("02:00:00", "02:01:00", 9_000), ("02:04:00", "02:05:00", 7_000), ("02:08:00", "02:09:00", 31_000))
    polled = [replace(known, since=known.at - 10_000) for known in (fall(*of_fall) for of_fall in times)]
    polled[2] = replace(polled[2], severity=Severity.CRITICAL)
    assert len(clusters_of(*polled)) == 1
    assert len(clusters_of(replace(polled[1], since=None), polled[2])) == 2
    assert len(clusters_of(replace(polled[1], records=Records(reread=40_000)), polled[2])) == 2


def test_habit_may_be_critical_and_lose_records_between() -> None:
    falls = [replace(fall(f"0{hour}:00:00", f"0{hour}:04:00"), severity=Severity.CRITICAL) for hour in (2, 3)]
    subject = {name: falls[0].subject[name] for name in ("cluster", "group", "topic", "partition")}
    overrun = replace(fall("02:20:00", "02:21:00"), rule="retention", subject=subject, records=Records(lost=70))
    assert len(clusters_of(*falls)) == 1
    assert [len(cluster.findings) for cluster in clusters_of(*falls, overrun)] == [2, 1]


def test_rewind_with_a_cause_is_no_habit() -> None:
    cause = finding("truncated", "03:00:00", topic="topic-124", partition=2)
    assert len(clusters_of(fall("02:00:00", "02:04:00"), cause, fall("03:00:10", "03:04:00"))) == 2


def test_what_a_reader_did_twice_before_without_a_cause_needs_none() -> None:
    """Not a leader change, nor a truncation, that happens to come shortly before it does so again."""
    cause = finding("truncated", "03:00:00", topic="topic-124", partition=2)
    habit = [fall("02:00:00", "02:04:00"), fall("02:30:00", "02:34:00")]
    again = fall("03:00:10", "03:04:00")
    assert [len(cluster.findings) for cluster in clusters_of(*habit, cause, again)] == [3, 1]
    assert [len(cluster.findings) for cluster in clusters_of(habit[0], cause, again)] == [1, 2]
    worse = replace(again, records=Records(reread=10 * again.records.reread))
    assert [len(cluster.findings) for cluster in clusters_of(*habit, cause, worse)] == [2, 2]
    by_hand = [replace(known, severity=Severity.INFO, labels=("operator_reset",)) for known in habit]
    assert len(clusters_of(*by_hand, cause, again)[-1].findings) == 2
    later = [fall("04:00:00", "04:04:00"), fall("04:30:00", "04:34:00")]
    assert [len(cluster.findings) for cluster in clusters_of(cause, again, *later)] == [2, 2]


def test_overrun_and_the_jump_that_ends_it_are_one_incident() -> None:
    subject = {"cluster": "main", "group": "slow", "topic": "bills", "partition": 6}
    overrun = replace(fall("02:00:00", "02:14:00"), rule="retention", subject=subject, records=Records(lost=70))
    jump = replace(fall("02:14:00"), rule="jump", since=at("02:13:58"), subject=subject, records=Records(skipped=900))
    elsewhere = replace(jump, at=at("02:20:00"), since=None, subject={**subject, "partition": 7})
    assert [len(cluster.findings) for cluster in clusters_of(overrun, jump, elsewhere)] == [2, 1]


@pytest.mark.parametrize(
    ("clock", "partition", "incidents"), [("02:00:40", 6, 1), ("02:03:40", 6, 2), ("02:00:40", 7, 2)]
)
def test_standstill_and_what_it_hides_are_one_incident(clock: str, partition: int, incidents: int) -> None:
    subject: dict[str, Any] = {"group": "slow", "topic": "bills", "partition": 6}
    stalled = finding("consumer_stalled", "02:00:10", **subject)
    hidden = finding("hidden", clock, **{**subject, "partition": partition})
    assert len(clusters_of(stalled, hidden)) == incidents


def test_lag_for_hours_does_not_hide_a_rewind() -> None:
    lag = replace(fall("02:00:00"), rule="lag", records=Records())
    assert len(clusters_of(lag, fall("03:10:00"))) == 2


def lag_on(clock: str, *behind: tuple[str, int], until: str | None = None) -> Finding:
    return replace(finding("lag", clock, until, group="slow"), current={"behind": [list(place) for place in behind]})


@pytest.mark.parametrize(
    ("behind", "incidents"),
    [([("bills", 2)], 1), ([("carts", 0), ("bills", 5)], 1), ([("carts", 6)], 2), ([("carts", 0), ("refunds", 6)], 2)],
)
@pytest.mark.parametrize("rule", ["consumer_stalled", "retention_margin", "retention"])
def test_lag_takes_in_what_delays_its_group_on_the_topics_that_it_names(
    rule: str, behind: list[tuple[str, int]], incidents: int
) -> None:
    later = finding(rule, "05:20:00", group="slow", topic="bills", partition=6)
    findings = (lag_on("02:00:00", *behind), later)
    assert {len(clusters_of(*order)) for order in permutations(findings)} == {incidents}


@pytest.mark.parametrize(("topic", "incidents"), [("bills", 1), ("carts", 2)])
def test_lag_joins_an_earlier_standstill_on_one_of_its_topics(topic: str, incidents: int) -> None:
    stalled = finding("consumer_stalled", "02:00:00", "02:40:00", group="slow", topic=topic, partition=6)
    assert len(clusters_of(stalled, lag_on("02:39:00", ("bills", 1), ("refunds", 1)))) == incidents


def test_stop_of_a_group_concerns_all_its_topics() -> None:
    stopped = finding("consumer_stopped", "02:00:00", group="slow")
    overrun = finding("retention", "04:00:00", group="slow", topic="bills", partition=6)
    assert len(clusters_of(stopped, overrun)) == 1
    assert len(clusters_of(lag_on("01:50:00", ("carts", 6), until="02:00:10"), stopped)) == 1


# Causes


def test_cause_before_normal_progress_explains_nothing() -> None:
    loss = finding("truncated", "02:00:00", topic="topic-124", partition=2)
    later = fall("02:08:00", undisturbed_since=at("02:07:00"))
    assert [cluster.correlation for cluster in clusters_of(loss, later)] == [None, None]
    stopped = fall("02:08:00", undisturbed_since=at("01:58:50"))
    assert [cluster.correlation for cluster in clusters_of(loss, stopped)] == ["reset-after-unclean-election"]


def test_leader_election_alone_does_not_raise_the_severity() -> None:
    move = replace(
        finding("leader_moved", "02:07:50", topic="topic-124", partition=2, brokers=[2005]), severity=Severity.INFO
    )
    session = session_expiry(at=at("02:07:48"), recovered_at=at("02:07:49"), known_at=at("02:07:48"))
    (cluster,) = clusters_of(session, move, fall("02:08:00"))
    assert (cluster.correlation, cluster.severity) == ("reset-after-session-loss", Severity.WARNING)
    (cluster,) = clusters_of(move, fall("02:08:00"))
    assert (cluster.correlation, cluster.severity) == ("reset-after-leader-change", Severity.WARNING)
    loss = finding("truncated", "02:07:55", topic="topic-124", partition=2)
    (cluster,) = clusters_of(session, move, loss, fall("02:08:00"))
    assert (cluster.correlation, cluster.severity) == ("reset-after-session-loss", Severity.CRITICAL)


def test_lost_commits_are_the_cause_for_the_groups_of_that_coordinator() -> None:
    loss = finding("truncated", "02:07:55", topic="__consumer_offsets", partition=12)
    groups = [
        fall("02:08:00", group=f"g{number}", topic=f"t{number}", current={"coordinator": 12}) for number in (1, 2)
    ]
    other = fall("02:08:00", group="g3", topic="t3", current={"coordinator": 13})
    caused, alone = clusters_of(loss, *groups, other)
    assert (caused.correlation, caused.effects) == ("reset-after-offsets-lost", tuple(groups))
    assert alone.findings == (other,)


@pytest.mark.parametrize(("latency", "correlation"), [(0, "reset-after-session-loss"), (9, None)])
def test_clock_ahead_shows_in_causes_seen_when_they_happened(latency: int, correlation: str | None) -> None:
    clock = {"since": at("02:08:23"), "known_at": at("02:08:23") + latency}
    session = session_expiry(at=at("02:08:23"), recovered_at=at("02:08:29"), **clock)
    move = finding("leader_moved", "02:08:23", topic="topic-124", partition=2, brokers=[2005])
    move = replace(move, severity=Severity.INFO, **clock)
    clusters = clusters_of(session, move, fall("02:08:00", since=at("02:07:58")))
    assert correlation in {cluster.correlation for cluster in clusters}
    assert {cluster.correlation for cluster in clusters_of(move, fall("02:08:00"))} == {None}


# Storms


def storm(groups: int, ms: int = 0, **more: Any) -> list[Finding]:
    return [
        fall("02:00:00", group=f"g{number}", topic=f"t{number}", **more | {"at": at("02:00:00") + ms * number})
        for number in range(groups)
    ]


def test_more_than_ten_incidents_a_minute_are_one() -> None:
    assert len(clusters_of(*storm(STORM_SIZE))) == STORM_SIZE
    assert len(clusters_of(*storm(STORM_SIZE + 1))) == 1
    assert len(clusters_of(*storm(1_000, 20))) == 1


def test_slow_series_of_incidents_is_no_storm() -> None:
    assert len(clusters_of(*storm(40, 7_000))) == 40


def test_storm_takes_nothing_of_another_cause_cluster_or_severity() -> None:
    elsewhere = fall("02:00:05", group="x", subject={**fall("02:00:05").subject, "cluster": "backup"})
    worse = fall("02:00:05", group="y", topic="y", severity=Severity.CRITICAL)
    loss = finding("truncated", "02:00:04", topic="z", partition=2)
    caused = fall("02:00:06", group="z", topic="z")
    clusters = clusters_of(*storm(50, 100), elsewhere, worse, loss, caused)
    assert sorted(len(cluster.findings) for cluster in clusters) == [1, 1, 2, 50]
