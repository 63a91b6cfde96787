"""What holds for every stream of observations: nothing raises, order and cuts and restarts do not matter, history is no news."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from agent.findings import Incident, incident_fields, incident_json
from agent.observations import Observation, Tick, to_json
from agent.replay import replay
from agent.settings import load
from agent.watch import Watch
from tests import strategies
from tests.strategies import cut, late, ticks

ROOT = Path(__file__).parents[1]
SHIPPED = load(ROOT / "rules.toml", need_clusters=False)
AFTERWARDS_MS = 400_000
"""When all is settled after the last observation."""

slow = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink], suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example])


def watch() -> Watch:
    """A watch with the shipped rules."""
    return Watch(SHIPPED.rules, SHIPPED.correlations)


def closing(observations: Sequence[Observation]) -> Tick:
    """The tick after which nothing of the observations changes any more."""
    return Tick(at=max((one.seen for one in observations), default=0) + AFTERWARDS_MS)


def live(cuts: Iterable[Sequence[Observation]], watching: Watch | None = None) -> dict[str, Incident]:
    """The incidents, by id, that batches make as they arrive."""
    watching = watching or watch()
    return {one.id: one for cut in cuts for one in watching.take(cut)}


def replayed(observations: Sequence[Observation]) -> list[str]:
    """The JSON of a replay."""
    return [incident_json(one) for one in replay(observations, watch())]


def standing(incidents: Iterable[Incident]) -> list[str]:
    """The incidents but for their ids, the merged and the withdrawn ones left out."""
    shown: list[dict[str, Any]] = [incident_fields(one) for one in incidents if one.merged_into is None and one.findings]
    return sorted(json.dumps({key: value for key, value in one.items() if key not in ("id", "merged_into")}) for one in shown)


@given(strategies.wild(), strategies.sizes)
@slow
def test_no_sequence_of_observations_makes_a_rule_raise(observations: list[Observation], sizes: list[int]) -> None:
    """Any kinds, times, offsets and keys: the core takes them, and its incidents can be written."""
    for incident in live([*cut(observations, sizes), [closing(observations)]]).values():
        incident_json(incident)


@given(strategies.wild())
@slow
def test_the_same_observations_give_the_same_incidents(observations: list[Observation]) -> None:
    """Twice the same lines, twice the same JSON."""
    assert replayed(observations) == replayed(observations)


@given(strategies.scenarios, strategies.delays, strategies.wobbles)
@slow
def test_replay_gives_the_same_bytes_however_subjects_were_shuffled(
    observations: list[Observation], delays: list[int], wobble: int
) -> None:
    """Subjects against each other by up to a minute, ticks among them."""
    ticking = observations + ticks(observations, 5_000)
    assert replayed(late(ticking, delays, wobble)) == replayed(ticking)


@given(strategies.scenarios, strategies.delays, strategies.wobbles, strategies.sizes)
@slow
def test_live_gives_the_incidents_of_a_replay_whatever_came_late(
    observations: list[Observation], delays: list[int], wobble: int, sizes: list[int]
) -> None:
    """Arriving up to a minute late, cut into batches anywhere: in the end the incidents are those of the replay."""
    end = closing(observations)
    expected = replay([*observations, end], watch())
    arrived = late(observations + ticks(observations, 5_000), delays, wobble)
    made = live([*cut(arrived, sizes), [end]])
    for incident in expected:
        event(f"correlation: {incident.correlation}")
        for finding in incident.causes + incident.findings:
            event(f"finding: {finding.kind} {' '.join(finding.labels)}")
    assert standing(made.values()) == standing(expected)
