"""The commands `status` and `groups`: what the running agent sees, asked through the socket in its state directory."""

import http.client
import socket
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.cli.common import DENIED, EPILOG, config_option, fail, load_for_state
from agent.daemon.groups import GroupProgress, by_lag
from agent.daemon.reports import AgentStatus, decode, encode
from agent.daemon.tables import (
    CHECK_COLUMNS,
    GROUP_COLUMNS,
    NUMBERS,
    PARTITION_COLUMNS,
    RECEIVER_COLUMNS,
    SOURCE_COLUMNS,
    check_row,
    describe_archive,
    describe_buttons,
    describe_group,
    describe_subjects,
    group_row,
    partition_row,
    receiver_row,
    source_row,
)
from agent.daemon.web.server import SOCKET, short_path
from agent.model.encoding import printable
from agent.model.exit_status import CLEAN, FAILED, FOUND, WRONG
from agent.model.text import span, visible
from agent.model.times import minute, second
from agent.storage.journal.reader import last_at

_TIMEOUT_S = 30


@click.command("status", epilog=EPILOG)
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status_command(config: Path | None, *, as_json: bool) -> None:
    """Show what the running agent with this configuration sees: sources, deliveries, incidents and checks.

    Exits with 1 if anything is wrong with it, and with 3 if no agent runs. Run it as the agent's user
    or as root.
    """
    body = _ask(config, "/status.json")
    status: AgentStatus = decode(body, AgentStatus)
    if as_json:
        click.echo(body)
    else:
        for line in _status_lines(status):
            click.echo(line)
    sys.exit(FOUND if status.problems else CLEAN)


@click.command("groups", epilog=EPILOG)
@config_option
@click.option("--lag", "largest_lag_first", is_flag=True, help="The group with the largest lag first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and group.")
@click.argument("name", required=False)
def groups_command(config: Path | None, name: str | None, *, largest_lag_first: bool, as_json: bool) -> None:
    """Show how far consumer groups are, as the running agent has last observed: members, lag, rates.

    With NAME, which may be a pattern such as `payments-*`, also each partition. `read/s` and `written/s` are records a
    second over the last three minutes. `kept for` is how long the next record to read is still kept by retention, at
    most that long with a ≤; it is unknown for records younger than ten minutes. Exits with 3 if no agent runs.
    """
    body = _ask(config, "/groups.json" if name is None else f"/groups.json?name={quote(printable(name), safe='')}")
    groups: list[GroupProgress] = decode(body, list[GroupProgress])
    if name is not None and not groups:
        fail(WRONG, f"no group {visible(name)} is observed; `backflow groups` lists all")
    if largest_lag_first:
        groups = by_lag(groups)
    if as_json:
        for group in groups:
            click.echo(encode(group))
        return
    for line in _group_lines(groups, in_detail=name is not None):
        click.echo(line)


def _status_lines(status: AgentStatus) -> Iterator[str]:
    up = span(status.at - status.started_at)
    yield f"backflow {status.version}, pid {status.pid}, up {up} since {minute(status.started_at)} UTC"
    yield f"state directory {status.state_directory}"
    for problem in status.problems:
        yield f"PROBLEM  {problem}"
    yield from _table("Sources", SOURCE_COLUMNS, [source_row(source, status.at) for source in status.sources])
    yield from describe_subjects(status.subjects)
    rows = [receiver_row(receiver) for receiver in status.receivers]
    yield from _table("Deliveries", RECEIVER_COLUMNS, rows)
    if status.buttons is not None:
        yield describe_buttons(status.buttons)
    yield f"pipeline: {status.queued:,} queued, delay {span(status.delay_ms)}"
    if status.archive is not None:
        yield describe_archive(status.archive)
    incidents = [
        (incident.id, incident.severity, incident.status, minute(incident.opened_at), incident.title)
        for incident in status.incidents
    ]
    yield from _table("Incidents", ("id", "severity", "state", "since (UTC)", "title"), incidents)
    yield from _table("Spark checks", CHECK_COLUMNS, [check_row(check) for check in status.checks])
    yield f"checks: {status.running_checks} running, {status.waiting_checks} waiting"
    if status.heartbeat is not None:
        sent_at = status.heartbeat.sent_at
        yield f"heartbeat: {'never arrived' if sent_at is None else f'arrived {span(max(0, status.at - sent_at))} ago'}"


def _group_lines(groups: Sequence[GroupProgress], *, in_detail: bool) -> Iterator[str]:
    if not groups:
        yield "no groups are observed"
    elif not in_detail:
        yield from _table("", GROUP_COLUMNS, [group_row(group) for group in groups])
    else:
        for number, group in enumerate(groups):
            title = visible(f"{group.group} of {group.cluster}: {describe_group(group)}")
            lines = _table(title, PARTITION_COLUMNS, [partition_row(part) for part in group.partitions])
            yield from islice(lines, 0 if number else 1, None)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; without rows, that there are none. Columns without any text are left out."""
    if title:
        yield ""
        yield title if rows else f"{title}: none"
    kept = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number in kept:
        is_number = columns[number] in NUMBERS
        table.add_column(columns[number].upper(), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(row[number])) for number in kept))
    if rows:
        console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
        with console.capture() as capture:
            console.print(table)
        yield from (line.rstrip() for line in capture.get().splitlines())


def _ask(config: Path | None, path: str) -> bytes:
    """Return what the agent answers; exit with a sentence if it does not."""
    directory = load_for_state(config).agent.state_directory
    address = directory / SOCKET
    try:
        with short_path(address) as short, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(short)
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode("ascii"))
            response = http.client.HTTPResponse(connection)
            response.begin()
            body = response.read()
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        _fail_without_agent(directory)
    except PermissionError:
        fail(FAILED, f"{address}: {DENIED}")
    except TimeoutError:
        fail(FAILED, f"{address}: the agent has not answered for {_TIMEOUT_S} s; its log and `top` show what it does")
    except (OSError, http.client.HTTPException) as error:
        fail(FAILED, f"{address}: the agent cannot be asked: {error!r}")
    if response.status != http.client.OK:
        fail(FAILED, f"the agent answers: {visible(body.decode(errors='replace').strip())}")
    return body


def _fail_without_agent(directory: Path) -> NoReturn:
    """Exit because no agent runs; say until when one did."""
    journal = directory / "journal"
    last = last_at(journal) if journal.is_dir() else None
    if last is None:
        before = "None has run with it yet: name the agent's configuration (--config), or set STATE_DIRECTORY."
    else:
        before = f"The last one ran until {second(last)} UTC. Start it with `backflow run`."
    fail(FAILED, f"no agent runs with the state directory {directory}. {before}")
