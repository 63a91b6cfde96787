"""Bases of rules about a condition that lasts: a broker is down, a partition is offline, a check fails."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from agent.engine.facts import Facts
from agent.engine.history import FLOOR, History
from agent.engine.rule import Rule, Scope, TopicRule, ended, recovered
from agent.engine.suspensions import watched_for
from agent.model.config_types import Duration
from agent.model.findings import Finding
from agent.model.observations.base import Observation
from agent.model.observations.kafka import PartitionState

T = TypeVar("T", bound=Observation)


class Interval(NamedTuple):
    """A condition held from the observation `begin` until `end`, the first without it; None while it lasts."""

    begin: Any
    end: Any

    def reaches(self, at: int) -> bool:
        """Return whether the condition held until that moment, as far as is known."""
        return self.end is None or bool(self.end.at >= at)

    def lasted(self, duration: int, facts: Facts) -> bool:
        """Return whether the condition held for `duration` ms, as far as is known, without suspensions."""
        return self.reaches(watched_for(facts, self.begin.at, duration))

    def known_at(self, duration: int, facts: Facts) -> int:
        """Return when it could first be known that the condition has held for `duration` ms, without suspensions."""
        return max(watched_for(facts, self.begin.at, duration), int(self.begin.seen))


def intervals_where(history: History[T], condition: Callable[[T], bool]) -> Iterator[Interval]:
    """Yield the intervals in which the condition held, oldest first."""
    begin: T | None = None
    for observation in history:
        if condition(observation):
            begin = begin or observation
        elif begin is not None:
            yield Interval(begin, observation)
            begin = None
    if begin is not None:
        yield Interval(begin, None)


def intervals_over(
    histories: Iterable[History[Any]], condition: Callable[[int], Hashable | None]
) -> Iterator[Interval]:
    """Yield the intervals in which `condition` returns the same value other than None, oldest first.

    It is evaluated at the time of each change in the histories, so it must follow from them alone. `begin` and `end`
    are the changes that began and ended it.
    """
    changes: dict[int, Observation] = {}
    for history in histories:
        for change in history:
            changes[change.at] = max(changes.get(change.at, change), change, key=lambda last: (last.seen, -last.start))
    begin: Observation | None = None
    current: Hashable | None = None
    for at, change in sorted(changes.items()):
        value = condition(at)
        if value == current:
            continue
        if begin is not None:
            yield Interval(begin, change)
        begin, current = (None if value is None else change), value
    if begin is not None:
        yield Interval(begin, None)


def find_repetitions(indexes: list[int], are_enough: Callable[[list[int]], bool]) -> Iterator[int]:
    """Yield each index of a history's event with which the recent events become enough.

    Further back than FLOOR, which histories are certain to reach, the result would depend on what they still hold.
    """
    for count, last in enumerate(indexes, 1):
        recent = [index for index in indexes[:count] if index > last - FLOOR]
        if are_enough(recent) and not are_enough(recent[:-1]):
            yield last


def find_series(times: Sequence[int], count: int, within: int) -> Iterator[int]:
    """Yield the index with which `count` times are within `within` ms; a series ends with a gap longer than that."""
    is_reported = False
    for index, at in enumerate(times):
        if index and at - times[index - 1] > within:
            is_reported = False
        if not is_reported and index + 1 >= count and at - times[index + 1 - count] <= within:
            is_reported = True
            yield index


class Condition(NamedTuple):
    """What a finding says about a condition, besides its times."""

    detail: str
    subject: Mapping[str, Any] = {}
    previous: Mapping[str, Any] = {}
    current: Mapping[str, Any] = {}


class ConditionRule(Rule):
    """A rule about a condition of one subject, reported once per interval in which it holds.

    A finding begins with the first observation of the condition and recovers with the first one without it.
    Subclasses name in `observes` the observations that can show the condition, and define the four methods below.
    """

    is_ongoing = True

    def find_scope(self, observation: Any) -> Scope | None:
        """Return the scope of an observation that shows the condition, or None if the options exclude it."""
        raise NotImplementedError

    def find_history(self, scope: Scope, facts: Facts) -> History[Any]:
        """Return the history of the scope's subject."""
        raise NotImplementedError

    def holds(self, observation: Any) -> bool:
        """Return whether the observation shows the condition."""
        raise NotImplementedError

    def describe_condition(self, scope: Scope, begin: Any, before: Any) -> Condition | None:
        """Return what the finding says, or None if there is nothing to report.

        begin: the first observation of the condition. before: the observation before it, or None.
        """
        raise NotImplementedError

    @property
    def min_duration(self) -> int:
        """How long the condition must hold before it is reported, in ms."""
        return 0

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        if not isinstance(observation, self.observes) or not self.holds(observation):
            return ()
        scope = self.find_scope(observation)
        return () if scope is None else (scope,)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = self.find_history(scope, facts)
        for interval in intervals_where(history, self.holds):
            begin = interval.begin
            if not isinstance(begin, self.observes) or not interval.lasted(self.min_duration, facts):
                continue
            condition = self.describe_condition(scope, begin, history.as_of(begin.at - 1))
            if condition is not None:
                known_at = interval.known_at(self.min_duration, facts)
                yield self.make_finding(scope, begin, known_at=known_at, **condition._asdict())

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        later = self.find_history(scope, facts).after(finding.at)
        return recovered(finding, next((observation.at for observation in later if not self.holds(observation)), None))


class LastingConditionRule(ConditionRule):
    """A rule about a condition that is reported only when it has held for `after`."""

    after: Duration = 300_000
    """How long the condition must last before it is reported."""

    @property
    def min_duration(self) -> int:
        """How long the condition must hold before it is reported, in ms."""
        return self.after


class PartitionConditionRule(LastingConditionRule, TopicRule):
    """A rule about a lasting condition of a partition; it is over when the partition is deleted."""

    observes = (PartitionState,)

    def find_scope(self, observation: PartitionState) -> Scope | None:
        return Scope.of_partition(observation) if self.topics.match(observation.topic) else None

    def find_history(self, scope: Scope, facts: Facts) -> History[Any]:
        return facts.history(PartitionState, *scope.in_partition)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return the partition if the condition holds, which may follow from its earlier states too."""
        scope = self.find_scope(observation) if isinstance(observation, PartitionState) else None
        last = None if scope is None else self.find_history(scope, facts).last
        return () if scope is None or last is None or not self.holds(last) else (scope,)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        followed = super().follow(finding, scope, facts)
        if followed.recovered_at is None:
            return followed
        last = facts.history(PartitionState, *scope.in_partition).as_of(followed.recovered_at)
        is_deleted = last is not None and last.is_deleted
        return ended(finding, followed.recovered_at, "the partition was deleted") if is_deleted else followed
