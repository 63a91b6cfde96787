"""Which evaluations depend on which facts."""

from collections.abc import Mapping
from typing import NamedTuple

from agent.engine.facts import DependencyKey
from agent.engine.rule import Scope


class Evaluation(NamedTuple):
    """What is evaluated as one: a scope by the rule of this name."""

    rule: str
    scope: Scope


NO_EVALUATIONS: Mapping[Evaluation, None] = {}


class Dependencies:
    """Which evaluations read which subjects and indexes. dependents: by what they read."""

    def __init__(self) -> None:
        self.dependents: dict[DependencyKey, dict[Evaluation, None]] = {}
        self._reads: dict[Evaluation, dict[DependencyKey, None]] = {}

    def reads_of(self, evaluation: Evaluation) -> Mapping[DependencyKey, None]:
        """Return what the evaluation depends on."""
        return self._reads.get(evaluation, {})

    def replace(self, evaluation: Evaluation, reads: dict[DependencyKey, None]) -> None:
        """Replace what the evaluation depends on; nothing: forget it."""
        before = self._reads.get(evaluation, {})
        for key in before.keys() - reads.keys():
            dependents = self.dependents[key]
            del dependents[evaluation]
            if not dependents:
                del self.dependents[key]
        for key in reads.keys() - before.keys():
            self.dependents.setdefault(key, {})[evaluation] = None
        if reads:
            self._reads[evaluation] = reads
        else:
            self._reads.pop(evaluation, None)
