"""The command `backup`: copy the state of an agent, also while it runs."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import click

from agent.cli.common import EPILOG, PRIVATE, config_option, fail, load_for_state
from agent.cli.stored import find_state_file
from agent.model.exit_status import FAILED, WRONG
from agent.storage.database import FILE


@click.command("backup", epilog=EPILOG)
@config_option
@click.argument("directory", type=click.Path(path_type=Path))
def backup_command(config: Path | None, directory: Path) -> None:
    """Copy the state file and the journal to DIRECTORY, which must not exist. The agent may run meanwhile.

    To restore: stop the agent, move its state directory away, copy DIRECTORY in its place and start the agent. Under
    systemd the directory is /var/lib/private/backflow, to which /var/lib/backflow is a link.
    """
    settings = load_for_state(config)
    source = find_state_file(settings)
    os.umask(PRIVATE)
    try:
        directory.mkdir(parents=True)
        # The journal comes second: what it has beyond the state is evaluated again after a restore.
        copy_state(source, directory / FILE)
        copy_journal(settings.agent.state_directory / "journal", directory / "journal")
    except FileExistsError:
        fail(WRONG, f"{directory} exists: name a new directory")
    except (OSError, sqlite3.Error) as error:
        fail(FAILED, f"the backup in {directory} is not complete: {error}")
    click.echo(f"{directory}: complete")


def copy_state(source: Path, target: Path) -> None:
    """Copy the state file as of one moment. Raises sqlite3.Error."""
    read_only = f"{source.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(read_only, uri=True)) as db, closing(sqlite3.connect(target)) as copy:
        db.backup(copy)


def copy_journal(source: Path, target: Path) -> None:
    """Copy the journal; what is sealed or removed meanwhile is copied as what it became. Raises OSError."""
    target.mkdir(parents=True)
    copied: set[Path] = set()
    while missing := sorted({path.relative_to(source) for path in source.rglob("*") if _is_kept(path)} - copied):
        for path in missing:
            copied.add(path)
            try:
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / path, target / path)
            except FileNotFoundError:
                continue  # sealed meanwhile: the next turn finds the sealed file


def _is_kept(path: Path) -> bool:
    return path.is_file() and path.suffix != ".tmp" and path.name != "writer.lock"
