"""What tests of the journal's archive share."""

from contextlib import closing
from pathlib import Path

import pytest

from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit
from agent.model.times import millis
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.places import JournalFiles
from agent.storage.journal.reader import entries
from agent.storage.journal.segments import DAY_MS
from agent.storage.journal.writer import Journal

NOON = millis("2026-11-20T12:00:00.000Z")


def fail(path: Path, reason: str) -> None:
    pytest.fail(f"{path}: {reason}")


def observation(number: int) -> Observation:
    """Return a tick or a commit, of two dates in turn."""
    at = NOON + number // 100 % 2 * DAY_MS + number
    if number % 10 == 0:
        return Tick(at=at)
    return Commit(at=at, cluster="main", group=f"g{number % 3}", topic="t", partition=0, offset=number)


def write(directory: Path, begin: int = 0, rounds: int = 3, size: int = 200) -> None:
    """Write `rounds` sealed segments for each kind and date."""
    for number in range(rounds):
        with closing(Journal(directory)) as journal:
            journal.append([observation(begin + number * size + own) for own in range(size)])


def ship(directory: Path, store: Archive, agent: str = "a", begin: int = 1 << 40) -> Archiver:
    shipper = Archiver(directory, store, agent, begin, unreadable=fail)
    shipper.ship()
    return shipper


def archived(store: Archive, agent: str = "a") -> list[tuple[int, Observation]]:
    return list(entries(JournalFiles(agent, None, store), unreadable=fail))


def files(store: Archive) -> list[Path]:
    return sorted(path for path in Path(store.root).rglob("*") if path.is_file())


def merge(folder: Path) -> None:
    """Merge the segments of a folder into one, as `--compact` does."""
    compaction = pytest.importorskip("spark_checks.journal.compaction")
    assert compaction.merge(compaction.find_sealed(folder)) > 1
