"""Failures to read the journal that say nothing about its content: permissions, too many open files, the network.

Damage to a file is skipped and reported. What the system cannot read is not: a part of the journal would be missing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow.fs import FileSystem


class ReadError(Exception):
    """The system could not read a file of the journal."""


class ArchiveError(ReadError):
    """An archive cannot be reached."""


@contextmanager
def system_failures(path: Path | str) -> Iterator[None]:
    """Raise ReadError if the system cannot read a file. Damage and FileNotFoundError are raised as they are."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno is None:  # Arrow's errors for damaged content have none
            raise
        msg = f"{path} cannot be read: {os.strerror(error.errno)}"
        raise ReadError(msg) from error


class ArchivedFile:
    """A file on another file system, for Arrow. All it raises is FileNotFoundError, and ArchiveError for the rest.

    Errors of an object store have no errno, as those of damaged content: only here can they be distinguished.
    """

    def __init__(self, files: FileSystem, path: str, name: str) -> None:
        """Open the file. name: as errors have it."""
        self._name = name
        with self._failures():
            self._file = files.open_input_file(path)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return bool(self._file.closed)

    def readable(self) -> bool:
        """Return whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Return whether it has positions."""
        return True

    def writable(self) -> bool:
        """Return whether it can be written."""
        return False

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; -1: all."""
        with self._failures():
            return bytes(self._file.read(None if size < 0 else size))

    def seek(self, position: int, whence: int = 0) -> int:
        """Change the position and return it."""
        with self._failures():
            return int(self._file.seek(position, whence))

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            msg = f"{self._name} cannot be read: {error}"
            raise ArchiveError(msg) from error
