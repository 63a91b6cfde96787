"""How Kafka Streams comes to work on a store that was not restored, each step waiting for its effect.

KAFKA-7672 itself, and a stand-in for versions that do not have it. What a store then holds is read from its changelog.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from testbed.faults import Progress
from testbed.streams.app import StreamsApp
from testbed.streams.changelog import NUMBERS, Decrease, falls, log_ends, records
from testbed.streams.input import feed, wait_until_processed
from testbed.waiting import wait_until


class Variant(NamedTuple):
    """One way of losing state by KAFKA-7672.

    properties: what its instances are made with (StreamsApp). rounds: records of each key, before the second instance
    joins and while it works. while_away: whether there is any while it works. cleaned: whether the first instance's own
    cleaner deletes the directories of the tasks that have left it.
    """

    properties: Mapping[str, Any]
    rounds: int = 20
    while_away: bool = True
    cleaned: bool = True


_CLEAN = {"state_cleanup_delay_ms": 2000}
_KEEP = {"state_cleanup_delay_ms": 600_000}
VARIANTS: Mapping[str, Variant] = {
    # No checkpoint: the store is wiped and stays empty; values begin again at 1.
    "empty": Variant(_CLEAN),
    # The checkpoint of before is still there: what was counted elsewhere meanwhile is missing.
    "partial": Variant(_KEEP, rounds=1500, cleaned=False),
    # With a cache only every commit's last value is written: the first one after the loss is not 1.
    "cached": Variant({**_CLEAN, "cache_max_bytes_buffering": 10_000_000}),
    # A task goes from one thread to another and back, within an instance: each time it is made on the new thread before
    # the old one has closed its store and written the checkpoint, as the issue tells it.
    "threads": Variant(
        {**_KEEP, "topology": "repartitioned-count", "threads": 2, "close_ms": 1500}, while_away=False, cleaned=False
    ),
}


class Move(NamedTuple):
    """A stateful task went to another thread. old, new: threads as in their client ids, instance first. at: when its
    new thread's log told so (ms since the epoch). partition: of the changelog.
    """

    task: str
    partition: int
    old: str
    new: str
    at: int


class Outcome(NamedTuple):
    """What rebalances did to a store, between the last input before them and the first after them.

    begin, end: ms since the epoch. moves: of stateful tasks, in order. falls: the first of each key since begin.
    """

    application_id: str
    store: str
    changelog: str
    begin: int
    end: int
    moves: tuple[Move, ...]
    falls: tuple[Decrease, ...]


def instances(
    variant: str, version: str, bootstrap_servers: str, application_id: str, workdir: Path, **properties: Any
) -> tuple[StreamsApp, StreamsApp]:
    """The two instances, a and b, that `lose_state` takes; neither is started. properties: as StreamsApp takes them."""
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
    """Let the second instance join the first and leave again. On 2.1.0 its tasks come back to stores that are not
    restored; on later versions the same steps are but a rebalance, and nothing falls. At least once, only "partial"
    loses for sure on 2.1.0: fewer records than one poll takes (1000) are restored in time.

    Starts both; the caller ends them. leave: how the second one goes. Raises TimeoutError.
    """
    rounds = VARIANTS[variant].rounds
    tasks = _tasks(first)
    first.start()
    first.wait_until_running(tasks)
    feed(first.bootstrap_servers, first.input_topic, rounds)
    wait_until_processed(first)
    progress(f"{first.name} has worked through {rounds} records a key")

    begin = _now()
    second.start()
    _wait_until_shared(first, second, tasks)
    progress(f"{second.name} has joined: {_owners(first, second)}")
    if VARIANTS[variant].while_away:
        feed(first.bootstrap_servers, first.input_topic, rounds)
        wait_until_processed(first)
        begin = _now()
    if VARIANTS[variant].cleaned:
        away = {task for held in second.tasks().values() for task in held}
        wait_until(lambda: not away & first.task_directories(), f"the cleaner of {first.name} to delete {away}")
        progress(f"{first.name} has deleted its directories of {sorted(away)}")

    leave(second)
    first.wait_until_running(tasks)
    progress(f"{second.name} has left: {_owners(first)}")
    return _outcome(begin, first, second)


def forge_state(first: StreamsApp, second: StreamsApp, *, progress: Progress = lambda _: None) -> Outcome:
    """The stand-in for any version and guarantee: while the second instance is down, its stores are deleted and its
    checkpoints say that they are complete, so that it comes back to its tasks and restores nothing.

    Starts both; the caller ends them. Raises TimeoutError.
    """
    tasks = _tasks(first)
    for app in (first, second):
        app.start()
    _wait_until_shared(first, second, tasks)
    feed(first.bootstrap_servers, first.input_topic, 20)
    wait_until_processed(first)
    held = {task for tasks in second.tasks().values() for task in tasks}
    second.stop()
    first.wait_until_running(tasks)
    progress(f"{second.name} has left; {first.name} works on")
    feed(first.bootstrap_servers, first.input_topic, 20)
    wait_until_processed(first)

    ends = log_ends(first.bootstrap_servers, first.changelog)
    for task in held & second.task_directories():
        directory, partition = second.state_dir / task, _partition(task)
        shutil.rmtree(directory / "rocksdb")
        (directory / ".checkpoint").write_text(f"0\n1\n{first.changelog} {partition} {ends[partition] - 1}\n")
    progress(f"the stores of {sorted(held)} are deleted on {second.name}, their checkpoints forged")

    begin = _now()
    second.start()
    _wait_until_shared(first, second, tasks)
    progress(f"{second.name} is back: {_owners(first, second)}")
    return _outcome(begin, first, second)


def _outcome(begin: int, *instances: StreamsApp) -> Outcome:
    """What has moved to whom since `begin`, and what falls when a little more has come in."""
    app, end = instances[0], _now()
    known = log_ends(app.bootstrap_servers, app.changelog)
    feed(app.bootstrap_servers, app.input_topic, 5)
    wait_until_processed(app)
    fallen: dict[bytes, Decrease] = {}
    for fall in falls(records(app.bootstrap_servers, app.changelog), NUMBERS[app.values]):
        if fall.after_offset >= known[fall.partition]:
            fallen.setdefault(fall.key, fall)
    moves = tuple(_moves(begin, instances))
    return Outcome(app.application_id, app.store, app.changelog, begin, end, moves, tuple(fallen.values()))


def _moves(begin: int, instances: Sequence[StreamsApp]) -> Iterator[Move]:
    """The moves of stateful tasks since `begin`, from the instances' logs."""
    stateful = f"{len(instances[0].source_topics) - 1}_"  # the last subtopology
    owners: dict[str, str] = {}
    for at, thread, tasks in sorted(one for instance in instances for one in instance.assignments()):
        for task in tasks:
            if at >= begin and task.startswith(stateful) and owners[task] != thread:
                yield Move(task, _partition(task), owners[task], thread, at)
            owners[task] = thread


def _tasks(app: StreamsApp) -> int:
    """How many tasks its topology has: a subtopology for each topic that it reads."""
    return len(app.source_topics) * len(log_ends(app.bootstrap_servers, app.input_topic))


def _wait_until_shared(first: StreamsApp, second: StreamsApp, tasks: int) -> None:
    """Wait until both run and have all tasks between them."""

    def shared() -> bool:
        held = _owners(first), _owners(second)
        return all(held) and len({**held[0], **held[1]}) == tasks == len(held[0]) + len(held[1])

    for app in (first, second):
        app.wait_until_running()
    wait_until(shared, f"{first.name} and {second.name} to share {tasks} tasks", 120)
    for app in (first, second):
        app.wait_until_running()


def _owners(*apps: StreamsApp) -> dict[str, str]:
    """Which thread has which task."""
    return {task: thread for app in apps for thread, tasks in app.tasks().items() for task in tasks}


def _partition(task: str) -> int:
    return int(task.partition("_")[2])


def _now() -> int:
    return time.time_ns() // 1_000_000
