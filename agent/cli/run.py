"""The commands `run` and `check-config`: start the daemon, or validate its configuration."""

import sys
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import click

from agent.cli.common import EPILOG, FAILED, WRONG, config_option, config_path, fail, load_or_exit
from agent.config.credentials import CredentialError
from agent.config.settings import Settings
from agent.config.toml_places import KeyPath, find_places
from agent.daemon import logging
from agent.storage.database import StorageError
from agent.storage.journal import JournalError


@click.command("run", epilog=EPILOG)
@config_option
def run_command(config: Path | None) -> None:
    """Monitor the configured clusters until SIGTERM or Ctrl-C. This is what systemd runs."""
    settings = load_or_exit(config, need_clusters=True)
    directory = settings.agent.state_directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        fail(FAILED, f"cannot create the state directory {directory}: {reason}; set state_directory in [agent]")
    logging.configure(settings.agent.log_format)
    from agent.daemon.daemon import Daemon  # noqa: PLC0415 - the clients take a second to load

    try:
        daemon = Daemon(settings)
    except CredentialError as error:
        fail(WRONG, str(error))
    except (JournalError, StorageError, OSError) as error:
        fail(FAILED, str(error))
    sys.exit(daemon.run())


@click.command("check-config", epilog=EPILOG)
@config_option
def check_config_command(config: Path | None) -> None:
    """Validate the configuration and list all mistakes with their lines.

    Paths that do not exist on this host are warnings: they may be created later.
    """
    settings = load_or_exit(config, need_clusters=False)
    path = config_path(config)
    places = find_places(path.read_text(encoding="utf-8-sig"))
    for key, message in missing_paths(settings):
        click.echo(f"{path}:{places[key].line}: warning: [{key[0]}.{key[1]}] {key[2]}: {message}", err=True)
    tables = {name: getattr(settings, name) for name in ("clusters", "flink", "streams", "logs")}
    monitored = "; ".join(f"{table}: {', '.join(names)}" for table, names in tables.items() if names)
    monitored = monitored or "nothing to monitor yet: `backflow run` needs [clusters.NAME]"
    receiver = "the console" if settings.slack is None else "Slack"
    rules, correlations = len(settings.rules), len(settings.correlations)
    click.echo(f"{path}: {rules} rules, {correlations} correlations; {monitored}; incidents go to {receiver}")


def missing_paths(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key path and a message for each configured path that does not exist on this host. URLs are skipped."""
    for name, logs in settings.logs.items():
        for index, pattern in enumerate(logs.paths):
            matches = glob(pattern, recursive=True)  # noqa: PTH207 - patterns may be absolute
            if not matches:
                yield ("logs", name, "paths", index), f"no file matches {pattern}"
            elif all(_problem(Path(match), directory=True) is None for match in matches):
                message = f"only directories match {pattern}; name the files in them"
                yield ("logs", name, "paths", index), message
    for name, flink in settings.flink.items():
        storage = flink.storage_directory
        if storage is not None and (problem := _problem(storage, directory=True)):
            yield ("flink", name, "storage_directory"), problem
    for name, cluster in settings.clusters.items():
        for broker, paths in cluster.log_directories.items():
            for path in paths:
                if "://" not in path and (problem := _problem(Path(path))):
                    yield ("clusters", name, "log_directories", str(broker)), problem


def _problem(path: Path, *, directory: bool = False) -> str | None:
    try:
        exists = path.is_dir() if directory else path.exists()
    except OSError as error:  # the agent may run as another user
        return f"{path} cannot be accessed: {error.strerror}"
    return None if exists else f"{'directory ' if directory else ''}{path} does not exist"
