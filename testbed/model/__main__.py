"""Command line of the model: score many seeds, or show the scenario of one with the truth beside the incidents."""

import random
import sys
import time
from pathlib import Path

import click

from agent.model.encoding import to_json
from agent.model.findings import Incident
from agent.model.times import clock
from agent.render.report import report as incident_report
from testbed.model.backtest import report, run_seed, score_all, seeds
from testbed.model.scenario import CHANGES, Scenario, draw
from testbed.model.score import is_loud
from testbed.model.truth import Truth
from testbed.model.truth import to_json as truth_json


@click.command()
@click.argument("seed", type=int, required=False)
@click.option("--scenarios", default=1_000, show_default=True, help="How many scenarios to score.")
@click.option("--first", type=int, help="The seed that all others are drawn from. Default: drawn and printed.")
@click.option("--workers", default=2, show_default=True, help="How many processes to use.")
@click.option("--changes", default=CHANGES, show_default=True, help="About how many changes of offsets a scenario has.")
@click.option(
    "--commits", type=click.Choice(["poll", "tail"]), default="poll", show_default=True, help="How commits are read."
)
@click.option("--config", type=click.Path(path_type=Path), default=Path("rules.toml"), show_default=True)
@click.option("--all", "show_all", is_flag=True, help="With SEED: show ordinary life and info too.")
@click.option("--export", type=click.Path(path_type=Path), help="With SEED: write journal.jsonl and truth.json there.")
def main(
    *,
    seed: int | None,
    scenarios: int,
    first: int | None,
    workers: int,
    changes: int,
    commits: str,
    config: Path,
    export: Path | None,
    show_all: bool,
) -> None:
    """Compare Backflow's incidents with the truth of simulated scenarios; exits with 1 if any falls short.

    An interrupt ends it early, with the report of what has been scored.
    """
    tails = commits == "tail"
    if seed is None:
        first = random.SystemRandom().randrange(1_000_000) if first is None else first
        click.echo(f"seed {first}")
        results = []
        began_at = time.monotonic()
        try:
            for result in score_all(seeds(scenarios, first), config, workers, changes=changes, tails=tails):
                results.append(result)
                if len(results) % 10 == 0:
                    click.echo(f"{len(results)} scenarios in {time.monotonic() - began_at:.0f} s", err=True)
        except KeyboardInterrupt:
            click.echo(f"interrupted after {len(results)} of {scenarios} scenarios")
        click.echo("\n".join(report(results)))
        sys.exit(any(result.shortfalls for result in results))
    if export is not None:
        _export(draw(seed, changes=changes, tails=tails), export)
    result, outcome = run_seed(seed, config, changes=changes, tails=tails)
    truth = draw(seed, changes=changes, tails=tails).truth
    _show(truth, outcome.incidents, show_all=show_all)
    for shortfall in result.shortfalls:
        click.echo(f"{shortfall.kind} {', '.join(shortfall.rules)}: {shortfall.event}: {shortfall.detail}")
    sys.exit(bool(result.shortfalls))


def _show(truth: Truth, incidents: list[Incident], *, show_all: bool) -> None:
    click.echo(f"== truth of seed {truth.seed}, {clock(truth.began_at)} to {clock(truth.ended_at)} UTC")
    for event in truth.events:
        if show_all or event.wanted != "quiet":
            click.echo(f"{clock(event.at)} to {clock(event.until)} {event.wanted}: {event.name}")
            for effect in event.effects:
                where = " ".join(str(value) for value in effect.subject.values())
                move = (
                    f" {effect.before} -> {effect.after} (committed {effect.kept})" if effect.after is not None else ""
                )
                click.echo(
                    f"    {clock(effect.at)} {effect.kinds[0]} {where}{move} {effect.records:,} {effect.measure}"
                    f"{'' if effect.must else ' (may)'}"
                )
    click.echo("\n== incidents")
    for incident in incidents:
        if show_all or is_loud(incident):
            click.echo("\n".join(incident_report(incident).lines()) + "\n")


def _export(scenario: Scenario, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "journal.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(f"{to_json(fact)}\n" for batch in scenario.batches for fact in batch)
    (directory / "truth.json").write_bytes(truth_json(scenario.truth))


main()
