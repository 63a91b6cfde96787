"""What rules look at by themselves, every minute or as often as they say: what does not happen is no observation. Pure.

There may be very many subjects to look at, hundreds of thousands after an outage, so that a look is an iterator: other
observations have their turn in between.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain

from agent.engine.commit_intake import series_to_revisit
from agent.engine.defects import SetAside
from agent.engine.dependencies import Evaluation
from agent.engine.facts import Facts
from agent.engine.history import LONG_AFTER
from agent.engine.rule import Rule
from agent.engine.suspensions import find_end
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit

_STEP_MS = 500
_LOOKED_AT_ONCE, _FOUND_AT_ONCE = 1_000, 5
"""How many histories are looked at, and how many evaluations found, in one step: that takes half of it at most."""

_DOZE_MS = 600_000
"""How far into a time in which Backflow was suspended rules still look: nothing new can be known of it."""


class Revisits:
    """When rules look at what they revisit, and the looks that have begun."""

    def __init__(
        self, rules: Mapping[str, Rule], facts: Facts, is_followed: Callable[[Evaluation], bool], set_aside: SetAside
    ) -> None:
        """rules: by their names in rules.toml.

        is_followed: whether what a rule about single findings would find is known already.
        """
        self._facts = facts
        self._is_followed = is_followed
        self._set_aside = set_aside
        self._kinds = {rule.revisits for rule in rules.values()} - {None}
        # By how often, ms, and the kind of subject.
        self._rules: dict[int, dict[Hashable, list[tuple[str, Rule]]]] = {}
        for name, rule in rules.items():
            if rule.revisits is not None:
                kinds = self._rules.setdefault(rule.revisit_ms, {})
                kinds.setdefault(rule.revisits.subject_kind, []).append((name, rule))
        self._begin_at: dict[int, int] = {}
        self._looks: dict[int, Iterator[list[Evaluation]]] = {}
        self._go_on_at = LONG_AFTER

    @property
    def next_due(self) -> int:
        """When rules look at the latest, ms; LONG_AFTER if there is nothing to look at."""
        return min(self._go_on_at, *self._begin_at.values(), LONG_AFTER)

    def add(self, kind: type[Observation], seen: int) -> None:
        """Take note that there is an observation of that kind, seen at that moment (ms): from then on rules look."""
        if not self._begin_at and kind in self._kinds:
            now = max(self._facts.now, seen)
            self._begin_at = {every: next_time(every, now) for every in sorted(self._rules)}

    def look(self, now: int, *, everything: bool) -> Iterator[list[Evaluation]]:
        """Yield what is to be evaluated of each subject looked at by that moment (ms); everything: not only a part."""
        for every in [every for every, at in self._begin_at.items() if at <= now]:
            asleep_until = find_end(self._facts, now, _DOZE_MS)
            self._begin_at[every] = next_time(every, asleep_until or now)
            if asleep_until is None:
                self._looks.setdefault(every, self._look(every))
                self._go_on_at = now
        if self._go_on_at > now and not everything:
            return
        for every, look in list(self._looks.items()):
            found = 0
            for looked, evaluations in enumerate(look, 1):
                yield evaluations
                found += len(evaluations)
                if (looked >= _LOOKED_AT_ONCE or found >= _FOUND_AT_ONCE) and not everything:
                    break
            else:
                del self._looks[every]
        self._go_on_at = now + _STEP_MS if self._looks else LONG_AFTER

    def _look(self, every: int) -> Iterator[list[Evaluation]]:
        """Yield what is to be evaluated of each subject that rules look at so often."""
        rules = self._rules[every]
        of_commits = [rule for _, rule in rules.get(Commit.subject_kind, ())]
        histories = self._facts.open_histories(rules)
        for history in chain(histories, series_to_revisit(self._facts, of_commits, self._set_aside)):
            found: list[Evaluation] = []
            for name, rule in rules[history.subject[0]]:
                try:
                    for scope in rule.revisit(history, self._facts):
                        evaluation = Evaluation(name, scope)
                        if not (rule.is_single and self._is_followed(evaluation)):
                            found.append(evaluation)
                except Exception as error:  # noqa: BLE001 - a defect of one rule must not silence the others
                    self._set_aside(f"rule {name}", error)
            yield found


def next_time(every: int, now: int) -> int:
    """Return the next time that `every` ms divide, such as a full minute: however observations are batched."""
    return (now // every + 1) * every
