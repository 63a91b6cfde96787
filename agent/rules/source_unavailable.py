"""source_unavailable: a source does not see what it should watch."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import Duration
from agent.model.findings import Finding, sight
from agent.model.observations import Availability, Observation, Unavailable, clock
from agent.rules.queries.partitions import spells


class SourceUnavailable(Rule):
    """A source has not seen its subject (a cluster, a group, a partition) for `after`. Recovers when it sees it again.

    An alerting system that has gone blind must alert; a cluster that is down, slow or not there yet is told once.
    """

    title = "{source} cannot see {sight}"
    is_ongoing = True
    is_about_sources = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="see why {source} cannot see {sight}; until it does, nothing is known of it.", only_while_open=True
        ),
    }
    observes = (Unavailable,)

    after: Duration = 60_000
    """How long it may last."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each subject that cannot be seen."""
        if not isinstance(observation, Unavailable):
            return ()
        one = observation
        return (Scope(one.cluster, one.group, one.topic, one.partition, source=one.source),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each time long enough."""
        for begin, end in spells(facts.history(Availability, *_key(scope)), _unseen):
            if isinstance(begin, Unavailable) and (end is None or end.at >= begin.at + self.after):
                yield self.make_finding(
                    scope,
                    begin,
                    known_at=max(begin.at + self.after, begin.seen),
                    detail=f"{scope.source} has not seen {sight(scope.subject)} since {clock(begin.at)} UTC: "
                    f"{begin.reason}",
                )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when it is seen again."""
        return recovered(
            finding,
            next(
                (one.at for one in facts.history(Availability, *_key(scope)).after(finding.at) if not _unseen(one)),
                None,
            ),
        )


def _unseen(sight: Availability) -> bool:
    return isinstance(sight, Unavailable)


def _key(scope: Scope) -> tuple[str | int | None, ...]:
    return (scope.source, scope.cluster, scope.group, scope.topic, scope.partition)
