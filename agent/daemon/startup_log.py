"""Log lines at the agent's start: what each source observes, whom each receiver reaches, or why not yet."""

import threading
from collections.abc import Callable, Iterable

import structlog

from agent.model.batches import CommitBatch
from agent.model.observations.agent import name_of_source
from agent.model.observations.base import Availability, Observation, Subject, Unavailable
from agent.model.observations.flink import FlinkJob, JobManagerLeader
from agent.model.observations.kafka import BrokerRegistration, Commit, GroupState, LogOffsets, PartitionState
from agent.model.observations.logs import LogFile
from agent.model.observations.zookeeper import ZooKeeperHealth
from agent.notify.base import Identifiable, NotDelivered, Receiver
from agent.sources.base import Batch, Emit

STARTUP_MS = 30_000
"""How long a source may take to report that a part of it is unavailable."""

_COUNTED: dict[str, Callable[[Observation], object]] = {
    "brokers": lambda fact: fact.broker if isinstance(fact, BrokerRegistration) else None,
    "topics": lambda fact: fact.topic if isinstance(fact, LogOffsets | PartitionState) else None,
    "partitions": lambda fact: (fact.topic, fact.partition) if isinstance(fact, LogOffsets | PartitionState) else None,
    "groups": lambda fact: fact.group if isinstance(fact, Commit | GroupState) else None,
    "job_managers": lambda fact: fact.address if isinstance(fact, JobManagerLeader) else None,
    "jobs": lambda fact: fact.job if isinstance(fact, FlinkJob) and not fact.ended else None,
    "files": lambda fact: fact.log if isinstance(fact, LogFile) else None,
}

ABOUT_ACCESS = (Availability, ZooKeeperHealth)
"""What sources emit even if they can read nothing; ZooKeeper's servers are asked whatever the path after them is."""

log = structlog.get_logger(__name__)


class StartupLog:
    """Passes the batches of one source on, and logs `source_ready` or `source_not_ready` at its start."""

    def __init__(self, cluster: str, source: str, emit: Emit, known: Iterable[Observation], now: int) -> None:
        """known: the last observation of each subject before this run, counted if the source emits its kind."""
        self._cluster, self._source, self._emit, self._started_at = cluster, source, emit, now
        self._known = [fact for fact in known if getattr(fact, "cluster", None) == cluster]
        self._observed: dict[Subject, Observation] = {}
        self._unavailable: dict[str, str] = {}
        self._logged: set[str] = set()
        self._is_ready = self._is_done = False

    def emit(self, batch: Batch) -> None:
        """Take note of the batch and pass it on."""
        if not self._is_done:
            facts = batch.one_per_group() if isinstance(batch, CommitBatch) else batch
            # By subject: a source that is partly unavailable for weeks is not ready, and goes on observing.
            self._observed |= {fact.subject: fact for fact in facts if not isinstance(fact, ABOUT_ACCESS)}
            for fact in facts:
                if isinstance(fact, Unavailable) and (fact.group, fact.topic, fact.partition) == (None, None, None):
                    self._unavailable[fact.source] = fact.reason
                elif isinstance(fact, Availability):
                    self._unavailable.pop(fact.source, None)
        self._emit(batch)

    def polled(self, now: int) -> None:
        """Log, after a poll, what is observed or why not, each once. now: ms."""
        if self._is_done:
            return
        for source, reason in list(self._unavailable.items()):  # a source may emit from a thread of its own meanwhile
            if source not in self._logged:
                self._logged.add(source)
                log.warning("source_not_ready", source=name_of_source(self._cluster, source), reason=reason)
        is_over = now - self._started_at >= STARTUP_MS
        is_readable = self._source not in self._unavailable
        if not self._is_ready and is_readable and (self._observed or (is_over and not self._unavailable)):
            self._is_ready = True
            observed = list(self._observed.values())
            kinds = set(map(type, observed))
            facts = [fact for fact in self._known if not kinds or type(fact) in kinds] + observed
            log.info("source_ready", source=name_of_source(self._cluster, self._source), **count_subjects(facts))
        if self._is_ready and is_over:
            self._is_done = True
            self._known, self._observed = [], {}


def try_receivers(receivers: Iterable[Receiver]) -> None:
    """Log `receiver_ready` or `receiver_not_ready` for those that can be tried without notifying anybody.

    Each is tried from a thread of its own: the start does not wait for it.
    """
    for receiver in receivers:
        if isinstance(receiver, Identifiable):
            threading.Thread(target=_try, args=(receiver,), name=f"try-{receiver.name}", daemon=True).start()


def _try(receiver: Identifiable) -> None:
    try:
        found = receiver.identify()
    except NotDelivered as error:
        log.warning("receiver_not_ready", receiver=receiver.name, reason=str(error))
    else:
        log.info("receiver_ready", receiver=receiver.name, found=found)


def count_subjects(facts: Iterable[Observation]) -> dict[str, int]:
    """Return the number of distinct brokers, topics and so on; those without any are left out."""
    names: dict[str, set[object]] = {}
    latest = {fact.subject: fact for fact in facts}
    for fact in latest.values():
        for noun, name_of in _COUNTED.items():
            if (name := name_of(fact)) is not None:
                names.setdefault(noun, set()).add(name)
    return {noun: len(found) for noun, found in names.items()}
