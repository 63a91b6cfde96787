"""A defect in a rule, a sentence or an observation is set aside; everything else goes on."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from agent.engine.correlation import FindingCluster, cluster_findings
from agent.engine.engine import Engine
from agent.engine.facts import Facts
from agent.engine.rule import Scope
from agent.model.findings import Finding
from agent.model.observations.kafka import Commit
from agent.rules.broker_down import BrokerDown
from agent.rules.offset_rewind import OffsetRewind
from tests.builders import commit, commits, log_offsets, registration, tick


class Failing(OffsetRewind):
    """Fails where it is told to."""

    fails_in: str = "detect"

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        if self.fails_in == "detect":
            raise KeyError(scope.group)
        return super().detect(scope, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        if self.fails_in == "follow":
            raise KeyError(scope.group)
        return super().follow(finding, scope, facts)

    @classmethod
    def title_for(cls, finding: Finding) -> str:
        del finding
        return "{records.nothing}"


REWIND = [log_offsets(0, 90_000), *commits(60), commit(61, 100), tick(62), tick(400)]


@pytest.mark.parametrize("place", ["detect", "follow"])
def test_failing_rule_does_not_silence_the_others(place: str) -> None:
    defects: list[str] = []
    rules = {"bad": Failing(fails_in=place), "good": OffsetRewind()}
    engine = Engine(rules, {}, set_aside=lambda part, _: defects.append(part))
    incidents = {incident.id: incident for incident in engine.take(REWIND)}
    assert {finding.rule for incident in incidents.values() for finding in incident.findings} == {"good"}
    assert set(defects) == {"rule bad"}


def test_a_rule_that_fails_when_it_is_due_is_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    defects: list[str] = []
    engine = Engine(
        {"down": BrokerDown.model_validate({"after": "1m"})}, {}, set_aside=lambda part, _: defects.append(part)
    )
    engine.take([registration(0, "0x1"), registration(5, None)])
    with monkeypatch.context() as patched:
        patched.setattr(BrokerDown, "detect", lambda *_: 1 / 0)
        assert engine.take([tick(66)]) == []
    assert defects == ["rule down"]
    (incident,) = engine.take([tick(90)])
    assert [finding.kind for finding in incident.findings] == ["broker_down"]


def test_failing_title_does_not_hide_the_incident() -> None:
    defects: list[str] = []
    engine = Engine({"bad": Failing(fails_in="")}, {}, set_aside=lambda part, _: defects.append(part))
    (incident,) = {incident.id: incident for incident in engine.take(REWIND)}.values()
    assert incident.title == "offset_rewind: t[0]"
    assert set(defects) == {"rule bad"}


def test_observation_that_cannot_be_kept_does_not_stop_the_batch() -> None:
    defects: list[str] = []
    engine = Engine({"good": OffsetRewind()}, {}, set_aside=lambda part, _: defects.append(part))
    unhashable = Commit(at=REWIND[0].at, cluster="main", group=["g"], topic="t", partition=0, offset=1)  # type: ignore[arg-type]
    assert engine.take([unhashable, *REWIND])
    assert defects == ["observations of kind commit"]


def test_defect_is_raised_in_replay_and_rule_tests() -> None:
    with pytest.raises(KeyError):
        Engine({"bad": Failing()}, {}).take(REWIND)


def test_finding_that_cannot_be_correlated_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    defects: list[str] = []

    def fails_with_one(findings: Iterable[Finding], *more: Any) -> list[FindingCluster]:
        findings = list(findings)
        assert not any(finding.subject["group"] == "bad" for finding in findings)
        return cluster_findings(findings, *more)

    monkeypatch.setattr("agent.engine.incidents.cluster_findings", fails_with_one)
    engine = Engine({"rewind": OffsetRewind()}, {}, set_aside=lambda part, _: defects.append(part))
    bad = [
        log_offsets(0, 90_000),
        *(commit(second, 10_000, group="bad") for second in (1, 2)),
        commit(61, 5, group="bad"),
    ]
    found = engine.take(sorted([*REWIND, *bad], key=lambda observation: observation.at))
    assert {finding.subject["group"] for incident in found for finding in incident.findings} == {"g"}
    assert set(defects) == {"correlation"}
