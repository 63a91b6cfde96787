"""The command `backflow`: what each subcommand takes, prints and exits with. The work is done elsewhere."""

import inspect
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import click

from agent.cli import rule_tests as cases
from agent.cli.checks import check_command, digest_command
from agent.cli.common import EPILOG, FAILED, FOUND, WRONG, chosen, config_option, fail, settings_of
from agent.cli.replay import LinesError, read, replay
from agent.config.absent_paths import absent_paths
from agent.config.credentials import CredentialError
from agent.config.toml_places import find_places
from agent.daemon import logging as logs
from agent.engine.engine import Engine
from agent.model.findings import Incident, Status, incident_json
from agent.render.report import report
from agent.storage.database import FILE, StorageError
from agent.storage.incidents import IncidentStore
from agent.storage.journal import JournalError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}, epilog=EPILOG)
@click.version_option(package_name="backflow")
def main() -> None:
    """Backflow tells you when your streams flow backwards, and why.

    It watches Kafka and ZooKeeper, notices when a committed offset, a log or a leader goes back in time, joins effect
    and cause into one incident, and posts it to Slack or prints it.
    """


@main.command(epilog=EPILOG)
@config_option
def run(config: Path | None) -> None:
    """Watch the clusters of the configuration until SIGTERM or Ctrl-C; what systemd runs."""
    settings = settings_of(config, need_clusters=True)
    logs.configure(settings.agent.log_format)
    from agent.daemon.daemon import Daemon  # the clients take a second to load, which no other command needs

    try:
        daemon = Daemon(settings)
    except CredentialError as error:
        fail(WRONG, str(error))
    except (JournalError, StorageError, OSError) as error:
        fail(FAILED, str(error))
    sys.exit(daemon.run())


@main.command("check-config", epilog=EPILOG)
@config_option
def check_config(config: Path | None) -> None:
    """Check the configuration and list every mistake with its line.

    Paths that lead nowhere on this host are told as well; they are no mistakes, since what they name may come.
    """
    settings = settings_of(config, need_clusters=False)
    places = find_places(chosen(config).read_text(encoding="utf-8-sig"))
    for key, sentence in absent_paths(settings):
        where = ".".join(map(str, key[:2]))
        click.echo(f"{chosen(config)}:{places[key].line}: warning: [{where}] {key[2]}: {sentence}", err=True)
    tables = {name: getattr(settings, name) for name in ("clusters", "flink", "streams", "logs")}
    watched = "; ".join(f"{table}: {', '.join(names)}" for table, names in tables.items() if names)
    watched = watched or "nothing to watch yet: `backflow run` needs [clusters.NAME]"
    told = "the console" if settings.slack is None else "Slack"
    rules, correlations = len(settings.rules), len(settings.correlations)
    click.echo(f"{chosen(config)}: {rules} rules, {correlations} correlations; {watched}; told on {told}")


@main.command("test-rules", epilog=EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@config_option
def test_rules(files: tuple[Path, ...], config: Path | None) -> None:
    """Run rule cases: given observations, are these findings and incidents made, and no others?

    FILES are TOML; tests/cases shows what they look like. Exits with 1 where a case does not hold.
    """
    settings = settings_of(config, need_clusters=False)
    held = failed = 0
    try:
        for path in files:
            for _, wrong in cases.check(path, settings):
                held, failed = held + (not wrong), failed + bool(wrong)
                for sentence in wrong:
                    click.echo(sentence)
    except cases.RuleTestsError as error:
        fail(WRONG, str(error))
    click.echo(f"{held} cases hold, {failed} do not")
    sys.exit(FOUND if failed else 0)


@main.command("replay", epilog=EPILOG)
@click.argument("path", type=click.Path(path_type=Path))
@config_option
@click.option("--json", "as_json", is_flag=True, help="One incident as a JSON object a line.")
def replay_command(path: Path, config: Path | None, *, as_json: bool) -> None:
    """Run the rules over recorded observations and print the incidents they make.

    PATH is a journal directory (STATE_DIRECTORY/journal) or a file of JSON lines. Exits with 1 where there are
    incidents.
    """
    settings = settings_of(config, need_clusters=False)
    try:
        incidents = replay(read(path), Engine(settings.rules, settings.correlations, settings.incidents))
    except LinesError as error:
        fail(WRONG, str(error))
    except OSError as error:
        fail(WRONG, f"{path}: cannot be read: {error.strerror or error}")
    _print(incidents, as_json=as_json)
    sys.exit(FOUND if incidents else 0)


@main.command(epilog=EPILOG)
@config_option
@click.option("--all", "closed", is_flag=True, help="Closed and merged ones too.")
@click.option(
    "--json", "as_json", is_flag=True, help="One incident as a JSON object a line; closed and merged ones too."
)
def incidents(config: Path | None, *, closed: bool, as_json: bool) -> None:
    """List the incidents of the agent that runs with this configuration. Exits with 1 where there are any."""
    settings = settings_of(config, need_clusters=False)
    path = settings.agent.state_directory / FILE
    if not path.exists():
        fail(WRONG, f"{path}: no agent has run with this state directory; name its configuration with --config")
    try:
        with IncidentStore(path) as store:
            listed = [one for one in store.incidents() if one.findings or one.merged_into is not None]
    except (StorageError, sqlite3.Error) as error:
        fail(FAILED, str(error))
    if not (closed or as_json):
        listed = [one for one in listed if one.status is not Status.CLOSED]
    _print(listed, as_json=as_json)
    sys.exit(FOUND if listed else 0)


main.add_command(check_command)
main.add_command(digest_command)


class _Demo(click.Command):
    """Its help lists the scenarios."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from testbed.demos import SCENARIOS

        with formatter.section("Scenarios"):
            formatter.write_dl([(name, _told(run)) for name, run in SCENARIOS.items()])
        super().format_epilog(ctx, formatter)


def _told(scenario: Callable[..., int]) -> str:
    """What the docstring of the scenario's file says of it, in one line."""
    first = (inspect.getdoc(inspect.getmodule(scenario)) or "").partition("\n\n")[0]
    return " ".join(first.partition(": ")[2].split())


@main.command(cls=_Demo, epilog=EPILOG)
@click.argument("scenario", default="reset", required=False)
@click.option("--seed", type=int, help="Repeats the draw of partition and brokers of an earlier run.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Where the run is kept.",
)
def demo(scenario: str, seed: int | None, directory: Path) -> None:
    """Break a real cluster on this machine and see what Backflow says. SCENARIO: see below; reset is the default."""
    from testbed import demos  # brings the whole testbed along

    if scenario not in demos.SCENARIOS:
        fail(WRONG, f"no scenario {scenario!r}; there are: {', '.join(demos.SCENARIOS)}")
    sys.exit(demos.SCENARIOS[scenario](directory, seed))


def _print(incidents: list[Incident], *, as_json: bool) -> None:
    for one in incidents:
        if as_json:
            click.echo(incident_json(one))
        elif one.merged_into is None:
            click.echo("\n".join(report(one).lines()) + "\n")
    if not as_json and not incidents:
        click.echo("no incidents")
