"""A Kafka Streams application: its tasks, its counting store, and what the sources see of its changelog."""

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Member
from agent.model.observations.streams import ChangelogDecreases, Decrease, StreamsApplication, TaskRestore
from agent.sources.base import ChangeDetector
from testbed.model.clock import SECOND
from testbed.model.groups import Group
from testbed.model.kafka import Cluster, Topic
from testbed.model.truth import Event
from testbed.model.views import Emit

STORE = "counts"


class StreamsGroup(Group):
    """The consumer group of an application: each member is a thread, each partition a task."""

    def view(self) -> tuple[Member, ...]:
        """Return the threads with the tasks that read their partitions."""
        return tuple(
            Member(
                id=f"{self.name}-{host.strip('/')}-StreamThread-1-consumer-{name}", host=host,
                client_id=f"{self.name}-{host.strip('/')}-StreamThread-1-consumer", partitions=partitions,
                tasks=tuple(f"0_{partition}" for _, partition in partitions),
            )
            for (name, host, _), partitions in zip(
                self.members, (member.partitions for member in super().view()), strict=True
            )
        )  # fmt: skip


class Application:
    """An application that counts records of a topic by key. changelog: of its store, which is declared."""

    def __init__(self, cluster: Cluster, emit: Emit, group: StreamsGroup, changelog: Topic) -> None:
        clock, rng = cluster.clock, cluster.rng
        self.cluster, self._clock, self._rng, self._emit = cluster, clock, rng, emit
        self.group, self.changelog = group, changelog
        self._detector = ChangeDetector()
        self._threads: dict[int, str] = {}
        clock.every(15 * SECOND, self._describe, first=100)

    def _describe(self) -> None:
        at, name = self._clock.now, self.group.name
        facts: list[Observation] = [
            StreamsApplication(
                at=at, cluster=self.cluster.name, application=name, stores=((STORE, len(self.changelog.logs)),),
                instances=len(self.group.members),
            )
        ]  # fmt: skip
        if self.group.state == "Stable":
            for member in self.group.view():
                facts += [
                    TaskRestore(
                        at=at, cluster=self.cluster.name, application=name, task=task, stores=(STORE,),
                        endpoint=f"http:/{member.host}:9404/metrics", thread=member.id.rpartition("-consumer-")[0],
                        restored_total=0, remaining=0,
                    )
                    for task in member.tasks
                ]  # fmt: skip
        changes = self._detector.changes(facts)
        if changes:
            self._emit(changes)

    def lose_state(self, event: Event, reader_number: int) -> None:
        """Move a task to another thread that does not restore its store; its counts restart, so values decrease.

        The task is moved away and back, as in KAFKA-7672.
        """
        log = self.changelog.logs[reader_number]
        began_at = self._clock.now
        keys = 0
        sum_before = self._rng.randrange(4_000, 400_000)
        steps = self._rng.randrange(2, 8)
        first_offset = log.end(began_at)

        def step(number: int) -> None:
            nonlocal keys
            keys += self._rng.randrange(3, 60)
            now = self._clock.now
            self._emit(
                [
                    ChangelogDecreases(
                        at=now, since=began_at - 3_000 if number == 0 else now - 5_000, cluster=self.cluster.name,
                        application=self.group.name, store=STORE, topic=log.place[0], partition=log.place[1],
                        began_at=began_at, keys=keys, total=keys * 40, first_offset=first_offset,
                        worst=(Decrease("user-1", 412, 3, first_offset),), sum_before=sum_before,
                        sum_after=sum_before - keys * 39, sum_at=now,
                    )
                ]
            )  # fmt: skip
            event.extend(now)
            if number < steps:
                self._clock.after(5 * SECOND, lambda: step(number + 1))

        step(0)
