"""Kafka Streams applications as processes: the versions, the broker they use, an instance, and its reset tool."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from testbed.artifacts import Distribution, jar, jars
from testbed.kafka import Cluster
from testbed.processes import Process, ProcessEndedError, free_port
from testbed.servers import java_command
from testbed.waiting import wait_until

_SOURCES = Path(__file__).parent / "java"
_LOG4J = "org.slf4j:slf4j-log4j12:1.7.25"
_RELOAD4J = ("ch.qos.reload4j:reload4j:1.2.25", "org.slf4j:slf4j-reload4j:1.7.36")

STREAMS: Mapping[str, Distribution] = {
    distribution.version: distribution
    for distribution in (
        # The last version with KAFKA-7672, and the first without.
        Distribution("kafka-streams", "2.1.0", ("org.apache.kafka:kafka-streams:2.1.0", _LOG4J)),
        Distribution("kafka-streams", "2.2.0", ("org.apache.kafka:kafka-streams:2.2.0", _LOG4J)),
        # Cooperative rebalances, exactly_once_v2, restore lines that count records.
        Distribution("kafka-streams", "3.9.1", ("org.apache.kafka:kafka-streams:3.9.1", *_RELOAD4J)),
        # The streams protocol (KIP-1071), with group_protocol="streams".
        Distribution("kafka-streams", "4.3.1", ("org.apache.kafka:kafka-streams:4.3.1", *_RELOAD4J)),
    )
}

TOOLS = Distribution("kafka-tools", "3.9.1", ("org.apache.kafka:kafka-tools:3.9.1", *_RELOAD4J))
"""Kafka's command-line tools, for all versions."""

EXPORTERS: Mapping[str, Distribution] = {
    version: Distribution("jmx-exporter", version, (f"io.prometheus.jmx:jmx_prometheus_javaagent:{version}",))
    for version in ("0.20.0", "1.0.1")  # the last 0.x, and a 1.x, which names metrics differently
}
"""The Prometheus JMX exporter as a Java agent, by version."""


def exporter_jar(version: str) -> Path:
    """Return the JMX exporter's jar. Raises ArtifactError."""
    return next(jars(EXPORTERS[version]).glob("*.jar"))


def application_class_path(version: str) -> str:
    """Return the compiled application and the jars of Kafka Streams. Raises ArtifactError."""
    libraries = jars(STREAMS[version])
    return f"{jar(_SOURCES, name=f'streams-{version}', libraries=libraries, release=17)}:{libraries}/*"


Topology: TypeAlias = Literal["count", "repartitioned-count", "windowed-count", "sum", "max", "deletable-count"]
"""What is stored per key (java/StreamsJob.java). Only the counts and max never decrease.

deletable-count writes a tombstone for the value "delete", and starts again at 1.
"""

_HEAP_MB = 128
_TIME = r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] \w+ "
# 2.x logs the tasks when they are created, 3.x when they are assigned: all active tasks of the thread.
_ASSIGNED = re.compile(
    _TIME + r"stream-thread \[(\S+)\] (?:partition assignment took \d+ ms\.\n\tcurrent active tasks|"
    r"Handle new assignment with:\n\tNew active tasks): \[(.*)\]",
    re.MULTILINE,
)
_STATE = re.compile(r"stream-client \[\S+\] State transition from \w+ to (\w+)")


class Assignment(NamedTuple):
    """The active tasks of a thread from `at` on (ms since the epoch). thread: as in its client ids."""

    at: int
    thread: str
    tasks: tuple[str, ...]


class StreamsApp(Process):
    """An instance whose log and state directory outlive the process; a context manager.

    It starts on entering (or by start()) and is killed on leaving. stop() is clean (SIGTERM), but the instance does not
    leave its group: the group rebalances when its session of 6 s expires.
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
        """Prepare the instance. version: a key of STREAMS. workdir: may be shared by instances of an application.

        guarantee: "exactly_once" means exactly_once_v2 if the version has it. values: the format of numbers in the
        store. close_ms: how long the store takes to close. exporter: a key of EXPORTERS, which serves metrics at
        metrics_url. properties: override those below, with _ for the dots in their names.
        """
        if guarantee == "exactly_once" and version.startswith(("3.", "4.")):
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
            "cache.max.bytes.buffering": 0,  # so every update reaches the changelog
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        # Java uses the last of several class paths.
        arguments = ["-cp", application_class_path(version), "StreamsJob", input_topic, topology, store, values]
        arguments += [str(close_ms), *(f"{name}={value}" for name, value in settings.items())]
        self.metrics_url = ""
        if exporter is not None:
            address = f"127.0.0.1:{free_port()}"
            self.metrics_url = f"http://{address}/metrics"
            rules = workdir / "exporter.yaml"
            rules.parent.mkdir(parents=True, exist_ok=True)
            rules.write_text('rules: [{pattern: ".*"}]\n')  # all metrics, under the exporter's own names
            arguments.insert(0, f"-javaagent:{exporter_jar(exporter)}={address}:{rules}")
        command = java_command(STREAMS[version], _HEAP_MB, home, arguments)
        super().__init__(f"instance {instance} of {application_id}", command, workdir / f"{home.name}.log")

    # --- state

    @property
    def source_topics(self) -> tuple[str, ...]:
        """The topics that it reads, in the order in which records pass through them."""
        inner = (f"{self.application_id}-by-key-repartition",) if self.topology == "repartitioned-count" else ()
        return (self.input_topic, *inner)

    def assignments(self) -> list[Assignment]:
        """Return the logged assignments of its threads, over all its starts."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [Assignment(_ms(at), thread, _tasks(tasks)) for at, thread, tasks in _ASSIGNED.findall(text)]

    def tasks(self) -> Mapping[str, tuple[str, ...]]:
        """Return the active tasks of each thread since its last start; empty while it is not running."""
        if not self.running:
            return {}
        return {thread: _tasks(tasks) for _, thread, tasks in _ASSIGNED.findall(self._printed())}

    def task_directories(self) -> set[str]:
        """Return the tasks that have a directory on its disk."""
        return {folder.name for folder in self.state_dir.glob("*_*") if folder.is_dir()}

    def state(self) -> str | None:
        """Return the state of its client (RUNNING, REBALANCING, ...); None before the first."""
        states = _STATE.findall(self._printed())
        return states[-1] if states else None

    def wait_until_running(self, tasks: int | None = None, seconds: float = 180) -> None:
        """Wait until it is RUNNING, with this many active tasks if given. Raises ProcessEndedError."""
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


def streams_broker(workdir: Path) -> Cluster:
    """Return a broker of 3.9.1, not started.

    Its transaction log has few partitions, as each of them takes time at a start.
    """
    return Cluster("3.9.1", [2005], workdir=workdir, config={"transaction.state.log.num.partitions": 4})


def reset_application(*instances: StreamsApp) -> None:
    """Reset an application as an operator does, with Kafka's StreamsResetter, and delete its local state.

    StreamsResetter deletes the internal topics and resets the group to the start of its input. instances: all of the
    application, none of them running. Raises ProcessEndedError.
    """
    app = instances[0]
    arguments = ["org.apache.kafka.tools.StreamsResetter", "--bootstrap-server", app.bootstrap_servers]
    arguments += ["--application-id", app.application_id, "--input-topics", app.input_topic, "--force"]
    command = java_command(TOOLS, 128, app.state_dir.parent, arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        msg = f"StreamsResetter could not reset {app.application_id}:\n{done.stdout}"
        raise ProcessEndedError(msg)
    for instance in instances:
        shutil.rmtree(instance.state_dir, ignore_errors=True)


def _tasks(names: str) -> tuple[str, ...]:
    return tuple(sorted(names.split(", "))) if names else ()


def _ms(at: str) -> int:
    """Convert a log's timestamp, in local time, to ms since the epoch."""
    return int(datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() * 1000)
