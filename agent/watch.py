"""The pure core in one piece: observations in, changed incidents out. Live, in replay and in tests it is the same."""

from collections.abc import Iterable, Mapping

from agent.correlation import Correlation
from agent.detection import Detection
from agent.findings import Incident
from agent.incidents import LIFETIMES, Incidents, Lifetimes
from agent.observations import Observation
from agent.rule import Rule


class Watch:
    """Rules, correlation and incidents over a stream of observations."""

    def __init__(
        self, rules: Mapping[str, Rule], correlations: Mapping[str, Correlation], lifetimes: Lifetimes = LIFETIMES
    ) -> None:
        """rules and correlations: by their names in rules.toml."""
        self._detection = Detection(rules)
        self._incidents = Incidents(correlations, {name: rule.title for name, rule in rules.items()}, lifetimes)

    def take(self, observations: Iterable[Observation]) -> list[Incident]:
        """The incidents that a batch changed, each as it stands after it; a merged or withdrawn one stands without
        findings.
        """
        changes = self._detection.take(observations)
        facts = self._detection.facts
        return self._incidents.apply(changes, facts.blind(), facts.now)

    def resume(self, incidents: Iterable[Incident], judged: Iterable[Observation]) -> None:
        """Carry on after a restart: the incidents as stored, and the observations that had been judged by then."""
        self._incidents.resume(incidents)
        self._detection.resume(self._incidents.findings())
        self._detection.absorb(judged)

    def latest(self) -> Iterable[Observation]:
        """The newest observation of each subject."""
        return self._detection.facts.latest()

    @property
    def now(self) -> int:
        """The latest moment that any observation tells of, ms."""
        return self._detection.facts.now

    @property
    def next_due(self) -> int | None:
        """When time alone may change something, ms."""
        return min(
            (due for due in (self._detection.next_due, self._incidents.next_due) if due is not None), default=None
        )
