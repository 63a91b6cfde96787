"""The commands `check` and `digest`: run a Spark check by hand, and write the digest of a broker's log."""

import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.progress import Progress

from agent.checks.arguments import (
    INPUT_OPTIONS,
    client_options,
    clusters_of,
    input_of,
    input_options,
    server_options,
    spark_options,
)
from agent.checks.process import Limits, Outcome, run_check
from agent.cli.common import EPILOG, config_option, fail, load_or_exit, parsed_by, progress
from agent.config.checks import size
from agent.config.child_processes import ARCHIVE, SPARK, python_environment, python_module
from agent.config.credentials import CredentialError
from agent.config.problems import did_you_mean
from agent.config.requirements import find_pyspark_problem, find_spark_problem
from agent.config.settings import Settings
from agent.engine.check_rule import CheckInput
from agent.model.exit_status import FAILED, FOUND, WRONG
from agent.model.findings import Finding
from agent.model.text import count, place, visible
from agent.model.times import rfc3339
from agent.rules import CHECKS

_DONE = "done: "


class _UsageError(Exception):
    """The options do not say what to examine."""


class _CheckCommand(click.Command):
    """A command whose help lists the checks."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Checks"):
            formatter.write_dl(list(CHECKS.items()))
        super().format_epilog(ctx, formatter)


@click.command(
    "check",
    cls=_CheckCommand,
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("name", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and finding.")
@click.option("-h", "--help", "wants_help", is_flag=True, help="Show this message; with NAME, the check's own options.")
@click.pass_context
def check_command(
    context: click.Context,
    name: str | None,
    options: tuple[str, ...],
    config: Path | None,
    *,
    as_json: bool,
    wants_help: bool,
) -> None:
    """Run a Spark check and print its findings.

    OPTIONS are the check's own; `backflow check NAME --help` lists them. The configuration provides the rest: Spark's
    settings, the journal, and the brokers' log directories of --cluster or of the only cluster. Needs a JDK.
    """
    if name is None:
        click.echo(context.get_help())
        return
    if name not in CHECKS:
        fail(WRONG, f"unknown check `{name}`{did_you_mean(name, CHECKS)}")
    if wants_help:
        click.echo(_help(context, name))
        return
    settings = load_or_exit(config, need_clusters=False)
    try:
        with TemporaryDirectory(prefix="backflow-check-") as scratch:
            arguments = _with_configured(name, options, settings, Path(scratch))
            outcome = _run(name, arguments, settings, as_json=as_json)
    except (_UsageError, CredentialError) as error:
        fail(WRONG, str(error))
    except KeyboardInterrupt:
        fail(FAILED, f"{name} was interrupted")
    if outcome.status == WRONG:
        fail(WRONG, "\n".join(outcome.log))
    if outcome.outcome == "failed":
        fail(FAILED, _failure(name, outcome))
    sys.exit(outcome.status)


def _with_configured(name: str, options: Sequence[str], settings: Settings, scratch: Path) -> list[str]:
    """Return the options preceded by those from rules.toml, which they override.

    scratch: a directory for Spark's temporary files.
    """
    # What is configured for a master is of no use to a Spark Connect server, and the reverse.
    other = "--remote" if settings.spark.remote is None else "--master"
    configured = [] if _value(options, other) is not None else spark_options(settings.spark, scratch)
    cluster = _value(options, "--cluster")
    source = input_of(name)
    if _value(options, INPUT_OPTIONS[source]) is not None:
        return [*configured, *options]
    clusters = clusters_of(name, settings)
    if cluster is None and len(clusters) > 1:
        msg = f"several clusters are configured; select one with --cluster: {', '.join(clusters)}"
        raise _UsageError(msg)
    if cluster is None and clusters:
        cluster = next(iter(clusters))
        configured += ["--cluster", cluster]
    has_store = source is CheckInput.CHANGELOGS and _value(options, "--store") is not None
    inputs = server_options(settings, cluster) if has_store else input_options(name, settings, cluster)
    if settings.journal.archive is not None and "--journal" in inputs:
        inputs += ["--archive", settings.journal.archive, "--agent", settings.agent.name]
    try:
        return [*configured, *inputs, *client_options(name, settings, cluster, scratch), *options]
    except CredentialError as error:
        raise _UsageError(str(error)) from error


def _value(options: Sequence[str], name: str) -> str | None:
    """Return the last value of an option, or None if it is not given."""
    value = None
    for index, option in enumerate(options):
        if option == name:
            value = "".join(options[index + 1 : index + 2])
        elif option.startswith(f"{name}="):
            value = option.removeprefix(f"{name}=")
    return value


def _run(name: str, options: Sequence[str], settings: Settings, *, as_json: bool) -> Outcome:
    """Run the check and print its findings as text or as JSON lines; Ctrl-C ends it with all its processes."""
    if problem := find_spark_problem(remote=_value(options, "--remote")):
        fail(FAILED, problem)
    summary = ""
    with ExitStack() as display:
        show = display.enter_context(progress(name))

        def on_progress(text: str) -> None:
            nonlocal summary
            if text.startswith(_DONE):
                summary = text.removeprefix(_DONE)
            else:
                show(text)

        def on_finding(finding: Finding, line: str) -> None:
            display.close()  # findings come at the end; the progress line would overwrite them
            click.echo(line if as_json else _describe(finding))

        outcome = run_check(
            [name, *options],
            Limits(),
            threading.Event(),
            variables=(*ARCHIVE, *settings.spark.environment),
            configured=settings.journal.s3.variables(),
            on_progress=on_progress,
            on_finding=on_finding,
        )
    if outcome.outcome != "failed" and summary:
        click.echo(summary, err=as_json)
    return outcome


def _describe(finding: Finding) -> str:
    """Return severity, place and detail, and below them time, file and byte, and labels."""
    subject = finding.subject
    brokers = subject.get("brokers") or ([subject["broker"]] if subject.get("broker") is not None else [])
    on = f" on broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, brokers))}" if brokers else ""
    notes = [rfc3339(finding.at)]
    file = subject.get("file")
    if file is not None and file not in finding.detail:
        notes.append(file if finding.position is None else f"{file} at byte {finding.position:,}")
    notes += finding.labels
    where = f"{place(subject)}{on}: "
    where = "" if finding.detail.startswith(where) else where
    first = f"{finding.severity.upper():<8}  {where}{finding.detail}"
    return f"{visible(first)}\n          {visible(' · '.join(notes))}"


def _failure(name: str, outcome: Outcome) -> str:
    """Return why the check failed: its own message if its log ends with one, else the log and the reason."""
    *before, last = outcome.log or ("",)
    if last.startswith(f"The check {name} failed: "):
        return last
    is_in_reason = last and outcome.reason.endswith(last)
    return "\n".join([*before, *([last] if last and not is_in_reason else []), f"{name} failed: {outcome.reason}"])


def _help(context: click.Context, name: str) -> str:
    """Return the check's own help as that of a subcommand, with the options common to all checks."""
    if problem := find_pyspark_problem():
        fail(FAILED, problem)
    command = python_module("spark_checks", name, "--help")
    shown = subprocess.run(command, env=python_environment(SPARK), stdout=subprocess.PIPE, check=False)
    if shown.returncode:
        sys.exit(shown.returncode)  # it has printed the reason
    formatter = context.make_formatter()
    with formatter.section("Options of all checks"):
        formatter.write_dl([
            record
            for parameter in context.command.params
            if parameter.name in ("config", "as_json") and (record := parameter.get_help_record(context)) is not None
        ])  # fmt: skip
    formatter.write_paragraph()
    formatter.write_text(EPILOG)
    own = shown.stdout.decode().rstrip("\n").replace(f"python -m spark_checks {name}", f"backflow check {name}", 1)
    # What the check itself requires comes from the configuration here (_with_configured).
    own = own.replace("[required]", "[default: as configured]")
    own = re.sub(r"Default:\s+main\.", "Default: the configured one.", own)  # click may wrap the line anywhere
    return f"{own}\n\n{formatter.getvalue().strip()}"


@click.command("digest", epilog=EPILOG)
@click.option("--broker", type=click.IntRange(min=0), required=True, help="Id of the broker.")
@click.option(
    "--path",
    "directory",
    metavar="DIR",
    required=True,
    help="Its log directory. If `log.dirs` has several, run the command once per log directory.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The Parquet file to write."
)
@click.option(
    "--bandwidth",
    callback=parsed_by(size),
    metavar="SIZE",
    help="Read at most so much a second: 50MB. Default: no limit.",
)
@click.option("--topic", "topics", multiple=True, metavar="PATTERN", help="Only these topics; repeatable.")
def digest_command(broker: int, directory: str, out: Path, bandwidth: int | None, topics: tuple[str, ...]) -> None:
    """Write the digest of a broker's log, which checks accept in place of its directory.

    Runs on the broker's host, needs no Java and only reads. The digest is a small file with the offsets, epochs and
    checksums of all batches, without their records.
    """
    from agent.kafka_log.digest import write_digest  # noqa: PLC0415 - loads codecs that the daemon does not need
    from agent.kafka_log.log_directory import LogDirectoryError  # noqa: PLC0415 - likewise

    console = Console(stderr=True)
    try:
        with Progress(console=console, disable=not console.is_terminal, redirect_stdout=False) as progress:
            task = progress.add_task("segments", total=None)
            made = write_digest(
                broker,
                directory,
                out,
                bandwidth=bandwidth,
                topics=topics,
                progress=lambda done, of: progress.update(task, completed=done, total=of),
            )
    except LogDirectoryError as error:
        fail(FAILED, str(error))
    counts = [
        count(len(made.partitions), "partition"),
        count(len(made.found), "fault"),
        count(out.stat().st_size, "byte"),
    ]
    click.echo(f"{out}: {', '.join(counts)}")
    sys.exit(FOUND if made.found else 0)
