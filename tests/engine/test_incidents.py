"""Incidents: identity, late causes, merging, withdrawal, recovery, closing, availability of sources."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.config.loading import load
from agent.engine.evaluator import Changes
from agent.engine.impact_and_root_cause import root_cause_broker, total_impact, worst_first
from agent.engine.incidents import Incidents, Lifetimes
from agent.engine.rule import Rule
from agent.model.findings import Finding, Incident, Records, Severity, Status
from agent.model.observations.base import Unavailable
from tests.samples import at, brokers_down_together, divergence, leader_change, offset_decrease, rewind, session_expiry

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False)
NOW = at("23:25:20")
MINUTE = 60_000


class History:
    """Incidents as they change, the latest of each id."""

    def __init__(self, **lifetimes: Any) -> None:
        self.incidents = Incidents(SHIPPED.correlations, SHIPPED.rules, Lifetimes(**lifetimes))
        self.latest: dict[str, Incident] = {}

    def apply(
        self, now: int, *found: Finding, withdrawn: tuple[Finding, ...] = (), unavailable: tuple[Unavailable, ...] = ()
    ) -> list[Incident]:
        """Return the incidents that change with these findings."""
        changed = self.incidents.apply(Changes(list(found), [finding.key for finding in withdrawn]), unavailable, now)
        self.latest |= {incident.id: incident for incident in changed}
        return changed

    @property
    def current(self) -> list[Incident]:
        """The incidents that have findings."""
        return [incident for incident in self.latest.values() if incident.findings]

    @property
    def single(self) -> Incident:
        """The single incident that has findings."""
        (incident,) = self.current
        return incident


def known(finding: Finding, **more: Any) -> Finding:
    """Return the finding, known when it happened."""
    return replace(finding, known_at=finding.at, **more)


MOVE = known(leader_change(8, 2005, 2011, "23:25:13"), recovered_at=at("23:25:26"))
SESSION = known(session_expiry())
REWIND = known(rewind())
RECOVERED = replace(REWIND, recovered_at=at("23:25:26"))


def test_incident_states_who_where_how_much_and_why() -> None:
    history = History()
    history.apply(NOW, SESSION, MOVE, REWIND)
    incident = history.single
    assert incident.title == "flink-job rewound 12,223 records on topic-124[8] after broker 2005's session expired"
    assert (incident.severity, incident.correlation, incident.cluster) == (
        Severity.CRITICAL,
        "reset-after-session-loss",
        "main",
    )
    assert (incident.opened_at, incident.updated_at) == (SESSION.at, MOVE.recovered_at)
    assert incident.records == Records(reread=12_223)


def test_same_findings_again_change_nothing() -> None:
    history = History()
    history.apply(NOW, REWIND)
    assert history.apply(NOW + 1_000, REWIND) == []


def test_late_cause_updates_the_incident_and_keeps_its_id() -> None:
    history = History()
    history.apply(NOW, REWIND)
    incident_id = history.single.id
    history.apply(NOW + 50_000, SESSION, MOVE)
    assert history.single.id == incident_id
    assert history.single.correlation == "reset-after-session-loss"
    assert [incident for incident in history.latest.values() if incident.id != incident_id] == []


def test_merge_keeps_the_incident_above_info() -> None:
    """The session loss is older, but info incidents are not notified."""
    history = History()
    (info,) = history.apply(at("23:25:09"), SESSION)
    (opened,) = history.apply(NOW, REWIND)
    history.apply(NOW + 1_000, MOVE)
    assert history.single.id == opened.id
    assert history.latest[info.id].merged_into == opened.id
    assert (history.latest[info.id].status, history.latest[info.id].findings) == (Status.CLOSED, ())
    assert len(history.single.causes + history.single.findings) == 3


def test_merge_of_two_reported_incidents_keeps_the_older() -> None:
    history = History()
    (older,) = history.apply(NOW, REWIND)
    (younger,) = history.apply(NOW + 1_000, known(rewind(group="other", at=REWIND.at + 500)))
    history.apply(NOW + 2_000, SESSION, MOVE)
    assert history.single.id == older.id
    assert history.latest[younger.id].merged_into == older.id
    assert len(history.single.findings) == 2


def test_id_depends_on_the_first_finding_only() -> None:
    first, second = History(), History()
    for history in (first, second):
        history.apply(NOW, REWIND)
    assert first.single.id == second.single.id
    second.apply(NOW, known(rewind(3, group="other", topic="other", at=REWIND.at + 1)))
    assert len({incident.id for incident in second.current}) == 2


def test_withdrawn_finding_closes_its_incident() -> None:
    history = History()
    (opened,) = history.apply(NOW, REWIND)
    (closed,) = history.apply(NOW + 1_000, withdrawn=(REWIND,))
    assert (closed.id, closed.status, closed.findings, closed.merged_into) == (opened.id, Status.CLOSED, (), None)


def test_withdrawn_finding_leaves_the_others_in_place() -> None:
    history = History()
    other = known(rewind(3))
    history.apply(NOW, REWIND, other)
    incident_id = history.single.id
    history.apply(NOW + 1_000, withdrawn=(other,))
    assert (history.single.id, history.single.findings) == (incident_id, (REWIND,))


def test_finding_with_a_corrected_time_keeps_its_incident() -> None:
    history = History()
    history.apply(NOW, REWIND)
    incident_id = history.single.id
    earlier = replace(REWIND, at=REWIND.at - 2_000)
    history.apply(NOW + 1_000, earlier, withdrawn=(REWIND,))
    assert (history.single.id, history.single.findings) == (incident_id, (earlier,))


def test_withdrawn_cause_splits_the_incident() -> None:
    history = History()
    history.apply(NOW, SESSION, MOVE, REWIND)
    incident_id = history.single.id
    history.apply(NOW + 1_000, withdrawn=(MOVE,))
    by_rule = {incident.findings[0].rule: incident for incident in history.current}
    assert by_rule["rewind"].id == incident_id
    assert (by_rule["session"].severity, by_rule["rewind"].correlation) == (Severity.INFO, None)


def test_incident_recovers_with_its_last_finding() -> None:
    history = History()
    other = known(rewind(3))
    history.apply(NOW, REWIND, other)
    history.apply(NOW + 6_000, RECOVERED)
    assert (history.single.status, history.single.recovered_at) == (Status.OPEN, None)
    history.apply(NOW + 7_000, replace(other, recovered_at=at("23:25:40")))
    assert (history.single.status, history.single.recovered_at) == (Status.RECOVERED, at("23:25:40"))


def test_active_cause_keeps_the_incident_open() -> None:
    history = History()
    history.apply(NOW, replace(SESSION, recovered_at=None), MOVE, RECOVERED)
    assert history.single.status is Status.OPEN


def test_new_finding_reopens_a_recovered_incident() -> None:
    history = History()
    history.apply(NOW, RECOVERED)
    recovered = history.single
    assert recovered.status is Status.RECOVERED
    history.apply(NOW + 20_000, known(rewind(3, at=RECOVERED.at + 30_000)))
    assert (history.single.id, history.single.status, history.single.recovered_at) == (recovered.id, Status.OPEN, None)


def test_recovered_incident_is_closed_an_hour_later() -> None:
    history = History()
    history.apply(NOW, RECOVERED)
    due = at("23:25:26") + 60 * MINUTE
    now = NOW
    while history.single.status is not Status.CLOSED:
        now = history.incidents.next_due
        history.apply(now)
    assert now == due
    assert history.single.recovered_at == RECOVERED.recovered_at


def test_incident_that_never_recovers_is_closed_after_a_week() -> None:
    history = History()
    history.apply(NOW, REWIND)
    history.apply(NOW + 7 * 86_400_000)
    assert history.single.status is Status.CLOSED
    assert history.apply(NOW + 8 * 86_400_000, RECOVERED) == []


def test_old_check_finding_stays_open_from_when_it_is_known() -> None:
    """Replicas that have differed for a month."""
    history = History()
    history.apply(NOW, replace(divergence(at=NOW - 30 * 86_400_000), known_at=NOW))
    statuses = []
    for now in (NOW, NOW + 7 * 86_400_000 - 1, NOW + 7 * 86_400_000):
        history.apply(now)
        statuses.append(history.single.status)
    assert statuses == [Status.OPEN, Status.OPEN, Status.CLOSED]


def test_change_after_forgetting_makes_no_new_incident() -> None:
    """Incidents may be forgotten before rules stop following their findings."""
    history = History(forget_after="1m")
    history.apply(NOW, REWIND)
    history.apply(NOW + history.incidents.horizon)
    assert history.single.status is Status.CLOSED
    assert history.apply(NOW + history.incidents.horizon + 1, RECOVERED) == []


def test_old_incident_takes_no_new_findings_but_recovers() -> None:
    """Another rewind of the group a day later is another incident."""
    history = History()
    history.apply(NOW, REWIND)
    incident_id = history.single.id
    tomorrow = NOW + 86_400_000
    history.apply(tomorrow, known(rewind(3, at=tomorrow)))
    history.apply(tomorrow + 1_000, replace(REWIND, recovered_at=tomorrow + 500))
    assert {incident.id: incident.status for incident in history.current} == {
        incident_id: Status.RECOVERED,
        next(incident.id for incident in history.current if incident.id != incident_id): Status.OPEN,
    }


def test_incident_continues_after_a_restart() -> None:
    history = History()
    history.apply(NOW, REWIND)
    resumed = History()
    resumed.incidents.resume([history.single], NOW)
    resumed.apply(NOW + 1_000, SESSION, MOVE, RECOVERED)
    assert (resumed.single.id, resumed.single.status) == (history.single.id, Status.RECOVERED)


def test_incident_of_a_removed_rule_continues() -> None:
    """rules.toml may change between two runs."""
    history = History()
    history.apply(NOW, REWIND)
    resumed = Incidents({}, {})
    resumed.resume([history.single], NOW)
    (changed,) = resumed.apply(Changes([], []), (), NOW + 1_000) or [history.single]
    assert changed.id == history.single.id


def test_reprocessed_records_add_up_and_losses_count_once() -> None:
    """Two rules report the same loss, each as far as it can observe."""
    subject = {"cluster": "main", "topic": "t", "partition": 0}
    lost = [replace(REWIND, subject=subject, records=Records(lost=number, skipped=1)) for number in (96, 183)]
    elsewhere = replace(REWIND, subject={**subject, "partition": 1}, records=Records(lost=10))
    assert total_impact([REWIND, rewind(3), *lost, elsewhere]) == Records(reread=24_446, lost=193, skipped=2)


def test_worst_first_sorts_by_severity_records_and_time() -> None:
    small = known(rewind(1, 1_500))
    warning = replace(known(rewind(2, 90_000)), severity=Severity.WARNING)
    earlier = replace(known(rewind(3)), at=REWIND.at - 1)
    assert worst_first([small, warning, REWIND, earlier]) == [earlier, REWIND, small, warning]


def test_title_counts_the_subjects_of_the_worst_findings_rule() -> None:
    history = History()
    history.apply(NOW, REWIND, *(known(rewind(number, 2_000)) for number in range(3)))
    assert history.single.title == "flink-job rewound 12,223 records on topic-124[8] (and 3 more)"


def test_title_is_about_the_effect_even_if_more_was_lost() -> None:
    """The title of a correlation names the group of its last step, which a truncation does not have."""
    lost = Finding(
        rule="truncated",
        kind="log_truncated",
        severity=Severity.CRITICAL,
        at=MOVE.at,
        known_at=MOVE.at,
        subject={"cluster": "main", "topic": "topic-124", "partition": 8},
        records=Records(lost=99_000),
        detail="",
    )
    other = replace(lost, subject={**lost.subject, "partition": 3})
    history = History()
    history.apply(NOW, SESSION, MOVE, known(leader_change(3, 2005, 2011, "23:25:13")), lost, other, REWIND)
    assert history.single.title.startswith("flink-job rewound 12,223 records on topic-124[8]")


@pytest.mark.parametrize("away", [2005, 2011])
def test_root_cause_broker_is_the_one_the_partition_left(away: int) -> None:
    follower = known(
        session_expiry(subject={"cluster": "main", "broker": 2011}, at=at("23:25:01"), recovered_at=at("23:25:07"))
    )
    moved = known(leader_change(8, away, 2024, "23:25:13" if away == 2005 else "23:25:02"))
    assert root_cause_broker([follower, SESSION, moved], REWIND) == away


def test_root_cause_broker_without_a_leader_change_or_session() -> None:
    assert root_cause_broker([SESSION, known(leader_change(3, 2011, 2005, "23:25:13"))], REWIND) == 2005
    assert root_cause_broker([MOVE], REWIND) is None


def test_unavailable_source_hides_an_open_incident() -> None:
    unavailable = Unavailable(at=NOW, source="kafka", cluster="main", group="flink-job", reason="no answer")
    history = History()
    availability = []
    for findings, source in (
        ([REWIND], replace(unavailable, group="other")),
        ([], unavailable),
        ([RECOVERED], unavailable),
    ):
        history.apply(NOW, *findings, unavailable=(source,))
        availability.append(history.single.sighted)
    assert availability == [True, False, True]


def test_incident_lists_the_relevant_unavailable_sources_whatever_their_order() -> None:
    history = History()
    group = Unavailable(at=NOW, source="kafka", cluster="main", group="flink-job", reason="no answer")
    place = Unavailable(at=NOW, source="kafka", cluster="main", topic="topic-124", partition=8, reason="no leader")
    other = replace(place, partition=7)
    whole = Unavailable(at=NOW, source="kafka", cluster="main", reason="no broker answers")
    observed = []
    for finding, unavailable in (
        (REWIND, (group, other, place)),
        (REWIND, (place, group)),
        (REWIND, (group, other, place, whole)),
        (RECOVERED, (whole,)),
    ):
        history.apply(NOW, finding, unavailable=unavailable)
        observed.append((history.single.unseen, history.single.sighted))
    assert observed == [((group, place), False), ((group, place), False), ((whole,), False), ((), True)]


def test_unavailable_zookeeper_hides_sessions_but_no_groups() -> None:
    unavailable = Unavailable(at=NOW, source="zookeeper", cluster="main", reason="no answer")
    history = History()
    history.apply(NOW, REWIND, replace(SESSION, recovered_at=None), unavailable=(unavailable,))
    assert {incident.findings[0].rule: incident.sighted for incident in history.current} == {
        "rewind": True,
        "session": False,
    }


def test_unavailable_log_hides_no_cluster_of_the_same_name() -> None:
    """[logs.main] and [streams.main] may exist beside [clusters.main]."""
    history = History()
    log, metrics = (
        Unavailable(at=NOW, source=source, cluster="main", reason="gone") for source in ("logs", "streams_metrics")
    )
    history.apply(NOW, REWIND, unavailable=(log, metrics))
    assert (history.single.sighted, history.single.unseen) == (True, ())


def test_incident_of_returns_the_surviving_incident() -> None:
    history = History()
    history.apply(NOW, REWIND)
    history.apply(NOW, SESSION, MOVE)
    assert history.incidents.incident_of(SESSION.key) == history.incidents.incident_of(REWIND.key) == history.single.id
    assert history.incidents.incident_of(offset_decrease().key) is None


def test_title_names_both_brokers_or_a_question_mark() -> None:
    titles = {"divergence": "{topic} differs on {broker}", "rewind": "{group} by {broker}"}
    rules = {name: type("Titled", (Rule,), {"title": title})() for name, title in titles.items()}
    incidents = Incidents({}, rules)
    changed = incidents.apply(Changes([divergence(), REWIND], []), (), NOW)
    assert [incident.title for incident in changed] == ["flink-job by ?", "topic-124 differs on 2005 and 2011"]


def test_check_finding_hours_later_reopens_the_incident() -> None:
    incidents = Incidents(SHIPPED.correlations, SHIPPED.rules)
    moved = replace(MOVE, known_at=at("23:25:40"))
    (before, *_) = incidents.apply(Changes([brokers_down_together(), moved], []), (), at("23:25:41"))
    later = at("23:25:41") + 2 * 3_600_000
    assert [incident.status for incident in incidents.apply(Changes([], []), (), later)] == [Status.CLOSED] * 2
    changed = incidents.apply(Changes([replace(offset_decrease(), known_at=later)], []), (), later)
    reopened = next(incident for incident in changed if incident.findings and incident.merged_into is None)
    assert (reopened.status, reopened.correlation, reopened.opened_at) == (
        Status.OPEN, "divergence-after-power-loss", before.opened_at,
    )  # fmt: skip
