"""A check as a command: `NAME OPTIONS` to findings on standard output and an exit status.

Standard output has one finding a line and nothing else. On standard error, lines that begin with "progress: " are for
people; the rest is log. Its last line says why a run failed: "The check NAME failed: " if that is all there is to know,
"The check NAME failed unexpectedly: " if the lines before have details.
"""

import difflib
import logging
import os
import pkgutil
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TypeAlias, cast

import click
from pyspark.sql import SparkSession

import spark_checks
from agent.config.requirements import OWN_PACKAGES
from agent.model.check_protocol import PLOT, PROGRESS, SUMMARY
from agent.model.exit_status import CLEAN, FAILED, FOUND, WRONG
from agent.model.findings import finding_json
from agent.model.text import count
from agent.storage.journal.failures import ReadError
from spark_checks.options import (
    Check,
    Options,
    Report,
    WrongUseError,
    common_options,
    parse_options,
    refuse_options,
    refuse_spark_options,
)
from spark_checks.session import merge_settings, session

OpenSession: TypeAlias = Callable[[str, Check, Options], AbstractContextManager[SparkSession]]
"""Provides the Spark session in which a check of this name runs, with its settings."""

_CAUSE = re.compile(r"(?:^|: )(?:agent|spark_checks)[\w.]+Error: (.+)|org\.apache\.spark\.Spark\w*Exception: (.+)")

_NAMED_FILES = 2
"""How many unreadable files are named."""

log = logging.getLogger("spark_checks")


def check_names() -> list[str]:
    """Return the names of the checks: the modules of this package that have `run`."""
    return [name for name in _modules() if hasattr(import_module(f"spark_checks.{name}"), "run")]


def load_check(name: str) -> Check:
    """Return the check of this name. Raises WrongUseError if there is none."""
    module = import_module(f"spark_checks.{name}") if name in _modules() else None
    if module is None or not hasattr(module, "run"):
        known = check_names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise WrongUseError([f"No check named {name}.{hint} Checks: {', '.join(known)}."])
    return cast("Check", module)


def parse(name: str, check: Check, arguments: Sequence[str], *, submitted: bool = False) -> Options:
    """Return the options of a command line. submitted: whether spark-submit started this process.

    Raises WrongUseError with all mistakes, click.exceptions.Exit after --help.
    """
    params = [*common_options(check), *check.PARAMS]
    command = click.Command(f"python -m spark_checks {name}", params=params, help=check.__doc__)
    try:
        values = command.make_context(command.name, list(arguments)).params
    except click.UsageError as error:
        raise WrongUseError([error.format_message()]) from error
    refused = list(refuse_spark_options(values)) if submitted else []
    options, mistakes = parse_options(values)
    mistakes[:0] = refused
    mistakes += [*refuse_options(check, options), *check.mistakes(options)]
    if mistakes:
        raise WrongUseError(mistakes)
    return options._replace(submitted=submitted)


def settings_of(check: Check, options: Options) -> dict[str, str]:
    """Return Spark's settings for a check: its own, overridden by those of --conf."""
    own: Mapping[str, str] = getattr(check, "CONF", {})
    return merge_settings(own, options.conf)


def own_session(name: str, check: Check, options: Options) -> AbstractContextManager[SparkSession]:
    """Provide a session for one check."""
    progress("starting Spark" if options.remote is None else f"connecting to {options.remote}")
    conf = settings_of(check, options)
    return session(name, options.master, conf, remote=options.remote, submitted=options.submitted)


def run_command(arguments: Sequence[str], open_session: OpenSession, *, submitted: bool = False) -> int:
    """Run a check, print its findings and return the exit status. arguments: its name and its options.

    submitted: whether spark-submit started this process. To Spark, an application with any status but 0 has failed, so
    findings do not change the status then.
    """
    name, *rest = arguments or ["--help"]
    try:
        if name in ("-h", "--help"):
            click.echo(f"Usage: python -m spark_checks NAME [OPTIONS]\n\nChecks: {', '.join(check_names())}")
            return CLEAN
        check = load_check(name)
        options = parse(name, check, rest, submitted=submitted)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except WrongUseError as error:
        click.echo("\n".join(error.mistakes), err=True)
        return WRONG
    except (OSError, ReadError) as error:
        click.echo(f"The check {name} {describe_failure(error)}", err=True)
        return FAILED
    if problem := find_java_problem(options):
        click.echo(problem, err=True)
        return FAILED
    try:
        with open_session(name, check, options) as spark:
            report = check.run(spark, options, progress)
        write_report(report, options)
    except Exception as error:
        if external_cause(error) is None:
            log.exception("check_failed")
        click.echo(f"The check {name} {describe_failure(error)}", err=True)
        return FAILED
    for finding in report.findings:
        click.echo(finding_json(finding))
    if report.unread:
        click.echo(f"The check {name} failed: {_describe_unread(report.unread)}", err=True)
        return FAILED
    progress("done: " + report.summary)
    return FOUND if report.findings and not submitted else CLEAN


def find_java_problem(options: Options) -> str | None:
    """Return why Spark cannot start without a JDK; None if it can, or if a server has it."""
    home = os.environ.get("JAVA_HOME")
    if (
        options.remote is not None
        or options.submitted
        or shutil.which("java" if not home else f"{home}/bin/java") is not None
    ):
        return None
    where = f"in JAVA_HOME, {home}" if home else "on the PATH"
    return f"Spark needs Java, but none is {where}: install a JDK, 17 or newer, or set JAVA_HOME."


def write_report(report: Report, options: Options) -> None:
    """Write the files of --report, if asked for."""
    if options.report is None:
        return
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / SUMMARY).write_text(report.summary + "\n", encoding="utf-8")
    if report.plot is not None:
        (options.report / PLOT).write_bytes(report.plot)


def describe_failure(error: Exception) -> str:
    """Return what happened and why, as the end of a sentence."""
    reason = external_cause(error)
    return f"failed unexpectedly: {_first_line(error)}" if reason is None else f"failed: {reason}"


def configure_log() -> None:
    """Log warnings to standard error."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")


def _modules() -> list[str]:
    found = pkgutil.iter_modules(spark_checks.__path__)
    return sorted(module.name for module in found if not module.ispkg and not module.name.startswith("_"))


def progress(text: str) -> None:
    """Print progress for people."""
    click.echo(f"{PROGRESS}{text}", err=True)


def external_cause(error: Exception) -> str | None:
    """Return what failed outside of this program, None for a defect in it.

    For an error from a worker or the JVM that is the line of its cause, deep in a stack trace.
    """
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if type(error).__module__.partition(".")[0] in OWN_PACKAGES:
        return str(error)
    causes = [found[1] or found[2] for line in _lines(error) if (found := _CAUSE.search(line))]
    return causes[0] if causes else None


def _first_line(error: Exception) -> str:
    return ": ".join([type(error).__name__, *_lines(error)[:1]])


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]


def _describe_unread(files: Sequence[str]) -> str:
    more = len(files) - _NAMED_FILES
    named = "; ".join([*files[:_NAMED_FILES], *([f"and {more:,} more"] if more > 0 else [])])
    return f"cannot read {count(len(files), 'file')}; all others were checked: {named}"
