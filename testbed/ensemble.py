"""The processes that make a cluster: started, watched and ended together. What is done to them: kafka.py."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient

from testbed.artifacts import KAFKA
from testbed.broker import DEFAULTS, KRAFT_DEFAULTS, ZOOKEEPER_DEFAULTS, Config, Server
from testbed.proxy import Proxy
from testbed.views import KRaftView, PartitionView, Registration, View, ZooKeeperView, live_brokers
from testbed.waiting import wait_until
from testbed.zookeeper import ZooKeeperServer

_CONTROLLER_NODE = 9000


class Ensemble:
    """Brokers of one version with ZooKeeper, or with one KRaft controller from 4.0 on; a context manager.

    Each broker reaches ZooKeeper through a proxy of its own, so that its link can be cut. All waits raise TimeoutError.
    """

    def __init__(
        self,
        version: str = "0.11.0.0",
        brokers: Sequence[int] = (2005, 2011, 2024),
        *,
        workdir: Path,
        unclean: bool = True,
        config: Config | None = None,
        in_order: bool = False,
        offsets_on: Sequence[int] | None = None,
    ) -> None:
        """version: a key of artifacts.KAFKA. workdir: takes logs and disks; it must not hold another cluster's.

        unclean: whether a replica out of the ISR may be elected. config: broker properties, over broker.DEFAULTS.
        in_order: start one broker after the other, so that the first is the controller; else all at once.
        offsets_on: the brokers that hold __consumer_offsets; the last one unless given, so that faults of the others
        leave the groups' commits alone.
        """
        self.version = version
        self.brokers = tuple(brokers)
        self.workdir = workdir
        self.kraft = not version.startswith(("0.", "1.", "2.", "3."))
        self.zookeeper: str | None = None
        self._config: Config = {"unclean.leader.election.enable": str(unclean).lower(), **(config or {})}
        self._in_order = in_order
        self._offsets_on = list(offsets_on or self.brokers[-1:])
        self._servers = {broker: Server("broker", broker, version, workdir) for broker in self.brokers}
        self._quorum: ZooKeeperServer | Server | None = None
        self._links: dict[int, Proxy] = {}
        self._closing = ExitStack()
        self.bootstrap_servers = ",".join(server.address for server in self._servers.values())

    # --- lifecycle

    def __enter__(self) -> Self:
        with self._closing:
            # librdkafka's own lines about brokers that are away would only repeat what is done to them here.
            self.admin = AdminClient(
                {"bootstrap.servers": self.bootstrap_servers, "socket.timeout.ms": 5000, "log_level": 0}
            )
            self._view = self._start_controller() if self.kraft else self._start_zookeeper()
            for server in self._servers.values():
                self._closing.callback(server.kill)
                server.start()
                if self._in_order:
                    server.wait_until_started()
            for broker in self.brokers:
                self._wait_until_up(broker)
            self._prepare()
            self._closing = self._closing.pop_all()
        return self

    def _prepare(self) -> None:
        """Called once all brokers are up, before the context is entered."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def _start_zookeeper(self) -> View:
        server = ZooKeeperServer(KAFKA[self.version], self.workdir)
        self._quorum = self._closing.enter_context(server)
        client = server.connect()
        self._closing.callback(client.close)
        self._closing.callback(client.stop)
        self.zookeeper = server.address
        for broker, kafka in self._servers.items():
            link = self._links[broker] = self._closing.enter_context(Proxy("127.0.0.1", server.port))
            own: Config = {"broker.id": broker, "zookeeper.connect": link.address}
            kafka.configure(DEFAULTS, ZOOKEEPER_DEFAULTS, own, self._config)
        return ZooKeeperView(client)

    def _start_controller(self) -> View:
        controller = Server("controller", _CONTROLLER_NODE, self.version, self.workdir)
        servers = [controller, *self._servers.values()]
        for server in servers:
            own: Config = {
                "node.id": server.node,
                "process.roles": server.role,
                "controller.quorum.voters": f"{_CONTROLLER_NODE}@{controller.address}",
            }
            server.configure(DEFAULTS, KRAFT_DEFAULTS, own, self._config)
        with ThreadPoolExecutor() as pool:
            list(pool.map(Server.format, servers))
        self._quorum = self._closing.enter_context(controller)
        controller.wait_until_started()
        return KRaftView(self.admin, controller.log)

    def _wait_until_up(self, broker: int) -> None:
        self._servers[broker].wait_until_started()
        self.wait_until_registered(broker)
        wait_until(lambda: broker in live_brokers(self.admin), f"clients to know broker {broker}")

    # --- looking

    @property
    def pids(self) -> list[int]:
        """The process ids of all that was started for the cluster."""
        return [one.pid for one in (self._quorum, *self._servers.values()) if one is not None and one.pid is not None]

    def registration(self, broker: int) -> Registration | None:
        """The broker's registration now; None when it has none."""
        return self._view.registration(broker)

    def partition_state(self, topic: str, partition: int) -> PartitionView | None:
        """The partition's leader and ISR now; None when it does not exist."""
        return self._view.partition(topic, partition)

    def wait_for_leader(
        self,
        topic: str,
        partition: int,
        leader: int | None = None,
        isr: Sequence[int] | None = None,
        seconds: float = 60,
    ) -> PartitionView:
        """Wait until the partition has this leader (any, if None) and, where given, exactly this ISR in any order."""
        seen: list[PartitionView | None] = [None]

        def led() -> PartitionView | None:
            state = seen[0] = self.partition_state(topic, partition)
            if state is None or state.leader < 0 or leader not in (None, state.leader):
                return None
            return state if isr is None or set(state.isr) == set(isr) else None

        wanted = "any broker" if leader is None else f"broker {leader}"
        try:
            return wait_until(led, f"{topic}[{partition}] to be led by {wanted}, ISR {isr or 'any'}", seconds)
        except TimeoutError as error:
            msg = f"{error} Its state was {seen[0]}."
            raise TimeoutError(msg) from error

    def wait_until_in_sync(self, seconds: float = 120) -> None:
        """Wait until every broker is registered and every partition has a leader and all its replicas in the ISR."""
        for broker in self.brokers:
            self.wait_until_registered(broker)
        deadline = time.monotonic() + seconds
        for topic in self._view.topics():
            wait_until(
                partial(self._in_sync, topic), f"all replicas of {topic} to be in sync", deadline - time.monotonic()
            )

    def _in_sync(self, topic: str, partitions: int = 0) -> bool:
        """Whether the topic has at least so many partitions, each with a leader and all its replicas in the ISR."""
        states = self._view.partitions(topic).values()
        return len(states) >= partitions and all(
            state.leader >= 0 and set(state.isr) == set(state.replicas) for state in states
        )

    def wait_until_gone(self, broker: int) -> None:
        """Wait until the broker has no registration."""
        wait_until(lambda: self.registration(broker) is None, f"the registration of broker {broker} to go")

    def wait_until_registered(self, broker: int) -> Registration:
        """Wait until the broker has a registration."""
        return wait_until(lambda: self.registration(broker), f"broker {broker} to register")
