"""topic_recreated: a topic was deleted and created again under its name."""

from collections.abc import Iterable, Iterator

from agent.evidence import deleted
from agent.facts import Facts
from agent.findings import Finding, Severity
from agent.observations import Observation, PartitionState
from agent.rule import Case, EventRule, TopicRule


class TopicRecreated(EventRule, TopicRule):
    """A topic has another id (before 2.8: another czxid of its znode), or is there again after it was deleted. Info.

    Its offsets start anew: what falls with them is neither a rewind nor a truncation, and no other rule tells it.
    """

    title = "{topic} was deleted and created again"
    default_severity = Severity.INFO

    def cases(self, observation: Observation, facts: Facts) -> Iterable[Case]:
        """Each partition state under another id than the one before, or after a deletion."""
        if not isinstance(observation, PartitionState) or deleted(observation) or not self.topics.match(observation.topic):
            return ()
        history = facts.partition(observation.cluster, observation.topic, observation.partition).changes[-2:]
        changed = len(history) > 1 and (deleted(history[0]) or history[0].topic_id != observation.topic_id)
        return (Case(observation.cluster, topic=observation.topic),) if changed else ()

    def detect(self, case: Case, facts: Facts) -> Iterator[Finding]:
        """Each incarnation after the first, at the earliest state of any of its partitions."""
        first: dict[tuple[str | None, str | None], PartitionState] = {}
        topic = case.topic or ""
        for partition in facts.partitions_in(case.cluster, topic):
            identity: str | None = None
            was_deleted = known = False
            for state in facts.partition(case.cluster, topic, partition):
                if deleted(state):
                    was_deleted = known
                    continue
                if was_deleted or (identity and state.topic_id and identity != state.topic_id):
                    pair = (identity, state.topic_id)
                    first[pair] = min(first.get(pair, state), state, key=lambda one: (one.at, one.partition))
                known, was_deleted = True, False
                identity = state.topic_id or identity
        for (old, new), state in first.items():
            if old is None or old != new:
                yield self.find(
                    case,
                    state,
                    detail=f"{topic} was deleted and created again (id {old or 'unknown'} -> {new or 'unknown'})",
                    previous={"topic_id": old},
                    current={"topic_id": new},
                )
