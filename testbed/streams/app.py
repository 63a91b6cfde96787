"""One instance of a Kafka Streams application as a process. What goes wrong with its state: faults.py."""

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from testbed.processes import Process, free_port
from testbed.streams.versions import STREAMS, application_class_path, exporter_jar
from testbed.waiting import wait_until
from testbed.zookeeper import java_command

Topology: TypeAlias = Literal["count", "repartitioned-count", "windowed-count", "sum", "max", "deletable-count"]
"""What is kept per key (java/StreamsJob.java). Only counts and max never fall by themselves; deletable-count makes a
tombstone of the value "delete", and begins again at 1.
"""

_HEAP_MB = 128
_TIME = r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] \w+ "
# 2.x tells when the tasks are made, 3.x when they are assigned: all that the thread is to have, not only the new ones.
_ASSIGNED = re.compile(
    _TIME + r"stream-thread \[(\S+)\] (?:partition assignment took \d+ ms\.\n\tcurrent active tasks|"
    r"Handle new assignment with:\n\tNew active tasks): \[(.*)\]",
    re.MULTILINE,
)
_STATE = re.compile(r"stream-client \[\S+\] State transition from \w+ to (\w+)")


class Assignment(NamedTuple):
    """From `at` (ms since the epoch) on a thread has exactly these active tasks. thread: as in its client ids."""

    at: int
    thread: str
    tasks: tuple[str, ...]


class StreamsApp(Process):
    """An instance with its log and its state directory, which outlive the process; a context manager.

    It starts on entering (or by start()) and is killed on leaving. stop() is a clean one (SIGTERM): an instance does
    not leave its group then, which finds out when the session of 6 s is over.
    """

    def __init__(
        self,
        version: str,
        bootstrap_servers: str,
        application_id: str,
        workdir: Path,
        *,
        input_topic: str,
        instance: str = "a",
        threads: int = 1,
        guarantee: str = "exactly_once",
        topology: Topology = "count",
        store: str = "counts",
        values: Literal["long", "int", "json"] = "long",
        close_ms: int = 0,
        exporter: str | None = None,
        **properties: str | int,
    ) -> None:
        """version: a key of versions.STREAMS. workdir: instances of an application may share it.

        guarantee: "exactly_once" means exactly_once_v2 where there is one. values: how numbers stand in the store.
        close_ms: what the store takes to close. exporter: a key of versions.EXPORTERS, which gives its metrics at
        metrics_url. properties: over those below, with _ for the dots of their names.
        """
        if guarantee == "exactly_once" and version.startswith("3."):
            guarantee = "exactly_once_v2"
        self.bootstrap_servers = bootstrap_servers
        self.application_id = application_id
        self.input_topic = input_topic
        self.instance = instance
        self.topology = topology
        self.store = store
        self.values = values
        self.changelog = f"{application_id}-{store}-changelog"
        home = workdir / f"{application_id}-{instance}"
        self.state_dir = home / "state" / application_id
        settings: dict[str, str | int] = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap_servers,
            "client.id": instance,
            "state.dir": str(home / "state"),
            "num.stream.threads": threads,
            "processing.guarantee": guarantee,
            "replication.factor": 1,
            "commit.interval.ms": 500,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "metadata.max.age.ms": 5000,
            "auto.offset.reset": "earliest",
            "cache.max.bytes.buffering": 0,  # every update reaches the changelog
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        # Of two class paths Java takes the last.
        arguments = ["-cp", application_class_path(version), "StreamsJob", input_topic, topology, store, values]
        arguments += [str(close_ms), *(f"{name}={value}" for name, value in settings.items())]
        self.metrics_url = ""
        if exporter is not None:
            address = f"127.0.0.1:{free_port()}"
            self.metrics_url = f"http://{address}/metrics"
            rules = workdir / "exporter.yaml"
            rules.parent.mkdir(parents=True, exist_ok=True)
            rules.write_text('rules: [{pattern: ".*"}]\n')  # its own names for all that there is
            arguments.insert(0, f"-javaagent:{exporter_jar(exporter)}={address}:{rules}")
        command = java_command(STREAMS[version], _HEAP_MB, home, arguments)
        super().__init__(f"instance {instance} of {application_id}", command, workdir / f"{home.name}.log")

    # --- looking

    @property
    def source_topics(self) -> tuple[str, ...]:
        """What it reads, in the order in which records pass."""
        inner = (f"{self.application_id}-by-key-repartition",) if self.topology == "repartitioned-count" else ()
        return (self.input_topic, *inner)

    def assignments(self) -> list[Assignment]:
        """What its log tells of its threads' tasks, over all its starts."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [Assignment(_ms(at), thread, _tasks(tasks)) for at, thread, tasks in _ASSIGNED.findall(text)]

    def tasks(self) -> Mapping[str, tuple[str, ...]]:
        """The active tasks of each of its threads since its last start; none when it does not run."""
        if not self.running:
            return {}
        return {thread: _tasks(tasks) for _, thread, tasks in _ASSIGNED.findall(self._printed())}

    def task_directories(self) -> set[str]:
        """The tasks that have a directory on its disk."""
        return {one.name for one in self.state_dir.glob("*_*") if one.is_dir()}

    def state(self) -> str | None:
        """The state of its client (RUNNING, REBALANCING, ...); None before the first."""
        states = _STATE.findall(self._printed())
        return states[-1] if states else None

    def wait_until_running(self, tasks: int | None = None, seconds: float = 180) -> None:
        """Wait until it is RUNNING, with so many active tasks where that is given. Raises ProcessEndedError."""
        self.wait_for_line(_STATE.pattern, seconds)

        def running() -> bool:
            count = sum(map(len, self.tasks().values()))
            return self.state() == "RUNNING" and (count > 0 if tasks is None else count == tasks)

        what = f"{self.name} to run {'any' if tasks is None else tasks} tasks (see {self.log})"
        wait_until(running, what, seconds)

    def _printed(self) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")


def _tasks(told: str) -> tuple[str, ...]:
    return tuple(sorted(told.split(", "))) if told else ()


def _ms(at: str) -> int:
    """The log's time, which is local."""
    return int(datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() * 1000)
