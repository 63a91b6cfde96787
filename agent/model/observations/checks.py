"""Facts that Spark checks report."""

from typing import Literal

from agent.model.observations.base import Observation


class CheckFinding(Observation, frozen=True, kw_only=True, tag="check_finding", gc=False):
    """What a Spark check found; `at` is when the run that found it ended.

    cluster: the cluster's name in rules.toml. check: the check's name, also the kind of the rule that reports its
    findings. finding: the finding's public JSON, which has the time of the event. group, topic, partition, broker: as
    in the finding's subject; null if it names none or several.
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
    """A run of a Spark check ended, at `at`; its findings precede it.

    cluster: the cluster's name in rules.toml. check: the check's name. started_at: when the run started. complete:
    whether it read everything that the check is configured to read, not only what an incident requested. outcome: what
    came of it; `failed` also if it could not start or exceeded a limit. reason: why it failed, a sentence and the last
    lines of its log; empty if it did not.
    """

    key = ("cluster", "check")
    is_event = True

    cluster: str
    check: str
    started_at: int
    complete: bool
    outcome: Literal["clean", "found", "failed"]
    reason: str = ""
