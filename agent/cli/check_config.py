"""The command `check-config`: validate the configuration."""

from collections.abc import Iterator
from pathlib import Path

import click

from agent.cli.common import EPILOG, config_option, config_path, fail, load_or_exit, silence_logs
from agent.cli.doctor import examine_archive, examine_receivers
from agent.config.problems import Problem, describe_path
from agent.config.requirements import find_spark_problem
from agent.config.settings import Settings
from agent.config.shipped import shipped
from agent.config.toml_places import KeyPath, find_places
from agent.config.warnings import (
    logs_of_no_cluster,
    missing_paths,
    missing_rules,
    properties_without_effect,
    secret_problems,
    state_directory_problems,
    unconfigured_kinds,
    unreachable_routes,
)
from agent.model.exit_status import WRONG
from agent.model.text import join_names


@click.command("check-config", epilog=EPILOG)
@config_option
@click.option(
    "--connect",
    is_flag=True,
    help="Also try tokens, channels, scopes and logins of receivers, which notifies no one, and the journal's archive.",
)
def check_config_command(config: Path | None, *, connect: bool) -> None:
    """Validate the configuration and list all mistakes with their lines.

    Without --connect, nothing is contacted; `backflow doctor` connects to clusters too. Paths that do not exist on this
    host are warnings: they may be created later. So are secrets that only the service may have: environment variables
    and systemd credentials.
    """
    settings = load_or_exit(config, need_clusters=False)
    path = config_path(config)
    places = find_places(path.read_text(encoding="utf-8-sig"))
    warnings = [
        Problem(str(path), places[key].line, "warning", f"{describe_path(key)}: {message}")
        for key, message in (
            *missing_paths(settings),
            *properties_without_effect(settings),
            *logs_of_no_cluster(settings),
            *unreachable_routes(settings),
        )
    ]
    if settings.spark.enabled and (missing := find_spark_problem(remote=settings.spark.remote)):
        message = f"{missing}; without, set enabled = false in [spark]"
        warnings.append(Problem(str(path), None, "warning", message))
    warnings += [Problem(str(path), None, "warning", message) for message in missing_rules(settings)]
    mistakes = [str(problem) for problem in state_directory_problems(settings, path)]
    for problem, source in secret_problems(settings, path):
        if source.file is not None:
            mistakes.append(str(problem))
        else:  # only the service may have it
            warnings.append(problem._replace(where="warning", message=f"{problem.where}: {problem.message}"))
    for warning in sorted(warnings, key=lambda found: found.line or 0):
        click.echo(warning, err=True)
    if connect and not mistakes:
        mistakes += map(str, _refusals(settings, path))
    if mistakes:
        fail(WRONG, "\n".join(mistakes))
    tables = {name: getattr(settings, name) for name in ("clusters", "flink", "streams", "logs")}
    monitored = "; ".join(f"{table}: {', '.join(names)}" for table, names in tables.items() if names)
    monitored = monitored or "nothing to monitor yet: `backflow run` needs [clusters.NAME]"
    names = [*(["Slack"] if settings.slack is not None else []), *settings.receivers]
    receiver = join_names(names or ["the console"])
    rules, correlations = len(settings.rules), len(settings.correlations)
    kinds = unconfigured_kinds(settings) if settings.rules else []
    if kinds:
        click.echo(f"not configured: {', '.join(kinds)}; see {shipped()}")
    click.echo(f"{path}: {rules} rules, {correlations} correlations; {monitored}; incidents go to {receiver}")


def _refusals(settings: Settings, path: Path) -> Iterator[Problem]:
    """Yield each receiver that would not deliver, with the line of its table, and an archive that takes no files."""
    silence_logs()
    places = find_places(path.read_text(encoding="utf-8-sig"))
    tables: dict[str, KeyPath] = {
        f"{table.kind} {name}": ("receivers", name) for name, table in settings.receivers.items()
    }
    for verdict in () if settings.is_console_only else examine_receivers(settings):
        if verdict.problem is not None:
            key = tables.get(verdict.name, ("receivers",) if settings.slack is None else ("slack",))
            line = places[key].line if key in places else 1  # of several receivers: a secret that only the service has
            reason = verdict.problem.splitlines()[0]
            yield Problem(str(path), line, describe_path(key), f"{verdict.name}: {reason}")
    for verdict in examine_archive(settings.journal):
        if verdict.problem is not None:
            key = ("journal", "archive")
            reason = verdict.problem.splitlines()[0]
            yield Problem(str(path), places[key].line, describe_path(key), f"{settings.journal.archive}: {reason}")
