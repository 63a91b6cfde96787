"""The command group `incidents`: list an agent's stored incidents, or show all that is known of one."""

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import click

from agent.cli.common import EPILOG, FAILED, FOUND, WRONG, config_option, fail, load_or_exit, parsed_by
from agent.daemon.tables import describe_delivery, describe_finding
from agent.model.config_types import duration
from agent.model.findings import Incident, Severity, Status, incident_json, reader
from agent.model.times import rfc3339
from agent.notify.dispatcher import now_ms
from agent.render.report import report
from agent.storage.database import FILE, StorageError
from agent.storage.incidents import IncidentStore
from agent.storage.state_file import current

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
    with _store(config) as store:
        listed = partial(_listed, store, **chosen)
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
    with _store(config or of_group) as store:
        wanted = incident_id.upper().removeprefix("INC-")
        found = [incident for incident in store.incidents() if incident.id.removeprefix("INC-").startswith(wanted)]
        if len(found) != 1:
            names = ", ".join(incident.id for incident in found)
            fail(
                WRONG, f"several incidents begin with {incident_id}: {names}" if found else f"no incident {incident_id}"
            )
        (incident,) = found
        for line in _shown(incident, store):
            click.echo(line)


@contextmanager
def _store(config: Path | None) -> Iterator[IncidentStore]:
    """Open the state file of the configured agent; exit with a sentence if there is none or it cannot be read."""
    path = current(load_or_exit(config, need_clusters=False).agent.state_directory / FILE)
    if not path.exists():
        fail(WRONG, f"{path}: no agent has run with this state directory; give its configuration with --config")
    try:
        with IncidentStore(path) as store:
            yield store
    except (StorageError, sqlite3.Error) as error:
        fail(FAILED, str(error))


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
    chosen = [
        incident
        for incident in store.incidents()
        if (incident.findings or incident.merged_into is not None)
        and (with_closed or as_json or (incident.status is not Status.CLOSED and incident.merged_into is None))
        and (not only_open or incident.status is Status.OPEN)
        and (since is None or incident.updated_at >= now_ms() - since)
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
    began = rfc3339(incident.opened_at)[:19].replace("T", " ")
    return f"{incident.id}  {began}  {message.severity.upper():<8}  {state:<9}  {message.title}"


def _shown(incident: Incident, store: IncidentStore) -> Iterator[str]:
    yield from report(incident).lines()
    day = rfc3339(incident.opened_at)[:10]
    for heading, findings in (("Causes", incident.causes), ("Effects", incident.findings)):
        if findings:
            yield f"\n{heading}"
            for finding in sorted(findings, key=lambda finding: finding.at):
                first, second = describe_finding(finding, day)
                yield f"  {first}"
                yield f"{'':14}{second}"
    for lines in store.check_reports(incident.id):
        yield "\nReported by a check"
        yield from (f"  {line}" for line in lines)
    yield "\nDeliveries"
    deliveries = store.deliveries(incident.id)
    yield from (f"  {describe_delivery(delivery, day)}" for delivery in deliveries)
    if not deliveries:
        yield "  none: no receiver is to be notified of it"
