"""Facts about Kafka Streams applications: what there is of them, and their state as changelog topics tell it."""

from msgspec import Struct

from agent.model.observations.base import Observation


class StreamsApplication(Observation, frozen=True, kw_only=True, tag="streams_application", gc=False):
    """A Kafka Streams application, as its consumer group and its changelog topics show it.

    stores: those with a changelog topic, and how many partitions it has, sorted. instances: how many processes are in
    the group, as far as hosts and client ids tell them apart.
    """

    key = ("cluster", "application")

    cluster: str
    application: str
    stores: tuple[tuple[str, int], ...] = ()
    instances: int = 0

    def changelog(self, store: str) -> str:
        """The changelog topic of one of its stores."""
        return f"{self.application}-{store}-changelog"


class Decrease(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One key whose value fell: the key as text, the values before and after, the changelog offset of the latter."""

    key: str
    before: int
    after: int
    offset: int


class ChangelogDecreases(Observation, frozen=True, kw_only=True, tag="changelog_falls", gc=False):
    """Values of a store that is declared non-decreasing went back, so far, in one stretch of its changelog partition.

    at: when the last of them was read: the records' own timestamps are the input's. since: when the partition was last
    read without a fall. began_at: when the first fall of the stretch was read; a stretch ends when none came for a
    minute. topic: the changelog's. keys: how many fell; total: by how much, all together; first_offset: of the first
    record that fell. worst: the five that fell deepest, the deepest first.

    Of a plain count (DeclaredStore.counts), where all keys are followed: sum_before: the sum of the last values of the
    partition's keys just before the first record that fell. sum_after: the same when the partition's end was reached
    since, last when it was after the last fall; all that stood in the log at sum_at is in it. None where not known, and
    sum_after and sum_at until the end has been reached.
    """

    key = ("cluster", "topic", "partition")

    cluster: str
    application: str
    store: str
    topic: str
    partition: int
    began_at: int
    keys: int
    total: int
    first_offset: int
    worst: tuple[Decrease, ...] = ()
    sum_before: int | None = None
    sum_after: int | None = None
    sum_at: int | None = None


class TaskRestore(Observation, frozen=True, kw_only=True, tag="task_restore", gc=False):
    """What a task has restored on the thread that has it, as an instance's metrics tell (KIP-869, 3.5+).

    endpoint: where the instance gives its metrics. task: as Streams names it ("1_0": subtopology, partition).
    thread: who has it; None when the instance has it no more. stores: the task's, as far as metrics name them.
    restored_total: records, of all its stores, since it came to the thread; None where that is not counted (the
    recording level is not DEBUG). remaining: offsets still to be restored, transaction markers, which never are, among
    them; None where that is not told.
    """

    key = ("cluster", "application", "endpoint", "task")
    is_frequent = True

    cluster: str
    application: str
    endpoint: str
    task: str
    thread: str | None = None
    stores: tuple[str, ...] = ()
    restored_total: int | None = None
    remaining: int | None = None
