"""The commands `run` and `check-config`: start the daemon, or validate its configuration."""

import os
import sys
import threading
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import NoReturn

import click
import structlog

from agent.cli.common import EPILOG, FAILED, PRIVATE, WRONG, config_option, config_path, fail, load_or_exit
from agent.config.credentials import Credential, CredentialError
from agent.config.problems import Problem, SettingsError, describe_path
from agent.config.requirements import find_spark_problem
from agent.config.settings import Settings, load
from agent.config.toml_places import KeyPath, find_places
from agent.daemon import logging
from agent.storage.database import StorageError
from agent.storage.journal.writer import JournalError

log = structlog.get_logger(__name__)


@click.command("run", epilog=EPILOG)
@config_option
def run_command(config: Path | None) -> None:
    """Monitor the configured clusters until SIGTERM or Ctrl-C. This is what systemd runs.

    SIGHUP reloads the configuration; a file with mistakes is refused, and the agent goes on with the old one.
    """
    settings = load_or_exit(config, need_clusters=True)
    if problems := secret_problems(settings, config_path(config)):
        fail(WRONG, "\n".join(str(problem) for problem, _ in problems))
    directory = settings.agent.state_directory
    os.umask(PRIVATE)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        fail(FAILED, f"cannot create the state directory {directory}: {reason}; set state_directory in [agent]")
    logging.configure(settings.agent.log_format)
    if settings.spark.enabled and (problem := find_spark_problem()):
        log.warning("spark_checks_disabled", reason=problem)
        settings = settings._replace(spark=settings.spark.model_copy(update={"enabled": False}))
    from agent.daemon.daemon import Daemon  # noqa: PLC0415 - the clients take a second to load

    try:
        status = Daemon(settings).run(lambda: _may_replace(config, directory))
    except (CredentialError, JournalError, StorageError, OSError) as error:
        _leave(str(error))
    except Exception as error:
        log.exception("daemon_failed")
        _leave(f"Backflow ends because of an internal error: {error!r}; please report it with the traceback in its log")
    if status is None:  # in a new image of the process, so that nothing of the old configuration is left
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - its own command line
    _end(status)


def _leave(message: str) -> NoReturn:
    click.echo(message, err=True)
    _end(FAILED)


def _end(status: int) -> NoReturn:
    """End the process even if a thread hangs, which would keep the interpreter waiting and deaf to signals."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _may_replace(config: Path | None, state_directory: Path) -> bool:
    """Return whether the configuration file is valid, after logging why it is not."""
    reason = ""
    try:
        settings = load(config_path(config), need_clusters=True)
        reason = "; ".join(str(problem) for problem, _ in secret_problems(settings, config_path(config)))
        if not reason and settings.agent.state_directory != state_directory:
            reason = "state_directory cannot change while the agent runs: restart it"
    except SettingsError as error:
        reason = "; ".join(map(str, error.problems))
    if reason:
        log.error("configuration_refused", path=str(config_path(config)), reason=reason)
    return not reason


@click.command("check-config", epilog=EPILOG)
@config_option
def check_config_command(config: Path | None) -> None:
    """Validate the configuration and list all mistakes with their lines.

    Paths that do not exist on this host are warnings: they may be created later. So are secrets that only the service
    may have: environment variables and systemd credentials.
    """
    settings = load_or_exit(config, need_clusters=False)
    path = config_path(config)
    places = find_places(path.read_text(encoding="utf-8-sig"))
    for key, message in missing_paths(settings):
        click.echo(f"{path}:{places[key].line}: warning: [{key[0]}.{key[1]}] {key[2]}: {message}", err=True)
    if settings.spark.enabled and (missing := find_spark_problem()):
        click.echo(f"{path}: warning: {missing}; without, set enabled = false in [spark]", err=True)
    mistakes = []
    for problem, source in secret_problems(settings, path):
        if source.file is not None:
            mistakes.append(str(problem))
        else:  # only the service may have it
            click.echo(f"{problem.path}:{problem.line}: warning: {problem.where}: {problem.message}", err=True)
    if mistakes:
        fail(WRONG, "\n".join(mistakes))
    tables = {name: getattr(settings, name) for name in ("clusters", "flink", "streams", "logs")}
    monitored = "; ".join(f"{table}: {', '.join(names)}" for table, names in tables.items() if names)
    monitored = monitored or "nothing to monitor yet: `backflow run` needs [clusters.NAME]"
    receiver = "the console" if settings.slack is None else "Slack"
    rules, correlations = len(settings.rules), len(settings.correlations)
    click.echo(f"{path}: {rules} rules, {correlations} correlations; {monitored}; incidents go to {receiver}")


def secret_problems(settings: Settings, path: Path) -> list[tuple[Problem, Credential]]:
    """Return what is wrong with the secrets that the configuration at the path names, with their sources."""
    places = find_places(path.read_text(encoding="utf-8-sig"))
    return [
        (Problem(str(path), places[key].line, describe_path(key), reason), source)
        for key, source, reason in settings.unreadable_secrets()
    ]


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
