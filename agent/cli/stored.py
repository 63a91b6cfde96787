"""The stored state of an agent, for commands that run beside it or without it; who runs them."""

import getpass
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from agent.cli.common import DENIED, fail
from agent.config.settings import Settings
from agent.model.encoding import printable
from agent.model.exit_status import FAILED, WRONG
from agent.model.findings import Incident
from agent.model.matchers import Silence
from agent.storage.database import FILE, StorageError
from agent.storage.incidents import IncidentStore
from agent.storage.state_file import current


def find_state_file(settings: Settings) -> Path:
    """Return the state file of the configured agent; exit with a sentence if there is none."""
    path = current(settings.agent.state_directory / FILE)
    try:
        path.stat()
    except PermissionError:
        fail(FAILED, f"{path}: {DENIED}")
    except OSError:
        fail(
            WRONG,
            f"{path}: no agent has run with this state directory; give the agent's configuration with --config, or its "
            "state directory as the environment variable STATE_DIRECTORY",
        )
    return path


@contextmanager
def open_store(settings: Settings) -> Iterator[IncidentStore]:
    """Open the state file of the configured agent; exit with a sentence if there is none or it cannot be used."""
    path = find_state_file(settings)
    try:
        with IncidentStore(path) as store:
            yield store
    except (StorageError, sqlite3.Error) as error:
        fail(FAILED, str(error))


def find_incident(store: IncidentStore, beginning: str) -> Incident:
    """Return the incident whose id begins so, with what operators decided; exit if there is not exactly one."""
    wanted = beginning.upper().removeprefix("INC-")
    found = [incident for incident in store.incidents() if incident.id.removeprefix("INC-").startswith(wanted)]
    if len(found) != 1:
        names = ", ".join(incident.id for incident in found)
        fail(WRONG, f"several incidents begin with {beginning}: {names}" if found else f"no incident {beginning}")
    return store.decisions.handled(found[0])


def active_silences(settings: Settings, store: IncidentStore, now: int) -> list[Silence]:
    """Return the silences that last at `now` (ms): of the configuration and of the state file."""
    return [*settings.silences_at(now), *(added for added in store.decisions.silences(now) if added.is_active(now))]


def _author(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    try:
        return printable(value or os.environ.get("SUDO_USER") or getpass.getuser())
    except (KeyError, OSError) as error:  # a user without a name; Python 3.13 changed the error
        reason = "this user has no name; give yours"
        raise click.BadParameter(reason, context, parameter) from error


author_option = click.option("--author", callback=_author, help="Who decides it. Default: the name of the user.")
