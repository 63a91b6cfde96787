"""A single ZooKeeper server on loopback, from the jars of the Kafka that uses it. Links that can be cut: proxy.py."""

import logging
from collections.abc import Sequence
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from testbed.artifacts import Distribution, class_path, java
from testbed.processes import Process, free_port

FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
"""JVM flags for processes that live for a minute or two."""

_KAZOO = logging.getLogger("testbed.zookeeper")
_KAZOO.setLevel(logging.ERROR)  # that the server is not up yet is no news
_LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d{ISO8601}] %p %m (%c)%n
"""


def java_command(distribution: Distribution, heap_mb: int, workdir: Path, arguments: Sequence[str]) -> list[str]:
    """The command that runs a main class of the distribution; its log goes to standard output in Kafka's own layout."""
    workdir.mkdir(parents=True, exist_ok=True)
    log4j = workdir / "log4j.properties"
    log4j.write_text(_LOG4J)
    flags = [f"-Xmx{heap_mb}m", *FAST_START, f"-Dlog4j.configuration=file:{log4j}"]
    return [java(), *flags, "-cp", class_path(distribution), *arguments]


class ZooKeeperServer(Process):
    """A standalone server; `connect` waits until it serves."""

    def __init__(self, distribution: Distribution, workdir: Path) -> None:
        self.port = free_port()
        zoo_cfg = workdir / "zoo.cfg"
        # forceSync=no: the disk's fsync is none of the things under test. The last two are needed from 3.5 on.
        flags = ["-Dzookeeper.forceSync=no", "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(zoo_cfg)]
        super().__init__("ZooKeeper", java_command(distribution, 128, workdir, flags), workdir / "zookeeper.log")
        zoo_cfg.write_text(
            f"tickTime=500\ndataDir={workdir}/data\nclientPortAddress=127.0.0.1\nclientPort={self.port}\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
        )

    @property
    def address(self) -> str:
        """The connect string."""
        return f"127.0.0.1:{self.port}"

    def connect(self, seconds: float = 30) -> KazooClient:
        """A client with a session of its own, made as soon as the server grants one. Raises TimeoutError."""
        self.wait_for_line("binding to port", seconds)
        client = KazooClient(self.address, connection_retry={"max_tries": -1, "max_delay": 0.5}, logger=_KAZOO)
        try:
            client.start(seconds)
        except KazooTimeoutError as error:
            msg = f"{self.name} at {self.address} granted no session within {seconds:g} s; see {self.log}."
            raise TimeoutError(msg) from error
        return client
