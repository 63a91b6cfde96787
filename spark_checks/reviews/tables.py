"""The journal's kinds as Spark reads them.

A damaged file makes a query fail. `set_aside_damaged` then finds it, and the query is repeated without it.
"""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame

from agent.storage.journal.reader import COLUMNS
from agent.storage.journal.segments import UNREADABLE
from spark_checks.journal.files import JournalWindow, Piece, read, scan


class JournalTables:
    """The kinds of a journal as tables, for one cluster and a window of time."""

    def __init__(self, window: JournalWindow) -> None:
        self.window = window
        self._read: set[Piece] = set()
        self._damaged: set[str] = set()

    def read(self, kind: str, columns: Sequence[str]) -> DataFrame:
        """Return the columns of a kind, and `position` and `at` (ms), of the cluster and in the window."""
        spark, _, cluster, since, until, _ = self.window
        pieces = [piece for piece in self.window.pieces(kind) if piece.path not in self._damaged]
        self._read.update(pieces)
        only = {"cluster": [cluster]} if "cluster" in COLUMNS[kind].schema.names else {}
        names = ["position", "at", *columns]
        return scan(spark, kind, pieces, names, since=since, until=until, only=only, skips_damage=False)

    def set_aside_damaged(self) -> bool:
        """Read all files in full, leave damaged ones out from now on, and return whether there are any."""
        found = False
        for piece in sorted(self._read):
            reason = None if piece.path in self._damaged else _find_damage(piece)
            if reason is not None:
                self.window.unreadable(Path(piece.path), reason)
                self._damaged.add(piece.path)
                found = True
        return found


def _find_damage(piece: Piece) -> str | None:
    """Return why a piece cannot be read in full, or None. A file that was merged or removed is no damage."""
    try:
        read(piece, COLUMNS[piece.kind].schema.names)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        return str(error)
    return None
