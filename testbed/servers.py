"""ZooKeeper servers, Kafka brokers and KRaft controllers as single processes on loopback."""

import logging
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from testbed.artifacts import KAFKA, Distribution, class_path, java
from testbed.processes import Process, ProcessEndedError, free_port

FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
"""JVM flags for processes that live for a minute or two."""

_KAZOO = logging.getLogger("testbed.zookeeper")
_KAZOO.setLevel(logging.ERROR)  # failed connections while the server starts are expected
_LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d{ISO8601}] %p %m (%c)%n
"""


def java_command(distribution: Distribution, heap_mb: int, workdir: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a main class, with the log on standard output in Kafka's layout."""
    workdir.mkdir(parents=True, exist_ok=True)
    log4j = workdir / "log4j.properties"
    log4j.write_text(_LOG4J)
    flags = [f"-Xmx{heap_mb}m", *FAST_START, f"-Dlog4j.configuration=file:{log4j}"]
    return [java(), *flags, "-cp", class_path(distribution), *arguments]


class ZooKeeperServer(Process):
    """A standalone ZooKeeper server from the jars of a Kafka version; `connect` waits until it serves."""

    def __init__(
        self,
        distribution: Distribution,
        workdir: Path,
        config: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """config: further lines of zoo.cfg. flags: of its JVM."""
        self.port = free_port()
        zoo_cfg = workdir / "zoo.cfg"
        # forceSync=no: fsync is not under test. The last two settings are needed from 3.5 on.
        main = ["-Dzookeeper.forceSync=no", *flags, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(zoo_cfg)]
        super().__init__("ZooKeeper", java_command(distribution, 128, workdir, main), workdir / "zookeeper.log")
        zoo_cfg.write_text(
            f"tickTime=500\ndataDir={workdir}/data\nclientPortAddress=127.0.0.1\nclientPort={self.port}\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
            + "".join(f"{name}={value}\n" for name, value in (config or {}).items())
        )

    @property
    def address(self) -> str:
        """The connect string."""
        return f"127.0.0.1:{self.port}"

    def connect(self, seconds: float = 30) -> KazooClient:
        """Return a client with a new session, once the server grants one. Raises TimeoutError."""
        self.wait_for_line("binding to port", seconds)
        client = KazooClient(self.address, connection_retry={"max_tries": -1, "max_delay": 0.5}, logger=_KAZOO)
        try:
            client.start(seconds)
        except KazooTimeoutError as error:
            msg = f"{self.name} at {self.address} granted no session within {seconds:g} s; see {self.log}."
            raise TimeoutError(msg) from error
        return client


Config: TypeAlias = Mapping[str, str | int | float]

DEFAULTS: Config = {
    # As in the flink-reset report, or lowered so that its fault takes a minute.
    "replica.lag.time.max.ms": 3000,
    # A follower cannot become leader while it waits for a frozen leader's response; the default is 30 s.
    "replica.socket.timeout.ms": 3000,
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": 10,
    "leader.imbalance.per.broker.percentage": 0,  # 10 by default: one of 11 partitions would never return
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",  # a metadata request must not re-create a deleted topic
    "delete.topic.enable": "true",  # off by default before 1.0
    "log.cleaner.dedupe.buffer.size": 4_194_304,  # bytes; the default of 128 MB would be a third of the heap
    "controlled.shutdown.retry.backoff.ms": 500,
    "num.network.threads": 2,
    "num.io.threads": 4,
}
"""Properties of all servers, unless overridden."""

ZOOKEEPER_DEFAULTS: Config = {
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 30_000,
    "reserved.broker.max.id": 100_000,
    # A controller elects no leader while it waits for a frozen broker's response; the defaults are 30 s.
    "controller.socket.timeout.ms": 3000,
    "request.timeout.ms": 3000,
}
KRAFT_DEFAULTS: Config = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "broker.session.timeout.ms": 6000,
    "broker.heartbeat.interval.ms": 1000,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 2,
}
_CLUSTER_ID = "QmFja2Zsb3dUZXN0YmVkMQ"  # 16 bytes in base64, as StorageTool expects
HEAP_MB = 384


class KafkaServer(Process):
    """A broker or a KRaft controller. Its log directory outlives the process, as a disk does."""

    def __init__(
        self,
        role: str,
        node: int,
        version: str,
        workdir: Path,
        listeners: Sequence[str] = (),
        *,
        heap_mb: int = HEAP_MB,
    ) -> None:
        """role: "broker" or "controller". listeners: those beside PLAINTEXT or CONTROLLER."""
        self.node = node
        self.role = role
        first = "CONTROLLER" if role == "controller" else "PLAINTEXT"
        self.addresses = {listener: f"127.0.0.1:{free_port()}" for listener in (first, *listeners)}
        self.address = self.addresses[first]
        self._home = workdir / f"{role}-{node}"
        self.log_dir = self._home / "log"
        self._properties = self._home / "server.properties"
        self._distribution = KAFKA[version]
        command = java_command(self._distribution, heap_mb, self._home, ["kafka.Kafka", str(self._properties)])
        super().__init__(f"{role} {node}", command, workdir / f"{role}-{node}.log")

    def configure(self, *layers: Config) -> None:
        """Write server.properties; later layers override earlier ones."""
        properties: dict[str, str | int | float] = {
            "log.dirs": str(self.log_dir),
            "listeners": ",".join(f"{listener}://{address}" for listener, address in self.addresses.items()),
        }
        for layer in layers:
            properties |= layer
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def format(self) -> None:
        """Format the log directory, which KRaft requires before the first start. Raises ProcessEndedError."""
        arguments = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties)]
        command = java_command(self._distribution, 128, self._home, arguments)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            msg = f"The log directory of {self.name} could not be formatted:\n{done.stdout}"
            raise ProcessEndedError(msg)

    def wait_until_started(self) -> None:
        """Wait until its log reports the start. Raises ProcessEndedError, TimeoutError."""
        self.wait_for_line(r"started \(kafka\.server\.Kafka(Raft)?Server\)$", 120)
