"""The subcommands `backflow check` and `backflow digest`: what they take, print and exit with."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from agent.checks.process import Outcome
from agent.cli.common import EPILOG, FAILED, FOUND, WRONG, config_option, fail, settings_of
from agent.cli.manual_check import WrongUseError, filled_in, run_by_hand
from agent.config.check_sections import size
from agent.config.problems import did_you_mean
from agent.model.text import count
from agent.rules import CHECKS


class _Check(click.Command):
    """Its help lists the checks."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Checks"):
            formatter.write_dl(list(CHECKS.items()))
        super().format_epilog(ctx, formatter)


@click.command(
    "check",
    cls=_Check,
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("name", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@config_option
@click.option("--json", "as_json", is_flag=True, help="One finding as a JSON object a line.")
@click.option("-h", "--help", "wants_help", is_flag=True, help="Show this, or with NAME the check's own options.")
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
    """Run a Spark check by hand and print what it finds.

    OPTIONS are the check's own; `backflow check NAME --help` lists them. What the configuration knows is filled in:
    Spark's settings, the journal, the brokers' log directories of --cluster or of the only cluster. Needs Java 17.
    """
    if name is None:
        click.echo(context.get_help())
        return
    if name not in CHECKS:
        fail(WRONG, f"there is no check `{name}`{did_you_mean(name, CHECKS)}")
    if wants_help:
        click.echo(_help(context, name))
        return
    settings = settings_of(config, need_clusters=False)
    try:
        with TemporaryDirectory(prefix="backflow-check-") as scratch:
            outcome = run_by_hand(name, filled_in(name, options, settings, Path(scratch)), as_json=as_json)
    except WrongUseError as error:
        fail(WRONG, str(error))
    except KeyboardInterrupt:
        fail(FAILED, f"{name} was interrupted")
    if outcome.status == WRONG:
        fail(WRONG, "\n".join(outcome.log))
    if outcome.outcome == "failed":
        fail(FAILED, _why(name, outcome))
    sys.exit(outcome.status)


def _why(name: str, outcome: Outcome) -> str:
    """Why a check failed: in its own sentence where it knows, which ends the log; else all of the log."""
    *before, last = outcome.log or ("",)
    if last.startswith(f"The check {name} failed: "):
        return last
    told = last and outcome.reason.endswith(last)
    return "\n".join([*before, *([last] if last and not told else []), f"{name} failed: {outcome.reason}"])


def _help(context: click.Context, name: str) -> str:
    """The check's own help, as that of a subcommand, with the options that all checks have by hand."""
    told = subprocess.run([sys.executable, "-m", "spark_checks", name, "--help"], stdout=subprocess.PIPE, check=False)
    if told.returncode:
        sys.exit(told.returncode)  # it has said why
    ours = context.make_formatter()
    with ours.section("Options of every check by hand"):
        ours.write_dl([
            record
            for one in context.command.params
            if one.name in ("config", "as_json") and (record := one.get_help_record(context)) is not None
        ])  # fmt: skip
    ours.write_paragraph()
    ours.write_text(EPILOG)
    own = told.stdout.decode().rstrip("\n").replace(f"python -m spark_checks {name}", f"backflow check {name}", 1)
    # What the check itself must be given is filled in here (by_hand.filled_in).
    own = own.replace("[required]", "[default: as configured]")
    return f"{own}\n\n{ours.getvalue().strip()}"


def _bytes(context: click.Context, parameter: click.Parameter, value: Any) -> int | None:
    try:
        return None if value is None else size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


@click.command("digest", epilog=EPILOG)
@click.option("--broker", type=click.IntRange(min=0), required=True, help="The broker's id.")
@click.option("--path", "directory", metavar="DIR", required=True, help="Its log directory, one of `log.dirs`.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The Parquet file to write."
)
@click.option("--bandwidth", callback=_bytes, metavar="SIZE", help="Read so much in a second at most, such as 50MB.")
@click.option("--topic", "topics", multiple=True, metavar="PATTERN", help="Only these topics; repeatable.")
def digest_command(broker: int, directory: str, out: Path, bandwidth: int | None, topics: tuple[str, ...]) -> None:
    """Make the digest of a broker's log, which the checks take in place of its directory.

    For the broker's own host: needs no Java, only reads, and writes one small file with the offsets, epochs and
    checksums of all batches, none of their records.
    """
    from agent.kafka_log.digest import digest  # noqa: PLC0415  # codecs, which the daemon has no use for
    from agent.kafka_log.log_directory import LogDirectoryError  # noqa: PLC0415  # likewise

    console = Console(stderr=True)
    try:
        with Progress(console=console, disable=not console.is_terminal, redirect_stdout=False) as progress:
            task = progress.add_task("segments", total=None)
            made = digest(
                broker,
                directory,
                out,
                bandwidth=bandwidth,
                topics=topics,
                progress=lambda done, of: progress.update(task, completed=done, total=of),
            )
    except LogDirectoryError as error:
        fail(FAILED, str(error))
    told = [
        count(len(made.partitions), "partition"),
        count(len(made.found), "fault"),
        count(out.stat().st_size, "byte"),
    ]
    click.echo(f"{out}: {', '.join(told)}")
    sys.exit(FOUND if made.found else 0)
