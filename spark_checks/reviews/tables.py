"""The journal's kinds as Spark reads them."""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from agent.storage.journal.reader import COLUMNS
from spark_checks.journal.files import JournalWindow, scan


class JournalTables:
    """The kinds of a journal as tables, for one cluster and a window of time."""

    def __init__(self, window: JournalWindow) -> None:
        self.window = window

    def read(self, kind: str, columns: Sequence[str]) -> DataFrame:
        """Return the columns of a kind, and `position` and `at` (ms), of the cluster and in the window."""
        spark, _, cluster, since, until, damaged = self.window
        only = {"cluster": [cluster]} if "cluster" in COLUMNS[kind].schema.names else {}
        names = ["position", "at", *columns]
        pieces = self.window.pieces(kind)
        return scan(spark, kind, pieces, names, since=since, until=until, only=only, damaged=damaged)
