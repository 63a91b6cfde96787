"""The command `run`: start the daemon."""

import os
import signal
import sys
import threading
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import NoReturn

import click
import structlog

from agent.cli.common import EPILOG, PRIVATE, config_option, config_path, fail, load_config, load_or_exit
from agent.config.credentials import CredentialError
from agent.config.problems import SettingsError
from agent.config.requirements import find_spark_problem
from agent.config.warnings import missing_rules, secret_problems, state_directory_problems
from agent.daemon import logging
from agent.model.exit_status import FAILED, WRONG
from agent.storage.database import StorageError
from agent.storage.journal.writer import JournalError

log = structlog.get_logger(__name__)


@click.command("run", epilog=EPILOG)
@config_option
def run_command(config: Path | None) -> None:
    """Monitor the configured clusters until SIGTERM or Ctrl-C. This is what systemd runs.

    SIGHUP reloads the configuration; a file with mistakes is refused, and the agent goes on with the old one.
    """
    _hold_reloads()
    settings = load_or_exit(config, need_clusters=True)
    path = config_path(config)
    problems = [*state_directory_problems(settings, path), *(problem for problem, _ in secret_problems(settings, path))]
    if problems:
        fail(WRONG, "\n".join(map(str, problems)))
    directory = settings.agent.state_directory
    os.umask(PRIVATE)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        fail(WRONG, f"cannot create the state directory {directory}: {reason}; set state_directory in [agent]")
    logging.configure(settings.agent.log_format)
    for reason in missing_rules(settings):
        log.warning("rules_missing", reason=reason)
    if settings.spark.enabled and (problem := find_spark_problem(remote=settings.spark.remote)):
        log.warning("spark_checks_disabled", reason=problem)
        settings = settings._replace(spark=settings.spark.model_copy(update={"enabled": False}))
    leave_pandas_out()
    from agent.daemon.daemon import Daemon  # noqa: PLC0415 - the clients take a second to load

    try:
        status = Daemon(settings).run(lambda: _may_replace(config, directory))
    except (CredentialError, JournalError, StorageError, OSError) as error:
        _leave(str(error))
    except Exception as error:
        log.exception("daemon_failed")
        _leave(f"Backflow ends because of an internal error: {error!r}; please report it with the traceback in its log")
    if status is None:  # in a new image of the process, so that nothing of the old configuration is left
        _hold_reloads()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - its own command line
    _end(status)


def _hold_reloads() -> None:
    """Let SIGHUP wait until the daemon takes it, also in a new image: before that it would end the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def leave_pandas_out() -> None:
    """Let this process believe that pandas is not installed.

    pyarrow imports it to see whether a value is one of its: 40 MiB, of which the daemon uses nothing.
    """
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


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
        settings = load_config(config, need_clusters=True)
        reason = "; ".join(str(problem) for problem, _ in secret_problems(settings, config_path(config)))
        if not reason and settings.agent.state_directory != state_directory:
            reason = "state_directory cannot change while the agent runs: restart it"
    except SettingsError as error:
        reason = "; ".join(map(str, error.problems))
    if reason:
        log.error("configuration_refused", path=str(config_path(config)), reason=reason)
    return not reason
