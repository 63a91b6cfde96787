"""blind: a source does not see what it should watch."""

from collections.abc import Iterable, Iterator

from agent.evidence import spells
from agent.facts import Facts
from agent.findings import Finding, sight
from agent.observations import Blind as BlindObservation
from agent.observations import Observation, Sight, Subject, clock
from agent.options import Duration
from agent.rule import Case, Rule, recovered


class Blind(Rule):
    """A source has not seen its subject (a cluster, a group, a partition) for `after`. Recovers when it sees it again.

    An alerting system that has gone blind must alert; a cluster that is down, slow or not there yet is told once.
    """

    title = "{source} cannot see {sight}"
    sees = (BlindObservation,)

    after: Duration = 60_000
    """How long it may last."""

    def cases(self, observation: Observation, facts: Facts) -> Iterable[Case]:  # noqa: ARG002 - the base's signature
        """Each subject that cannot be seen."""
        if not isinstance(observation, BlindObservation):
            return ()
        one = observation
        return (Case(one.cluster, one.group, one.topic, one.partition, source=one.source),)

    def detect(self, case: Case, facts: Facts) -> Iterator[Finding]:
        """Each time long enough."""
        for begin, end in spells(facts.sight(_subject(case)), _unseen):
            if isinstance(begin, BlindObservation) and (end is None or end.at >= begin.at + self.after):
                yield self.find(
                    case,
                    begin,
                    known_at=max(begin.at + self.after, begin.seen),
                    detail=f"{case.source} has not seen {sight(case.subject)} since {clock(begin.at)} UTC: "
                    f"{begin.reason}",
                )

    def follow(self, finding: Finding, case: Case, facts: Facts) -> Finding:
        """Over when it is seen again."""
        return recovered(
            finding, next((one.at for one in facts.sight(_subject(case)).after(finding.at) if not _unseen(one)), None)
        )


def _unseen(sight: Sight) -> bool:
    return isinstance(sight, BlindObservation)


def _subject(case: Case) -> Subject:
    return ("sight", case.source, case.cluster, case.group, case.topic, case.partition)
