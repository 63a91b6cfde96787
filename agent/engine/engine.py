"""The pure core in one piece: observations in, changed incidents out. Live, in replay and in tests it is the same."""

from collections.abc import Iterable, Mapping

from agent.engine.check_requests import CheckRequest
from agent.engine.correlation import Correlation
from agent.engine.evaluator import Evaluator
from agent.engine.incidents import LIFETIMES, Incidents, Lifetimes
from agent.engine.rule import Rule
from agent.model.findings import FindingKey, Incident
from agent.model.observations import CheckFinding, Observation


class Engine:
    """Rules, correlation and incidents over a stream of observations."""

    def __init__(
        self, rules: Mapping[str, Rule], correlations: Mapping[str, Correlation], lifetimes: Lifetimes = LIFETIMES
    ) -> None:
        """rules and correlations: by their names in rules.toml."""
        self._detection = Evaluator(rules)
        titles = {name: rule.title for name, rule in rules.items()}
        checked = [name for name, rule in rules.items() if CheckFinding in rule.observes]
        self._incidents = Incidents(correlations, titles, lifetimes, checked)

    def take(self, observations: Iterable[Observation]) -> list[Incident]:
        """The incidents that a batch changed, as they stand then; a merged or withdrawn one stands without findings.

        Time never leaps over a moment that is waited for, so it does not matter how observations are cut into batches.
        """
        changed: dict[str, Incident] = {}
        facts = self._detection.facts
        for one in observations:
            if not self._detection.absorb(one):
                continue
            seen = one.seen
            while (due := self.next_due) < seen:
                self._judge(max(due, facts.now), changed)
            facts.now = max(facts.now, seen)
        self._judge(facts.now, changed)
        return list(changed.values())

    def catch_up(self) -> list[Incident]:
        """The incidents that change when what would be looked at again soon is looked at now: the end of a replay."""
        changed: dict[str, Incident] = {}
        self._judge(self._detection.facts.now, changed, everything=True)
        return list(changed.values())

    def resume(self, incidents: Iterable[Incident], judged: Iterable[Observation]) -> None:
        """Carry on after a restart: the incidents as stored, and the observations that had been judged by then."""
        standing = [one for one in incidents if one.merged_into is None]
        self._detection.resume((finding for one in standing for finding in one.causes + one.findings), judged)
        self._incidents.resume(standing, self.now)

    def latest(self) -> Iterable[Observation]:
        """What is last known of each subject."""
        return self._detection.facts.latest()

    @property
    def asks(self) -> list[CheckRequest]:
        """Which checks the findings known ask for; an ask keeps its id while its window and topics may still grow."""
        return self._incidents.asks

    def holder(self, finding: FindingKey) -> str | None:
        """The id of the incident that holds the finding; None where none that may still change does."""
        return self._incidents.holder(finding)

    @property
    def horizon(self) -> int:
        """How long after a finding another may still join it, ms."""
        return self._incidents.horizon

    @property
    def now(self) -> int:
        """The latest moment that any observation tells of, ms."""
        return self._detection.facts.now

    @property
    def next_due(self) -> int:
        """When time alone may change something, ms; LONG_AFTER where nothing is waited for."""
        return min(self._detection.next_due, self._incidents.next_due)

    def _judge(self, now: int, changed: dict[str, Incident], *, everything: bool = False) -> None:
        found = self._detection.judge(now, everything=everything)
        changed.update((one.id, one) for one in self._incidents.apply(found, self._detection.facts.blind(), now))
