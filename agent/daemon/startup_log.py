"""What a source sees first, or why it sees nothing yet: one line each in the agent's own log, at its start."""

from collections.abc import Callable, Iterable

import structlog

from agent.model.observations import (
    Availability,
    BrokerRegistration,
    Commit,
    FlinkJob,
    GroupState,
    JobManagerLeader,
    LogFile,
    LogOffsets,
    Observation,
    PartitionState,
    Unavailable,
)
from agent.sources.base import Batch, Emit

SETTLED_MS = 30_000
"""By then each part of a source that cannot see has said so; one that has told nothing sees what it had seen before."""

_COUNTED: dict[str, Callable[[Observation], object]] = {
    "brokers": lambda one: one.broker if isinstance(one, BrokerRegistration) else None,
    "topics": lambda one: one.topic if isinstance(one, LogOffsets | PartitionState) else None,
    "partitions": lambda one: (one.topic, one.partition) if isinstance(one, LogOffsets | PartitionState) else None,
    "groups": lambda one: one.group if isinstance(one, Commit | GroupState) else None,
    "job_managers": lambda one: one.address if isinstance(one, JobManagerLeader) else None,
    "jobs": lambda one: one.job if isinstance(one, FlinkJob) and not one.ended else None,
    "files": lambda one: one.log if isinstance(one, LogFile) else None,
}

log = structlog.get_logger(__name__)


class StartupLog:
    """Stands between a source and the pipeline, and listens until the source has seen its subject."""

    def __init__(self, cluster: str, source: str, emit: Emit, known: Iterable[Observation], now: int) -> None:
        """known: the last observation of each subject before this run; of a kind that the source tells, they count."""
        self._cluster, self._source, self._emit, self._begun = cluster, source, emit, now
        self._known = [one for one in known if getattr(one, "cluster", None) == cluster]
        self._told: list[Observation] = []
        self._blind: dict[str, str] = {}
        self._complained: set[str] = set()
        self._said = self._done = False

    def emit(self, batch: Batch) -> None:
        """Take note of the batch and pass it on."""
        if not self._done:
            self._told += [one for one in batch if not isinstance(one, Availability)]
            for one in batch:
                if isinstance(one, Unavailable) and (one.group, one.topic, one.partition) == (None, None, None):
                    self._blind[one.source] = one.reason
                elif isinstance(one, Availability):
                    self._blind.pop(one.source, None)
        self._emit(batch)

    def polled(self, now: int) -> None:
        """Say, after a poll, what has been seen or why not; each once. now: ms."""
        if self._done:
            return
        for source, reason in list(self._blind.items()):  # a source may emit from a thread of its own meanwhile
            if source not in self._complained:
                self._complained.add(source)
                log.warning("cannot see yet", source=f"{self._cluster}/{source}", reason=reason)
        settled = now - self._begun >= SETTLED_MS
        if not self._said and (self._told or (settled and not self._blind)):
            self._said = True
            kinds = {type(one) for one in self._told}
            seen = [one for one in self._known if not kinds or type(one) in kinds] + self._told
            log.info("sees", source=f"{self._cluster}/{self._source}", **_counts(seen))
        if self._said and settled:
            self._done = True
            self._known, self._told = [], []


def _counts(seen: Iterable[Observation]) -> dict[str, int]:
    """How many of what; what there is none of is left out."""
    named: dict[str, set[object]] = {}
    latest = {one.subject: one for one in seen}
    for one in latest.values():
        for what, of in _COUNTED.items():
            if (name := of(one)) is not None:
                named.setdefault(what, set()).add(name)
    return {what: len(names) for what, names in named.items()}
