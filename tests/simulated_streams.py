"""A small simulated Kafka Streams application with faults, as sources observe it; it knows no rules."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from agent.model.observations.base import Observation
from agent.model.observations.kafka import GroupState, LogOffsets, Member, PartitionState
from agent.model.observations.logs import LogLine
from agent.model.observations.streams import ChangelogDecreases, Decrease, StreamsApplication, TaskRestore

APPLICATION = "shop"
CHANGELOG = f"{APPLICATION}-counts-changelog"
FAULTS = ("moved", "lingered", "thrashed", "starved", "reset_application")
_PARTITIONS = range(4)


class Fault(Protocol):
    """The numbers of a fault: strategies.Fault."""

    target: int
    length: int
    choice: int


class Streams:
    """Threads a-1, a-2 and b-1 that share four partitions, and a store that counts.

    note: receives the observations; later: calls a function in so many seconds; now: returns the time at a phase of
    this second, ms.
    """

    def __init__(
        self,
        cluster: str,
        note: Callable[[Observation], None],
        later: Callable[[int, Callable[[], None]], None],
        now: Callable[[int], int],
    ) -> None:
        self._cluster, self._note, self._later, self._now = cluster, note, later, now
        self._owners: Mapping[int, str] = dict.fromkeys(_PARTITIONS, "a-1")
        self._state = "Stable"
        self._end, self._topic = 4_000, 1
        self._rebalances = 0

    def live(self, second: int) -> None:
        """Run for a second."""
        self._end += 90
        if second == 0:
            self._note_topic()
        if second % 10 == 0:
            for partition in _PARTITIONS:
                self._note(
                    LogOffsets(
                        at=self._now(13), cluster=self._cluster, topic=CHANGELOG, partition=partition,
                        log_start=0, log_end=self._end,
                    )
                )  # fmt: skip
        if second % 30 == 0:
            self._note_group()
            self._note_application()

    def moved(self, fault: Fault) -> None:
        """Move a task to another thread and back; by choice its store is not restored, or its log says so."""
        partition, other = fault.target % 4, ("a-2", "b-1")[fault.choice % 2]
        self._rebalance({**self._owners, partition: other}, 2)

        def back() -> None:
            self._rebalance({**self._owners, partition: "a-1"}, 1 + fault.choice % 3)
            if fault.choice < 3:
                self._later(3, partial(self._unchecked, partition, task=f"0_{partition}"))
            if fault.choice != 3:
                self._later(4, partial(self._decrease, partition, fault.length + 2))

        self._later(10 + fault.length, back)

    def lingered(self, fault: Fault) -> None:
        """Let a rebalance take long."""
        self._rebalance(self._owners, 10 + 2 * fault.length)

    def thrashed(self, fault: Fault) -> None:
        """Let a thread join and leave repeatedly."""
        for number in range(3 + fault.choice):
            owners = {**dict.fromkeys(_PARTITIONS, "a-1"), fault.target % 4: ("b-1", "a-1")[number % 2]}
            self._later(1 + number * (3 + fault.length // 3), partial(self._rebalance, owners, 1))

    def starved(self, fault: Fault) -> None:
        """Log a restore, or let values decrease, without an observed move of the task."""
        partition = fault.target % 4
        if fault.choice % 2 == 0:
            self._unchecked(partition)
            self._line(22, partition, "store_restored", store="counts", records=str(fault.length * 100))
        else:
            self._decrease(partition, fault.length)

    def reset_application(self, fault: Fault) -> None:
        """Stop the application, delete its changelog and start it again."""
        self._owners, self._state = {}, "Empty"
        self._note_group()
        self._topic += 1
        self._end = 0
        self._later(2, self._note_topic)
        self._later(5, partial(self._rebalance, dict.fromkeys(_PARTITIONS, "a-1"), 2))
        if fault.choice % 2:
            self._later(9, partial(self._decrease, fault.target % 4, fault.length))

    def _rebalance(self, owners: Mapping[int, str], seconds: int) -> None:
        self._state = "PreparingRebalance"
        self._rebalances += 1
        self._note_group()

        def done() -> None:
            self._owners, self._state = owners, "Stable"
            self._note_group()
            self._later(1, self._note_application)
            self._later(2, self._note_restores)

        self._later(seconds, done)

    def _decrease(self, partition: int, seconds: int, began_at: int | None = None, keys: int = 1) -> None:
        """Let a key decrease, and one more every other second for so long."""
        at = self._now(30)
        began_at = began_at or at
        self._note(
            ChangelogDecreases(
                at=at, cluster=self._cluster, application=APPLICATION, store="counts", topic=CHANGELOG,
                partition=partition, began_at=began_at, keys=keys, total=40 * keys, first_offset=self._end,
                worst=(Decrease("user-1", 41, 1, self._end),), sum_before=4_000, sum_after=4_000 - 39 * keys, sum_at=at,
            )
        )  # fmt: skip
        if seconds > 2:
            self._later(2, partial(self._decrease, partition, seconds - 2, began_at, keys + 1))

    def _unchecked(self, partition: int, **values: str) -> None:
        self._line(21, partition, "store_without_checkpoint", store="counts", **values)

    def _line(self, phase: int, partition: int, pattern: str, **values: str) -> None:
        at = self._now(phase)
        self._note(
            LogLine(
                at=at, cluster=self._cluster, log="shop.log", component="streams", pattern=pattern, topic=CHANGELOG,
                partition=partition, values=values, text=f"stream-thread [a-StreamThread-1] {pattern} {at}",
            )
        )  # fmt: skip

    def _note_group(self) -> None:
        stable = self._state == "Stable"
        threads = [] if self._state == "Empty" else sorted({"a-1", *self._owners.values()})
        members = []
        for name in threads:
            held = tuple(
                ("in", partition) for partition, owner in sorted(self._owners.items()) if owner == name and stable
            )
            client = f"{name[0]}-StreamThread-{name[2]}-consumer"
            tasks = tuple(f"0_{partition}" for _, partition in held) if self._rebalances % 3 else ()  # not always known
            members.append(Member(f"{client}-{name}", f"/{name[0]}", held, client, tasks))
        self._note(
            GroupState(
                at=self._now(41), cluster=self._cluster, group=APPLICATION, state=self._state, members=tuple(members),
                assignor="stream",
            )
        )  # fmt: skip

    def _note_application(self) -> None:
        instances = len({owner[0] for owner in self._owners.values()})
        self._note(
            StreamsApplication(
                at=self._now(43), cluster=self._cluster, application=APPLICATION,
                stores=(("counts", len(_PARTITIONS)), ("latest", len(_PARTITIONS))), instances=instances,
            )
        )  # fmt: skip

    def _note_restores(self) -> None:
        """Note what both instances' metrics say of each task: how much was restored, or that it is not there."""
        for partition, owner in self._owners.items():
            for instance in "ab":
                is_owner = owner[0] == instance
                self._note(
                    TaskRestore(
                        at=self._now(17), cluster=self._cluster, application=APPLICATION, task=f"0_{partition}",
                        endpoint=f"http://{instance}:9404/metrics", stores=("counts",) if is_owner else (),
                        thread=f"{instance}-StreamThread-{owner[2]}" if is_owner else None,
                        restored_total=100 * partition if is_owner else None,
                    )
                )  # fmt: skip

    def _note_topic(self) -> None:
        for partition in _PARTITIONS:
            where: dict[str, Any] = {"cluster": self._cluster, "topic": CHANGELOG, "partition": partition}
            self._note(
                PartitionState(
                    at=self._now(15), leader=2005, leader_epoch=0, replicas=(2005,), isr=(2005,),
                    topic_id=f"czxid:{self._topic}", **where,
                )
            )  # fmt: skip
