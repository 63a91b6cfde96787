"""Facts that Spark checks tell."""

from typing import Literal

from agent.model.observations.base import Observation


class CheckFinding(Observation, frozen=True, kw_only=True, tag="check_finding", gc=False):
    """What a Spark check found. at: when the run that found it ended; when it happened stands in the finding.

    check: the check's name, which is also the kind of the rule that judges what it finds. finding: its public JSON.
    group, topic, partition, broker: as in the finding's subject, None where that names none or several.
    """

    key = ("cluster", "check", "group", "topic", "partition", "broker")
    is_event = True
    history_floor = 0

    cluster: str
    check: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    finding: str


class CheckRun(Observation, frozen=True, kw_only=True, tag="check_run", gc=False):
    """A run of a Spark check has ended, at `at`; its findings came before.

    complete: whether it looked at all that the check is configured to look at, not only at what an incident asked for.
    outcome: failed also where it could not start or was stopped for its limits; reason then is a sentence and the last
    lines of its log.
    """

    key = ("cluster", "check")
    is_event = True

    cluster: str
    check: str
    started_at: int
    complete: bool
    outcome: Literal["clean", "found", "failed"]
    reason: str = ""
