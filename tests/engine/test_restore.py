"""Facts restored after a restart: in columns or one by one they are what they were."""

import msgspec
import pytest

from agent.engine.engine import Engine
from agent.engine.facts import Facts
from agent.model.findings import Incident
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, Member
from tests.builders import commit, group_state, log_offsets, tick
from tests.engine.test_engine import SHIPPED, burst

ONE_BY_ONE = 1 << 30
BATCHES: list[list[Observation]] = [*burst(12), [tick(600)]]


def engine(least_columns: int) -> Engine:
    return Engine(SHIPPED.rules, SHIPPED.correlations, SHIPPED.incidents, least_columns=least_columns)


def taken(running: Engine, batches: list[list[Observation]]) -> dict[str, Incident]:
    """Return the incidents as they were in the end, by id."""
    return {incident.id: incident for batch in batches for incident in running.take(batch)}


@pytest.mark.parametrize("least_columns", [1, ONE_BY_ONE], ids=["columns", "one-by-one"])
@pytest.mark.parametrize("cut", [30, 61, 65, 110])
def test_a_restart_changes_neither_facts_nor_incidents(cut: int, least_columns: int) -> None:
    before = taken(running := engine(ONE_BY_ONE), BATCHES[:cut])
    restarted = engine(least_columns)
    restarted.restore(BATCHES[:cut])
    restarted.resume(before.values())
    assert restarted.now == running.now
    assert {fact.subject: fact for fact in restarted.latest()} == {fact.subject: fact for fact in running.latest()}
    expected = before | taken(running, BATCHES[cut:])
    found = before | taken(restarted, BATCHES[cut:])
    assert [msgspec.to_builtins(found[incident]) for incident in sorted(found)] == [
        msgspec.to_builtins(expected[incident]) for incident in sorted(expected)
    ]


def test_ordinary_progress_is_restored_without_a_history() -> None:
    restarted = engine(1)
    restarted.restore(
        [[log_offsets(0, 1_000_000)], *([commit(second, 10_000 + 10 * second)] for second in range(1, 400))]
    )
    facts = restarted._evaluator.facts
    assert not facts.is_open(commit(0, 0).subject)
    assert facts.history(Commit, "main", "g", "t", 0).changes[-1].offset == 13_990


def test_what_is_restored_last_is_all_that_is_known_of_its_subject() -> None:
    restarted = engine(1)
    restarted.restore([[log_offsets(0, 1_000_000)], *([commit(second, 10_000 + second)] for second in range(1, 400))])
    restarted.restore_last([commit(500, 20)])
    facts = restarted._evaluator.facts
    assert [made.offset for made in facts.history(Commit, "main", "g", "t", 0)] == [20]
    restarted.resume([])
    assert restarted.take([commit(502, 25), tick(700)]) == []


def test_unknown_subjects_are_forgotten_without_effect() -> None:
    facts = Facts()
    facts.absorb(commit(0, 5))
    facts.forget_subjects([commit(0, 5, 1).subject, log_offsets(0, 5).subject])
    assert [made.offset for made in facts.history(Commit, "main", "g", "t", 0)] == [5]


def test_a_group_that_stopped_just_before_a_restart_is_reported() -> None:
    """That it ran for hours is known from its earlier states, which are restored further back than all else."""
    member = Member(id="m", partitions=(("t", 0),))
    ran = group_state(0, "Stable", (member,))
    begin, stopped = 10_800, 11_400
    window: list[list[Observation]] = [
        [tick(begin), group_state(begin, "Stable", (member,))],
        *([tick(second), log_offsets(second, second), commit(second, second)] for second in range(begin, stopped, 10)),
        [group_state(stopped, "Empty"), tick(stopped)],
    ]
    later = [[tick(second), log_offsets(second, second)] for second in range(stopped + 10, stopped + 1_000, 10)]

    def found(before: list[list[Observation]]) -> set[str]:
        restarted = engine(ONE_BY_ONE)
        restarted.restore([*before, *window])
        restarted.resume([])
        return {finding.rule for incident in taken(restarted, later).values() for finding in incident.findings}

    assert "consumer_stopped" not in found([])
    assert "consumer_stopped" in found([[ran]])
