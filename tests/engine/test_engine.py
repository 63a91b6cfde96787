"""The engine: a burst is one incident, and how observations are split into batches does not matter."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import PrivateAttr

from agent.config.loading import load
from agent.engine.engine import Engine
from agent.engine.facts import Facts
from agent.engine.history import LONG_AFTER, History
from agent.engine.recorded import moments
from agent.engine.rule import Rule, Scope
from agent.model.findings import Finding, Incident, Severity
from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit, PartitionState
from agent.model.observations.logs import LogLine
from tests.builders import commit, log_offsets, partition_state, registration, tick

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False)


def engine() -> Engine:
    return Engine(SHIPPED.rules, SHIPPED.correlations)


def leader(second: int, partition: int, broker: int, topic: str = "t") -> PartitionState:
    """Return who leads a partition of brokers 1 and 2, or of 3 and 4; only the leader is in sync."""
    replicas = (1, 2) if topic == "t" else (3, 4)
    return partition_state(second, broker, partition, topic, replicas=replicas, isr=(broker,))


def burst(partitions: int) -> Iterator[list[Observation]]:
    """Yield a batch a second: broker 1 is lost at 60 and its partitions are rewound; so is an unrelated group."""
    yield [registration(0, "0x1"), *(leader(0, number, 1) for number in range(partitions)), leader(0, 0, 3, "other")]
    for second in range(1, 120):
        batch: list[Observation] = [registration(second, None)] if second == 60 else []
        batch += [leader(second, number, 2) for number in range(partitions) if second == 61]
        for number in range(partitions):
            begin = 62 + number % 9
            batch.append(commit(second, 50_000 + second if second < begin else 100 * (second - begin), number))
        batch.append(commit(second, 90_000 + second if second < 64 else second, 0, "unrelated", "other"))
        if second % 10 == 0:
            batch.append(log_offsets(second, 60_000))
        yield batch


def test_burst_is_one_incident_beside_an_unrelated_rewind() -> None:
    shipped = engine()
    reported: dict[str, Incident] = {}
    for batch in burst(60):
        reported |= {
            incident.id: incident for incident in shipped.take(batch) if incident.severity is not Severity.INFO
        }
    sizes = {(incident.correlation, len(incident.findings)) for incident in reported.values()}
    assert sizes == {("reset-after-session-loss", 60), (None, 1)}
    assert len(reported) == 2


def test_one_batch_makes_the_same_incidents_as_its_pieces() -> None:
    hours: list[Observation] = [
        observation
        for hour in range(4)
        for observation in (
            commit(7_200 * hour, 9_000),
            registration(7_200 * hour, "0x1"),
            commit(7_200 * hour + 1, 0),
            registration(7_200 * hour + 2, None),
            commit(7_200 * hour + 500, 9_000),
        )
    ]
    at_once = {incident.id: incident for incident in engine().take(hours)}
    shipped = engine()
    in_pieces = {incident.id: incident for observation in hours for incident in shipped.take([observation])}
    assert at_once == in_pieces
    assert {finding.kind for incident in at_once.values() for finding in incident.findings} == {
        "offset_rewind", "broker_session_lost", "broker_down",
    }  # fmt: skip


def test_nothing_is_due_at_first() -> None:
    shipped = engine()
    assert shipped.take([]) == []
    assert shipped.next_due == LONG_AFTER


def test_ticks_alone_close_an_incident() -> None:
    shipped = engine()
    (opened,) = shipped.take([commit(0, 9_000), commit(1, 0), commit(2, 9_000)])
    latest = opened
    while latest.status != "closed":
        latest = next(iter(shipped.take([Tick(at=shipped.next_due)])), latest)
    assert latest.id == opened.id


def test_latest_returns_the_last_state_of_each_subject() -> None:
    shipped = engine()
    facts = [commit(0, 5), commit(0, 7, 1), registration(0, "0x1")]
    shipped.take([*facts, tick(1)])
    assert list(shipped.latest()) == facts


class Watchful(Rule):
    """A rule that only takes note of when it is asked about what does not happen."""

    kind = "watchful"
    observes = (Commit,)
    revisits = Commit
    _asked: list[int] = PrivateAttr(default_factory=list)

    @property
    def asked(self) -> list[int]:
        return self._asked

    def scopes(self, observation: Observation, facts: Facts) -> list[Scope]:
        del observation, facts
        return []

    def revisit(self, history: History[Any], facts: Facts) -> list[Scope]:
        del history
        self._asked.append(facts.now)
        return []


@pytest.mark.parametrize("first", [tick, lambda second: registration(second, "0x1")], ids=["tick", "other"])
def test_days_without_backflow_are_not_relived_minute_by_minute(first: Any) -> None:
    """An agent that catches up for longer than its watchdog waits is killed, and never does."""
    rule, days = Watchful(), 9 * 86_400
    watching = Engine({"watchful": rule}, {})
    watching.take([commit(0, 5), *(tick(second) for second in range(1, 300))])
    before = len(rule.asked)
    watching.take([first(days)])
    assert len(rule.asked) - before <= 11
    watching.take([tick(second) for second in range(days + 1, days + 300)])
    assert max(rule.asked) >= tick(days + 300).at - rule.revisit_ms


def test_looking_at_many_series_lets_other_observations_have_their_turn() -> None:
    """All are looked at, also those of which there is more than can be looked at until the next look begins."""
    rule, count = Watchful(), 5_000
    watching = Engine({"watchful": rule}, {})
    watching.take([commit(0, 5, number) for number in range(count)])
    asked, longest = 0, 0
    while asked < 3 * count:
        watching.take([Tick(at=watching.next_due)])
        longest = max(longest, len(rule.asked) - asked)
        asked = len(rule.asked)
    assert longest <= 1_000
    looked_at = [rule.asked[begin : begin + count] for begin in range(0, 3 * count, count)]
    assert all(times[0] - before[0] == rule.revisit_ms for before, times in pairwise(looked_at))
    assert all(times[-1] - times[0] < 5_000 for times in looked_at)


class Suspicious(Watchful):
    """Finds each series worth an evaluation."""

    def revisit(self, history: History[Any], facts: Facts) -> list[Scope]:
        super().revisit(history, facts)
        last = history.changes[-1]
        return [Scope(last.cluster, last.group, last.topic, last.partition)]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        del scope, facts
        return iter(())


def test_what_looking_finds_is_evaluated_a_part_at_a_time_or_at_once_in_the_end() -> None:
    rule = Suspicious()
    watching = Engine({"suspicious": rule}, {})
    watching.take([commit(0, 5, number) for number in range(100)])
    watching.take([Tick(at=watching.next_due)])
    assert len(rule.asked) == 5
    watching.catch_up()
    assert len(rule.asked) == 100


def test_an_event_that_is_out_of_order_counts_in_a_replay_too() -> None:
    """Threads do not write their lines in order; a state that is older than the last one is stale."""
    first = LogLine(at=7_000, cluster="main", log="server.log", component="broker", pattern="p", text="second entry")
    second = replace(first, at=6_990, seen_at=7_400, text="first entry")
    assert list(moments([first, second])) == [[first], [second]]
    assert list(moments([registration(7, "0x1"), replace(registration(6, None), seen_at=8_000)])) == [
        [registration(7, "0x1")]
    ]
