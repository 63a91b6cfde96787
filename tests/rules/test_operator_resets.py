"""What an operator did is as severe as the user decides, is called that, and has no other cause."""

from pathlib import Path
from typing import Any

import pytest

from agent.config.loading import load
from agent.engine.engine import Engine
from agent.model.findings import Incident, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Member
from tests.builders import commit, group_state, log_offsets, partition_state, registration, tick

SHIPPED = Path(__file__).parents[2] / "rules.toml"
STABLE = group_state(0, "Stable", (Member(id="m1", partitions=(("t", 0),)),))


def incidents(offset: int, **options: str) -> list[Incident]:
    """Return the incidents after an operator has set the stopped group to this offset, beside a failing broker."""
    observations: list[Observation] = [
        registration(0, "0x1"),
        partition_state(0, 1),
        log_offsets(0, 90_000),
        STABLE,
        *(commit(second, 40_000 + 100 * second) for second in range(1, 6)),
        group_state(8, "Empty"),
        registration(20, None),
        partition_state(21, 2),
        registration(26, "0x2"),
        commit(60, offset),
        *(tick(second) for second in range(61, 200, 10)),
    ]
    overrides: dict[str, Any] = {"rules": {name: {"operator_reset": value} for name, value in options.items()}}
    settings = load(SHIPPED, need_clusters=False, overrides=overrides)
    engine = Engine(settings.rules, settings.correlations)
    for observation in observations:
        engine.take([observation])
    kinds = ("offset_rewind", "offset_jump")
    return [found for found in engine.incidents if any(part.kind in kinds for part in found.findings)]


@pytest.mark.parametrize("severity", Severity)
def test_a_rewind_by_an_operator_has_the_chosen_severity(severity: Severity) -> None:
    (incident,) = incidents(10_000, rewind=severity.value)
    (finding,) = incident.findings
    assert (finding.labels, finding.severity, incident.severity) == (("operator_reset",), severity, severity)
    assert incident.title == "An operator rewound g by 30,500 records on t[0]"
    assert "was reset by an operator" in finding.detail
    assert incident.correlation is None


def test_a_jump_by_an_operator_has_the_chosen_severity() -> None:
    (incident,) = incidents(80_000, jump="warning")
    assert (incident.severity, incident.correlation) == (Severity.WARNING, None)
    assert incident.title == "An operator moved g ahead by 39,500 records on t[0]"


def test_without_a_choice_it_is_info() -> None:
    assert [incident.severity for incident in incidents(10_000)] == [Severity.INFO]
