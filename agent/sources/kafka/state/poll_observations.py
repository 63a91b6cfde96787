"""The observations of a poll: what results say, and heartbeats of what has not changed. Makes no calls."""

from collections.abc import Callable, Collection, Iterable

from agent.model.observations.base import Observation, Subject
from agent.model.observations.kafka import Commit, GroupState, LogOffsets
from agent.sources.base import ChangeDetector
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.protocol import TopicPartition


class PollObservations:
    """Observations since they were last taken.

    A heartbeat repeats what was observed before the poll. What has been read since may have changed, so it has none.
    """

    def __init__(self, cluster: str, detector: ChangeDetector) -> None:
        self._cluster = cluster
        self._detector = detector
        self._observations: list[Observation] = []

    def add(self, *facts: Observation) -> None:
        """Add what results say."""
        self._observations += facts

    def take(self) -> list[Observation]:
        """Return the observations since the last time, in order of arrival."""
        taken, self._observations = self._observations, []
        return taken

    def confirm(self, kind: type[Observation], name: str, rests: Callable[[], Iterable[Subject]], at: int) -> None:
        """Take note that the facts of a kind about a group or topic are the same as when last read.

        rests: returns what follows the name in the subjects of these facts.
        """
        scope = (kind.subject_kind, self._cluster, name)
        self._detector.confirm(scope, at)
        self._add_heartbeats(self._detector.heartbeats(scope, lambda: ((*scope, *rest) for rest in rests()), at))

    def confirm_logs(self, request: protocol.ListOffsets, unchanged: Collection[TopicPartition], at: int) -> None:
        """Take note that of the partitions of a request these have the same log offsets as when last read."""
        kind = LogOffsets.subject_kind, self._cluster
        # What is listed has no heartbeat here, but counts for when the next one is due.
        due = self._detector.heartbeats(
            (*kind, request.leader, *request.partitions), lambda: ((*kind, *place) for place in request.partitions), at
        )
        confirmed = {(*kind, *place) for place in unchanged} if due else ()
        self._add_heartbeats([fact for fact in due if fact.subject in confirmed])

    def end_group(self, group: str) -> None:
        """Take note that a group and its commits are no more."""
        for kind in (Commit, GroupState):
            self._detector.end((kind.subject_kind, self._cluster, group))

    def forget_log(self, partition: TopicPartition) -> None:
        """Forget a partition that no longer exists."""
        for kind in ("last_stable_offset", "log_offsets"):
            self._detector.forget((kind, self._cluster, *partition))

    def _add_heartbeats(self, facts: Collection[Observation]) -> None:
        read = {fact.subject for fact in self._observations} if facts else ()
        self._observations += [fact for fact in facts if fact.subject not in read]
