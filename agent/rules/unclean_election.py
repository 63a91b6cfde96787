"""unclean_election: a partition's new leader was neither in its ISR nor an eligible leader replica."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Scope, TopicRule, recovered
from agent.model.findings import Finding
from agent.model.observations.base import Observation
from agent.model.observations.kafka import PartitionState
from agent.model.text import leader_name, place, time_range
from agent.rules.queries.advice import DURABLE_WRITES
from agent.rules.queries.partitions import find_unclean_elections, leader_of


class UncleanElection(TopicRule):
    """A leader was elected that was not in the ISR: records that it had not replicated are lost.

    Kafka does so with unclean.leader.election.enable=true. Inferred from polls: the new leader was not in the last ISR.
    Where the new leader may have had all records, it is reported only if the log was truncated: on clusters that may
    have an ELR which cannot be read, and if an old in-sync replica is in the ISR with it (it may have caught up between
    two polls).
    Not: an eligible leader replica (KIP-966), which has all committed records; a reassignment (the replicas differ); a
    re-created topic.
    Recovers when the replicas that were in sync before are in sync again.
    """

    title = "unclean leader election on {topic}[{partition}]"
    advice: ClassVar[Mapping[str, Advice]] = {"": Advice(prevent=DURABLE_WRITES)}
    observes = (PartitionState,)

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        return f"{cls.timeline(finding, day)}, {time_range(finding, day)}"

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        # Not `detail`: an incident may know a leader from before the time without one.
        del day
        isr = finding.previous.get("isr") or ()
        return _describe(place(finding.subject), finding.previous.get("leader"), finding.current.get("leader"), isr)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, PartitionState) or not self.topics.match(observation.topic):
            return ()
        history = facts.history(PartitionState, observation.cluster, observation.topic, observation.partition).changes
        leader = leader_of(observation)
        is_outside = len(history) > 1 and leader is not None and leader not in history[-2].isr
        return (Scope.of_partition(observation),) if is_outside else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for before, after, known_at in find_unclean_elections(facts, scope.in_partition):
            old, new = leader_of(before), leader_of(after)
            brokers = [broker for broker in (*before.isr, new) if broker is not None]
            yield self.make_finding(
                scope,
                after,
                known_at=known_at,
                detail=_describe(f"{scope.topic}[{scope.partition}]", old, new, before.isr),
                subject={"brokers": list(dict.fromkeys(brokers))},
                previous={"leader": old, "leader_epoch": before.leader_epoch, "isr": list(before.isr)},
                current={"leader": new, "leader_epoch": after.leader_epoch, "isr": list(after.isr)},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        in_sync = set(finding.previous["isr"])
        states = facts.history(PartitionState, *scope.in_partition).after(finding.at - 1)
        restored = (state.at for state in states if state.is_deleted or in_sync & set(state.replicas) <= set(state.isr))
        return recovered(finding, next(restored, None))


def _describe(where: str, old: int | None, new: int | None, isr: Iterable[int]) -> str:
    in_sync = ", ".join(map(str, isr)) or "empty"
    return f"{where}: leader {leader_name(old)} -> {leader_name(new)}, unclean election (ISR was {in_sync})"
