"""topic_recreated: a topic was deleted and created again under its name."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import LATENESS_MS, Facts
from agent.engine.rule import Advice, EventRule, Scope, TopicRule
from agent.model.findings import Finding, Severity
from agent.model.observations import Observation, PartitionState
from agent.rules.queries.partitions import deleted, endings
from agent.rules.queries.subjects import partitions_in


class TopicRecreated(EventRule, TopicRule):
    """A topic has another id (before 2.8: another czxid of its znode), or is there again after it was deleted. Info.

    Its offsets start anew: what falls with them is neither a rewind nor a truncation, and no other rule tells it.
    Not: an id that was unknown before, a UUID in place of a czxid (an upgrade to 2.8), a topic that was out of the
    metadata for a while and is back under its old id.
    """

    title = "{topic} was deleted and created again"
    default_severity = Severity.INFO
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="unless it was meant, find out who deleted {topic}; its consumers begin anew.",
            prevent="auto.create.topics.enable=false, and ACLs on deletion.",
        ),
    }
    observes = (PartitionState,)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each partition state under another id than the one before, or after a deletion."""
        if (
            not isinstance(observation, PartitionState)
            or deleted(observation)
            or not self.topics.match(observation.topic)
        ):
            return ()
        history = facts.history(PartitionState, observation.cluster, observation.topic, observation.partition).changes[
            -2:
        ]
        changed = len(history) > 1 and (deleted(history[0]) or history[0].topic_id != observation.topic_id)
        return (Scope(observation.cluster, topic=observation.topic),) if changed else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each incarnation after the first, at the earliest state of any of its partitions."""
        topic = scope.topic or ""
        births = [
            (one.new, one.old_id)
            for partition in partitions_in(facts, scope.cluster, topic)
            for one in endings(facts.history(PartitionState, scope.cluster, topic, partition))
            if one.new is not None
        ]
        told: list[PartitionState] = []
        for state, old in sorted(births, key=lambda birth: (birth[0].at, birth[0].partition)):
            if any(_same(one, state) for one in told):
                continue
            told.append(state)
            ids = f"{old or 'unknown'} -> {state.topic_id or 'unknown'}"
            yield self.make_finding(
                scope,
                state,
                detail=f"{topic} was deleted and created again (id {ids})",
                previous={"topic_id": old},
                current={"topic_id": state.topic_id},
            )


def _same(one: PartitionState, later: PartitionState) -> bool:
    """Whether both began with the same creation of their topic: by its id, where that is unknown by the time."""
    if one.topic_id and later.topic_id and one.at != later.at:
        return one.topic_id == later.topic_id
    return later.at - one.at <= LATENESS_MS
