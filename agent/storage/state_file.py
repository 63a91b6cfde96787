"""Where the state is: in the state directory, or in memory while that cannot be used.

A file that is damaged is kept aside. A file that cannot be written, as on a full disk, is copied to a file system in
memory (its shelter), so that incidents are still posted; it is copied back when the state directory works again. A
restart of the agent finds the shelter; a reboot loses what is only there.
"""

import os
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from agent.model.times import rfc3339
from agent.storage.database import FILE, DamagedError, StorageError, UnusableError
from agent.storage.incidents import IncidentStore

_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder there is used only if it is ours
_RUNTIME = Path("/run")
_STATE_DIRECTORIES = (Path("/var/lib"), Path("/var/lib/private"))
_PARTS = ("-shm", "-wal", "")
"""Suffixes of an SQLite file, in the order in which to move it: a new file must never find an old log."""

_INCOMPLETE = "incomplete"
"""Marks a shelter that is no copy of the file in the state directory."""

_UNFINISHED = "unfinished"
"""Marks a shelter that is being filled: after a kill, the file in the state directory counts."""


class Opened(NamedTuple):
    """The state as it could be opened.

    lost: what was lost because a file was damaged, as sentences; problem: why it is in memory. Empty if nothing is
    wrong.
    """

    store: IncidentStore
    lost: str = ""
    problem: str = ""


def shelter_of(home: Path) -> Path:
    """Return where in memory the state file of this path is while its directory cannot be used."""
    name = blake2b(os.fsencode(home.absolute()), digest_size=8).hexdigest()
    return _memory_for(home) / f"backflow-{_user_of(home)}-{name}" / FILE


def _memory_for(home: Path) -> Path:
    """Return a folder in memory: of a service, its own one, as systemd clears the other one whenever it stops."""
    of_service = _RUNTIME / home.parent.name
    if home.absolute().parent.parent in _STATE_DIRECTORIES and os.access(of_service, os.W_OK):
        return of_service
    return _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())


def current(home: Path) -> Path:
    """Return the file that an agent with this state file uses or will use."""
    shelter = shelter_of(home)
    if not _is_ours(shelter.parent, home) or shelter.with_name(_UNFINISHED).exists():
        return home
    return shelter if shelter.exists() else home


def open_state(directory: Path, receivers: Collection[str], now: int) -> Opened:
    """Open the state of this directory, whatever has happened to it. now: ms.

    Raises StorageError if a newer Backflow wrote it, or there is no memory for it either.
    """
    home = directory / FILE
    shelter = current(home)
    if shelter != home:
        try:
            store = IncidentStore(shelter, receivers)
        except DamagedError:
            leave_shelter(home)
        else:
            return Opened(store, *return_home(store, home, now))
    else:
        leave_shelter(home)  # a kill may have left a part of one
    try:
        return Opened(IncidentStore(home, receivers))
    except UnusableError as error:
        return Opened(_sheltered(home, receivers, now), problem=str(error))
    except DamagedError as error:
        try:
            lost = f"{error}; {quarantine(home, now)}"
            store = IncidentStore(home, receivers)
        except (OSError, UnusableError) as second:
            return Opened(_sheltered(home, receivers, now), problem=f"{error}; {second}")
        store.mark_rebuilt(now)
        return Opened(store, lost=lost)


def return_home(store: IncidentStore, home: Path, now: int) -> tuple[str, str]:
    """Take the state back to its directory; return what was lost and the problem, as in `Opened`."""
    lost = ""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        if store.path.with_name(_INCOMPLETE).exists() and home.exists():
            lost = f"{home}: could not be copied to memory; {quarantine(home, now)}"
        try:
            store.move(home, now)
        except DamagedError as error:
            lost = f"{error}; {quarantine(home, now)}"
            store.move(home, now)
    except (OSError, StorageError) as error:
        return lost, str(error)
    leave_shelter(home)
    return lost, ""


def make_shelter(home: Path) -> Path:
    """Return the path of the shelter, whose folder exists, is ours and is empty. Raises UnusableError.

    It does not count before `finish_shelter`.
    """
    shelter = shelter_of(home)
    try:
        shelter.parent.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(shelter.parent, home):
            msg = f"{shelter.parent}: not a private folder of this user"
            raise UnusableError(msg)
        shelter.with_name(_UNFINISHED).touch()
    except OSError as error:
        msg = f"{shelter.parent}: no memory for the state either: {error.strerror}"
        raise UnusableError(msg) from error
    _clear(shelter)
    return shelter


def finish_shelter(home: Path, *, is_copy: bool) -> None:
    """Let the shelter count instead of the file in the state directory. is_copy: whether it has all that is there."""
    shelter = shelter_of(home)
    if not is_copy:
        shelter.with_name(_INCOMPLETE).touch()
    shelter.with_name(_UNFINISHED).unlink(missing_ok=True)


def leave_shelter(home: Path) -> None:
    """Remove the copy in memory."""
    shelter = shelter_of(home)
    if _is_ours(shelter.parent, home):
        with suppress(OSError):
            shelter.unlink()  # first: after a kill, a file without its log must not count
    shutil.rmtree(shelter.parent, ignore_errors=True)


def quarantine(home: Path, now: int) -> str:
    """Move a damaged state file aside; return what that means, for an operator. Raises OSError."""
    kept = home.with_name(f"{home.name}.damaged-{rfc3339(now)[:19].replace(':', '')}Z")
    for suffix in _PARTS:
        path = home.with_name(home.name + suffix)
        if path.exists():
            path.rename(kept.with_name(kept.name + suffix))
    return (
        f"it is kept as {kept.name}. Backflow goes on from the last 20 minutes of the journal: older incidents are no "
        "longer followed, and what was posted before is looked up in Slack, not posted twice"
    )


def _sheltered(home: Path, receivers: Collection[str], now: int) -> IncidentStore:
    """Return a store in memory with what can be read of the file. Raises StorageError."""
    shelter = make_shelter(home)
    for suffix in ("", "-wal"):
        try:
            shutil.copyfile(home.with_name(home.name + suffix), shelter.with_name(shelter.name + suffix))
        except OSError:
            continue  # what cannot be read is missing in the copy, which the next lines find
    is_copied = shelter.exists() and shelter.stat().st_size > 0
    try:
        store = IncidentStore(shelter, receivers)
    except (DamagedError, UnusableError):
        is_copied = False
        _clear(shelter)
        store = IncidentStore(shelter, receivers)
    if not is_copied:
        store.mark_rebuilt(now)
    finish_shelter(home, is_copy=is_copied)
    return store


def _clear(shelter: Path) -> None:
    for suffix in _PARTS:
        shelter.with_name(shelter.name + suffix).unlink(missing_ok=True)
    shelter.with_name(_INCOMPLETE).unlink(missing_ok=True)


def _user_of(home: Path) -> int:
    """Return the user whose state it is: root's commands are about the state of the directory's owner."""
    with suppress(OSError):
        if os.geteuid() == 0:
            return home.parent.stat().st_uid
    return os.geteuid()


def _is_ours(folder: Path, home: Path) -> bool:
    """Return whether the folder is one to which no other user can write: memory is shared by all users."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_private = status.st_uid in (os.geteuid(), _user_of(home)) and not status.st_mode & 0o077
    return folder.is_dir() and not folder.is_symlink() and is_private
