"""topic_recreated: a topic was deleted and re-created under its name."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import LATENESS_MS, Facts
from agent.engine.rule import Advice, EventRule, Scope, TopicRule
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import PartitionState
from agent.rules.queries.partitions import find_incarnation_ends, is_deleted
from agent.rules.queries.subjects import partitions_in


class TopicRecreated(EventRule, TopicRule):
    """A topic has another id (before Kafka 2.8: another czxid of its znode), or exists again after its deletion. Info.

    Its offsets start at 0 again: no other rule reports this as a rewind or a truncation.
    Not: an id that was unknown before, a UUID in place of a czxid (an upgrade to 2.8), a topic that was missing from
    the metadata for a while and is back under its old id.
    """

    title = "{topic} was deleted and re-created"
    default_severity = Severity.INFO
    recreates_topic = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Find out who deleted {topic}, unless it was intended. Its offsets start at 0 again.",
            prevent="Set auto.create.topics.enable=false and restrict the deletion of topics by ACLs.",
        ),
    }
    observes = (PartitionState,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, PartitionState) or is_deleted(observation):
            return ()
        if not self.topics.match(observation.topic):
            return ()
        history = facts.history(PartitionState, observation.cluster, observation.topic, observation.partition).changes[
            -2:
        ]
        changed = len(history) > 1 and (is_deleted(history[0]) or history[0].topic_id != observation.topic_id)
        return (Scope(observation.cluster, topic=observation.topic),) if changed else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield each incarnation after the first, at the earliest state of any of its partitions."""
        topic = scope.topic or ""
        beginnings = [
            (end.new, end.old_id)
            for partition in partitions_in(facts, scope.cluster, topic)
            for end in find_incarnation_ends(facts.history(PartitionState, scope.cluster, topic, partition))
            if end.new is not None
        ]
        reported: list[PartitionState] = []
        for state, old_id in sorted(beginnings, key=lambda beginning: (beginning[0].at, beginning[0].partition)):
            if any(_is_same_incarnation(earlier, state) for earlier in reported):
                continue
            reported.append(state)
            ids = f"{old_id or 'unknown'} -> {state.topic_id or 'unknown'}"
            yield self.make_finding(
                scope,
                state,
                detail=f"{topic} was deleted and re-created (id {ids})",
                previous={"topic_id": old_id},
                current={"topic_id": state.topic_id},
            )


def _is_same_incarnation(earlier: PartitionState, later: PartitionState) -> bool:
    """Return whether both states began with the same creation of their topic: by id, or by time if that is unknown."""
    if earlier.topic_id and later.topic_id and earlier.at != later.at:
        return earlier.topic_id == later.topic_id
    return later.at - earlier.at <= LATENESS_MS
