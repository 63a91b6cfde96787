"""What every fact is: typed, timestamped, about a subject; and the facts about watching itself: sight and time."""

from collections.abc import Hashable
from typing import TypeAlias

from msgspec import Struct

Subject: TypeAlias = tuple[Hashable, ...]


class Observation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", gc=False):
    """One fact about one subject.

    at: when the fact held, as far as its source can tell. seen_at: when we saw it (None: at `at`).
    since: the last sighting of the old value where the fact was polled, so that the change happened in [since, at];
    None where `at` is exact.
    """

    at: int
    seen_at: int | None = None
    since: int | None = None

    @property
    def subject(self) -> Subject:
        """What this fact is about. Facts of one subject come in order; facts of two subjects may not."""
        raise NotImplementedError

    @property
    def start(self) -> int:
        """The earliest moment at which the change to this fact can have happened."""
        return self.at if self.since is None else min(self.since, self.at)

    @property
    def seen(self) -> int:
        """When the fact was seen, ms; never before it held."""
        return self.at if self.seen_at is None else max(self.seen_at, self.at)


class Availability(Observation, frozen=True, kw_only=True, gc=False):
    """Whether a source sees a subject. The unit is as small as the keys given: a source, a group, a topic's
    partition.
    """

    source: str
    cluster: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None

    @property
    def subject(self) -> Subject:
        return ("sight", self.source, self.cluster, self.group, self.topic, self.partition)


class Unavailable(Availability, frozen=True, kw_only=True, tag="blind", gc=False):
    """The source cannot see its subject; reason is a sentence for an operator."""

    reason: str


class Available(Availability, frozen=True, kw_only=True, tag="sighted", gc=False):
    """The source sees its subject again."""


class Tick(Observation, frozen=True, kw_only=True, tag="tick", gc=False):
    """Time passes: what rules about absence go by."""

    @property
    def subject(self) -> Subject:
        return ("tick",)
