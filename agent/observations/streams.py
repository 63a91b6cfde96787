"""Facts about the state of Kafka Streams applications, as their changelog topics tell it."""

from msgspec import Struct

from agent.observations.base import Observation, Subject


class Fall(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One key whose value fell: the key as text, the values before and after, the changelog offset of the latter."""

    key: str
    before: int
    after: int
    offset: int


class ChangelogFalls(Observation, frozen=True, kw_only=True, tag="changelog_falls", gc=False):
    """Values of a store that is declared non-decreasing went back, so far, in one stretch of its changelog partition.

    at: when the last of them was read: the records' own timestamps are the input's. since: when the partition was last
    read without a fall. began_at: when the first fall of the stretch was read; a stretch ends when none came for a
    minute. topic: the changelog's. keys: how many fell; total: by how much, all together; first_offset: of the first
    record that fell. worst: the five that fell deepest, the deepest first.
    """

    cluster: str
    application: str
    store: str
    topic: str
    partition: int
    began_at: int
    keys: int
    total: int
    first_offset: int
    worst: tuple[Fall, ...] = ()

    @property
    def subject(self) -> Subject:
        return ("changelog_falls", self.cluster, self.topic, self.partition)
