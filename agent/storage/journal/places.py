"""Journals by their places: a local directory, the URL of an archive, or both, read as one."""

import os
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from agent.storage.journal.archive import Archive, together
from agent.storage.journal.segments import Segment, find

_ID_FILE = "archive-id"


class JournalFiles(NamedTuple):
    """The journal of one agent: what is on the local disk, if it is here, and what is in an archive.

    agent: its name in the archive; empty if nothing is archived. ids: those of its journals in the archive, in order.
    """

    agent: str
    directory: Path | None = None
    archive: Archive | None = None
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"the journal of {self.agent}" if self.agent else str(self.directory)

    def find(self, kinds: Collection[str] | None = None, days: range | None = None) -> list[Segment]:
        """Return the segments of these kinds and days, in order of position; those that are in both places once.

        Raises OSError.
        """
        segments: list[Segment] = []
        if self.directory is not None:
            journal = read_id(self.directory)
            segments += [segment._replace(journal=journal) for segment in find(self.directory, kinds, days)]
        if self.archive is not None:
            segments += self.archive.find(kinds, days, self.agent)
        return together(segments)

    def number_of(self, journal: str) -> int:
        """Return the number of a journal by its id: those that began later have higher ones."""
        return bisect_left(self.ids, journal)


Place: TypeAlias = Path | JournalFiles
"""A journal: its local directory, or more than that."""


def find_segments(place: Place, kinds: Collection[str] | None = None, days: range | None = None) -> list[Segment]:
    """Return the segments of these kinds and days in order of position. Raises OSError."""
    return find(place, kinds, days) if isinstance(place, Path) else place.find(kinds, days)


def is_url(place: str) -> bool:
    """Return whether this is a URL rather than a path."""
    return "://" in place


def open_journals(
    place: str, archive: str | None = None, agents: Sequence[str] = (), variables: Mapping[str, str] = os.environ
) -> list[JournalFiles]:
    """Return the journals at a place, in order of the agents' names.

    place: a local directory or the URL of an archive. archive: the URL of an archive to read with it. agents: patterns
    of the names of agents in an archive; none: all. variables: AWS's environment variables. Raises OSError.
    """
    url = place if is_url(place) else archive
    directory = None if is_url(place) else Path(place).absolute()
    if url is None:
        return [JournalFiles("", directory)]
    opened = Archive(url, variables)
    found = opened.agents(agents)
    here = "" if directory is None else read_id(directory)
    # Nothing of a new journal may be archived yet.
    owners = [agent for agent, ids in found.items() if here in ids] or (list(found) if agents else [])
    owner = owners[0] if len(owners) == 1 else None
    journals = [
        JournalFiles(agent, directory if agent == owner else None, opened, tuple(sorted(found[agent])))
        for agent in sorted(found)
    ]
    if directory is not None and all(journal.directory is None for journal in journals):
        journals.insert(0, JournalFiles("", directory))
    return journals


def read_id(directory: Path) -> str:
    """Return the id under which a local journal is archived; empty if it is not. Raises OSError."""
    try:
        return (directory / _ID_FILE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def write_id(directory: Path, journal: str) -> None:
    """Give a local journal the id under which it is archived. Raises OSError."""
    half = directory / f"{_ID_FILE}.tmp"
    with half.open("w", encoding="ascii") as file:
        file.write(f"{journal}\n")
        file.flush()
        os.fsync(file.fileno())
    half.rename(directory / _ID_FILE)
