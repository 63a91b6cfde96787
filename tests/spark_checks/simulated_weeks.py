"""Clusters simulated over several weeks, with the agent's journal and state file as it would have written them."""

import random
from collections.abc import Mapping
from contextlib import closing
from heapq import merge
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from agent.engine.engine import Engine
from agent.model.findings import Acknowledgement, Incident
from agent.model.observations.base import Observation
from agent.storage.database import FILE
from agent.storage.incidents import IncidentStore
from agent.storage.journal.writer import Journal
from testbed.model.backtest import engine
from testbed.model.cluster_faults import FAULTS
from testbed.model.scenario import Scenario, draw
from testbed.model.score import run
from testbed.model.truth import Truth

RULES = Path(__file__).parents[2] / "rules.toml"
_BATCH = 2_000


class Cluster(NamedTuple):
    """A simulated cluster: what happened, all that was observed, and the incidents of the shipped rules."""

    truth: Truth
    observations: list[Observation]
    incidents: list[Incident]


class Weeks(NamedTuple):
    """A state directory. ended_at: when the shortest simulation ended, ms."""

    directory: Path
    clusters: Mapping[str, Cluster]
    ended_at: int

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    @property
    def state(self) -> Path:
        return self.directory / FILE


def simulate(directory: Path, seeds: Mapping[str, int], hours: float, faults: int) -> Weeks:
    """Simulate a cluster for each name and seed, and write one journal and one state file of them all."""
    clusters = {name: _cluster(name, seed, hours, faults) for name, seed in seeds.items()}
    directory.mkdir(parents=True, exist_ok=True)
    with closing(Journal(directory / "journal", segment_bytes=2 << 20)) as journal:
        taken = list(merge(*(cluster.observations for cluster in clusters.values()), key=lambda fact: fact.seen))
        for begin in range(0, len(taken), _BATCH):
            journal.append(taken[begin : begin + _BATCH])
            journal.flush()
            journal.seal(taken[begin].at)
        position = journal.position
    chance = random.Random(1)  # noqa: S311 - repeatable
    with IncidentStore(directory / FILE, []) as store:
        for cluster in clusters.values():
            store.save(position, cluster.incidents)
            for incident in cluster.incidents:
                if chance.random() < 0.5:
                    at = incident.opened_at + chance.randrange(60_000, 1_800_000)
                    taken_by = Acknowledgement(at=at, by="ana", severity=incident.severity)
                    store.decisions.acknowledge(incident, taken_by)
    return Weeks(directory, clusters, min(cluster.truth.ended_at for cluster in clusters.values()))


def _cluster(name: str, seed: int, hours: float, faults: int) -> Cluster:
    chance = random.Random(seed)  # noqa: S311 - repeatable
    chosen = chance.choices(list(FAULTS), list(FAULTS.values()), k=faults)
    scenario = draw(seed, faults=chosen, changes=200, hours=hours)
    rules: Engine = engine(RULES)
    batches = [[_renamed(fact, name, scenario) for fact in batch] for batch in scenario.batches]
    incidents = run(rules, batches).incidents
    return Cluster(scenario.truth, [fact for batch in batches for fact in batch], incidents)


def _renamed(fact: Observation, name: str, scenario: Scenario) -> Observation:
    """Return the fact of another cluster, with all simulations beginning at the same time."""
    shift = BEGAN_AT - scenario.truth.began_at
    times = {"at": fact.at + shift}
    times |= {field: value + shift for field in ("seen_at", "since") if (value := getattr(fact, field)) is not None}
    cluster = {"cluster": name} if getattr(fact, "cluster", None) == "main" else {}
    return replace(fact, **times, **cluster)


BEGAN_AT = 1_795_392_000_000
"""2026-11-23T00:00:00Z."""
