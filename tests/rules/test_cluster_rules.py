"""Rules about brokers and topics over hours, and in any order of arrival."""

from collections.abc import Iterable
from random import Random

import pytest

from agent.engine.evaluator import Evaluator
from agent.engine.history import LATENESS_MS
from agent.engine.rule import Rule
from agent.model.findings import Finding, FindingKey
from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import BrokerRegistration, Commit, LogOffsets, PartitionState
from agent.rules.broker_down import BrokerDown
from agent.rules.broker_flapping import BrokerFlapping
from agent.rules.topic_recreated import TopicRecreated
from agent.rules.unclean_election import UncleanElection
from tests.strategies import delay

MINUTE = 60_000


def _findings(rule: Rule, facts: Iterable[Observation]) -> list[Finding]:
    """Return the findings in the end, each as it last was."""
    evaluator, now = Evaluator({"rule": rule}), 0
    findings: dict[FindingKey, Finding] = {}
    for fact in facts:
        evaluator.absorb(fact)
        now = max(now, fact.seen)
        changes = evaluator.evaluate(now)
        findings |= {finding.key: finding for finding in changes.found}
        for key in changes.withdrawn:
            findings.pop(key, None)
    return list(findings.values())


def _registration(at: int, session: int | None) -> BrokerRegistration:
    name = None if session is None else hex(session)
    return BrokerRegistration(at=at, since=at, cluster="main", broker=7, session=name, epoch=session)


def test_a_broker_that_flaps_for_a_day_is_one_finding() -> None:
    """Far longer than histories reach; it recovers an hour after the last loss."""
    facts: list[Observation] = [_registration(0, 1)]
    for number in range(1, 121):
        facts += [_registration(number * 12 * MINUTE, None), _registration(number * 12 * MINUTE + 5_000, number + 1)]
    end = 120 * 12 * MINUTE + 5_000
    facts += [Tick(at=end + minutes * MINUTE) for minutes in range(1, 70)]
    (finding,) = _findings(BrokerFlapping(), facts)
    assert finding.at == 5 * 12 * MINUTE
    assert finding.recovered_at == end + 60 * MINUTE


def _partition(at: int, **fields: object) -> PartitionState:
    state: dict[str, object] = {"cluster": "main", "topic": "t", "partition": 0, "leader": 1, "isr": (1, 2)}
    return PartitionState(at=at, **{"replicas": (1, 2), **state, **fields})  # type: ignore[arg-type]


def _log(at: int, log_end: int) -> LogOffsets:
    return LogOffsets(at=at, cluster="main", topic="t", partition=0, log_start=0, log_end=log_end)


RECREATION = [
    _partition(0),
    *(_log(1_000 * second, 9_000 + 10 * second) for second in range(60)),
    *(
        Commit(at=1_000 * second, cluster="main", group="g", topic="t", partition=0, offset=4_000 + 5 * second)
        for second in range(60)
    ),
    _partition(60_000, leader=None, isr=(), replicas=()),
    _partition(75_000),
    _log(76_000, 30),
    *(Tick(at=1_000 * second) for second in range(300)),
]
DOUBTFUL_ELECTION = [
    _partition(0, isr=(1,), topic_id="uuid"),
    *(_log(1_000 * second, 9_000 + 10 * second) for second in range(30)),
    _partition(30_000, leader=None, isr=(), topic_id="uuid"),
    _partition(45_000, leader=2, isr=(2,), topic_id="uuid"),
    *(_log(1_000 * second, 8_000 + 10 * second) for second in range(46, 60)),
    *(Tick(at=1_000 * second) for second in range(300)),
]
DECOMMISSION = [
    _registration(0, 5),
    _partition(0, replicas=(1, 7), isr=(1, 7)),
    _partition(100_000, replicas=(1, 2), isr=(1, 2)),
    _registration(101_000, None),
    *(Tick(at=1_000 * second) for second in range(700)),
]


@pytest.mark.parametrize(
    ("rule", "facts", "labels"),
    [
        (TopicRecreated(), RECREATION, [("unread",)]),
        (UncleanElection(), DOUBTFUL_ELECTION, [()]),
        (BrokerDown(), DECOMMISSION, []),
    ],
    ids=["re-creation", "election", "decommission"],
)
@pytest.mark.parametrize("seed", range(5))
def test_order_of_arrival_changes_nothing(
    rule: Rule, facts: list[Observation], labels: list[tuple[str, ...]], seed: int
) -> None:
    facts = sorted(facts, key=lambda fact: fact.at)
    expected = _findings(rule, facts)
    assert [finding.labels for finding in expected] == labels
    delays = [Random(seed).randrange(LATENESS_MS) for _ in range(3)]  # noqa: S311 - not for secrets
    assert _findings(rule, delay(facts, delays, 500)) == expected
