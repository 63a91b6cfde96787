"""What the live rules saw, from the agent's state file, opened for reading only."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import msgspec

from agent.model.findings import Finding, Incident
from agent.rules.queries.partitions import CLOCK_SLACK_MS
from agent.storage.database import StorageError
from spark_checks.history.keys import Key

Live: TypeAlias = Mapping[Key, Sequence[Finding]]
"""The live findings about a key."""

_KINDS = ("offset_rewind", "offset_jump", "retention_overrun", "hidden_reset")


def findings(path: Path, cluster: str) -> Live:
    """The findings about committed offsets in all incidents of a cluster. Raises StorageError."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
            bodies = [str(body) for (body,) in store.execute("SELECT body FROM incidents")]
    except sqlite3.Error as error:
        msg = f"{path}: the agent's state cannot be read: {error}"
        raise StorageError(msg) from error
    found: dict[Key, list[Finding]] = {}
    for incident in (msgspec.json.decode(body, type=Incident) for body in bodies):
        for one in (*incident.causes, *incident.findings):
            # What a Flink subtask reads has no group, and no committed offset to compare with.
            if one.kind in _KINDS and "group" in one.subject and one.subject["cluster"] == cluster:
                key = Key(one.subject["group"], one.subject["topic"], one.subject["partition"])
                found.setdefault(key, []).append(one)
    return found


def seen(live: Live, key: Key, begin: int, end: int) -> bool:
    """Whether a live rule told something of the key in [begin, end], ms."""
    return any(one.start - CLOCK_SLACK_MS <= end and begin <= one.at + CLOCK_SLACK_MS for one in live.get(key, ()))
