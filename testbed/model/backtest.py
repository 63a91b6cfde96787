"""Scores many scenarios in parallel and prints how Backflow fared: `make backtest`."""

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import repeat
from pathlib import Path
from statistics import quantiles

from agent.config.loading import load
from agent.config.settings import Settings
from agent.engine.engine import Engine
from testbed.model.evidence import Evidence
from testbed.model.scenario import CHANGES, draw
from testbed.model.score import Result, Run, Scorer, Seen, Shortfall, run

_MONTH_MS = 30 * 86_400_000
_SEEDS = 10_000_000


@cache
def settings(path: Path) -> Settings:
    """Return the settings whose rules are tried."""
    return load(path, need_clusters=False)


def engine(path: Path) -> Engine:
    """Return a fresh engine with the rules of a configuration."""
    rules = settings(path)
    return Engine(rules.rules, rules.correlations, rules.incidents)


def score_seed(seed: int, path: Path, changes: int, tails: bool) -> Result:  # noqa: FBT001 - for map
    """Draw the scenario of a seed, run the rules on it and compare. changes, tails: see `draw`."""
    return run_seed(seed, path, changes=changes, tails=tails)[0]


def run_seed(seed: int, path: Path, *, changes: int = CHANGES, tails: bool = False) -> tuple[Result, Run]:
    """Return the score of a seed and what the engine reported. changes, tails: see `draw`."""
    began = time.process_time()
    scenario = draw(seed, changes=changes, tails=tails)
    outcome = run(engine(path), scenario.batches)
    result = Scorer(scenario.truth, Evidence(scenario.truth, scenario.batches), outcome).score()
    result.seconds = time.process_time() - began
    result.observations = sum(map(len, scenario.batches))
    return result, outcome


def seeds(number: int, first: int) -> list[int]:
    """Return the seeds of a backtest that starts from one seed."""
    rng = random.Random(first)
    return [rng.randrange(_SEEDS) for _ in range(number)]


def score_all(
    chosen: Iterable[int], path: Path, workers: int, *, changes: int = CHANGES, tails: bool = False
) -> Iterator[Result]:
    """Yield the score of each seed as it is known. changes, tails: see `draw`."""
    if workers == 1:
        yield from (score_seed(seed, path, changes, tails) for seed in chosen)
        return
    chosen = list(chosen)
    # An interrupt is for the parent: it reports what has been scored.
    with ProcessPoolExecutor(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.map(score_seed, chosen, repeat(path), repeat(changes), repeat(tails))


def report(results: list[Result]) -> Iterator[str]:
    """Yield the lines of the report."""
    months = sum(result.watched_ms for result in results) / _MONTH_MS
    shortfalls = [shortfall for result in results for shortfall in result.shortfalls]
    kinds = Counter(shortfall.kind for shortfall in shortfalls)
    events, found = sum(r.events for r in results), sum(r.events_found for r in results)
    single, with_cause = sum(r.single for r in results), sum(r.with_cause for r in results)
    alarms = kinds["false"] + kinds["retracted"]
    yield (
        f"{len(results)} scenarios, {months:.2f} cluster-months, "
        f"{sum(r.observations for r in results):,} observations, "
        f"{sum(r.seconds for r in results) / max(len(results), 1):.1f} CPU s a scenario"
    )
    yield f"recall of events         {_share(found, events)}"
    rate = alarms / max(months, 1e-9)
    yield f"false alarms             {kinds['false']}, {kinds['retracted']} retracted: {rate:.1f} a cluster-month"
    yield f"one incident per event   {_share(single, found)}"
    yield f"right cause              {_share(sum(r.right_cause for r in results), with_cause)}"
    merged = _merge(results)
    wrong = sum(seen.counts_wrong for seen in merged.values())
    counted = sum(seen.counts for seen in merged.values())
    yield f"records within bounds    {_share(counted - wrong, counted)}"
    yield ""
    yield f"{'rule':24}{'recall':>22}{'labels':>20}{'counts':>20}{'mean error':>12}{'delay p50':>12}{'p90':>9}"
    for kind, seen in sorted(merged.items()):
        middle, high = _delays(seen)
        error = f"{seen.error / seen.counts:.1%}" if seen.counts else "-"
        yield (
            f"{kind:24}{_share(seen.found, seen.wanted):>22}{_share(seen.labels - seen.labels_wrong, seen.labels):>20}"
            f"{_share(seen.counts - seen.counts_wrong, seen.counts):>20}{error:>12}{middle:>12}{high:>9}"
        )
    yield ""
    yield from _list(shortfalls)


def _list(shortfalls: list[Shortfall]) -> Iterator[str]:
    """Yield the shortfalls, the most frequent class first."""
    classes: dict[tuple[str, tuple[str, ...]], list[Shortfall]] = defaultdict(list)
    for shortfall in shortfalls:
        classes[shortfall.kind, shortfall.rules].append(shortfall)
    for (kind, rules), members in sorted(classes.items(), key=lambda item: -len(item[1])):
        yield f"{len(members)} x {kind}: {', '.join(rules)}"
        yield from (f"    seed {s.seed}: {s.event}: {s.detail}" for s in members)


def _merge(results: Iterable[Result]) -> dict[str, Seen]:
    merged: dict[str, Seen] = defaultdict(Seen)
    for result in results:
        for kind, seen in result.by_kind.items():
            total = merged[kind]
            for name in ("wanted", "found", "labels", "labels_wrong", "counts", "counts_wrong", "error"):
                setattr(total, name, getattr(total, name) + getattr(seen, name))
            total.delays += seen.delays
    return merged


def _delays(seen: Seen) -> tuple[str, str]:
    if len(seen.delays) < 2:
        return "-", "-"
    parts = quantiles(seen.delays, n=10)
    return f"{parts[4] / 1000:.1f} s", f"{parts[8] / 1000:.0f} s"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%} ({part}/{whole})" if whole else "-"
