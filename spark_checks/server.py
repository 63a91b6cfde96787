"""Command `python -m spark_checks.server [OPTIONS] [NAME]`: runs checks one after the other and keeps Spark's session.

A request is a line of standard input: the arguments of `python -m spark_checks` as a JSON list. Outputs are those of
that command; after each check both have a line `ended: STATUS`. The server ends with its input.

Spark starts at once, with the settings of the check NAME. OPTIONS are those for Spark, as all requests have them. A
Spark Connect server keeps no session: each check opens one of its own.
"""

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO

import click

from agent.model.check_protocol import ENDED
from agent.model.exit_status import CLEAN, FAILED, WRONG
from spark_checks.command import (
    configure_log,
    describe_failure,
    external_cause,
    find_java_problem,
    load_check,
    own_session,
    run_command,
)
from spark_checks.kept_session import kept_session
from spark_checks.options import COMMON, Options, WrongUseError, parse_options

log = logging.getLogger("spark_checks")


def main(arguments: Sequence[str]) -> int:
    """Serve until the input ends and return the exit status."""
    configure_log()
    requests = _take_input()
    try:
        name, options = _parse(arguments)
        first = None if name is None else load_check(name)
    except WrongUseError as error:
        click.echo("\n".join(error.mistakes), err=True)
        return WRONG
    if problem := find_java_problem(options):
        click.echo(problem, err=True)
        return FAILED
    with ExitStack() as stack:
        try:
            open_session = own_session if options.remote else stack.enter_context(kept_session(first, options))
        except Exception as error:
            if external_cause(error) is None:
                log.exception("spark_not_started")
            click.echo(f"Starting Spark {describe_failure(error)}", err=True)
            return FAILED
        for line in requests:
            status = run_command(json.loads(line), open_session)
            # On the log after a newline: the JVM may be in the middle of a line.
            click.echo(f"\n{ENDED}{status}", err=True)
            click.echo(f"{ENDED}{status}")
    return CLEAN


def _parse(arguments: Sequence[str]) -> tuple[str | None, Options]:
    """Return the name of a check, if given, and the options. Raises WrongUseError."""
    params = [*COMMON, click.Argument(["name"], required=False)]
    command = click.Command("python -m spark_checks.server", params=params)
    try:
        values = command.make_context(command.name, list(arguments)).params
    except click.UsageError as error:
        raise WrongUseError([error.format_message()]) from error
    name = values.pop("name")
    options, mistakes = parse_options(values)
    if mistakes:
        raise WrongUseError(mistakes)
    return name, options


def _take_input() -> IO[str]:
    """Return the requests; what reads standard input from now on, such as a child process, finds nothing."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    with open(os.devnull, encoding="utf-8") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    return requests


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
