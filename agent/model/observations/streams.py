"""Facts about Kafka Streams: applications, decreasing values in changelogs, restores of tasks."""

from msgspec import Struct

from agent.model.observations.base import Observation


class StreamsApplication(Observation, frozen=True, kw_only=True, tag="streams_application", gc=False):
    """A Kafka Streams application, as its consumer group and its changelog topics show it.

    cluster: the cluster's name in rules.toml. application: its `application.id`. stores: those with a changelog topic,
    each with the topic's number of partitions, sorted. instances: number of processes in the group, as far as hosts and
    client ids distinguish them.
    """

    key = ("cluster", "application")

    cluster: str
    application: str
    stores: tuple[tuple[str, int], ...] = ()
    instances: int = 0

    def changelog(self, store: str) -> str:
        """Return the changelog topic of a store."""
        return f"{self.application}-{store}-changelog"


class Decrease(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A key whose value decreased.

    key: as text. before, after: its values. offset: of the lower value in the changelog.
    """

    key: str
    before: int
    after: int
    offset: int


class ChangelogDecreases(Observation, frozen=True, kw_only=True, tag="changelog_falls", gc=False):
    """An episode of decreasing values in a changelog partition of a store that is declared never to decrease.

    `at` is when the last decrease was read, since the records have the timestamps of the input; `since` is when the
    partition was last read without one. An episode ends when no value has decreased for a minute.

    cluster: the cluster's name in rules.toml. application: its `application.id`. store: name of the store. topic,
    partition: of the changelog. began_at: when the first decrease was read. keys: number of keys that decreased. total:
    by how much, all together. first_offset: of the first record that decreased. worst: the five largest decreases,
    largest first. sum_before: of a plain count whose keys are all followed (DeclaredStore.counts), the sum of the keys'
    last values before the first decrease; null if unknown. sum_after: the same when the end of the partition was last
    reached; null until then. sum_at: when that was; the sum covers all that the log contained then.
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
    """What a task has restored on its current thread, from an instance's metrics (KIP-869, 3.5+).

    cluster: the cluster's name in rules.toml. application: its `application.id`. endpoint: where the instance serves
    its metrics. task: as Streams names it (`1_0`: subtopology, partition). thread: the task's thread; null if the
    instance no longer has the task. stores: the task's stores, as far as metrics name them. restored_total: records of
    all its stores since the thread got the task; null if that is not counted (the recording level is not DEBUG).
    remaining: offsets to restore, including transaction markers, which are never restored; null if unknown.
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
