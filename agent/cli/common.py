"""Options and error handling that the commands of `backflow` share."""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click
import structlog
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from agent.config.loading import load
from agent.config.problems import SettingsError
from agent.config.settings import Settings
from agent.config.shipped import shipped
from agent.model.config_types import duration
from agent.model.exit_status import WRONG
from agent.model.findings import Incident, incident_json
from agent.notify.receivers import KINDS as RECEIVERS
from agent.render.report import report

_SERVICE_STATE = Path("/var/lib/backflow")
"""The state directory of the service that the package installs."""

_STATE_DIRECTORY = re.compile(r"""^\s*state_directory\s*=\s*["'](?P<path>[^"']+)""", re.MULTILINE)
"""Where a file names the state directory, which may be no valid TOML elsewhere."""

DENIED = "permission denied; run this as the agent's user or as root, for example with sudo"
"""The end of an error: the state directory is open to these users only."""

PRIVATE = 0o077
"""The umask of commands that write state: only the user who runs them can read it."""

EPILOG = "Exit status: 0 nothing to report, 1 findings, 2 wrong usage or configuration, 3 failure."

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    help="The configuration. Default: ./rules.toml if it exists, else the shipped rules.",
)


def config_path(config: Path | None) -> Path:
    """Return the path of the configuration to read."""
    if config is not None:
        return config
    exists = os.path.exists("rules.toml")  # noqa: PTH110 - False in a closed folder, where Path raises
    return Path("rules.toml") if exists else shipped()


def silence_logs() -> None:
    """Log nothing in this process: what its sources and clients would log, the command prints."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)


def load_config(config: Path | None, *, need_clusters: bool) -> Settings:
    """Return the settings. Raises SettingsError."""
    return load(config_path(config), need_clusters=need_clusters, receivers=RECEIVERS)


def load_or_exit(config: Path | None, *, need_clusters: bool) -> Settings:
    """Return the settings; exit with status 2 and all mistakes if the configuration is invalid."""
    try:
        return load_config(config, need_clusters=need_clusters)
    except SettingsError as error:
        fail(WRONG, str(error))


def load_for_state(config: Path | None) -> Settings:
    """Return the settings for a command that needs little more than the state directory.

    While rules.toml has mistakes, the agent goes on with what it read before, and its state can be read and changed:
    they are warnings, and the shipped settings stand for the rest of the file. If neither the file nor the environment
    names a state directory and this folder has none, that of the service is meant.
    """
    settings = _load_in_spite_of_mistakes(config)
    agent = settings.agent
    is_named = "state_directory" in agent.model_fields_set or "STATE_DIRECTORY" in os.environ
    if is_named or os.path.lexists(agent.state_directory) or not os.path.lexists(_SERVICE_STATE):
        return settings
    return settings._replace(agent=agent.model_copy(update={"state_directory": _SERVICE_STATE}))


def _load_in_spite_of_mistakes(config: Path | None) -> Settings:
    try:
        return load_config(config, need_clusters=False)
    except SettingsError as error:
        path = config_path(config)
        if not os.path.isfile(path):  # noqa: PTH113 - as above
            fail(WRONG, str(error))
        for problem in error.problems:
            click.echo(f"warning: {problem}", err=True)
        click.echo(f"warning: until then, clusters, rules and silences of {path} are unknown here", err=True)
        found = _STATE_DIRECTORY.search(path.read_text(encoding="utf-8", errors="replace"))
        overrides = {} if found is None else {"agent": {"state_directory": found["path"]}}
        return load(shipped(), need_clusters=False, overrides=overrides)._replace(is_substitute=True)


def parsed_by(parse: Callable[[str], int]) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """Return the callback of an option that is read by `parse`; its ValueError says what is wrong with the value."""

    def callback(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error

    return callback


def wait_option(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option `--wait`, in ms, of a command that asks sources. what: what it limits, for the help."""
    return click.option(
        "--wait", default="30s", show_default=True, callback=parsed_by(duration), metavar="DURATION", help=what
    )


def fail(status: int, message: str) -> NoReturn:
    """Print the message to standard error and exit."""
    click.echo(message, err=True)
    sys.exit(status)


def print_incidents(incidents: list[Incident], *, as_json: bool) -> None:
    """Print incidents as reports, or as one JSON object per line."""
    for incident in incidents:
        if as_json:
            click.echo(incident_json(incident))
        elif incident.merged_into is None:
            click.echo("\n".join(report(incident).lines()) + "\n")
    if not as_json and not incidents:
        click.echo("no incidents")


@contextmanager
def progress(name: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress on standard error: one changing line on a terminal, else line by line."""
    if sys.stderr.isatty():
        spinner = Spinner("dots", f"{name}: starting")
        # Standard output is not redirected: it may be a file.
        with Live(spinner, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False):
            yield lambda text: spinner.update(text=f"{name}: {text}")
    else:
        yield lambda text: click.echo(f"{name}: {text}", err=True)
