"""The base of all observations, and the kinds about the sources themselves: availability and time."""

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct, structs

Subject: TypeAlias = tuple[Hashable, ...]


class Observation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", gc=False):
    """One fact about one subject.

    at: when the fact held, as exactly as its source knows. seen_at: when Backflow observed it; null if at `at`. since:
    of a polled fact, the last sighting of the old value: the change happened between `since` and `at`; null if `at` is
    exact. In Python all times are ms since the epoch, UTC.
    """

    key: ClassVar[tuple[str, ...]] = ()
    """The fields that identify the subject, in order."""

    subject_kind: ClassVar[str] = ""
    """The first element of the subject: the kind's tag (set when it is registered), unless kinds share subjects."""

    is_event: ClassVar[bool] = False
    """Whether each observation is a change of its own, however alike; else it describes a state."""

    is_frequent: ClassVar[bool] = False
    """Whether changes are so frequent that only the scope they are about is re-evaluated at once, others soon."""

    history_floor: ClassVar[int] = 24
    """How many changes a history keeps however old they are: enough for a slow committer's rhythm."""

    is_compact: ClassVar[bool] = False
    """Whether observations of one subject differ in integers only, so that histories keep older ones as integers."""

    memory_ms: ClassVar[int] = 0
    """How far back a thinned-out selection of older changes reaches that a history keeps besides, ms."""

    at: int
    seen_at: int | None = None
    since: int | None = None

    @property
    def subject(self) -> Subject:
        """What the fact is about. Facts of one subject arrive in order; facts of two subjects may not."""
        return _SUBJECTS[self.__class__](self)

    @property
    def is_gone(self) -> bool:
        """Whether the subject no longer exists."""
        return False

    @property
    def start(self) -> int:
        """The earliest moment at which the change to this fact can have happened."""
        return self.at if self.since is None else min(self.since, self.at)

    @property
    def seen(self) -> int:
        """When the fact was seen, ms; never before it held."""
        return self.at if self.seen_at is None else max(self.seen_at, self.at)


def not_after_seen(observation: Observation) -> Observation:
    """Return the observation dated no later than it was seen: the clock that dates it may be ahead of ours."""
    seen_at = observation.seen_at
    if seen_at is None or observation.at <= seen_at:
        return observation
    since = None if observation.since is None else min(observation.since, seen_at)
    return structs.replace(observation, at=seen_at, since=since)


def not_after(observation: Observation, now: int) -> Observation:
    """Return the observation dated and seen no later than now (ms)."""
    if observation.at <= now and (observation.seen_at is None or observation.seen_at <= now):
        return observation
    return not_after_seen(structs.replace(observation, seen_at=now))


class Availability(Observation, frozen=True, kw_only=True, gc=False):
    """Whether a source can read a subject: all of a cluster, a group, or a partition.

    source: name of the source. cluster: the cluster's name in rules.toml. group, topic, partition: what the report is
    limited to; null if it covers everything that the source reads of the cluster.
    """

    key = ("source", "cluster", "group", "topic", "partition")
    subject_kind = "sight"

    source: str
    cluster: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is about everything that the source reads of the cluster."""
        return (self.group, self.topic, self.partition) == (None, None, None)


class Unavailable(Availability, frozen=True, kw_only=True, tag="blind", gc=False):
    """The source cannot read the subject.

    source: name of the source. cluster: the cluster's name in rules.toml. group, topic, partition: what it cannot read;
    null if it can read nothing of the cluster. reason: why, as a sentence for an operator.
    """

    reason: str


class Available(Availability, frozen=True, kw_only=True, tag="sighted", gc=False):
    """The source, unavailable before, can read the subject.

    source: name of the source. cluster: the cluster's name in rules.toml. group, topic, partition: what became
    readable; null if everything that it reads of the cluster.
    """


class Tick(Observation, frozen=True, kw_only=True, tag="tick", gc=False):
    """Time has passed: rules about absence depend on it."""


class _Getters(dict[type[Observation], Callable[[Observation], Subject]]):
    """Reads the subject of each kind with one call in C: it is read for every observation."""

    def __missing__(self, kind: type[Observation]) -> Callable[[Observation], Subject]:
        getter: Callable[[Observation], Any] = attrgetter("subject_kind", *kind.key)
        self[kind] = getter if kind.key else lambda observation: (observation.subject_kind,)
        return self[kind]


_SUBJECTS = _Getters()


class _FactGetters(dict[type[Observation], Callable[[Observation], Any]]):
    """Reads what an observation says of its subject: its fields without the key, and for states without times."""

    def __missing__(self, kind: type[Observation]) -> Callable[[Observation], Any]:
        left_out = {*kind.key, "at", "since", "seen_at"} - ({"at"} if kind.is_event else set())
        names = [name for name in kind.__struct_fields__ if name not in left_out]
        self[kind] = getter = attrgetter("__class__", *names)
        return getter


_FACTS = _FactGetters()


def is_same_fact(old: Observation, new: Observation) -> bool:
    """Return whether both, of one subject, say the same of it."""
    fact = _FACTS[new.__class__]
    return old.__class__ is new.__class__ and bool(fact(old) == fact(new))
