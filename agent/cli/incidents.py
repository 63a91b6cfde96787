"""The command group `incidents`: list an agent's stored incidents, or show all that is known of one."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from agent.cli.common import EPILOG, config_option, load_for_state, parsed_by
from agent.cli.stored import active_silences, find_incident, open_store
from agent.clock import now_ms
from agent.config.settings import Settings
from agent.daemon.tables import describe_delivery, describe_finding
from agent.model.config_types import duration
from agent.model.exit_status import FOUND
from agent.model.findings import Incident, Severity, Status, incident_json, reader
from agent.model.matchers import Silence, find_silence
from agent.model.text import instant, visible
from agent.model.times import rfc3339, second
from agent.render.report import report
from agent.storage.incidents import IncidentStore

_WATCH_S = 2
_READERS = ("group", "job", "application")


@click.group("incidents", invoke_without_command=True, epilog=EPILOG)
@config_option
@click.option("--all", "with_closed", is_flag=True, help="Include closed and merged incidents.")
@click.option("--open", "only_open", is_flag=True, help="Only what still lasts.")
@click.option("--since", callback=parsed_by(duration), metavar="DURATION", help="Only what changed since: 2h, 7d.")
@click.option(
    "--severity", type=click.Choice([severity.value for severity in Severity]), help="Only this severity or worse."
)
@click.option("--group", metavar="PATTERN", help="Only those about such groups, Flink jobs or Streams applications.")
@click.option("--watch", is_flag=True, help="Show the list again every 2 s until Ctrl-C.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line; includes closed and merged incidents."
)
@click.pass_context
def incidents_command(context: click.Context, /, config: Path | None, *, watch: bool, **chosen: Any) -> None:
    """List the incidents of the agent with this configuration, newest first. Exits with 1 if there are any.

    `backflow incidents show ID` prints everything about one.
    """
    context.obj = config
    if context.invoked_subcommand is not None:
        return
    settings = load_for_state(config)
    with open_store(settings) as store:
        listed = partial(_listed, settings, store, **chosen)
        if watch:
            _watch(listed)
        lines = listed()
        click.echo("\n".join(lines) if lines else "no incidents", err=not lines and chosen["as_json"])
    sys.exit(FOUND if lines else 0)


@incidents_command.command("show", epilog=EPILOG)
@config_option
@click.argument("incident_id", metavar="ID")
@click.pass_obj
def show_command(of_group: Path | None, config: Path | None, incident_id: str) -> None:
    """Show all that is known of an incident: its message, all its findings, check reports and deliveries.

    The beginning of an id is enough, with or without INC-.
    """
    settings = load_for_state(config or of_group)
    with open_store(settings) as store:
        incident, now = find_incident(store, incident_id), now_ms()
        silence = find_silence(incident, active_silences(settings, store, now))
        for line in _shown(incident, silence, store):
            click.echo(visible(line))


def _watch(listed: Callable[[], list[str]]) -> None:
    """Show the list again and again until Ctrl-C."""
    try:
        while True:
            lines = listed() or ["no incidents"]
            click.clear()
            click.echo("\n".join([f"{rfc3339(now_ms())}, every {_WATCH_S} s", *lines]))
            time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        click.echo()


def _listed(
    settings: Settings,
    store: IncidentStore,
    *,
    with_closed: bool,
    only_open: bool,
    since: int | None,
    severity: str | None,
    group: str | None,
    as_json: bool,
) -> list[str]:
    """Return a line per chosen incident, newest first; JSON in order of opening."""
    now = now_ms()
    silences = active_silences(settings, store, now)
    chosen = [
        _with_silence(incident, silences)
        for incident in map(store.decisions.handled, store.incidents())
        if (incident.findings or incident.merged_into is not None)
        and (with_closed or as_json or (incident.status is not Status.CLOSED and incident.merged_into is None))
        and (not only_open or incident.status is Status.OPEN)
        and (since is None or incident.updated_at >= now - since)
        and (severity is None or incident.severity.rank >= Severity(severity).rank)
        and (group is None or _is_about(incident, group))
    ]
    if as_json:
        return [incident_json(incident) for incident in chosen]
    return [_line(incident) for incident in reversed(chosen)]


def _is_about(incident: Incident, pattern: str) -> bool:
    """Return whether a finding's reader matches the pattern."""
    subjects = [finding.subject for finding in incident.findings]
    names = {str(subject[key]) for subject in subjects for key in _READERS if subject.get(key) is not None}
    return any(fnmatchcase(name, pattern) for name in names | {reader(subject) for subject in subjects})


def _line(incident: Incident) -> str:
    message = report(incident)
    state = message.state if incident.merged_into is None else f"MERGED into {incident.merged_into}"
    decided = "".join(f" · {visible(part)}" for part in _decided(incident))
    began = second(incident.opened_at)
    return f"{incident.id}  {began}  {message.severity.upper():<8}  {state:<9}  {message.title}{decided}"


def _with_silence(incident: Incident, silences: Sequence[Silence]) -> Incident:
    silence = None if incident.status is Status.CLOSED else find_silence(incident, silences)
    return incident if silence is None else replace(incident, silenced_until=silence.ends_at)


def _decided(incident: Incident) -> Iterator[str]:
    """Yield until when an incident is silenced, who looks after it, and who closed it."""
    day = rfc3339(now_ms())[:10]
    if incident.silenced_until is not None:
        yield f"silenced until {instant(incident.silenced_until, day)}"
    if incident.acknowledged is not None:
        yield f"acknowledged by {incident.acknowledged.by} {instant(incident.acknowledged.at, day)}"
    if incident.closed is not None:
        yield f"closed by {incident.closed.by} {instant(incident.closed.at, day)}: {incident.closed.reason}"


def _shown(incident: Incident, silence: Silence | None, store: IncidentStore) -> Iterator[str]:
    yield from report(incident).lines()
    day = rfc3339(incident.opened_at)[:10]
    if silence is not None:
        until = instant(silence.ends_at, day)
        yield f"Silenced until {until} UTC by {silence.author} ({silence.id}): {silence.comment}"
    for heading, findings in (("Causes", incident.causes), ("Effects", incident.findings)):
        if findings:
            yield from ("", heading)
            for finding in sorted(findings, key=lambda finding: finding.at):
                first, second = describe_finding(finding, day)
                yield f"  {first}"
                yield f"{'':14}{second}"
    for lines in store.check_reports(incident.id):
        yield from ("", "Reported by a check")
        yield from (f"  {line}" for line in lines)
    yield from ("", "Deliveries")
    deliveries = store.deliveries(incident.id)
    yield from (f"  {describe_delivery(delivery, day)}" for delivery in deliveries)
    if not deliveries:
        yield "  none: no receiver is to be notified of it"
