"""The differences between Flink versions: jars, main classes, properties, znodes and REST."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from testbed.artifacts import Distribution, class_path, jar, jars

Config: TypeAlias = Mapping[str, str | int]

_SOURCES = Path(__file__).parent / "java"

_LAYOUT = "%d{yyyy-MM-dd HH:mm:ss,SSS} %-5p %-60c %x - %m%n"  # that of Flink's own logging configuration


class Job(NamedTuple):
    """A job as REST shows it. start, end: ms since the epoch, end is None until it ends. running: its running tasks."""

    id: str
    name: str
    state: str
    start: int
    end: int | None
    running: int
    total: int


class Checkpoints(NamedTuple):
    """A job's checkpoints as REST counts them since its JobManager recovered it; ids are None if there is none.

    latest: the id of the latest completed checkpoint. triggered: when that was triggered (ms). restored: how often one
    was restored. restored_id: the one restored last.
    """

    completed: int
    failed: int
    restored: int
    latest: int | None
    triggered: int | None
    restored_id: int | None


class FlinkVersion:
    """Flink 1.20: a dispatcher and a JobMaster per job, one leader latch for all of them, log4j 2.

    `folder` parameters are a process's configuration folder.
    """

    sources: tuple[str, ...] = ("flink", "flink-kafka")
    """The folders below java/ with its jobs."""
    java_release: int = 11
    """The release of the class files that it can read."""
    conf_file: str = "config.yaml"
    heap_mb: int = 384
    """MiB of a JobManager's heap."""
    leader_node: str = "leader/rest_server/connection_info"
    """The leader's znode below the cluster's, an ephemeral of the leader's session."""
    graphs: str = "jobgraphs"
    """The parent of the job graphs' znodes, below the cluster's."""
    locks: str = "/locks"
    """The parent of a job graph's locks, below its znode."""
    jobs_path: str = "/jobs/overview"
    client: str = "org.apache.flink.client.cli.CliFrontend"
    # Packages that JDK 17 opens only on request.
    opened: tuple[str, ...] = (
        *("java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.lang.reflect", "java.text", "java.time"),
        *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks"),
    )

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution

    def class_path(self) -> str:
        """Return the class path of its processes."""
        return class_path(self.distribution)

    def jobs_jar(self) -> Path:
        """Return the jar of its jobs."""
        folders = [_SOURCES / folder for folder in self.sources]
        return jar(*folders, name=self.sources[0], libraries=jars(self.distribution), release=self.java_release)

    def flags(self, folder: Path, level: str) -> list[str]:
        """Return the JVM flags; standard output receives the log from `level` on."""
        exported = ("java.base/sun.net.util", "java.rmi/sun.rmi.registry", "java.security.jgss/sun.security.krb5")
        return [
            *(f"--add-exports={package}=ALL-UNNAMED" for package in exported),
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in self.opened),
            *self._logging(folder, level),
        ]

    def _logging(self, folder: Path, level: str) -> list[str]:
        log4j = folder / "log4j2.properties"
        log4j.write_text(
            f"rootLogger.level = {level}\nrootLogger.appenderRef.out.ref = out\n"
            "appender.out.name = out\nappender.out.type = CONSOLE\n"
            f"appender.out.layout.type = PatternLayout\nappender.out.layout.pattern = {_LAYOUT}\n"
        )
        return [f"-Dlog4j.configurationFile=file:{log4j}", "-Dlog4j2.disable.jmx=true"]

    def config(self, rest_port: int, checkpoints: Path, temporary: Path) -> Config:
        """Return the properties whose names or values depend on the version."""
        memory = {
            "task.heap": "128m",
            "task.off-heap": "16m",
            "framework.heap": "128m",
            "framework.off-heap": "64m",
            "managed": "16m",
            "jvm-metaspace": "128m",
        }
        return {
            "high-availability.type": "zookeeper",
            "jobmanager.bind-host": "127.0.0.1",
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": rest_port,
            "rest.bind-port": rest_port,
            "execution.checkpointing.dir": f"file://{checkpoints}",
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 8000,
            "io.tmp.dirs": str(temporary),
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.host": "127.0.0.1",
            "taskmanager.cpu.cores": "1.0",
            **{f"taskmanager.memory.{name}.size": size for name, size in memory.items()},
            **{f"taskmanager.memory.network.{end}": "32m" for end in ("min", "max")},
            **{f"taskmanager.memory.jvm-overhead.{end}": "64m" for end in ("min", "max")},
        }

    def job_manager(self, folder: Path, rest_port: int) -> list[str]:
        """Return the main class of a JobManager and its arguments."""
        del rest_port  # it is in the configuration
        return ["org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint", "-c", str(folder)]

    def task_manager(self, folder: Path, number: int) -> list[str]:
        """Return the main class of a TaskManager and its arguments."""
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        return [main, "--configDir", str(folder), "-D", f"taskmanager.resource-id=tm{number}"]

    def leader_address(self, rpc_port: int, rest_port: int) -> str:
        """Return the address that the leader's znode holds for a JobManager."""
        del rpc_port
        return f"http://127.0.0.1:{rest_port}"

    def jobs(self, response: Any) -> list[Job]:
        """Return the jobs in the response of `jobs_path`."""
        return [_job(job) for job in response["jobs"]]

    def cancel(self, job: str) -> tuple[str, str]:
        """Return the REST method and path that cancel a job."""
        return "PATCH", f"/jobs/{job}?mode=cancel"


class Flink2(FlinkVersion):
    """Flink 2.x, which calls job graphs execution plans; without Kafka, whose connectors are released later."""

    sources = ("flink",)
    graphs = "execution-plans"


class Flink14(FlinkVersion):
    """Flink 1.4, the version of FLINK-10011: one actor is the JobManager, Akka 2.4, log4j 1."""

    sources = ("flink-1.4",)
    java_release = 8
    conf_file = "flink-conf.yaml"
    heap_mb = 256
    leader_node = f"leader/{'0' * 32}/job_manager_lock"
    locks = ""
    jobs_path = "/joboverview"
    client = "org.apache.flink.client.CliFrontend"
    opened = (*FlinkVersion.opened, "sun.misc", "java.math", "sun.security.action")

    def class_path(self) -> str:
        first = jar(_SOURCES / "akka-2.4", name="akka-2.4")  # first, as its class replaces Akka's
        return f"{first}:{class_path(self.distribution)}"

    def _logging(self, folder: Path, level: str) -> list[str]:
        log4j = folder / "log4j.properties"
        log4j.write_text(
            f"log4j.rootLogger={level}, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            f"log4j.appender.out.layout.ConversionPattern={_LAYOUT}\n"
        )
        return [f"-Dlog4j.configuration=file:{log4j}"]

    def config(self, rest_port: int, checkpoints: Path, temporary: Path) -> Config:
        return {
            "high-availability": "zookeeper",
            "web.port": rest_port,
            "state.backend": "filesystem",
            "state.backend.fs.checkpointdir": f"file://{checkpoints}",
            "taskmanager.tmp.dirs": str(temporary),
            "taskmanager.hostname": "127.0.0.1",
            "taskmanager.memory.size": 16,
            "taskmanager.memory.preallocate": "false",
            "taskmanager.network.memory.min": 16_777_216,
            "taskmanager.network.memory.max": 16_777_216,
        }

    def job_manager(self, folder: Path, rest_port: int) -> list[str]:
        arguments = ["--executionMode", "cluster", "--host", "127.0.0.1", "--webui-port", str(rest_port)]
        return ["org.apache.flink.runtime.jobmanager.JobManager", "--configDir", str(folder), *arguments]

    def task_manager(self, folder: Path, number: int) -> list[str]:
        del number  # 1.4 draws its id itself
        return ["org.apache.flink.runtime.taskmanager.TaskManager", "--configDir", str(folder)]

    def leader_address(self, rpc_port: int, rest_port: int) -> str:
        del rest_port
        return f"akka.tcp://flink@127.0.0.1:{rpc_port}/"

    def jobs(self, response: Any) -> list[Job]:
        return [_job(job) for job in (*response["running"], *response["finished"])]

    def cancel(self, job: str) -> tuple[str, str]:
        return "DELETE", f"/jobs/{job}/cancel"


def _job(job: Mapping[str, Any]) -> Job:
    tasks, end = job["tasks"], job["end-time"]
    ended = end if end >= 0 else None
    return Job(job["jid"], job["name"], job["state"], job["start-time"], ended, tasks["running"], tasks["total"])


FLINK: Mapping[str, FlinkVersion] = {
    # The version of FLINK-10011 and of the connector for Kafka 0.11. JDK 9 and later lack JAXB.
    "1.4.2": Flink14(
        Distribution(
            "flink",
            "1.4.2",
            (
                "org.apache.flink:flink-clients_2.11:1.4.2",
                "org.apache.flink:flink-runtime-web_2.11:1.4.2",
                "org.apache.flink:flink-streaming-java_2.11:1.4.2",
                "org.apache.flink:flink-connector-kafka-0.11_2.11:1.4.2",
                "org.slf4j:slf4j-log4j12:1.7.7",
                "log4j:log4j:1.2.17",
                "javax.xml.bind:jaxb-api:2.3.1",
                "javax.activation:javax.activation-api:1.2.0",
            ),
        )
    ),
    "1.20.1": FlinkVersion(
        Distribution(
            "flink",
            "1.20.1",
            (
                "org.apache.flink:flink-connector-kafka:3.4.0-1.20",
                "org.apache.flink:flink-connector-base:1.20.1",
            ),
            "apache-flink-libraries==1.20.1",
        )
    ),
    "2.3.0": Flink2(Distribution("flink", "2.3.0", (), "apache-flink-libraries==2.3.0")),
}
"""The versions that the testbed can run, by number."""
