"""The command group `silence`: add, list and expire silences in the state of an agent."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from agent.cli.common import EPILOG, config_option, fail, load_for_state, parsed_by
from agent.cli.stored import active_silences, author_option, open_store
from agent.clock import now_ms
from agent.config.problems import mistakes_in, unmatched, unmatched_rule
from agent.config.settings import Settings
from agent.model.config_types import duration
from agent.model.encoding import printable
from agent.model.exit_status import FOUND, WRONG
from agent.model.findings import Severity
from agent.model.matchers import Matchers, Silence
from agent.model.observations.agent import AGENT
from agent.model.text import visible
from agent.model.times import millis, rfc3339
from agent.storage import operators

_PATTERNS = ("rule", "cluster", "group", "topic", "label")


@click.group("silence", epilog=EPILOG)
def silence_command() -> None:
    """Keep incidents that match from being posted for a while; they are still listed.

    Silences of rules.toml are a table of their own: [[silences]].
    """


@silence_command.command("add", epilog=EPILOG)
@config_option
@click.option("--rule", multiple=True, metavar="PATTERN", help="Rules by their names in rules.toml.")
@click.option("--cluster", multiple=True, metavar="PATTERN", help="Clusters.")
@click.option("--group", multiple=True, metavar="PATTERN", help="Groups, Flink jobs or Streams applications.")
@click.option("--topic", multiple=True, metavar="PATTERN", help="Topics.")
@click.option("--label", multiple=True, metavar="PATTERN", help="Labels of findings, such as operator_reset.")
@click.option(
    "--severity",
    multiple=True,
    type=click.Choice([severity.value for severity in Severity]),
    help="Severities of incidents: one that gets worse is posted.",
)
@click.option("--for", "lasts", callback=parsed_by(duration), metavar="DURATION", help="How long: 90m, 2h, 1d.")
@click.option("--until", callback=parsed_by(millis), metavar="TIME", help="Until when: 2026-12-01T06:00:00Z.")
@click.option("--comment", required=True, help="Why.")
@author_option
def add_command(
    config: Path | None, *, lasts: int | None, until: int | None, comment: str, author: str, **given: Sequence[str]
) -> None:
    """Add a silence. PATTERN may have *, ? and [ab]; an option may be repeated, and different ones must all match.

    An incident is posted if it has a finding outside of the patterns, and when the silence ends, if it is still open
    then.
    """
    settings = load_for_state(config)
    now = now_ms()
    if (lasts is None) == (until is None):
        fail(WRONG, "a silence must end: give either --for or --until")
    ends_at = until if until is not None else now + (lasts or 0)
    if ends_at <= now:
        fail(WRONG, f"a silence that ends at {rfc3339(ends_at)} has no effect: that has passed")
    if not comment.strip():
        fail(WRONG, "give a comment: others will want to know why")
    matchers = _matchers(settings, given)
    with open_store(settings) as store:
        silences = operators.silence(store, [matchers], ends_at=ends_at, by=author, now=now, comment=comment)
        held = operators.held_back(store, silences)
    click.echo(_line(silences[0], now))
    click.echo(f"incidents that match now: {', '.join(incident.id for incident in held) or 'none'}")


@silence_command.command("list", epilog=EPILOG)
@config_option
@click.option("--expired", is_flag=True, help="Include silences that have ended, as long as they are kept.")
def list_command(config: Path | None, *, expired: bool) -> None:
    """List the silences that last, also those of rules.toml. Exits with 1 if there are any."""
    settings, now = load_for_state(config), now_ms()
    with open_store(settings) as store:
        silences = [*settings.silences_at(now), *store.decisions.silences(0 if expired else now)]
    for silence in silences:
        click.echo(_line(silence, now))
    if not silences:
        click.echo("no silences")
    sys.exit(FOUND if silences else 0)


@silence_command.command("expire", epilog=EPILOG)
@config_option
@click.argument("silence_id", metavar="ID")
def expire_command(config: Path | None, silence_id: str) -> None:
    """End a silence now. What it held back and is still open is posted within seconds."""
    settings, now = load_for_state(config), now_ms()
    with open_store(settings) as store:
        if silence_id in {silence.id for silence in settings.silences_at(now)}:
            fail(WRONG, f"{silence_id} is in the configuration: change it there, and send SIGHUP to the agent")
        wanted = f"SIL-{printable(silence_id).upper().removeprefix('SIL-')}"
        if not store.decisions.expire(wanted, now):
            lasting = ", ".join(silence.id for silence in active_silences(settings, store, now))
            fail(WRONG, f"no silence {silence_id} lasts; there {f'are: {lasting}' if lasting else 'is none'}")
    click.echo(f"{wanted} has ended")


def _matchers(settings: Settings, given: dict[str, Sequence[str]]) -> Matchers:
    """Return what the options select; exit if that is nothing, or a name that is known to be none."""
    tables: dict[str, Any] = {
        f"{name}s": {"include": list(map(printable, given[name]))} for name in _PATTERNS if given[name]
    }
    if given["severity"]:
        tables["severities"] = list(given["severity"])
    if not tables:
        fail(WRONG, 'give at least one pattern: --rule "*" would silence everything')
    clusters = [*settings.clusters, *settings.flink, *settings.streams, *settings.logs, AGENT]
    problems = [("rule", unmatched_rule(pattern, settings.kinds)) for pattern in given["rule"] if pattern]
    problems += [("cluster", unmatched("clusters", pattern, clusters)) for pattern in given["cluster"] if pattern]
    for option, problem in problems:
        if problem and not settings.is_substitute:
            fail(WRONG, f"--{option}: {problem}")
    try:
        return Matchers.model_validate_json(json.dumps(tables))
    except ValidationError as error:
        mistakes = mistakes_in(error, Matchers, tables)
        fail(WRONG, "\n".join(f"--{str(path[0]).removesuffix('s')}: {message}" for path, message in mistakes))


def _line(silence: Silence, now: int) -> str:
    """Return a silence as a line of the list."""
    until = f"{'until' if silence.ends_at > now else 'ended'} {rfc3339(silence.ends_at)[:19]}Z"
    return visible(f"{silence.id}  {until}  {silence.matchers}  {silence.author}: {silence.comment}")
