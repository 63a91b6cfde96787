"""Rules are asked again when it matters, and only then: late facts, time, recovery, settling, giving up."""

from collections.abc import Iterable
from pathlib import Path

from agent.config.settings import load
from agent.engine.evaluator import ABANDONED_MS, SOON_MS, Evaluator
from agent.engine.facts import FINALIZATION_MS, LATENESS_MS, LONG_AFTER
from agent.model.findings import Finding
from agent.model.observations.base import Observation, Tick
from agent.model.observations.checks import CheckFinding, CheckRun
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState, LogOffsets, PartitionState
from tests.strategies import BEGINNING, check_finding

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False).rules


class Watched:
    """A evaluator with the rules named, and the findings that stand."""

    def __init__(self, *rules: str) -> None:
        """Nothing seen yet."""
        self.evaluator = Evaluator({name: SHIPPED[name] for name in rules})
        self.standing: dict[object, Finding] = {}

    def sees(self, *observations: Observation, at: int | None = None) -> list[Finding]:
        """What is found or changes with these; at: when they come, s, where that is later than they are dated."""
        for one in observations:
            self.evaluator.absorb(one)
        now = max([self.evaluator.facts.now, *(one.seen for one in observations), *([] if at is None else [_ms(at)])])
        changes = self.evaluator.evaluate(now)
        for key in changes.withdrawn:
            del self.standing[key]
        self.standing |= {one.key: one for one in changes.found}
        return changes.found

    @property
    def found(self) -> list[Finding]:
        """The findings that stand."""
        return list(self.standing.values())


def _ms(seconds: float) -> int:
    return BEGINNING + round(seconds * 1000)


def commit(at: float, offset: int | None, partition: int = 0, group: str = "g") -> Commit:
    """A commit, so many seconds after the beginning."""
    return Commit(at=_ms(at), cluster="main", group=group, topic="t", partition=partition, offset=offset)


def ends(at: float, log_end: int, log_start: int = 0) -> LogOffsets:
    """A reading of partition 0."""
    return LogOffsets(at=_ms(at), cluster="main", topic="t", partition=0, log_start=log_start, log_end=log_end)


def state(at: float, leader: int | None, isr: tuple[int, ...] = (1, 2), topic_id: str = "one") -> PartitionState:
    """Who leads partition 0."""
    return PartitionState(
        at=_ms(at), cluster="main", topic="t", partition=0, leader=leader, replicas=(1, 2), isr=isr, topic_id=topic_id
    )


DAY_S = 86_400


def divergences(at: float, numbers: Iterable[int]) -> list[CheckFinding]:
    """What replica_divergence found by then: of one partition, each some seconds after the beginning."""
    return [
        check_finding("replica_divergence", _ms(at), _ms(number), {"cluster": "main", "topic": "t", "partition": 0})
        for number in numbers
    ]


def run(at: float, *, complete: bool = True) -> CheckRun:
    """A run of replica_divergence that did not fail."""
    return CheckRun(
        at=_ms(at), cluster="main", check="replica_divergence", started_at=0, complete=complete, outcome="found"
    )


def members(at: float, name: str) -> GroupState:
    """The state of group g."""
    return GroupState(at=_ms(at), cluster="main", group="g", state=name, simple=False)


def tick(at: float) -> Tick:
    """Time passes."""
    return Tick(at=_ms(at))


def steady(until: int, partition: int = 0) -> Iterable[Commit]:
    """A commit a second."""
    return (commit(second, 10_000 + 100 * second, partition) for second in range(until))


def test_a_finding_is_told_with_the_fact_that_shows_it() -> None:
    """At once."""
    watched = Watched("rewind")
    assert watched.sees(commit(0, 9_000)) == []
    assert [one.at for one in watched.sees(commit(1, 0))] == [_ms(1)]


def test_a_finding_is_told_under_the_name_that_its_rule_has_in_the_configuration() -> None:
    """Its kind is the rule's file."""
    watched = Watched("session")
    watched.sees(BrokerRegistration(at=_ms(0), cluster="main", broker=1, session="0x1", epoch=1))
    (lost,) = watched.sees(BrokerRegistration(at=_ms(1), cluster="main", broker=1, session=None, epoch=None))
    assert (lost.rule, lost.kind) == ("session", "broker_session_lost")


def test_time_alone_shows_an_absence_at_the_moment_it_has_lasted() -> None:
    """A broker gone for five minutes; next_due says when to look."""
    watched = Watched("broker_down")
    watched.sees(BrokerRegistration(at=_ms(0), cluster="main", broker=1, session="0x1", epoch=1))
    watched.sees(BrokerRegistration(at=_ms(10), cluster="main", broker=1, session=None, epoch=None))
    while watched.found == []:
        now = watched.evaluator.next_due
        watched.sees(Tick(at=now))
    assert now == _ms(310)
    assert watched.found[0].at == _ms(10)


def test_nothing_is_waited_for_where_nothing_can_change() -> None:
    """next_due is long after, and stays so while groups just read."""
    watched = Watched(*SHIPPED)
    watched.sees(*steady(300), state(0, 1))
    assert watched.evaluator.next_due == LONG_AFTER


def test_a_fact_that_comes_late_corrects_what_was_said() -> None:
    """The leader change had been unclean: the rewind went back to where the log was cut, and is relabelled."""
    watched = Watched("rewind")
    (before,) = watched.sees(ends(0, 20_000, 5_000), *steady(60), commit(61, 13_000), state(0, 1, (1,)))
    assert before.labels == ()
    watched.sees(state(60, 2, (2,)), at=110)
    assert [one.labels for one in watched.found] == [("to_divergence",)]


def test_a_fact_that_comes_late_takes_back_what_was_said() -> None:
    """The topic had been created again: no rewind."""
    watched = Watched("rewind")
    watched.sees(state(0, 1), commit(30, 9_000), commit(40, 0))
    assert len(watched.found) == 1
    watched.sees(state(35, 1, topic_id="two"), at=95)
    assert watched.found == []


def test_a_finding_that_has_settled_is_not_taken_back() -> None:
    """Three minutes on it stands, whatever comes to light."""
    watched = Watched("rewind")
    watched.sees(state(0, 1), commit(30, 9_000), commit(40, 0))
    watched.sees(state(35, 1, topic_id="two"), at=41 + FINALIZATION_MS // 1000)
    assert len(watched.found) == 1


def test_a_settled_finding_still_recovers() -> None:
    """Hours later."""
    watched = Watched("rewind")
    watched.sees(commit(30, 9_000), commit(40, 0))
    watched.sees(tick(7_200))
    watched.sees(commit(7_300, 9_500))
    assert watched.found[0].recovered_at == _ms(7_300)


def test_a_recovery_that_comes_late_is_dated_when_it_was() -> None:
    """The position was regained; but the partition had been deleted before, which is told later."""
    watched = Watched("rewind")
    watched.sees(state(0, 1), commit(30, 9_000), commit(40, 0))
    watched.sees(tick(600))
    watched.sees(commit(700, 9_500))
    assert watched.found[0].recovered_at == _ms(700)
    watched.sees(state(660, 1, topic_id="two"), at=720)
    assert watched.found[0].recovered_at == _ms(660)


def test_a_finding_that_never_recovers_is_followed_for_a_week() -> None:
    """And not for ever."""
    week = ABANDONED_MS // 1000
    followed, given_up = Watched("rewind"), Watched("rewind")
    for watched, last in ((followed, week), (given_up, week + 600)):
        watched.sees(commit(30, 9_000), commit(40, 0))
        watched.sees(tick(600))
        watched.sees(tick(last))
        watched.sees(commit(last + 1, 9_500))
    assert followed.found[0].recovered_at is not None
    assert given_up.found[0].recovered_at is None


def test_history_is_no_news_to_any_rule() -> None:
    """An observation older than the last of its subject is refused, and no time passes with it."""
    watched = Watched(*SHIPPED)
    watched.sees(commit(0, 9_000), commit(100, 9_000))
    assert not watched.evaluator.absorb(commit(50, 0))
    assert watched.sees() == []


def test_what_a_group_commits_elsewhere_is_looked_at_soon() -> None:
    """Two partitions of a stopped group moved together: an operator. A third moves half a minute later: none."""
    watched = Watched("rewind")
    watched.sees(
        members(0, "Stable"), *(commit(1, 9_000, number) for number in range(3)), members(10, "Empty"), commit(60, 0)
    )
    assert watched.found[0].labels == ("operator_reset",)
    watched.sees(commit(90, 0, 2))
    watched.sees(tick(90 + SOON_MS / 1000))
    assert [one.labels for one in watched.found] == [(), ()]


def test_a_batch_that_spans_hours_is_due_to_be_judged_in_pieces() -> None:
    """What it touches must be looked at while histories still hold it."""
    watched = Watched("rewind")
    watched.sees(commit(0, 9_000))
    watched.evaluator.absorb(commit(1, 0))
    assert watched.evaluator.next_due <= _ms(1) + LATENESS_MS


def test_what_was_judged_before_a_restart_is_judged_again_once() -> None:
    """A finding that may still change is found again, one that has settled is taken over, and nothing is said twice."""
    facts = [
        state(0, 1),
        commit(30, 9_000),
        commit(40, 0),
        tick(400),
        commit(500, 100),
        commit(510, 5_000),
        commit(520, 10),
    ]
    before = Watched("rewind")
    for one in facts:
        before.sees(one)
    assert len(before.found) == 2
    after = Watched("rewind")
    after.evaluator.resume(before.found, facts)
    assert after.sees(tick(521)) == []
    (recovered,) = after.sees(commit(522, 9_000))[:1]
    assert recovered.recovered_at == _ms(522)


def test_a_late_fact_is_waited_for_after_a_restart_too() -> None:
    """The case is still fresh: the deletion told late takes the rewind back."""
    facts = [state(0, 1), commit(30, 9_000), commit(40, 0)]
    before, after = Watched("rewind"), Watched("rewind")
    before.sees(*facts)
    after.standing = dict(before.standing)
    after.evaluator.resume(before.found, facts)
    after.sees(tick(50))
    after.sees(state(35, 1, topic_id="two"), at=95)
    assert after.found == []


def test_what_a_check_found_is_followed_across_a_restart() -> None:
    """Days later nothing is known but the open findings: seen again they stay, not seen again they are over."""
    before = Watched("divergence")
    found = before.sees(*divergences(DAY_S, [1, 2]), run(DAY_S))
    after = Watched("divergence")
    after.evaluator.resume(found, [])
    assert not after.sees(*divergences(3 * DAY_S, [2]), run(3 * DAY_S, complete=False))
    (over,) = after.sees(*divergences(4 * DAY_S, [2]), run(4 * DAY_S))
    assert (over.at, over.recovered_at) == (_ms(1), _ms(4 * DAY_S))
    (over,) = after.sees(run(5 * DAY_S))
    assert (over.at, over.recovered_at) == (_ms(2), _ms(5 * DAY_S))


def test_a_check_that_finds_thousands_of_things_each_day_does_not_add_up() -> None:
    """In one partition, the worst case: found once, followed, and forgotten when they are over."""
    watched = Watched("divergence", "check_failed")
    for day in range(1, 5):
        changed = watched.sees(*divergences(day * DAY_S, range(2_000)), run(day * DAY_S))
        assert len(changed) == (2_000 if day == 1 else 0)
    assert len(watched.sees(run(5 * DAY_S))) == 2_000
    watched.sees(Tick(at=_ms(6 * DAY_S)))
    assert not watched.evaluator._timer_of
    assert not watched.evaluator._active_findings
    assert not watched.evaluator._dependencies.dependents
