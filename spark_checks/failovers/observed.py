"""Until when the journals of several agents say what happened on each cluster.

Each agent archives its segments an hour after they begin, every kind of observation at a time of its own. An archive
therefore ends at another moment for each agent, and for each kind that is read.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from agent.storage.journal.places import JournalFiles
from agent.storage.journal.segments import UNREADABLE, Unreadable
from agent.storage.journal.writer import SEGMENT_MS
from spark_checks.journal.files import find_pieces, read

_SEALED_MS = SEGMENT_MS + 300_000
"""What was observed so long before an archived tick is archived too: segments are sealed an hour after they begin."""

_STATES = "group_state"
_SILENT_MS: Mapping[str, int] = {_STATES: 900_000, "commit": 60_000, "log_offsets": 60_000}
"""How long before the last tick a kind may end without anything missing: unchanged states come every ten minutes."""


class Observed(NamedTuple):
    """Until when (ms) a cluster was observed: all of it, and the last of the groups' states there."""

    until: int
    states: int


def find_observed(ticks: Mapping[JournalFiles, int], unreadable: Unreadable) -> dict[str, Observed]:
    """Return until when each cluster with groups was observed by an agent. ticks: the last of each journal, ms.

    A cluster that the agent could not read for an hour is not among them.
    """
    found: dict[str, Observed] = {}
    for journal, last in ticks.items():
        clusters, observed = _of_journal(journal, last, unreadable)
        for cluster in clusters:
            found[cluster] = max(found.get(cluster, observed), observed)
    return found


def _of_journal(journal: JournalFiles, last: int, unreadable: Unreadable) -> tuple[set[str], Observed]:
    """Return the clusters in the last hour of a journal, and until when it has everything about them."""
    clusters, until, states = set[str](), last, last
    for kind, silent in _SILENT_MS.items():
        pieces = find_pieces(journal, kind, last - _SEALED_MS, last + 1, unreadable)
        end = min(max((piece.high for piece in pieces), default=0), last)
        if kind == _STATES:
            states = max(end, last - _SEALED_MS)
            for piece in pieces:
                with suppress(*UNREADABLE):  # the query that reads all of it reports damage
                    clusters.update(filter(None, read(piece, ["cluster"])["cluster"].unique().to_pylist()))
        if last - end > silent:
            until = min(until, max(end, last - _SEALED_MS))
    # Of a local journal the open segments are read too.
    return clusters, Observed(last, last) if journal.directory is not None else Observed(until, states)
