"""A check run by an operator: options filled in from rules.toml, progress and findings shown as they come."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from agent.checks.arguments import OF_CHANGELOGS, ON_JOURNAL, client_options, clusters, places, servers, spark_options
from agent.checks.process import Limits, Outcome, run_check
from agent.config.credentials import CredentialError
from agent.config.settings import Settings
from agent.model.findings import Finding
from agent.model.observations import rfc3339
from agent.model.text import place

_DONE = "done: "


class WrongUseError(Exception):
    """Options that do not say what to look at; a sentence."""


def filled_in(name: str, options: Sequence[str], settings: Settings, scratch: Path) -> list[str]:
    """The options with what rules.toml knows before them: what is given overrules it. Raises WrongUseError.

    scratch: where Spark may write.
    """
    known = spark_options(settings.spark, scratch)
    cluster = _value(options, "--cluster")
    place = "--bootstrap-servers" if name == OF_CHANGELOGS else "--journal" if name in ON_JOURNAL else "--path"
    if _value(options, place) is not None:
        return [*known, *options]
    there_are = clusters(name, settings)
    if cluster is None and len(there_are) > 1:
        msg = f"which cluster? name it with --cluster; there are: {', '.join(there_are)}"
        raise WrongUseError(msg)
    if cluster is None and there_are:
        cluster = next(iter(there_are))
        known += ["--cluster", cluster]
    named = name == OF_CHANGELOGS and _value(options, "--store") is not None
    found = servers(settings, cluster) if named else places(name, settings, cluster)
    try:
        return [*known, *found, *client_options(name, settings, cluster, scratch), *options]
    except CredentialError as error:
        raise WrongUseError(str(error)) from error


def _value(options: Sequence[str], name: str) -> str | None:
    """The last value given to an option; None where it is not given."""
    given = None
    for index, one in enumerate(options):
        if one == name:
            given = "".join(options[index + 1 : index + 2])
        elif one.startswith(f"{name}="):
            given = one.removeprefix(f"{name}=")
    return given


def run_by_hand(name: str, options: Sequence[str], *, as_json: bool) -> Outcome:
    """Run it and print what it finds: in words, or its own lines of JSON. Ctrl-C ends it with all that it started."""
    summary = ""
    with ExitStack() as display:
        show = display.enter_context(_progress(name))

        def progress(text: str) -> None:
            nonlocal summary
            if text.startswith(_DONE):
                summary = text.removeprefix(_DONE)
            else:
                show(text)

        def found(finding: Finding, line: str) -> None:
            display.close()  # findings come at the end; a line that changes would stand in their way
            click.echo(line if as_json else words(finding))

        outcome = run_check([name, *options], Limits(), threading.Event(), progress=progress, found=found)
    if outcome.outcome != "failed" and summary:
        click.echo(summary, err=as_json)
    return outcome


def words(finding: Finding) -> str:
    """A finding as people read it: how grave, where, what; below it since when, which file and byte, which labels."""
    brokers = finding.subject.get("brokers") or [one for one in [finding.subject.get("broker")] if one is not None]
    on = f" on broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, brokers))}" if brokers else ""
    file = finding.subject.get("file")
    at = "" if finding.position is None else f" at byte {finding.position:,}"
    told = file is None or file in finding.detail
    notes = [rfc3339(finding.at), *([] if told else [f"{file}{at}"]), *finding.labels]
    where = f"{place(finding.subject)}{on}: "
    where = "" if finding.detail.startswith(where) else where
    return f"{finding.severity.upper():<8}  {where}{finding.detail}\n          {' · '.join(notes)}"


@contextmanager
def _progress(name: str) -> Iterator[Callable[[str], None]]:
    """How to show progress: in one line that changes on a terminal, else line by line; on standard error."""
    if sys.stderr.isatty():
        line = Spinner("dots", f"{name}: starting")
        # Standard output is left alone: it may be a file.
        with Live(line, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False):
            yield lambda text: line.update(text=f"{name}: {text}")
    else:
        yield lambda text: click.echo(f"{name}: {text}", err=True)
