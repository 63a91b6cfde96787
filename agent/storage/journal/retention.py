"""How long the journal is kept."""

import shutil
from collections.abc import Callable
from pathlib import Path

from agent.storage.journal.segments import DAY_MS, FOREVER, Segment, day_of, find, folders

RETAIN_MS = 3_600_000
"""How often what is too old is removed."""

TRUST_MS = 600_000
"""How long after the start nothing is removed: a clock that is ahead would make all of the journal too old.

It may be corrected until then, and the agent starts again after each such step.
"""


def remove_expired(
    directory: Path, days: int, now: int, close: Callable[[Path], None], is_archived: Callable[[Path], bool]
) -> int:
    """Remove the dates more than `days` before now (ms), but not the folder of the last position.

    close: closes the segments that are being written in a folder. is_archived: whether a folder may be removed. Returns
    how many folders may not. Raises OSError.
    """
    kept = 0
    last = max(find(directory), key=_end, default=None)
    for folder in folders(directory):
        if last is not None and folder != last.path.parent and day_of(folder) < now // DAY_MS - days:
            if is_archived(folder):
                close(folder)
                shutil.rmtree(folder)
            else:
                kept += 1
    return kept


def _end(segment: Segment) -> tuple[int, int]:
    """Sort key: the last position; that of an open segment is yet to come."""
    return (FOREVER if segment.last is None else segment.last, segment.first)
