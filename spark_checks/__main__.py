"""The command `python -m spark_checks NAME`: options in, findings and an exit status out. No check lives here.

Standard output holds one finding a line and nothing else. On standard error, lines that begin with "progress: " are
for people; the rest is log, and its last line says in a sentence why a run failed: "The check NAME failed: " where that
is all there is to know, "The check NAME failed unexpectedly: " where the lines before may tell more.
"""

import difflib
import logging
import os
import pkgutil
import re
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import cast

import click

import spark_checks
from agent.cli.common import CLEAN, FAILED, FOUND, WRONG
from agent.model.findings import finding_json
from agent.model.text import count
from spark_checks.options import Check, Options, Report, WrongUseError, common, options, refused
from spark_checks.session import SHIPPED, overruled, session

_CAUSE = re.compile(r"(?:^|: )(?:agent|spark_checks)[\w.]+Error: (.+)|org\.apache\.spark\.Spark\w*Exception: (.+)")

_NAMED = 2
"""How many files that could not be read are named."""

log = logging.getLogger("spark_checks")


def names() -> list[str]:
    """The checks that there are: the modules of this package that can `run`."""
    return [name for name in _modules() if hasattr(import_module(f"spark_checks.{name}"), "run")]


def check(name: str) -> Check:
    """The check of this name. Raises WrongUseError where there is none."""
    module = import_module(f"spark_checks.{name}") if name in _modules() else None
    if module is None or not hasattr(module, "run"):
        known = names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise WrongUseError([f"There is no check named {name}.{hint} There are: {', '.join(known)}."])
    return cast("Check", module)


def parse(name: str, chosen: Check, arguments: Sequence[str]) -> Options:
    """The options of a command line. Raises WrongUseError with all mistakes, click.exceptions.Exit after --help."""
    command = click.Command(
        f"python -m spark_checks {name}", params=[*common(chosen), *chosen.PARAMS], help=chosen.__doc__
    )
    try:
        values = command.make_context(command.name, list(arguments)).params
    except click.UsageError as error:
        raise WrongUseError([error.format_message()]) from error
    made, mistakes = options(values)
    mistakes += [*refused(chosen, made), *chosen.mistakes(made)]
    if mistakes:
        raise WrongUseError(mistakes)
    return made


def run(name: str, chosen: Check, asked: Options) -> Report:
    """Run the check in a Spark session of its own and write the report where it was asked for."""
    _tell("starting Spark")
    with session(name, asked.master, overruled(getattr(chosen, "CONF", {}), asked.conf)) as spark:
        report = chosen.run(spark, asked, _tell)
    if asked.report is not None:
        asked.report.mkdir(parents=True, exist_ok=True)
        (asked.report / "summary.txt").write_text(report.summary + "\n")
        if report.plot is not None:
            (asked.report / "plot.png").write_bytes(report.plot)
    return report


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    name, *rest = arguments or ["--help"]
    try:
        if name in ("-h", "--help"):
            click.echo(f"Usage: python -m spark_checks NAME [OPTIONS]\n\nChecks: {', '.join(names())}")
            return CLEAN
        chosen = check(name)
        asked = parse(name, chosen, rest)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except WrongUseError as error:
        click.echo("\n".join(error.mistakes), err=True)
        return WRONG
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java" if not home else f"{home}/bin/java") is None:
        where = f"in JAVA_HOME, {home}" if home else "on the PATH"
        click.echo(
            f"Spark needs Java, and there is none {where}: install a JDK, 17 or newer, or set JAVA_HOME.", err=True
        )
        return FAILED
    try:
        report = run(name, chosen, asked)
    except Exception as error:
        told = _expected(error)
        if told is not None:
            click.echo(f"The check {name} failed: {told}", err=True)
        else:
            log.exception("The traceback, for those who look into it:")
            click.echo(f"The check {name} failed unexpectedly: {_first_line(error)}", err=True)
        return FAILED
    for finding in report.findings:
        click.echo(finding_json(finding))
    if report.unread:
        click.echo(f"The check {name} failed: {_unread(report.unread)}", err=True)
        return FAILED
    _tell("done: " + report.summary)
    return FOUND if report.findings else CLEAN


def _modules() -> list[str]:
    found = pkgutil.iter_modules(spark_checks.__path__)
    return sorted(one.name for one in found if not one.ispkg and not one.name.startswith("_"))


def _tell(words: str) -> None:
    click.echo(f"progress: {words}", err=True)


def _expected(error: Exception) -> str | None:
    """What an operator is told of what went wrong outside of this program; None of a defect in it.

    Of an error from a worker or the JVM it is the line of its cause, deep in a stack.
    """
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if type(error).__module__.partition(".")[0] in SHIPPED:
        return str(error)
    causes = [found[1] or found[2] for line in _lines(error) if (found := _CAUSE.search(line))]
    return causes[0] if causes else None


def _first_line(error: Exception) -> str:
    return ": ".join([type(error).__name__, *_lines(error)[:1]])


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]


def _unread(sentences: Sequence[str]) -> str:
    more = len(sentences) - _NAMED
    named = "; ".join([*sentences[:_NAMED], *([f"and {more:,} more"] if more > 0 else [])])
    return f"{count(len(sentences), 'file')} could not be read, all others were: {named}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
