"""A rule is evaluated again when something changes that its last evaluation read, and not otherwise."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import ClassVar, NamedTuple

import pytest

from agent.engine.evaluator import SOON_MS, Evaluator
from agent.engine.facts import Facts
from agent.engine.history import FINALIZATION_MS, LONG_AFTER
from agent.engine.rule import Rule, Scope
from agent.model.findings import Finding
from agent.model.observations.base import Observation
from agent.model.observations.kafka import BrokerRegistration, Commit, PartitionState
from tests.builders import CLUSTER, commit, partition_state, registration, tick

SOON_S = SOON_MS // 1000
FINAL_S = FINALIZATION_MS // 1000


class Evaluated(NamedTuple):
    """One evaluation of a rule, and what it read."""

    scope: Scope
    read: tuple[object, ...]


class ReadingRule(Rule):
    """A rule about brokers that reads other subjects and records each evaluation in `log`."""

    observes: ClassVar = (BrokerRegistration,)
    log: ClassVar[list[Evaluated]] = []

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        assert isinstance(observation, BrokerRegistration)
        return [Scope(CLUSTER, broker=observation.broker)]

    def read(self, facts: Facts) -> tuple[object, ...]:
        raise NotImplementedError

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        self.log.append(Evaluated(scope, self.read(facts)))
        return iter(())


class LedPartitions(ReadingRule):
    """Reads partitions only through an index of their topic."""

    kind = "led_partitions"

    def read(self, facts: Facts) -> tuple[object, ...]:
        histories = facts.histories(PartitionState, cluster=CLUSTER, topic="t")
        return tuple(history.last.partition for history in histories if history.last is not None)


class OneCommit(ReadingRule):
    """Reads one committed offset."""

    kind = "one_commit"

    def read(self, facts: Facts) -> tuple[object, ...]:
        return tuple(change.offset for change in facts.history(Commit, CLUSTER, "g", "t", 0))


class CommitsOfGroup(ReadingRule):
    """Reads the committed offsets of a group, only for broker 2."""

    kind = "commits_of_group"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        return [scope for scope in super().scopes(observation, facts) if scope.broker == 2]

    def read(self, facts: Facts) -> tuple[object, ...]:
        histories = facts.histories(Commit, cluster=CLUSTER, group="g")
        return tuple(history.last.offset for history in histories if history.last is not None)


class CommitsWhileUp(ReadingRule):
    """Reads a committed offset only while broker 2 is registered."""

    kind = "commits_while_up"

    def read(self, facts: Facts) -> tuple[object, ...]:
        broker = facts.history(BrokerRegistration, CLUSTER, 2).last
        if broker is None or broker.gone:
            return ("down",)
        return ("up", facts.history(PartitionState, CLUSTER, "t", 0).last)


class Rewinds(Rule):
    """Finds a lower committed offset; reads the offsets of the topic's other partitions too."""

    kind = "rewinds"
    observes: ClassVar = (Commit,)
    log: ClassVar[list[Scope]] = []

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        assert isinstance(observation, Commit)
        changes = facts.history(Commit, *observation.subject[1:]).changes
        if len(changes) < 2 or (changes[-1].offset or 0) >= (changes[-2].offset or 0):
            return []
        return [Scope(CLUSTER, group="g", topic="t", partition=observation.partition)]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        self.log.append(scope)
        facts.histories(Commit, cluster=CLUSTER, group="g")
        changes = facts.history(Commit, *scope.series).changes
        for older, newer in pairwise(changes):
            if (newer.offset or 0) < (older.offset or 0):
                yield self.make_finding(scope, newer, detail="rewound")

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        del scope, facts
        return finding


@pytest.fixture(autouse=True)
def _empty_logs() -> None:
    ReadingRule.log.clear()
    Rewinds.log.clear()


def observe(evaluator: Evaluator, *observations: Observation) -> None:
    """Absorb the observations and evaluate what is due by then."""
    for observation in observations:
        evaluator.absorb(observation)
    evaluator.evaluate(max(evaluator.facts.now, *(observation.seen for observation in observations)))


def test_new_subject_in_an_index_that_was_read_is_evaluated() -> None:
    evaluator = Evaluator({"led": LedPartitions()})
    observe(evaluator, registration(0, "0x1"))
    observe(evaluator, partition_state(1, 1, 7))
    observe(evaluator, partition_state(2, 1, 3))
    assert [evaluated.read for evaluated in ReadingRule.log] == [(), (7,), (3, 7)]
    observe(evaluator, partition_state(3, 1, 9, topic="u"))
    assert len(ReadingRule.log) == 3


def test_change_of_a_subject_read_through_an_index_is_evaluated() -> None:
    evaluator = Evaluator({"led": LedPartitions()})
    observe(evaluator, partition_state(0, 1, 7), registration(0, "0x1"))
    observe(evaluator, partition_state(1, 2, 7))
    observe(evaluator, partition_state(2, 2, 7))
    assert len(ReadingRule.log) == 2


def test_frequent_change_elsewhere_is_evaluated_soon() -> None:
    assert Commit.is_frequent
    evaluator = Evaluator({"commit": OneCommit()})
    observe(evaluator, registration(0, "0x1"))
    for second in range(1, SOON_S + 1):
        observe(evaluator, commit(second, second))
    assert [evaluated.read for evaluated in ReadingRule.log] == [()]
    observe(evaluator, tick(SOON_S + 1))
    assert [evaluated.read for evaluated in ReadingRule.log] == [(), tuple(range(1, SOON_S + 1))]


def test_frequent_change_before_the_first_reading_hides_none_after_it() -> None:
    evaluator = Evaluator({"led": LedPartitions(), "group": CommitsOfGroup()})
    observe(evaluator, registration(0, "0x1", 1))
    observe(evaluator, commit(1, 5))
    observe(evaluator, registration(2, "0x2", 2))
    observe(evaluator, commit(3, 6))
    observe(evaluator, tick(3 + SOON_S))
    reads = [evaluated.read for evaluated in ReadingRule.log if evaluated.scope.broker == 2]
    assert (5,) in reads
    assert reads[-1] == (6,)


def test_pending_frequent_changes_are_evaluated_at_the_end() -> None:
    evaluator = Evaluator({"commit": OneCommit()})
    observe(evaluator, registration(0, "0x1"))
    observe(evaluator, commit(1, 5))
    evaluator.evaluate(evaluator.facts.now, everything=True)
    assert [evaluated.read for evaluated in ReadingRule.log] == [(), (5,)]


def test_active_finding_follows_its_own_frequent_subject_at_once() -> None:
    evaluator = Evaluator({"rewinds": Rewinds()})
    observe(evaluator, commit(0, 100), commit(1, 50))
    assert len(Rewinds.log) == 1
    observe(evaluator, commit(2, 60))
    assert len(Rewinds.log) == 2
    observe(evaluator, commit(3, 60, 1))
    assert len(Rewinds.log) == 2
    observe(evaluator, tick(3 + SOON_S))
    assert len(Rewinds.log) == 3


def test_subject_no_longer_read_is_no_longer_a_dependency() -> None:
    evaluator = Evaluator({"up": CommitsWhileUp()})
    observe(evaluator, registration(0, "0x1", 2))
    observe(evaluator, partition_state(1, 1))
    observe(evaluator, registration(2, None, 2))
    assert [evaluated.read[0] for evaluated in ReadingRule.log] == ["up", "up", "down"]
    observe(evaluator, partition_state(3, 2))
    assert len(ReadingRule.log) == 3
    observe(evaluator, registration(4, "0x2", 2))
    observe(evaluator, partition_state(5, 1))
    assert [evaluated.read[0] for evaluated in ReadingRule.log[3:]] == ["up", "up"]


def test_no_dependencies_remain_once_everything_is_final() -> None:
    evaluator = Evaluator({"led": LedPartitions(), "commit": OneCommit(), "up": CommitsWhileUp()})
    observe(evaluator, partition_state(0, 1), commit(0, 1), registration(0, "0x1"), registration(0, "0x1", 2))
    assert evaluator._dependencies.dependents
    while evaluator.next_due != LONG_AFTER:
        evaluator.evaluate(evaluator.next_due)
    assert evaluator.facts.now <= tick(FINAL_S).at
    assert not evaluator._dependencies.dependents
    assert not evaluator._dependencies._reads
    assert not evaluator._timers
    evaluations = len(ReadingRule.log)
    observe(evaluator, partition_state(FINAL_S + 1, 2, 5))
    assert len(ReadingRule.log) == evaluations
