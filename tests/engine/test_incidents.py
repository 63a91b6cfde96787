"""The life of incidents: identity, late causes, merging, withdrawal, recovery, closing, sight."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.config.settings import load
from agent.engine.evaluator import Changes
from agent.engine.impact import root_cause_broker, total_impact, worst_first
from agent.engine.incidents import Incidents, Lifetimes
from agent.engine.rule import Rule
from agent.model.findings import Finding, Incident, Records, Severity, Status
from agent.model.observations.base import Unavailable
from tests.samples import at, dip, divergence, lost_together, move, rewind, session

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False)
NOW = at("23:25:20")
MINUTE = 60_000


class Life:
    """Incidents as they change, the latest of each id."""

    def __init__(self, **lifetimes: Any) -> None:
        """Nothing has happened yet."""
        self.core = Incidents(SHIPPED.correlations, SHIPPED.rules, Lifetimes(**lifetimes))
        self.latest: dict[str, Incident] = {}

    def goes_on(
        self, now: int, *found: Finding, without: tuple[Finding, ...] = (), blind: tuple[Unavailable, ...] = ()
    ) -> list[Incident]:
        """What changes with these findings, those withdrawn, and what cannot be seen."""
        changed = self.core.apply(Changes(list(found), [one.key for one in without]), blind, now)
        self.latest |= {one.id: one for one in changed}
        return changed

    @property
    def standing(self) -> list[Incident]:
        """Those that have findings."""
        return [one for one in self.latest.values() if one.findings]

    @property
    def only(self) -> Incident:
        """The one that stands."""
        (one,) = self.standing
        return one


def known(finding: Finding, **more: Any) -> Finding:
    """The finding, known when it happened."""
    return replace(finding, known_at=finding.at, **more)


MOVE = known(move(8, 2005, 2011, "23:25:13"), recovered_at=at("23:25:26"))
SESSION = known(session())
REWIND = known(rewind())
BACK = replace(REWIND, recovered_at=at("23:25:26"))


def test_an_incident_tells_who_where_how_much_and_why() -> None:
    """The figures of the reset that all this is about."""
    life = Life()
    life.goes_on(NOW, SESSION, MOVE, REWIND)
    one = life.only
    assert one.title == "flink-job rewound 12,223 records on topic-124[8] after broker 2005's session expired"
    assert (one.severity, one.correlation, one.cluster) == (Severity.CRITICAL, "reset-after-session-loss", "main")
    assert (one.opened_at, one.updated_at) == (SESSION.at, MOVE.recovered_at)
    assert one.records == Records(reread=12_223)


def test_nothing_new_changes_nothing() -> None:
    """The same findings again are no change."""
    life = Life()
    life.goes_on(NOW, REWIND)
    assert life.goes_on(NOW + 1_000, REWIND) == []


def test_a_cause_that_comes_fifty_seconds_late_edits_the_incident_and_does_not_rename_it() -> None:
    """The rewind was told already; now its cause is known."""
    life = Life()
    life.goes_on(NOW, REWIND)
    told = life.only.id
    life.goes_on(NOW + 50_000, SESSION, MOVE)
    assert life.only.id == told
    assert life.only.correlation == "reset-after-session-loss"
    assert [one for one in life.latest.values() if one.id != told] == []


def test_of_two_incidents_that_are_one_the_one_already_told_of_survives() -> None:
    """The session loss is older, but it is info: nobody has heard of it. It is merged, and no finding stands twice."""
    life = Life()
    (loss,) = life.goes_on(at("23:25:09"), SESSION)
    (told,) = life.goes_on(NOW, REWIND)
    life.goes_on(NOW + 1_000, MOVE)
    assert life.only.id == told.id
    assert life.latest[loss.id].merged_into == told.id
    assert (life.latest[loss.id].status, life.latest[loss.id].findings) == (Status.CLOSED, ())
    assert len(life.only.causes + life.only.findings) == 3


def test_of_two_incidents_told_of_the_older_survives() -> None:
    """Two groups rewound by one loss."""
    life = Life()
    (older,) = life.goes_on(NOW, REWIND)
    (younger,) = life.goes_on(NOW + 1_000, known(rewind(group="other", at=REWIND.at + 500)))
    life.goes_on(NOW + 2_000, SESSION, MOVE)
    assert life.only.id == older.id
    assert life.latest[younger.id].merged_into == older.id
    assert len(life.only.findings) == 2


def test_an_id_is_made_of_the_first_finding() -> None:
    """Two agents that see the same name it alike."""
    first, second = Life(), Life()
    for life in (first, second):
        life.goes_on(NOW, REWIND)
    assert first.only.id == second.only.id
    second.goes_on(NOW, known(rewind(3, group="other", topic="other", at=REWIND.at + 1)))
    assert len({one.id for one in second.standing}) == 2


def test_a_withdrawn_finding_takes_its_incident_with_it() -> None:
    """It stands closed and without findings, merged into nothing."""
    life = Life()
    (told,) = life.goes_on(NOW, REWIND)
    (gone,) = life.goes_on(NOW + 1_000, without=(REWIND,))
    assert (gone.id, gone.status, gone.findings, gone.merged_into) == (told.id, Status.CLOSED, (), None)


def test_a_withdrawn_finding_leaves_the_others_where_they_are() -> None:
    """The incident keeps its name."""
    life = Life()
    other = known(rewind(3))
    life.goes_on(NOW, REWIND, other)
    told = life.only.id
    life.goes_on(NOW + 1_000, without=(other,))
    assert (life.only.id, life.only.findings) == (told, (REWIND,))


def test_a_finding_dated_anew_keeps_its_incident() -> None:
    """A fact that came late says that it happened a little earlier."""
    life = Life()
    life.goes_on(NOW, REWIND)
    told = life.only.id
    earlier = replace(REWIND, at=REWIND.at - 2_000)
    life.goes_on(NOW + 1_000, earlier, without=(REWIND,))
    assert (life.only.id, life.only.findings) == (told, (earlier,))


def test_a_cause_withdrawn_splits_what_it_had_joined() -> None:
    """Each part stands by itself; the graver keeps the name."""
    life = Life()
    life.goes_on(NOW, SESSION, MOVE, REWIND)
    told = life.only.id
    life.goes_on(NOW + 1_000, without=(MOVE,))
    by_rule = {one.findings[0].rule: one for one in life.standing}
    assert by_rule["rewind"].id == told
    assert (by_rule["session"].severity, by_rule["rewind"].correlation) == (Severity.INFO, None)


def test_an_incident_recovers_when_all_its_findings_have() -> None:
    """Not with the first; the time is that of the last."""
    life = Life()
    other = known(rewind(3))
    life.goes_on(NOW, REWIND, other)
    life.goes_on(NOW + 6_000, BACK)
    assert (life.only.status, life.only.recovered_at) == (Status.OPEN, None)
    life.goes_on(NOW + 7_000, replace(other, recovered_at=at("23:25:40")))
    assert (life.only.status, life.only.recovered_at) == (Status.RECOVERED, at("23:25:40"))


def test_a_cause_that_lasts_keeps_the_incident_open() -> None:
    """The position is regained, the broker is still away."""
    life = Life()
    life.goes_on(NOW, replace(SESSION, recovered_at=None), MOVE, BACK)
    assert life.only.status is Status.OPEN


def test_a_recovered_incident_is_opened_again_by_a_new_finding_that_belongs_to_it() -> None:
    """Under its name."""
    life = Life()
    life.goes_on(NOW, BACK)
    told = life.only
    assert told.status is Status.RECOVERED
    life.goes_on(NOW + 20_000, known(rewind(3, at=BACK.at + 30_000)))
    assert (life.only.id, life.only.status, life.only.recovered_at) == (told.id, Status.OPEN, None)


def test_a_recovered_incident_is_closed_an_hour_later() -> None:
    """By time alone: next_due says when."""
    life = Life()
    life.goes_on(NOW, BACK)
    due = at("23:25:26") + 60 * MINUTE
    now = NOW
    while life.only.status is not Status.CLOSED:
        now = life.core.next_due
        life.goes_on(now)
    assert now == due
    assert life.only.recovered_at == BACK.recovered_at


def test_an_incident_that_never_recovers_is_closed_at_last() -> None:
    """A week after its last change, and then forgotten: it does not come back."""
    life = Life()
    life.goes_on(NOW, REWIND)
    life.goes_on(NOW + 7 * 86_400_000)
    assert life.only.status is Status.CLOSED
    assert life.goes_on(NOW + 8 * 86_400_000, BACK) == []


def test_what_a_check_finds_long_afterwards_stays_open_as_long_as_any_other_news() -> None:
    """Replicas that have differed for a month: the incident's life is counted from when that became known."""
    life = Life()
    life.goes_on(NOW, replace(divergence(at=NOW - 30 * 86_400_000), known_at=NOW))
    statuses = []
    for now in (NOW, NOW + 7 * 86_400_000 - 1, NOW + 7 * 86_400_000):
        life.goes_on(now)
        statuses.append(life.only.status)
    assert statuses == [Status.OPEN, Status.OPEN, Status.CLOSED]


def test_a_finding_that_changes_after_its_incident_was_forgotten_makes_no_new_one() -> None:
    """Incidents may be forgotten sooner than rules stop to follow their findings."""
    life = Life(forget_after="1m")
    life.goes_on(NOW, REWIND)
    life.goes_on(NOW + life.core.horizon)
    assert life.only.status is Status.CLOSED
    assert life.goes_on(NOW + life.core.horizon + 1, BACK) == []


def test_a_finding_of_long_ago_takes_no_new_ones_in_but_recovers() -> None:
    """What is settled keeps its name; another rewind of the group a day later is another incident."""
    life = Life()
    life.goes_on(NOW, REWIND)
    told = life.only.id
    tomorrow = NOW + 86_400_000
    life.goes_on(tomorrow, known(rewind(3, at=tomorrow)))
    life.goes_on(tomorrow + 1_000, replace(REWIND, recovered_at=tomorrow + 500))
    assert {one.id: one.status for one in life.standing} == {
        told: Status.RECOVERED,
        next(one.id for one in life.standing if one.id != told): Status.OPEN,
    }


def test_the_same_incident_goes_on_after_a_restart() -> None:
    """Its name, its recovery, and what joins it."""
    life = Life()
    life.goes_on(NOW, REWIND)
    resumed = Life()
    resumed.core.resume([life.only], NOW)
    resumed.goes_on(NOW + 1_000, SESSION, MOVE, BACK)
    assert (resumed.only.id, resumed.only.status) == (life.only.id, Status.RECOVERED)


def test_an_incident_whose_rule_is_no_longer_configured_goes_on() -> None:
    """rules.toml may change between two runs."""
    life = Life()
    life.goes_on(NOW, REWIND)
    resumed = Incidents({}, {})
    resumed.resume([life.only], NOW)
    (changed,) = resumed.apply(Changes([], []), (), NOW + 1_000) or [life.only]
    assert changed.id == life.only.id


def test_records_read_again_add_up_and_what_is_lost_of_a_partition_is_lost_once() -> None:
    """Two rules tell the same loss, each as far as it can see."""
    subject = {"cluster": "main", "topic": "t", "partition": 0}
    lost = [replace(REWIND, subject=subject, records=Records(lost=number, skipped=1)) for number in (96, 183)]
    elsewhere = replace(REWIND, subject={**subject, "partition": 1}, records=Records(lost=10))
    assert total_impact([REWIND, rewind(3), *lost, elsewhere]) == Records(reread=24_446, lost=193, skipped=2)


def test_the_worst_comes_first() -> None:
    """By severity, then records, then time."""
    small = known(rewind(1, 1_500))
    warning = replace(known(rewind(2, 90_000)), severity=Severity.WARNING)
    earlier = replace(known(rewind(3)), at=REWIND.at - 1)
    assert worst_first([small, warning, REWIND, earlier]) == [earlier, REWIND, small, warning]


def test_a_title_counts_the_subjects_of_the_worst_ones_rule() -> None:
    """The worst partition by name, the others by number."""
    life = Life()
    life.goes_on(NOW, REWIND, *(known(rewind(number, 2_000)) for number in range(3)))
    assert life.only.title == "flink-job rewound 12,223 records on topic-124[8] (and 3 more)"


def test_a_title_is_about_the_effect_even_where_more_was_lost_elsewhere() -> None:
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
    life = Life()
    life.goes_on(NOW, SESSION, MOVE, known(move(3, 2005, 2011, "23:25:13")), lost, other, REWIND)
    assert life.only.title.startswith("flink-job rewound 12,223 records on topic-124[8]")


@pytest.mark.parametrize("away", [2005, 2011])
def test_the_title_blames_the_broker_that_was_away_when_the_partition_left_it(away: int) -> None:
    """Two lost their sessions; the one that led the partition is the root_cause_broker."""
    follower = known(
        session(subject={"cluster": "main", "broker": 2011}, at=at("23:25:01"), recovered_at=at("23:25:07"))
    )
    moved = known(move(8, away, 2024, "23:25:13" if away == 2005 else "23:25:02"))
    assert root_cause_broker([follower, SESSION, moved], REWIND) == away


def test_without_a_leader_move_of_its_own_the_first_broker_is_blamed_and_without_any_nobody() -> None:
    """The effect may be on a partition whose moves nobody saw."""
    assert root_cause_broker([SESSION, known(move(3, 2011, 2005, "23:25:13"))], REWIND) == 2005
    assert root_cause_broker([MOVE], REWIND) is None


def test_an_incident_is_out_of_sight_while_a_source_cannot_see_what_has_not_recovered() -> None:
    """Of the group, its partition or its cluster; not of another."""
    blind = Unavailable(at=NOW, source="kafka", cluster="main", group="flink-job", reason="no answer")
    life = Life()
    sighted = []
    for findings, unseen in (([REWIND], replace(blind, group="other")), ([], blind), ([BACK], blind)):
        life.goes_on(NOW, *findings, blind=(unseen,))
        sighted.append(life.only.sighted)
    assert sighted == [True, False, True]


def test_an_incident_tells_which_source_cannot_see_what() -> None:
    """What hides none of its subjects is left out, as are the parts of a cluster that is out of sight as a whole."""
    life = Life()
    group = Unavailable(at=NOW, source="kafka", cluster="main", group="flink-job", reason="no answer")
    place = Unavailable(at=NOW, source="kafka", cluster="main", topic="topic-124", partition=8, reason="no leader")
    other = replace(place, partition=7)
    whole = Unavailable(at=NOW, source="kafka", cluster="main", reason="no broker answers")
    told = []
    for finding, blind in ((REWIND, (group, other, place)), (REWIND, (group, other, place, whole)), (BACK, (whole,))):
        life.goes_on(NOW, finding, blind=blind)
        told.append((life.only.unseen, life.only.sighted))
    assert told == [((group, place), False), ((whole,), False), ((), True)]


def test_zookeeper_out_of_sight_hides_no_group() -> None:
    """It knows nothing of groups, but sessions are in it."""
    blind = Unavailable(at=NOW, source="zookeeper", cluster="main", reason="no answer")
    life = Life()
    life.goes_on(NOW, REWIND, replace(SESSION, recovered_at=None), blind=(blind,))
    assert {one.findings[0].rule: one.sighted for one in life.standing} == {"rewind": True, "session": False}


def test_a_log_out_of_sight_hides_no_incident_of_a_cluster_of_its_tables_name() -> None:
    """[logs.main] and [streams.main] may stand beside [clusters.main]."""
    life = Life()
    log, metrics = (
        Unavailable(at=NOW, source=one, cluster="main", reason="gone") for one in ("logs", "streams_metrics")
    )
    life.goes_on(NOW, REWIND, blind=(log, metrics))
    assert (life.only.sighted, life.only.unseen) == (True, ())


def test_who_holds_a_finding_is_known_while_it_may_change() -> None:
    """Under the survivor's name, wherever it went."""
    life = Life()
    life.goes_on(NOW, REWIND)
    life.goes_on(NOW, SESSION, MOVE)
    assert life.core.incident_of(SESSION.key) == life.core.incident_of(REWIND.key) == life.only.id
    assert life.core.incident_of(dip().key) is None


def test_a_title_names_both_brokers_where_two_are_concerned() -> None:
    """Replicas that differ have no single one to blame; where there is none at all it says so."""
    titles = {"divergence": "{topic} differs on {broker}", "rewind": "{group} by {broker}"}
    rules = {name: type("Titled", (Rule,), {"title": title})() for name, title in titles.items()}
    core = Incidents({}, rules)
    changed = core.apply(Changes([divergence(), REWIND], []), (), NOW)
    assert [one.title for one in changed] == ["flink-job by ?", "topic-124 differs on 2005 and 2011"]


def test_what_checks_found_hours_after_a_power_loss_reopens_what_was_closed() -> None:
    """The root cause had been over for long; it is one incident all the same."""
    core = Incidents(SHIPPED.correlations, SHIPPED.rules)
    moved = replace(MOVE, known_at=at("23:25:40"))
    (before, *_) = core.apply(Changes([lost_together(), moved], []), (), at("23:25:41"))
    later = at("23:25:41") + 2 * 3_600_000
    assert [one.status for one in core.apply(Changes([], []), (), later)] == [Status.CLOSED] * 2
    changed = core.apply(Changes([replace(dip(), known_at=later)], []), (), later)
    made = next(one for one in changed if one.findings and one.merged_into is None)
    assert (made.status, made.correlation, made.opened_at) == (
        Status.OPEN, "divergence-after-power-loss", before.opened_at,
    )  # fmt: skip
