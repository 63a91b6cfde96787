"""Log rotation: which files were rotated from a log, by their names, and where a file has gone."""

import os
import re
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from agent.sources.logs.files import TailedFile

_ROTATED = re.compile(r"[._-](?:.*\d.*|old|bak)")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".Z")


def list_rotated(path: str) -> list[Path]:
    """Return the files next to `path` that were rotated from it, by their names, least recently written first.

    Compressed files are left out.
    """
    names = {Path(path).name, Path(os.path.realpath(path)).name}
    found = []
    for file in _siblings(path):
        rests = (file.name[len(name) :] for name in names if file.name.startswith(name))
        if not is_compressed(file.name) and any(map(_ROTATED.fullmatch, rests)):
            with suppress(OSError):
                found.append((file.stat().st_mtime_ns, file))
    return [file for _, file in sorted(found)]


def is_rotated(path: str, paths: Container[str]) -> bool:
    """Return whether `path` is, by its name, a rotated file of one of `paths`."""
    begin = len(path) - len(Path(path).name)
    return any(
        path[index] in "._-" and path[:index] in paths and _ROTATED.fullmatch(path[index:])
        for index in range(begin + 1, len(path))
    )


def is_compressed(path: str) -> bool:
    """Return whether the file is compressed, by its name; its content was read before."""
    return path.endswith(_COMPRESSED)


def find_renamed(file: TailedFile, path: str) -> bool:
    """Attach a file to its new name next to `path`; return False if it is not there."""
    return any(
        _try_attach(file, sibling, copied=False) for sibling in _siblings(path) if get_inode(sibling) == file.inode
    )


def find_copy(file: TailedFile, path: str) -> bool:
    """Attach a file that was copied and truncated to its copy; return False if there is none."""
    return any(_try_attach(file, rotated, copied=True) for rotated in list_rotated(path))


def get_inode(path: str | Path) -> int | None:
    """Return the inode at `path`, or None if there is no file."""
    try:
        return Path(path).stat().st_ino
    except OSError:
        return None


def _try_attach(file: TailedFile, path: Path, *, copied: bool) -> bool:
    try:
        return file.attach(str(path), copied=copied)
    except OSError:
        return False


def _siblings(path: str) -> list[Path]:
    """Return the other files beside a log, and beside the file that it leads to if it is a link."""
    link, target = Path(path).parent.resolve() / Path(path).name, Path(os.path.realpath(path))
    found: list[Path] = []
    for folder in dict.fromkeys((link.parent, target.parent)):
        with suppress(OSError):
            found += [file for file in folder.iterdir() if file not in (link, target)]
    return found
