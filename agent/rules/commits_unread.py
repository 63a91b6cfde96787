"""commits_unread: records of `__consumer_offsets` were not read."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, EventRule, Scope
from agent.model.findings import Finding
from agent.model.observations.base import Observation
from agent.model.observations.kafka import OFFSETS_TOPIC, OffsetsUnread


class CommitsUnread(EventRule):
    """Records of `__consumer_offsets` were not read, so that a rewind that they show may be missing.

    They were removed before Backflow read them, the log was truncated or created again, or Backflow was away for so
    long that reading them would have taken too long. What groups had committed after them is compared with what they
    had committed before.
    Not: records that compaction removed because the group has committed again since.
    """

    title = "commits in {topic}[{partition}] were not read"
    reports_agent = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Rewinds of the groups of {topic}[{partition}] that lay between are not reported: compare what their "
            "consumers logged.",
        ),
    }
    observes = (OffsetsUnread,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        if not isinstance(observation, OffsetsUnread):
            return ()
        return (Scope(observation.cluster, topic=OFFSETS_TOPIC, partition=observation.partition),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for unread in facts.history(OffsetsUnread, scope.cluster, scope.partition):
            offsets = "commits"
            if unread.first_offset is not None and unread.last_offset is not None:
                offsets = f"offsets {unread.first_offset:,} to {unread.last_offset:,}"
            yield self.make_finding(
                scope,
                unread,
                detail=f"{offsets} of {scope.topic}[{scope.partition}] were not read: {unread.reason}",
                current={"first_offset": unread.first_offset, "last_offset": unread.last_offset},
            )
