"""A YARN cluster on loopback, as processes: Hadoop's ResourceManager and one NodeManager."""

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from testbed.artifacts import HADOOP, class_path, java_home
from testbed.processes import Process, ProcessGroup, free_port
from testbed.servers import java_command

_SERVER = "org.apache.hadoop.yarn.server"
_HEAP_MB = 256


class YarnCluster(ProcessGroup):
    """A cluster whose containers are processes of this user; entering the context starts it.

    configuration: the folder that HADOOP_CONF_DIR names for clients. file: URLs are its file system.
    """

    def __init__(self, workdir: Path, *, memory: int = 4096, cores: int = 4) -> None:
        """Prepare the processes. workdir: holds configuration, logs and containers. memory: in MiB; of containers."""
        self.configuration = workdir / "configuration"
        self._logs = workdir / "logs"
        self.configuration.mkdir(parents=True)
        (self.configuration / "core-site.xml").write_text("<configuration/>", encoding="utf-8")
        properties = {
            **{f"yarn.resourcemanager.{port}address": _address() for port in ("", *_PORTS)},
            "yarn.resourcemanager.scheduler.class": f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.scheduler.minimum-allocation-mb": "128",
            **{f"yarn.nodemanager.{port}address": _address() for port in ("", "localizer.", "webapp.")},
            "yarn.nodemanager.local-dirs": str(workdir / "local"),
            "yarn.nodemanager.log-dirs": str(self._logs),
            "yarn.nodemanager.resource.memory-mb": str(memory),
            "yarn.nodemanager.resource.cpu-vcores": str(cores),
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
        }
        lines = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
            for name, value in properties.items()
        )
        site = f"<configuration>\n{lines}</configuration>\n"
        (self.configuration / "yarn-site.xml").write_text(site, encoding="utf-8")
        self._manager = self._process("ResourceManager", "resourcemanager", workdir)
        self._node = self._process("NodeManager", "nodemanager", workdir)
        super().__init__(self._manager, self._node)

    def _process(self, name: str, package: str, workdir: Path) -> Process:
        path = ("-cp", f"{self.configuration}:{class_path(HADOOP)}")
        # Hadoop reads a protected member of ClassLoader.
        opened = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
        command = java_command(HADOOP, _HEAP_MB, workdir / name, [*path, *opened, f"{_SERVER}.{package}.{name}"])
        environment = ("env", f"--chdir={workdir}", f"JAVA_HOME={java_home()}")  # containers inherit it
        return Process(f"YARN's {name}", [*environment, *command], workdir / f"{name}.log")

    def outputs(self) -> Iterator[str]:
        """Yield what each container of all applications has written to its standard output."""
        for path in sorted(self._logs.glob("application_*/container_*/stdout")):
            yield path.read_text(encoding="utf-8")

    def wait_until_ready(self) -> None:
        """Wait until the node is known to the manager. Raises ProcessEndedError, TimeoutError."""
        self._manager.wait_for_line("Transitioned to active state")
        self._manager.wait_for_line("from NEW to RUNNING")


_PORTS = ("scheduler.", "resource-tracker.", "admin.", "webapp.")


def _address() -> str:
    return f"127.0.0.1:{free_port()}"
