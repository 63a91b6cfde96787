"""Kafka Streams incidents: a task continues with a store that was not restored. Every step waits for its effect.

KAFKA-7672 itself, and a stand-in for versions without it. The changelog shows what a store then holds.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from testbed.faults import Progress
from testbed.streams.app import StreamsApp
from testbed.streams.topics import NUMBERS, Decrease, feed, find_decreases, log_ends, records, wait_until_processed
from testbed.waiting import wait_until


class Variant(NamedTuple):
    """One way of losing state by KAFKA-7672.

    properties: of the instances (StreamsApp). rounds: records of each key before the second instance joins, and again
    while it runs. while_away: whether records are written while it runs. cleaned: whether the first instance's cleaner
    deletes the directories of the tasks that moved away.
    """

    properties: Mapping[str, Any]
    rounds: int = 20
    while_away: bool = True
    cleaned: bool = True


_CLEAN = {"state_cleanup_delay_ms": 2000}
_KEEP = {"state_cleanup_delay_ms": 600_000}
VARIANTS: Mapping[str, Variant] = {
    # No checkpoint: the store is wiped and stays empty; values start again at 1.
    "empty": Variant(_CLEAN),
    # The old checkpoint remains: what the other instance counted meanwhile is missing.
    "partial": Variant(_KEEP, rounds=1500, cleaned=False),
    # With a cache only the last value per commit is written: the first one after the loss is not 1.
    "cached": Variant({**_CLEAN, "cache_max_bytes_buffering": 10_000_000}),
    # A task moves to another thread of the instance and back. Each time the new thread creates it before the old thread
    # has closed its store and written the checkpoint, as in the issue.
    "threads": Variant(
        {**_KEEP, "topology": "repartitioned-count", "threads": 2, "close_ms": 1500}, while_away=False, cleaned=False
    ),
}


class Reassignment(NamedTuple):
    """A stateful task that moved to another thread.

    partition: of the changelog. old, new: threads as in their client ids, instance first. at: when the new thread
    logged it (ms since the epoch).
    """

    task: str
    partition: int
    old: str
    new: str
    at: int


class Outcome(NamedTuple):
    """The effect of rebalances on a store, between the last input before them and the first after them.

    begin, end: ms since the epoch. moves: of stateful tasks, in order. decreases: the first of each key since begin.
    """

    application_id: str
    store: str
    changelog: str
    begin: int
    end: int
    moves: tuple[Reassignment, ...]
    decreases: tuple[Decrease, ...]


def instances(
    variant: str, version: str, bootstrap_servers: str, application_id: str, workdir: Path, **properties: Any
) -> tuple[StreamsApp, StreamsApp]:
    """Return the two instances, a and b, for `lose_state`, not started. properties: of StreamsApp."""
    properties = {**VARIANTS[variant].properties, **properties}
    first, second = (
        StreamsApp(version, bootstrap_servers, application_id, workdir, instance=instance, **properties)
        for instance in ("a", "b")
    )
    return first, second


def lose_state(
    first: StreamsApp,
    second: StreamsApp,
    variant: str,
    *,
    leave: Callable[[StreamsApp], None] = StreamsApp.stop,
    progress: Progress = lambda _: None,
) -> Outcome:
    """Let the second instance join the first one and leave again, which loses state on 2.1.0.

    There the first instance's tasks return to stores that are not restored. On later versions the same steps are a
    normal rebalance and no value decreases. With at-least-once, only "partial" is certain to lose state on 2.1.0: fewer
    records than one poll returns (1000) are restored in time. Starts both; the caller ends them. leave: how the second
    instance goes. Raises TimeoutError.
    """
    rounds = VARIANTS[variant].rounds
    tasks = _tasks(first)
    first.start()
    first.wait_until_running(tasks)
    feed(first.bootstrap_servers, first.input_topic, rounds)
    wait_until_processed(first)
    progress(f"{first.name} has processed {rounds} records of each key")

    begin = _now()
    second.start()
    _wait_until_shared(first, second, tasks)
    progress(f"{second.name} has joined: {_owners(first, second)}")
    if VARIANTS[variant].while_away:
        feed(first.bootstrap_servers, first.input_topic, rounds)
        wait_until_processed(first)
        begin = _now()
    if VARIANTS[variant].cleaned:
        away = set(chain.from_iterable(second.tasks().values()))
        wait_until(lambda: not away & first.task_directories(), f"the cleaner of {first.name} to delete {away}")
        progress(f"{first.name} has deleted its directories of {sorted(away)}")

    leave(second)
    first.wait_until_running(tasks)
    progress(f"{second.name} has left: {_owners(first)}")
    return _outcome(begin, first, second)


def forge_state(first: StreamsApp, second: StreamsApp, *, progress: Progress = lambda _: None) -> Outcome:
    """Simulate the loss on any version and guarantee: delete stores and forge their checkpoints.

    While the second instance is down, its stores are deleted and its checkpoints say that they are complete. It then
    takes its tasks back and restores nothing. Starts both; the caller ends them. Raises TimeoutError.
    """
    tasks = _tasks(first)
    for app in (first, second):
        app.start()
    _wait_until_shared(first, second, tasks)
    feed(first.bootstrap_servers, first.input_topic, 20)
    wait_until_processed(first)
    held = set(chain.from_iterable(second.tasks().values()))
    second.stop()
    first.wait_until_running(tasks)
    progress(f"{second.name} has left; {first.name} continues")
    feed(first.bootstrap_servers, first.input_topic, 20)
    wait_until_processed(first)

    ends = log_ends(first.bootstrap_servers, first.changelog)
    for task in held & second.task_directories():
        directory, partition = second.state_dir / task, _partition(task)
        shutil.rmtree(directory / "rocksdb")
        (directory / ".checkpoint").write_text(f"0\n1\n{first.changelog} {partition} {ends[partition] - 1}\n")
    progress(f"the stores of {sorted(held)} are deleted on {second.name}, and their checkpoints are forged")

    begin = _now()
    second.start()
    _wait_until_shared(first, second, tasks)
    progress(f"{second.name} has joined again: {_owners(first, second)}")
    return _outcome(begin, first, second)


def _outcome(begin: int, *instances: StreamsApp) -> Outcome:
    """Write a little more input, and return the reassignments since `begin` and the decreases."""
    app, end = instances[0], _now()
    known = log_ends(app.bootstrap_servers, app.changelog)
    feed(app.bootstrap_servers, app.input_topic, 5)
    wait_until_processed(app)
    first: dict[bytes, Decrease] = {}
    for decrease in find_decreases(records(app.bootstrap_servers, app.changelog), NUMBERS[app.values]):
        if decrease.after_offset >= known[decrease.partition]:
            first.setdefault(decrease.key, decrease)
    moves = tuple(_moves(begin, instances))
    return Outcome(app.application_id, app.store, app.changelog, begin, end, moves, tuple(first.values()))


def _moves(begin: int, instances: Sequence[StreamsApp]) -> Iterator[Reassignment]:
    """Yield the reassignments of stateful tasks since `begin`, from the instances' logs."""
    stateful = f"{len(instances[0].source_topics) - 1}_"  # the last subtopology
    owners: dict[str, str] = {}
    for at, thread, tasks in sorted(chain.from_iterable(instance.assignments() for instance in instances)):
        for task in tasks:
            if at >= begin and task.startswith(stateful) and owners[task] != thread:
                yield Reassignment(task, _partition(task), owners[task], thread, at)
            owners[task] = thread


def _tasks(app: StreamsApp) -> int:
    """Return the number of its tasks: one per topic that it reads and partition."""
    return len(app.source_topics) * len(log_ends(app.bootstrap_servers, app.input_topic))


def _wait_until_shared(first: StreamsApp, second: StreamsApp, tasks: int) -> None:
    """Wait until both are running and share all tasks."""

    def shared() -> bool:
        held = _owners(first), _owners(second)
        return all(held) and len({**held[0], **held[1]}) == tasks == len(held[0]) + len(held[1])

    for app in (first, second):
        app.wait_until_running()
    wait_until(shared, f"{first.name} and {second.name} to share {tasks} tasks", 120)
    for app in (first, second):
        app.wait_until_running()


def _owners(*apps: StreamsApp) -> dict[str, str]:
    """Return the thread of each task."""
    return {task: thread for app in apps for thread, tasks in app.tasks().items() for task in tasks}


def _partition(task: str) -> int:
    return int(task.partition("_")[2])


def _now() -> int:
    return time.time_ns() // 1_000_000
