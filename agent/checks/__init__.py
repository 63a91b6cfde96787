"""Spark checks as the daemon sees them: processes that it asks, limits and listens to. The checks are spark_checks/."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from agent.findings import FindingKey
from agent.observations import Observation

CHECKS: Mapping[str, str] = {
    "log_segments": "brokers' log segments: offsets that go back, bad checksums, indexes that point wrong",
    "replica_divergence": "replicas of one partition compared: from which offset on they differ, what each would lose",
    "offset_history": "the journal: every rewind, jump and gap of committed offsets, with what happened around it",
}
"""Every check by its name, and in one line what it looks at."""


class Ask(Struct, frozen=True, kw_only=True):
    """An incident asks for a check that can explain or prove it. Durable: kept until it is answered.

    id: made from check and finding, so that the same question is asked once. finding: the root cause's, else the worst
    effect's key; the incident that holds it gets the answer. since, until: the window to look at, event time, ms.
    topics, groups: what it is about; empty: everything. due: not to be run before, ms.
    """

    id: str
    check: str
    cluster: str
    finding: FindingKey
    since: int
    until: int
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    due: int = 0


class Answer(NamedTuple):
    """What came of a run. ask: None where the schedule asked. observations: CheckFindings, then one CheckRun.

    lines: what to say in the incident's thread, the most important first; plot: a PNG, None where there is none.
    """

    ask: Ask | None
    observations: list[Observation]
    lines: tuple[str, ...] = ()
    plot: bytes | None = None
