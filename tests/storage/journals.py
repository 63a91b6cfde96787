"""What tests of the journal share."""

from pathlib import Path

from agent.model.observations.kafka import Commit
from agent.model.times import millis

NOON = millis("2026-11-20T12:00:00.000Z")
MIDNIGHT = millis("2026-11-21T00:00:00.000Z")


class Unreadable:
    """The files and values that the journal reported as unreadable."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.reasons: list[str] = []

    def __call__(self, path: Path, reason: str) -> None:
        self.paths.append(path)
        self.reasons.append(reason)


def commit(at: int, offset: int | None = 0) -> Commit:
    return Commit(at=at, cluster="main", group="g", topic="t", partition=0, offset=offset)
