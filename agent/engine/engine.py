"""The pure core in one piece: observations in, changed incidents out. Live, in replay and in tests it is the same."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from typing import Any, TypeVar

import numpy as np

from agent.engine.check_requests import CheckRequest
from agent.engine.correlation import Correlation
from agent.engine.defects import SetAside, propagate
from agent.engine.evaluator import Changes, Evaluator
from agent.engine.history import History
from agent.engine.incidents import LIFETIMES, Incidents, Lifetimes
from agent.engine.rule import Rule
from agent.model.batches import CommitBatch, LogOffsetsBatch, ObservationBatch, differ_from_before
from agent.model.findings import FindingKey, Incident
from agent.model.observations.base import Observation, Unavailable, not_after_seen
from agent.model.observations.kafka import Commit, LogOffsets

T = TypeVar("T", bound=Observation)

LEAST_COLUMNS = 32
"""Fewer observations than these are taken in faster one by one."""

_BATCHES: Mapping[type[Observation], type[ObservationBatch[Any]]] = {Commit: CommitBatch, LogOffsets: LogOffsetsBatch}
"""What is taken in as columns."""

_SECOND_MS = 1_000


class Engine:
    """Rules, correlation and incidents over a stream of observations."""

    def __init__(
        self,
        rules: Mapping[str, Rule],
        correlations: Mapping[str, Correlation],
        lifetimes: Lifetimes = LIFETIMES,
        set_aside: SetAside = propagate,
        least_columns: int = LEAST_COLUMNS,
    ) -> None:
        """rules and correlations: by their names in rules.toml. set_aside: takes what fails; the rest goes on.

        least_columns: from how many commits or log offsets in succession on they are taken in as columns.
        """
        self._least_columns = least_columns
        self._set_aside = set_aside
        self._evaluator = Evaluator(rules, set_aside)
        self._incidents = Incidents(correlations, rules, lifetimes, set_aside)

    def take(self, observations: Iterable[Observation]) -> list[Incident]:
        """Return the incidents that a batch changed; a merged or withdrawn one is without findings.

        Time never skips a moment at which an evaluation is due, so batches may be cut anywhere.
        """
        changed: dict[str, Incident] = {}
        for run in self._runs(observations):
            if isinstance(run, ObservationBatch):
                self._take_columns(run, changed)
            else:
                self._take_each(run, changed)
        self._evaluate(self.now, changed)
        return list(changed.values())

    def _runs(self, observations: Iterable[Observation]) -> Iterator[ObservationBatch[Any] | list[Observation]]:
        """Yield the observations in their order, many of a kind in succession as columns."""
        if isinstance(observations, ObservationBatch) and len(observations) >= self._least_columns:
            yield observations
            return
        for kind, run in groupby(map(not_after_seen, observations), key=_kind_in_columns):
            several = list(run)
            batch = _BATCHES[kind[0]].of(several) if kind and len(several) >= self._least_columns else None
            yield several if batch is None else batch

    def _take_each(self, observations: Iterable[Observation], changed: dict[str, Incident]) -> None:
        facts = self._evaluator.facts
        for observation in observations:
            if not self._evaluator.absorb(observation):
                continue
            seen = observation.seen
            self._evaluate_before(seen, changed)
            facts.now = max(facts.now, seen)

    def _take_columns(self, batch: ObservationBatch[Any], changed: dict[str, Incident]) -> None:
        """Take columns in, a second at a time."""
        facts = self._evaluator.facts
        for second, seen in _by_second(batch):
            self._evaluator.absorb_columns(second)
            self._evaluate_before(seen, changed)
            facts.now = max(facts.now, seen)

    def _evaluate_before(self, seen: int, changed: dict[str, Incident]) -> None:
        """Evaluate at each moment before this one at which an evaluation is due."""
        while (due := self.next_due) < seen:
            self._evaluate(max(due, self.now), changed)

    def catch_up(self) -> list[Incident]:
        """Run pending evaluations immediately, at the end of a replay, and return the incidents that change."""
        changed: dict[str, Incident] = {}
        self._evaluate(self._evaluator.facts.now, changed, everything=True)
        return list(changed.values())

    def restore(self, evaluated: Iterable[Iterable[Observation]]) -> None:
        """Take in batches that had been evaluated before a restart; `resume` follows."""
        self._evaluator.restore(
            part
            for batch in evaluated
            for run in self._runs(batch)
            for part in ([second for second, _ in _by_second(run)] if isinstance(run, ObservationBatch) else [run])
        )

    def restore_last(self, observations: Iterable[Observation]) -> None:
        """Take in observations in place of all that has been restored of their subjects; `resume` follows."""
        last = list(observations)
        self._evaluator.facts.forget_subjects([observation.subject for observation in last])
        self.restore([last])

    def resume(self, incidents: Iterable[Incident]) -> None:
        """Continue after a restart with the stored incidents, once the facts have been restored."""
        current = [incident for incident in incidents if incident.merged_into is None]
        findings = (finding for incident in current for finding in incident.causes + incident.findings)
        self._evaluator.resume(findings)
        self._incidents.resume(current, self.now)

    def latest(self) -> Iterable[Observation]:
        """Return the last known state of each subject."""
        return self._evaluator.facts.latest()

    def histories(self) -> list[History[Any]]:
        """Return the history of each subject; other threads may read what they hold, not change it."""
        return list(self._evaluator.facts.all_histories())

    def last_known(self) -> list[Observation]:
        """Return the last observation of each subject but committed offsets."""
        histories = self._evaluator.facts.open_histories()
        return [history.changes[-1] for history in histories if history.subject[0] != Commit.subject_kind]

    def groups_with_offsets(self) -> set[tuple[str, str]]:
        """Return the cluster and group of all committed offsets."""
        return self._evaluator.facts.groups_with_offsets()

    def history(self, kind: type[T], *key: Hashable) -> History[T]:
        """Return the history of the subject with these key values; empty if never seen."""
        return self._evaluator.facts.history(kind, *key)

    def unavailable(self) -> list[Unavailable]:
        """Return what cannot be read at present."""
        return self._evaluator.facts.unavailable()

    @property
    def check_requests(self) -> list[CheckRequest]:
        """The checks that known findings request; a request keeps its id while its window and topics may still grow."""
        return self._incidents.check_requests

    @property
    def incidents(self) -> list[Incident]:
        """The incidents that may still change."""
        return self._incidents.current

    def incident_of(self, finding: FindingKey) -> str | None:
        """Return the id of the incident that contains the finding, or None if none that may still change does."""
        return self._incidents.incident_of(finding)

    @property
    def horizon(self) -> int:
        """How long after a finding another may still join it, ms."""
        return self._incidents.horizon

    @property
    def now(self) -> int:
        """The latest moment of any observation, ms."""
        return self._evaluator.facts.now

    @property
    def next_due(self) -> int:
        """When time alone may change something, ms; LONG_AFTER if nothing is due."""
        return min(self._evaluator.next_due, self._incidents.next_due)

    def _evaluate(self, now: int, changed: dict[str, Incident], *, everything: bool = False) -> None:
        changes = self._evaluator.evaluate(now, everything=everything)
        changed.update((incident.id, incident) for incident in self._apply(changes, now))

    def _apply(self, changes: Changes, now: int) -> list[Incident]:
        """Return the changed incidents; if correlation fails, without the findings with which it does."""
        unavailable = self._evaluator.facts.unavailable()
        try:
            return self._incidents.apply(changes, unavailable, now)
        except Exception as error:  # noqa: BLE001 - a defect with one finding must not hide the others
            self._set_aside("correlation", error)
        changed: list[Incident] = []
        for finding in changes.found:
            self._incidents.discard(finding.key)
        for single in [Changes([], changes.withdrawn), *(Changes([finding], []) for finding in changes.found)]:
            try:
                changed += self._incidents.apply(single, unavailable, now)
            except Exception as error:  # noqa: BLE001 - see above
                self._set_aside("correlation", error)
                for finding in single.found:
                    self._incidents.discard(finding.key)
        return changed


def _by_second(batch: ObservationBatch[Any]) -> Iterator[tuple[ObservationBatch[Any], int]]:
    """Yield observations a second at a time, each time with when the last of them was seen, ms."""
    batch = batch.not_after_seen()
    seen = np.maximum.accumulate(batch.seen)
    begins = np.flatnonzero(differ_from_before(seen // _SECOND_MS)).tolist()
    for begin, end in pairwise([*begins, len(seen)]):
        yield batch.select(slice(begin, end)), int(seen[end - 1])


def _kind_in_columns(observation: Observation) -> tuple[type[Observation], str] | None:
    kind = observation.__class__
    return (kind, observation.cluster) if isinstance(observation, Commit | LogOffsets) else None
