"""One Kafka server process: its properties per version and its files. What several of them do together: kafka.py."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from testbed.artifacts import KAFKA
from testbed.processes import Process, ProcessEndedError, free_port
from testbed.zookeeper import java_command

Config: TypeAlias = Mapping[str, str | int | float]

DEFAULTS: Config = {
    # What the flink-reset report's cluster had, or what makes its fault take a minute rather than an hour.
    "replica.lag.time.max.ms": 3000,
    # A follower that waits for a frozen leader's answer cannot become the leader meanwhile; the default is 30 s.
    "replica.socket.timeout.ms": 3000,
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": 10,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",  # a topic just deleted must not come back because somebody asked for it
    "delete.topic.enable": "true",  # off by default before 1.0
    "log.cleaner.dedupe.buffer.size": 4_194_304,  # bytes; the default of 128 MB would be a third of the heap
    "controlled.shutdown.retry.backoff.ms": 500,
    "num.network.threads": 2,
    "num.io.threads": 4,
}
"""What all servers are given unless the caller says otherwise."""

ZOOKEEPER_DEFAULTS: Config = {
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 30_000,
    "reserved.broker.max.id": 100_000,
    # A controller that waits for a frozen broker's answer elects nobody meanwhile; the defaults are 30 s.
    "controller.socket.timeout.ms": 3000,
    "request.timeout.ms": 3000,
}
KRAFT_DEFAULTS: Config = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "broker.session.timeout.ms": 6000,
    "broker.heartbeat.interval.ms": 1000,
}
_CLUSTER_ID = "QmFja2Zsb3dUZXN0YmVkMQ"  # 16 bytes in base64, as StorageTool wants them
_HEAP_MB = 384


class Server(Process):
    """A broker, or a KRaft controller. Its log directory outlives the process, as a disk does."""

    def __init__(self, role: str, node: int, version: str, workdir: Path) -> None:
        """role: "broker" or "controller"."""
        self.node = node
        self.role = role
        self.address = f"127.0.0.1:{free_port()}"
        self._home = workdir / f"{role}-{node}"
        self.log_dir = self._home / "log"
        self._properties = self._home / "server.properties"
        self._distribution = KAFKA[version]
        command = java_command(self._distribution, _HEAP_MB, self._home, ["kafka.Kafka", str(self._properties)])
        super().__init__(f"{role} {node}", command, workdir / f"{role}-{node}.log")

    def configure(self, *layers: Config) -> None:
        """Write its properties; later layers win."""
        listener = "CONTROLLER" if self.role == "controller" else "PLAINTEXT"
        properties: dict[str, str | int | float] = {
            "log.dirs": str(self.log_dir),
            "listeners": f"{listener}://{self.address}",
        }
        for layer in layers:
            properties |= layer
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def format(self) -> None:
        """Make its log directory the cluster's, as KRaft wants before the first start. Raises ProcessEndedError."""
        arguments = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties)]
        command = java_command(self._distribution, 128, self._home, arguments)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            msg = f"The log directory of {self.name} could not be formatted:\n{done.stdout}"
            raise ProcessEndedError(msg)

    def wait_until_started(self) -> None:
        """Wait for the line in which it says so. Raises ProcessEndedError, TimeoutError."""
        self.wait_for_line(r"started \(kafka\.server\.Kafka(Raft)?Server\)$", 120)
