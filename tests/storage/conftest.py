"""A journal to archive; the outbox of a store, and its delivery, for tests of the state file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Outbox, Row
from tests.storage.archives import write


@pytest.fixture
def outbox(store: IncidentStore, state_file: Path) -> Iterator[Outbox]:
    """The outbox of the store's receiver, slack."""
    assert store.position == 0
    opened = Outbox(state_file, "slack")
    yield opened
    opened.close()


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A journal of three segments for each kind and date."""
    write(tmp_path / "journal")
    return tmp_path / "journal"


def read_rows(outbox: Outbox) -> list[Row]:
    """Return the next row of each incident."""
    return [row for _, seq in outbox.heads() if (row := outbox.read(seq)) is not None]


def add_lines(row: Row) -> Row:
    """Return the row as a dispatcher attempts it: a log entry has lines by then."""
    return row._replace(lines=(f"log of {len(row.incident.findings)}",)) if row.is_log_entry and not row.lines else row


def deliver_all(outbox: Outbox) -> list[tuple[int, tuple[str, ...]]]:
    """Deliver all pending rows; return (number, lines) in the order of delivery."""
    delivered = []
    while waiting := read_rows(outbox):
        for row in map(add_lines, waiting):
            assert outbox.attempt(row, 1, "{}" if row.is_log_entry else None)
            outbox.confirmed(row, {"ts": "1"}, "fingerprint" if row.number == 0 else None)
            delivered.append((row.number, row.lines))
    return delivered
