"""The command `replay`: run the rules over recorded observations, read from a journal or JSON lines, as they were seen.

Ticks need not be recorded: the engine evaluates at every moment it waits for.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from time import monotonic

import click

from agent.cli.common import EPILOG, config_option, fail, load_or_exit, parsed_by, print_incidents, progress
from agent.config.credentials import CredentialError
from agent.config.journal import Journal, archive_url
from agent.engine.engine import Engine
from agent.engine.recorded import batches, last_seen
from agent.model.batches import Chunk
from agent.model.encoding import from_json
from agent.model.exit_status import FOUND, WRONG
from agent.model.findings import Incident
from agent.model.observations.base import Observation
from agent.model.text import count
from agent.model.times import millis, rfc3339, second
from agent.storage.journal import reader
from agent.storage.journal.failures import ArchiveError
from agent.storage.journal.places import is_url, open_journals
from agent.storage.journal.writer import JournalRefusedError, check_version

_SHOW_EVERY_S, _LOG_EVERY_S = 2.0, 30.0
"""How often progress is shown on a terminal, and elsewhere."""

_TIME = parsed_by(millis)


class RecordingError(Exception):
    """A recording cannot be read. problems: messages with file and line."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@click.command("replay", epilog=EPILOG)
@click.argument("path")
@config_option
@click.option("--archive", metavar="URL", help="The journal's archive, to read together with it.")
@click.option(
    "--agent", "agents", multiple=True, metavar="PATTERN", help="Only these agents of an archive; repeatable."
)
@click.option("--from", "since", callback=_TIME, metavar="TIME", help="Only incidents that had not recovered by then.")
@click.option("--to", "until", callback=_TIME, metavar="TIME", help="Only what was observed before.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and incident.")
def replay_command(
    path: str,
    config: Path | None,
    archive: str | None,
    agents: tuple[str, ...],
    *,
    since: int | None,
    until: int | None,
    as_json: bool,
) -> None:
    """Run the rules over recorded observations and print the incidents.

    PATH is a journal directory (STATE_DIRECTORY/journal), the URL of an archive such as s3://bucket/prefix, or a file
    of JSON lines. TIME is like 2026-12-01T06:00:00Z. What was observed before --from is used as history. Exits with 1
    if there are incidents.
    """
    if since is not None and until is not None and since >= until:
        fail(WRONG, f"--from {rfc3339(since)} is not before --to {rfc3339(until)}")
    settings = load_or_exit(config, need_clusters=False)
    try:
        recordings = read(path, settings.journal, archive, agents)
        engine = Engine(settings.rules, settings.correlations, settings.incidents)
        with progress("replay") as show:
            incidents = replay(_followed(_before(until, batches(recordings)), engine, show), engine)
    except (RecordingError, ArchiveError) as error:
        fail(WRONG, str(error))
    except (OSError, CredentialError) as error:
        fail(WRONG, f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
    lasting = [
        found for found in incidents if since is None or found.recovered_at is None or found.recovered_at >= since
    ]
    print_incidents(lasting, as_json=as_json)
    sys.exit(FOUND if lasting else 0)


def _before(until: int | None, observed: Iterable[Collection[Observation]]) -> Iterable[Collection[Observation]]:
    """Return the batches up to the first one that was seen at that time (ms) or later."""
    return observed if until is None else takewhile(lambda batch: last_seen(batch) < until, observed)


def _followed(
    observed: Iterable[Collection[Observation]], engine: Engine, show: Callable[[str], None]
) -> Iterator[Collection[Observation]]:
    """Yield the batches that the engine takes; how far it is, is shown now and then."""
    every = _SHOW_EVERY_S if sys.stderr.isatty() else _LOG_EVERY_S
    taken, due = 0, monotonic() + every
    for batch in observed:
        yield batch
        taken += len(batch)
        if monotonic() >= due:
            due = monotonic() + every
            show(f"{count(taken, 'observation')}, up to {second(engine.now)} UTC")


def read(
    path: str, settings: Journal, archive: str | None = None, agents: tuple[str, ...] = ()
) -> list[Iterable[Chunk]]:
    """Return what each agent recorded in a journal, an archive, both together, or a file of JSON lines.

    settings: how to reach an archive. agents: patterns of names. Raises RecordingError, CredentialError, OSError.
    """
    if not is_url(path):
        local = Path(path)
        if archive is None and not local.is_dir():
            return [[[read_lines(local)]]]
        if not _is_journal(local):
            hint = f"; did you mean {local / 'journal'}?" if _is_journal(local / "journal") else ""
            raise RecordingError([f"{path}: is not a journal{hint}"])
        try:
            check_version(local)
        except JournalRefusedError as error:
            raise RecordingError([str(error)]) from error
        if archive is None:
            return [reader.chunks(local)]
    try:
        for url in filter(None, (path if is_url(path) else None, archive)):
            archive_url(url)
        journals = open_journals(path, archive, agents, os.environ | settings.s3.variables())
    except ValueError as error:
        raise RecordingError([str(error)]) from error
    if not journals:
        raise RecordingError([f"{path}: there is no journal in this archive"])
    return list(map(reader.chunks, journals))


def _is_journal(directory: Path) -> bool:
    return (directory / "writer.lock").exists() or any(directory.glob("*/date=*"))


def read_lines(path: Path) -> list[Observation]:
    """Return the observations of a file of JSON lines; blank lines are ignored.

    Raises RecordingError with all invalid lines, OSError.
    """
    observations: list[Observation] = []
    problems: list[str] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    observations.append(from_json(line))
                except ValueError as error:
                    problems.append(f"{path}:{number}: {error}")
    if problems:
        raise RecordingError(problems)
    return observations


def replay(observed: Iterable[Collection[Observation]], engine: Engine) -> list[Incident]:
    """Return all incidents that batches of observations make, in order of opening, in their state after the last."""
    incidents: dict[str, Incident] = {}
    for batch in observed:
        incidents.update((incident.id, incident) for incident in engine.take(batch))
    incidents.update((incident.id, incident) for incident in engine.catch_up())
    kept = [found for found in incidents.values() if found.merged_into is not None or found.causes or found.findings]
    return sorted(kept, key=lambda incident: (incident.opened_at, incident.id))
