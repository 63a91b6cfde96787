"""What brokers and sources tell over days: session losses, leaders, and stretches in which something was not seen.

Plain functions of observations: no file is read here.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast

from agent.engine.facts import Facts, History
from agent.model.observations import Availability, BrokerRegistration, Observation, PartitionState, Unavailable
from spark_checks.history.clock import HOLE_MS

T = TypeVar("T", bound=Observation)


class States(Facts):
    """Who led partitions, over any length of time: what the agent itself remembers goes back minutes."""

    def __init__(self, states: Iterable[PartitionState]) -> None:
        """states: changes only, oldest first."""
        super().__init__()
        self._of: defaultdict[tuple[Hashable, ...], History[PartitionState]] = defaultdict(History)
        for state in states:
            self._of[state.cluster, state.topic, state.partition].changes.append(state)

    def history(self, kind: type[T], *key: Hashable) -> History[T]:
        """Return the partition's states, oldest first."""
        return cast("History[T]", self._of[key]) if kind is PartitionState else super().history(kind, *key)


class Loss(NamedTuple):
    """A broker lost its session (None under KRaft). back: when it was registered again; None where it was not."""

    broker: int
    at: int
    session: str | None
    back: int | None


class Spell(NamedTuple):
    """A stretch of time in which something was not seen: what `subject` names, all where it names nothing."""

    begin: int
    end: int
    subject: dict[str, Any]
    reason: str

    def hides(self, group: str, begin: int, end: int) -> bool:
        """Whether it can have hidden a commit of the group in [begin, end]."""
        about = self.subject.get("group", None if self.subject.get("topic") is not None else group)
        return about == group and self.begin < end and begin < self.end


def losses(registrations: Iterable[BrokerRegistration]) -> list[Loss]:
    """The session losses of one cluster's brokers, oldest first."""
    ordered = sorted(registrations, key=lambda one: (one.broker, one.at))
    found = [loss for _, ones in groupby(ordered, lambda one: one.broker) for loss in _losses(list(ones))]
    return sorted(found, key=lambda one: one.at)


def _losses(registrations: list[BrokerRegistration]) -> Iterator[Loss]:
    """The losses of one broker. One gone and back under its old session had never lost it."""
    known = gone = None
    for one in registrations:
        if one.gone:
            gone = gone or one
            continue
        if known is not None and (one.session, one.epoch) != (known.session, known.epoch):
            yield Loss(one.broker, (gone or one).at, known.session, one.at)
        known, gone = one, None
    if known is not None and gone is not None:
        yield Loss(gone.broker, gone.at, known.session, None)


def spells(sights: Iterable[Availability], until: int) -> list[Spell]:
    """The stretches of HOLE_MS or more in which a source did not see something, oldest first. Given in order.

    until: when those end that last.
    """
    began: dict[Any, Unavailable] = {}
    found = []
    for one in sights:
        if isinstance(one, Unavailable):
            began.setdefault(one.subject, one)
        elif (first := began.pop(one.subject, None)) is not None:
            found.append(_spell(first, one.at))
    found += [_spell(first, until) for first in began.values()]
    return sorted((one for one in found if one.end - one.begin >= HOLE_MS), key=lambda one: one.begin)


def _spell(first: Unavailable, end: int) -> Spell:
    named = {name: getattr(first, name) for name in ("source", "group", "topic", "partition")}
    return Spell(first.at, end, {name: value for name, value in named.items() if value is not None}, first.reason)
