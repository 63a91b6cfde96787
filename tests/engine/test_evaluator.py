"""Rules are evaluated again when it matters, and only then: late facts, time, recovery, final findings, restarts."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.config.loading import load
from agent.engine.evaluator import ABANDONED_MS, SOON_MS, Evaluator
from agent.engine.facts import Facts
from agent.engine.history import FINALIZATION_MS, LATENESS_MS, LONG_AFTER
from agent.engine.rule import Rule, Scope
from agent.model.findings import Finding
from agent.model.observations.base import Observation, Tick
from agent.model.observations.checks import CheckFinding
from agent.model.observations.kafka import Member
from agent.model.observations.logs import LogLine
from agent.rules.offset_rewind import OffsetRewind
from tests.builders import (
    after,
    check_finding,
    check_run,
    commit,
    commits,
    group_state,
    log_offsets,
    partition_state,
    registration,
    tick,
)

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False).rules


class RuleRun:
    """An evaluator of the shipped rules named, and its current findings."""

    def __init__(self, *rules: str) -> None:
        self.evaluator = Evaluator({name: SHIPPED[name] for name in rules})
        self.by_key: dict[object, Finding] = {}

    def observe(self, *observations: Observation, arrival: int = 0) -> list[Finding]:
        """Return the findings that are new or change. arrival: when the observations arrive, s, if later than dated."""
        for observation in observations:
            self.evaluator.absorb(observation)
        now = max([self.evaluator.facts.now, after(arrival), *(observation.seen for observation in observations)])
        changes = self.evaluator.evaluate(now)
        for key in changes.withdrawn:
            del self.by_key[key]
        self.by_key |= {finding.key: finding for finding in changes.found}
        return changes.found

    @property
    def findings(self) -> list[Finding]:
        return list(self.by_key.values())


def test_timers_do_not_pile_up_while_a_finding_is_open() -> None:
    """Each change of the group is a reason to evaluate again soon, and to follow the finding for days."""
    run = RuleRun("rewind")
    run.observe(log_offsets(0, 900_000), *commits(60), commit(61, 100))
    assert run.findings
    for second in range(62, 6_000, 5):
        run.observe(commit(second, 100 + second))
    assert len(run.findings) == 1
    for timers in (run.evaluator._timers, run.evaluator._soon):
        assert len(timers._timers) < 10 + 2 * len(timers) + 100


def test_finding_appears_with_the_fact_that_shows_it() -> None:
    rules = RuleRun("rewind")
    assert rules.observe(commit(0, 9_000)) == []
    assert [finding.at for finding in rules.observe(commit(1, 0))] == [after(1)]


def test_finding_has_its_rules_configured_name() -> None:
    rules = RuleRun("session")
    rules.observe(registration(0, "0x1"))
    (lost,) = rules.observe(registration(1, None))
    assert (lost.rule, lost.kind) == ("session", "broker_session_lost")


def test_absence_is_found_once_it_has_lasted_long_enough() -> None:
    """A broker is down for five minutes; next_due is when that is."""
    rules = RuleRun("broker_down")
    rules.observe(registration(0, "0x1"))
    rules.observe(registration(10, None))
    while rules.findings == []:
        now = rules.evaluator.next_due
        rules.observe(Tick(at=now))
    assert now == after(310)
    assert rules.findings[0].at == after(10)


def test_nothing_is_due_if_nothing_can_change() -> None:
    rules = RuleRun(*(name for name, rule in SHIPPED.items() if rule.revisits is None))
    rules.observe(*commits(300), partition_state(0, 1))
    assert rules.evaluator.next_due == LONG_AFTER


def test_late_fact_corrects_the_finding() -> None:
    """The log was truncated, so the rewind went to the divergence point."""
    rules = RuleRun("rewind")
    (before,) = rules.observe(log_offsets(0, 20_000, 5_000), *commits(60), commit(61, 13_000))
    assert before.labels == ()
    rules.observe(log_offsets(60, 13_050, 5_000), arrival=110)
    assert [finding.labels for finding in rules.findings] == [("to_divergence",)]


def test_late_fact_withdraws_the_finding() -> None:
    """The topic was re-created, so there was no rewind."""
    rules = RuleRun("rewind")
    rules.observe(partition_state(0, 1), commit(30, 9_000), commit(40, 0))
    assert len(rules.findings) == 1
    rules.observe(partition_state(35, 1, topic_id="second"), arrival=95)
    assert rules.findings == []


def test_final_finding_is_not_withdrawn() -> None:
    rules = RuleRun("rewind")
    rules.observe(partition_state(0, 1), commit(30, 9_000), commit(40, 0))
    rules.observe(partition_state(35, 1, topic_id="second"), arrival=41 + FINALIZATION_MS // 1000)
    assert len(rules.findings) == 1


def test_final_finding_still_recovers() -> None:
    rules = RuleRun("rewind")
    rules.observe(commit(30, 9_000), commit(40, 0))
    rules.observe(tick(7_200))
    rules.observe(commit(7_300, 9_500))
    assert rules.findings[0].recovered_at == after(7_300)


def test_late_fact_corrects_the_time_of_recovery() -> None:
    """The partition was deleted before the position was regained."""
    rules = RuleRun("rewind")
    rules.observe(partition_state(0, 1), commit(30, 9_000), commit(40, 0))
    rules.observe(tick(600))
    rules.observe(commit(700, 9_500))
    assert rules.findings[0].recovered_at == after(700)
    rules.observe(partition_state(660, 1, topic_id="second"), arrival=720)
    assert rules.findings[0].recovered_at == after(660)


def test_finding_that_never_recovers_is_followed_for_a_week() -> None:
    week = ABANDONED_MS // 1000
    followed, abandoned = RuleRun("rewind"), RuleRun("rewind")
    for rules, last in ((followed, week), (abandoned, week + 600)):
        rules.observe(commit(30, 9_000), commit(40, 0))
        rules.observe(tick(600))
        rules.observe(tick(last))
        rules.observe(commit(last + 1, 9_500))
    assert followed.findings[0].recovered_at is not None
    assert abandoned.findings[0].recovered_at is None


def test_stale_observation_is_refused() -> None:
    rules = RuleRun(*SHIPPED)
    rules.observe(commit(0, 9_000), commit(100, 9_000))
    assert not rules.evaluator.absorb(commit(50, 0))
    assert rules.observe() == []


def test_commits_on_other_partitions_are_evaluated_soon() -> None:
    """A partition of an Empty group moves: an operator. Another advances without members: it has hidden consumers."""
    rules = RuleRun("rewind")
    rules.observe(
        group_state(0, "Stable"),
        *(commit(1, 9_000, number) for number in range(3)),
        group_state(10, "Empty"),
        commit(60, 0),
    )
    assert rules.findings[0].labels == ("operator_reset",)
    rules.observe(commit(90, 9_500, 2))
    assert rules.findings[0].labels == ("operator_reset",)
    rules.observe(tick(90 + SOON_MS / 1000))
    assert [finding.labels for finding in rules.findings] == [()]


def test_many_open_findings_are_detected_again_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new must not wait until all of them have been evaluated."""
    rules, partitions = RuleRun("rewind"), range(65)
    detected: list[int] = []
    detect = OffsetRewind.detect

    def counted(rule: OffsetRewind, scope: Scope, facts: Facts) -> Iterator[Finding]:
        if scope.partition != 99:
            detected.append(scope.in_partition[2])
        return detect(rule, scope, facts)

    rules.observe(*(commit(30, 9_000, number) for number in (*partitions, 99)))
    rules.observe(*(commit(40, 100, number) for number in partitions))
    rules.observe(*(commit(60, 101, number) for number in partitions))
    monkeypatch.setattr(OffsetRewind, "detect", counted)
    (found,) = rules.observe(commit(71, 200, 99))
    assert found.subject["partition"] == 99
    parts = [list(detected)]
    while len(parts) < 4:
        detected.clear()
        rules.observe(tick((rules.evaluator.next_due - after(0)) / 1000))
        parts.append(list(detected))
    assert [len(part) for part in parts] == [20, 20, 20, 5]
    assert sorted(chain(*parts)) == list(partitions)


def test_late_fact_is_in_time_however_many_findings_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is detected again a part at a time is so before it is final."""
    monkeypatch.setattr("agent.engine.evaluator._SOON_AT_ONCE", 1)
    monkeypatch.setattr("agent.engine.evaluator._TOGETHER_MS", 10_000)
    rules, partitions = RuleRun("rewind"), range(30)
    rules.observe(*(partition_state(0, 1, number, topic_id="a") for number in partitions))
    rules.observe(*(commit(50, 9_000, number) for number in partitions))
    rules.observe(*(commit(60, 100, number) for number in partitions))
    recreated = (replace(partition_state(100, 1, number, topic_id="b"), since=after(55)) for number in partitions)
    for second in range(61, 240):
        rules.observe(*(commit(second, 40 + second, number) for number in partitions))
        if second == 155:
            assert len(rules.findings) == len(partitions)
            rules.observe(*(replace(state, seen_at=after(second)) for state in recreated))
    assert rules.findings == []


@pytest.mark.parametrize(("rule", "moved", "over"), [("rewind", 100, 500_001), ("jump", 900_000, 499_999)])
def test_a_commit_that_ends_no_finding_is_not_compared_with_it(
    rule: str, moved: int, over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit of each series that has moved would cost as much as a finding."""
    rules = RuleRun(rule)
    rules.observe(log_offsets(0, 500_000), commit(1, 500_000), commit(2, None), log_offsets(3, 900_000))
    for second in range(4, 300):
        rules.observe(commit(second, moved + second))
    assert rules.findings
    followed: list[int] = []
    follow = type(SHIPPED[rule]).follow

    def counted(rule: Rule, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        followed.append(facts.now)
        return follow(rule, finding, scope, facts)

    monkeypatch.setattr(type(SHIPPED[rule]), "follow", counted)
    for second in range(300, 309):
        rules.observe(commit(second, moved + second))
    assert len(followed) <= 1
    (recovered,) = rules.observe(commit(309, over))
    assert recovered.recovered_at == after(309)


def test_batch_that_spans_hours_is_evaluated_in_pieces() -> None:
    rules = RuleRun("rewind")
    rules.observe(commit(0, 9_000))
    rules.evaluator.absorb(commit(1, 0))
    assert rules.evaluator.next_due <= after(1) + LATENESS_MS


def test_restart_reports_no_finding_twice() -> None:
    facts = [
        partition_state(0, 1),
        commit(30, 9_000),
        commit(40, 0),
        tick(400),
        commit(500, 100),
        commit(510, 5_000),
        commit(520, 10),
    ]
    before = RuleRun("rewind")
    for fact in facts:
        before.observe(fact)
    assert len(before.findings) == 2
    resumed = RuleRun("rewind")
    resumed.evaluator.restore([facts])
    resumed.evaluator.resume(before.findings)
    assert resumed.observe(tick(521)) == []
    (recovered,) = resumed.observe(commit(522, 9_000))[:1]
    assert recovered.recovered_at == after(522)


def test_late_fact_after_a_restart_withdraws_the_finding() -> None:
    facts = [partition_state(0, 1), commit(30, 9_000), commit(40, 0)]
    before, resumed = RuleRun("rewind"), RuleRun("rewind")
    before.observe(*facts)
    resumed.by_key = dict(before.by_key)
    resumed.evaluator.restore([facts])
    resumed.evaluator.resume(before.findings)
    resumed.observe(tick(50))
    resumed.observe(partition_state(35, 1, topic_id="second"), arrival=95)
    assert resumed.findings == []


DAY_S = 86_400


def divergences(ended: float, brokers: Iterable[int]) -> list[CheckFinding]:
    """Return what a run found in one partition: each broker differs from broker 0, in records of that second."""
    return [
        check_finding(
            "replica_divergence",
            after(ended),
            after(broker),
            {"cluster": "main", "brokers": [0, broker], "topic": "t", "partition": 0},
        )
        for broker in brokers
    ]


def damage(ended: float, at: float, position: int = 0, label: str = "crc_mismatch", detail: str = "x") -> CheckFinding:
    """Return a fault that a run found in a log of broker 7 and dated `at`."""
    subject = {"cluster": "main", "broker": 7, "topic": "t", "partition": 0, "file": "t-0/00000000000000000000.log"}
    fields = {"labels": (label,), "position": position, "detail": detail}
    return check_finding("log_segments", after(ended), after(at), subject, **fields)


def test_check_finding_is_followed_across_a_restart() -> None:
    before = RuleRun("divergence")
    findings = before.observe(*divergences(DAY_S, [1, 2]), check_run(DAY_S, "replica_divergence"))
    resumed = RuleRun("divergence")
    resumed.evaluator.resume(findings)
    assert not resumed.observe(*divergences(3 * DAY_S, [2]), check_run(3 * DAY_S, "replica_divergence", complete=False))
    (recovered,) = resumed.observe(*divergences(4 * DAY_S, [2]), check_run(4 * DAY_S, "replica_divergence"))
    assert (recovered.at, recovered.recovered_at) == (after(1), after(4 * DAY_S))
    (recovered,) = resumed.observe(check_run(5 * DAY_S, "replica_divergence"))
    assert (recovered.at, recovered.recovered_at) == (after(2), after(5 * DAY_S))


def test_thousands_of_daily_check_findings_do_not_accumulate() -> None:
    rules = RuleRun("divergence", "check_failed")
    for day in range(1, 5):
        changed = rules.observe(*divergences(day * DAY_S, range(2_000)), check_run(day * DAY_S, "replica_divergence"))
        assert len(changed) == (2_000 if day == 1 else 0)
    assert len(rules.observe(check_run(5 * DAY_S, "replica_divergence"))) == 2_000
    rules.observe(tick(6 * DAY_S))
    assert not rules.evaluator._timers
    assert not rules.evaluator._active_findings
    assert not rules.evaluator._dependencies.dependents


def test_fault_that_each_run_dates_anew_is_one_finding() -> None:
    """A record without a timestamp has the time of its file, to which the broker goes on writing."""
    rules = RuleRun("segments")
    for day in range(1, 6):
        found = damage(day * DAY_S, day * DAY_S - 40, detail=f"as of day {day}")
        rules.observe(found, check_run(day * DAY_S, "log_segments"))
        rules.observe(tick(day * DAY_S + 7_200))
        (standing,) = rules.findings
        assert (standing.at, standing.recovered_at) == (after(DAY_S - 40), None)
        assert standing.detail == f"as of day {day}"
    rules.observe(check_run(6 * DAY_S, "log_segments"))
    assert [finding.recovered_at for finding in rules.findings] == [after(6 * DAY_S)]


def test_fault_dated_anew_is_one_finding_across_a_restart() -> None:
    before, resumed = RuleRun("segments"), RuleRun("segments")
    findings = before.observe(damage(DAY_S, 100), check_run(DAY_S, "log_segments"))
    resumed.evaluator.resume(findings)
    assert resumed.observe(damage(2 * DAY_S, 200), check_run(2 * DAY_S, "log_segments")) == []
    (recovered,) = resumed.observe(check_run(3 * DAY_S, "log_segments"))
    assert (recovered.at, recovered.recovered_at) == (after(100), after(3 * DAY_S))


def test_other_fault_of_a_damaged_log_is_a_finding_of_its_own() -> None:
    rules = RuleRun("segments")
    rules.observe(damage(DAY_S, 100, 70), check_run(DAY_S, "log_segments"))
    elsewhere, torn = damage(2 * DAY_S, 300, 140), damage(2 * DAY_S, 300, 70, "torn_tail")
    rules.observe(damage(2 * DAY_S, 200, 70), elsewhere, torn, check_run(2 * DAY_S, "log_segments"))
    found = {(finding.position, finding.labels[0], finding.at) for finding in rules.findings}
    assert found == {
        (70, "crc_mismatch", after(100)),
        (140, "crc_mismatch", after(300)),
        (70, "torn_tail", after(300)),
    }
    rules.observe(damage(3 * DAY_S, 400, 140), check_run(3 * DAY_S, "log_segments"))
    (left,) = [finding for finding in rules.findings if finding.recovered_at is None]
    assert (left.position, left.at) == (140, after(300))


def test_fault_that_comes_back_after_its_repair_is_a_new_finding() -> None:
    rules = RuleRun("segments")
    rules.observe(damage(DAY_S, 100), check_run(DAY_S, "log_segments"))
    rules.observe(check_run(2 * DAY_S, "log_segments"))
    rules.observe(damage(3 * DAY_S, 300), check_run(3 * DAY_S, "log_segments"))
    assert [(finding.at, finding.recovered_at) for finding in rules.findings] == [
        (after(100), after(2 * DAY_S)),
        (after(300), None),
    ]


def test_events_that_checks_find_stay_apart() -> None:
    """A group that moves twice has moved twice, whichever runs find it."""
    rules, subject = RuleRun("history"), {"cluster": "main", "group": "g", "topic": "t", "partition": 0}
    for day, moves in ((1, [10, 20]), (2, [20, 30])):
        found = (check_finding("offset_history", after(day * DAY_S), after(second), subject) for second in moves)
        rules.observe(*found, check_run(day * DAY_S, "offset_history"))
    assert sorted(finding.at for finding in rules.findings) == [after(10), after(20), after(30)]


def stalled_group(rules: RuleRun, until: int) -> None:
    """Let a group commit once a minute for five minutes, then stand still while its log grows."""
    rules.observe(group_state(0, "Stable", (Member(id="m", partitions=(("t", 0),)),)))
    for minute in range(until):
        rules.observe(log_offsets(60 * minute, 1_000 + 100 * minute))
        if minute <= 5:
            rules.observe(commit(60 * minute + 1, 950 + 100 * minute))


def test_what_does_not_happen_is_found_as_time_passes() -> None:
    rules = RuleRun("consumer_stalled")
    stalled_group(rules, 15)
    assert rules.findings == []
    stalled_group(rules := RuleRun("consumer_stalled"), 18)
    assert [finding.at for finding in rules.findings] == [after(301)]


def test_a_scope_has_one_open_finding_of_a_single_rule() -> None:
    rules = RuleRun("consumer_stalled")
    stalled_group(rules, 60)
    assert len(rules.findings) == 1
    rules.observe(commit(3_600, 5_000))
    assert [finding.recovered_at for finding in rules.findings] == [after(3_600)]


def test_lines_that_are_out_of_order_are_all_taken_in() -> None:
    """Threads date their lines before they write them, so a line may be older than the one above it."""
    evaluator = Evaluator({})
    lines = [
        LogLine(at=after(at), cluster="main", log="a.log", component="kafka", pattern="p", text=text)
        for at, text in ((5.001, "disk A failed"), (5.0, "disk B failed"), (5.002, "disk C failed"))
    ]
    assert all(map(evaluator.absorb, lines))
    taken = evaluator.facts.history_of(lines[0]).changes
    assert [line.text for line in taken] == ["disk A failed", "disk B failed", "disk C failed"]
    assert [(line.at, line.since) for line in taken[:2]] == [(after(5.001), None), (after(5.001), after(5.0))]
