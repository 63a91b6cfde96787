"""A restart of the agent changes no finding that is open: all rule cases, with the agent restarted after each."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.cli.rule_tests import RuleTest, RuleTestFile, _observations
from agent.daemon.pipeline import LOOKBACK_MS
from agent.engine.engine import Engine
from agent.engine.recorded import moments
from agent.model.findings import Finding, FindingKey, Incident
from agent.model.observations.base import Observation, Tick
from tests.engine.test_engine import SHIPPED

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.toml"))
HEARTBEAT_S = 600


def _engine(case: RuleTest) -> Engine:
    rules = {name: rule for name, rule in SHIPPED.rules.items() if case.rules is None or name in case.rules}
    correlations = {
        name: correlation
        for name, correlation in SHIPPED.correlations.items()
        if all(step.optional or set(step.rules) & set(rules) for step in correlation.steps)
    }
    return Engine(rules, correlations)


def _pass_time(engine: Engine, minutes: int) -> list[list[Observation]]:
    """Return what is observed while nothing changes: ticks, and in between a heartbeat of each state."""
    batches: list[list[Observation]] = []
    for second in range(60, minutes * 60, 60):
        now = engine.now + second * 1_000
        states = engine.latest() if second % HEARTBEAT_S == HEARTBEAT_S // 2 else ()
        beats = [
            replace(state, at=now, since=None, seen_at=None)
            for state in states
            if not state.is_event and not isinstance(state, Tick) and state.at <= now
        ]
        batches.append([*beats, Tick(at=now)])
    return batches


def _findings(incidents: Iterable[Incident]) -> dict[FindingKey, Finding]:
    return {finding.key: finding for incident in incidents for finding in (*incident.causes, *incident.findings)}


def _since(batches: Iterable[list[Observation]], since: int) -> list[list[Observation]]:
    chosen = ([observation for observation in batch if observation.seen >= since] for batch in batches)
    return [batch for batch in chosen if batch]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_open_findings_outlive_a_restart(path: Path) -> None:
    file = RuleTestFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    for case in file.cases:
        engine = _engine(case)
        batches = list(moments(_observations(case, file.defaults)))
        for batch in batches:
            engine.take(batch)
        quiet = _pass_time(engine, 25)
        for batch in quiet:
            engine.take(batch)
        still_open = [key for key, finding in _findings(engine.incidents).items() if finding.recovered_at is None]
        if not still_open:
            continue
        restarted = _engine(case)
        restarted.restore(_since([*batches, *quiet], engine.now - LOOKBACK_MS))
        restarted.resume(engine.incidents)
        for batch in _pass_time(engine, 12):
            engine.take(batch)
            restarted.take(batch)
        expected, found = _findings(engine.incidents), _findings(restarted.incidents)
        assert found.keys() == expected.keys(), case.name
        for key in still_open:
            assert found[key].recovered_at == expected[key].recovered_at, (case.name, found[key])
