"""The command `incidents`: list the stored incidents of an agent."""

import sqlite3
import sys
from pathlib import Path

import click

from agent.cli.common import EPILOG, FAILED, FOUND, WRONG, config_option, fail, load_or_exit, print_incidents
from agent.model.findings import Status
from agent.storage.database import FILE, StorageError
from agent.storage.incidents import IncidentStore
from agent.storage.state_file import current


@click.command("incidents", epilog=EPILOG)
@config_option
@click.option("--all", "with_closed", is_flag=True, help="Include closed and merged incidents.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line; includes closed and merged incidents."
)
def incidents_command(config: Path | None, *, with_closed: bool, as_json: bool) -> None:
    """List the incidents of the agent with this configuration. Exits with 1 if there are any."""
    settings = load_or_exit(config, need_clusters=False)
    path = current(settings.agent.state_directory / FILE)
    if not path.exists():
        fail(WRONG, f"{path}: no agent has run with this state directory; give its configuration with --config")
    try:
        with IncidentStore(path) as store:
            incidents = [found for found in store.incidents() if found.findings or found.merged_into is not None]
    except (StorageError, sqlite3.Error) as error:
        fail(FAILED, str(error))
    if not (with_closed or as_json):
        incidents = [incident for incident in incidents if incident.status is not Status.CLOSED]
    print_incidents(incidents, as_json=as_json)
    sys.exit(FOUND if incidents else 0)
