"""What holds for every stream of observations: nothing raises; order, cuts and restarts do not matter."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from agent.cli.replay import replay
from agent.config.settings import load
from agent.engine.engine import Engine
from agent.model.encoding import to_json
from agent.model.findings import Incident, incident_fields, incident_json
from agent.model.observations.base import Observation, Subject, Tick
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState, LogOffsets, PartitionState
from tests import strategies
from tests.strategies import FAULTS, Fault, cut, late, suffered, ticks

ROOT = Path(__file__).parents[2]
RULES = ROOT / "rules.toml"
SHIPPED = load(RULES, need_clusters=False)
AFTERWARDS_MS = 400_000
"""When all is settled after the last observation."""

fast = settings(suppress_health_check=[HealthCheck.too_slow])
slow = settings(
    max_examples=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
"""Each example is five minutes of a cluster's life."""


def watch() -> Engine:
    """A watch with the shipped rules."""
    return Engine(SHIPPED.rules, SHIPPED.correlations)


def closing(observations: Sequence[Observation]) -> Tick:
    """The tick after which nothing of the observations changes any more."""
    return Tick(at=max((one.seen for one in observations), default=0) + AFTERWARDS_MS)


def live(batches: Iterable[Sequence[Observation]], watching: Engine | None = None) -> dict[str, Incident]:
    """The incidents, by id, that batches make as they arrive."""
    watching = watching or watch()
    return {one.id: one for batch in batches for one in watching.take(batch)}


def replayed(observations: Sequence[Observation]) -> list[str]:
    """The JSON of a replay."""
    return [incident_json(one) for one in replay(observations, watch())]


def standing(incidents: Iterable[Incident]) -> list[dict[str, Any]]:
    """The incidents, those left out that were merged or withdrawn."""
    shown = [incident_fields(one) for one in incidents if one.merged_into is None and one.findings]
    return sorted(shown, key=lambda one: msgspec.json.encode({**one, "id": ""}))


def nameless(incidents: Iterable[Incident]) -> list[dict[str, Any]]:
    """The standing incidents but for their ids."""
    return [{**one, "id": ""} for one in standing(incidents)]


@given(strategies.wild(), strategies.sizes)
@fast
def test_no_sequence_of_observations_makes_a_rule_raise(observations: list[Observation], sizes: list[int]) -> None:
    """Any kinds, times, offsets and keys: the core takes them, and its incidents can be written."""
    for incident in live([*cut(observations, sizes), [closing(observations)]]).values():
        incident_json(incident)


@given(strategies.wild())
@fast
def test_the_same_observations_give_the_same_incidents(observations: list[Observation]) -> None:
    """Twice the same lines, twice the same JSON."""
    assert replayed(observations) == replayed(observations)


def test_the_same_observations_give_the_same_incidents_in_another_process(tmp_path: Path) -> None:
    """No order comes from a set of strings, which another process hashes otherwise."""
    faults = [Fault("unclean", 60, 0, 3, 0), Fault("lost", 80, 2, 9, 0), Fault("operator", 40, 0, 30, 0)]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(to_json(one) for one in suffered(faults)), encoding="utf-8")
    command = [sys.executable, "-m", "agent", "replay", str(lines), "--config", str(RULES), "--json"]
    runs = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=False,
            timeout=120,
        )
        for seed in ("1", "2", "3")
    ]
    assert {run.returncode for run in runs} == {1}, runs[0].stderr.decode()
    assert runs[0].stdout.count(b"\n") > 1
    assert len({run.stdout for run in runs}) == 1


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
    assert nameless(made.values()) == nameless(expected)


@given(strategies.wild(), strategies.delays, strategies.wobbles, strategies.sizes)
@fast
def test_live_gives_the_incidents_of_a_replay_for_wild_observations_too(
    observations: list[Observation], delays: list[int], wobble: int, sizes: list[int]
) -> None:
    """Any facts at all, each subject's in order."""
    ordered = sorted(observations, key=lambda one: one.at)
    end = closing(ordered)
    made = live([*cut(late(ordered, delays, wobble), sizes), [end]])
    assert nameless(made.values()) == nameless(replay([*ordered, end], watch()))


@given(
    strategies.scenarios,
    strategies.sizes,
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 90_000)), min_size=1),
)
@slow
def test_an_observation_older_than_the_last_of_its_subject_is_history(
    observations: list[Observation], sizes: list[int], places: list[tuple[int, int]]
) -> None:
    """Facts of long ago that come again change no incident, whatever they say."""
    batches = [list(batch) for batch in cut(observations, sizes)]
    with_history = [list(batch) for batch in batches]
    last: dict[Subject, Observation] = {}
    ends = []
    for batch in batches:
        last.update((one.subject, one) for one in batch)
        ends.append(dict(last))
    for place, age in places:
        index = place % len(batches)
        known = list(ends[index].values())
        one = known[place % len(known)]
        with_history[index].append(_otherwise(msgspec.structs.replace(one, at=one.at - age, seen_at=None, since=None)))
    end = closing(observations)
    assert standing(live([*with_history, [end]]).values()) == standing(live([*batches, [end]]).values())


def _otherwise(one: Observation) -> Observation:
    """The observation with something else to say."""
    match one:
        case Commit():
            return msgspec.structs.replace(one, offset=0)
        case LogOffsets():
            return msgspec.structs.replace(one, log_start=0, log_end=1)
        case PartitionState():
            return msgspec.structs.replace(one, leader=2024, isr=(2024,), topic_id="czxid:99")
        case BrokerRegistration():
            return msgspec.structs.replace(one, session=None, epoch=None)
        case GroupState():
            return msgspec.structs.replace(one, state="Empty", members=())
        case _:
            return one


@given(strategies.scenarios, strategies.delays, strategies.sizes, st.integers(0, 100))
@slow
def test_a_restart_anywhere_changes_no_incident(
    observations: list[Observation], delays: list[int], sizes: list[int], percent: int
) -> None:
    """With the incidents as stored and the observations judged so far the agent goes on: same ids, none doubled."""
    batches = [*cut(late(observations + ticks(observations, 5_000), delays, 0), sizes), [closing(observations)]]
    here = len(batches) * percent // 100
    before = live(batches[:here])
    stored = [msgspec.json.decode(msgspec.json.encode(one), type=Incident) for one in before.values()]
    resumed = watch()
    resumed.resume(stored, [one for batch in batches[:here] for one in batch])
    after = before | live(batches[here:], resumed)
    assert standing(after.values()) == standing(live(batches).values())


@given(strategies.scenarios, strategies.delays, strategies.sizes, st.integers(0, 100))
@slow
def test_what_is_asked_of_checks_depends_neither_on_what_came_late_nor_on_a_restart(
    observations: list[Observation], delays: list[int], sizes: list[int], percent: int
) -> None:
    """In the end the same asks, with the same windows and topics, as a replay's; what was asked before is kept."""
    end = closing(observations)
    expected = watch()
    replay([*observations, end], expected)
    batches = [*cut(late(observations + ticks(observations, 5_000), delays, 0), sizes), [end]]
    here = len(batches) * percent // 100
    before = live(batches[:here], interrupted := watch())
    resumed = watch()
    resumed.resume(before.values(), [one for batch in batches[:here] for one in batch])
    assert resumed.check_requests == interrupted.check_requests
    live(batches[here:], resumed)
    event(f"asked: {', '.join(sorted({one.check for one in expected.check_requests}))}")
    assert resumed.check_requests == expected.check_requests


def test_the_simulated_cluster_makes_what_these_properties_are_about() -> None:
    """Among a few hundred of its lives there is every correlation shipped, and nearly every rule speaks."""
    correlations: set[str | None] = set()
    kinds: set[str] = set()
    for kind in FAULTS:
        for target in range(6):
            fault = Fault(kind, 90, target, 20 * (target % 2), target % 2)
            observations = suffered([fault], sessions=target != 2)
            for incident in replay([*observations, closing(observations)], watch()):
                correlations.add(incident.correlation)
                kinds.update(finding.kind for finding in incident.causes + incident.findings)
    assert correlations == {None, *SHIPPED.correlations}
    assert kinds == {rule.kind for rule in SHIPPED.rules.values()}
