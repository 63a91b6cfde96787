"""A Kafka cluster on loopback with faults as verbs. Faults made of several verbs: faults.py; traffic: traffic.py."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from testbed.artifacts import KAFKA
from testbed.broker import DEFAULTS, KRAFT_DEFAULTS, ZOOKEEPER_DEFAULTS, Config, Server
from testbed.proxy import Proxy
from testbed.views import KRaftView, PartitionView, Registration, View, ZooKeeperView, metadata
from testbed.waiting import wait_until
from testbed.zookeeper import ZooKeeperServer

_CONTROLLER_NODE = 9000


class Cluster:
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
            self._create_offsets_topic()
            self._closing = self._closing.pop_all()
        return self

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
        wait_until(
            lambda: (found := metadata(self.admin)) is not None and broker in found.brokers,
            f"broker {broker} to be in the metadata",
        )

    def _create_offsets_topic(self) -> None:
        """As the first commit would make it (Kafka's GroupMetadataManager and OffsetConfig), but where we want it."""
        partitions = int({**DEFAULTS, **self._config}["offsets.topic.num.partitions"])
        self.create_topic(
            "__consumer_offsets",
            assignment=dict.fromkeys(range(partitions), self._offsets_on),
            config={"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
        )

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
        return self._view.partitions(topic).get(partition)

    def log_end(self, topic: str, partition: int) -> int | None:
        """The end of the log as consumers see it (the high watermark); None while the leader does not answer."""
        where = TopicPartition(topic, partition)
        try:
            offset: int = (
                self.admin.list_offsets({where: OffsetSpec.latest()}, request_timeout=3)[where].result().offset
            )
        except KafkaException:
            return None
        return None if offset < 0 else offset  # -1001 without an error: the leader is away

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

    def _in_sync(self, topic: str) -> bool:
        states = self._view.partitions(topic).values()
        return all(state.leader >= 0 and set(state.isr) == set(state.replicas) for state in states)

    # --- topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication: int = 1,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until every partition is led and in sync.

        assignment: the replicas of each partition, the preferred leader first; it overrules partitions and replication.
        """
        replicas = [list(assignment[number]) for number in sorted(assignment)] if assignment is not None else None
        if replicas is None:
            topic = NewTopic(name, partitions, replication, config=dict(config or {}))
        else:
            topic = NewTopic(name, len(replicas), replica_assignment=replicas, config=dict(config or {}))
        self._administer(lambda: self.admin.create_topics([topic], operation_timeout=30, request_timeout=30)[name])
        for number in range(topic.num_partitions):
            self.wait_for_leader(name, number)
        self.wait_until_in_sync()

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until the controller and the clients' metadata have forgotten it."""
        self._administer(lambda: self.admin.delete_topics([name], operation_timeout=30, request_timeout=30)[name])
        wait_until(
            lambda: (
                name not in self._view.topics()
                and (found := metadata(self.admin)) is not None
                and name not in found.topics
            ),
            f"topic {name} to be gone",
        )

    def _administer(self, call: Callable[[], Future[None]]) -> None:
        """Make an admin call, again when it went to a broker that has ceased to be the controller."""

        def done() -> bool:
            try:
                call().result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_CONTROLLER:
                    raise
                metadata(self.admin)  # tells the client who is
                return False
            return True

        wait_until(done, "the controller to take an admin request")

    # --- faults

    def freeze(self, broker: int) -> None:
        """Stop the broker in its tracks (SIGSTOP)."""
        self._servers[broker].freeze()

    def thaw(self, broker: int) -> None:
        """Let a frozen broker go on."""
        self._servers[broker].thaw()

    def expire_session(self, broker: int) -> tuple[Registration, Registration]:
        """Freeze the broker until its registration is gone, then let it register anew: (before, after).

        Under KRaft its registration is gone when the controller has fenced it.
        """
        before = self.wait_until_registered(broker)
        self.freeze(broker)
        self.wait_until_gone(broker)
        self.thaw(broker)
        return before, self.wait_until_registered(broker)

    def wait_until_gone(self, broker: int) -> None:
        """Wait until the broker has no registration."""
        wait_until(lambda: self.registration(broker) is None, f"the registration of broker {broker} to go")

    def wait_until_registered(self, broker: int) -> Registration:
        """Wait until the broker has a registration."""
        return wait_until(lambda: self.registration(broker), f"broker {broker} to register")

    def kill(self, broker: int) -> None:
        """End the broker at once (SIGKILL); its registration stays until its session expires."""
        self._servers[broker].kill()

    def stop(self, broker: int) -> None:
        """Shut the broker down cleanly: it hands its partitions over first."""
        self._servers[broker].stop()

    def start(self, broker: int) -> None:
        """Start a broker that is down and wait until clients see it.

        It starts once its old registration is gone: 0.11 exits with FATAL when its znode is still there.
        """
        self.wait_until_gone(broker)
        self._servers[broker].start()
        self._wait_until_up(broker)

    def restart(self, broker: int) -> None:
        """Shut the broker down cleanly and start it again."""
        self.stop(broker)
        self.start(broker)

    def rolling_restart(self) -> None:
        """Restart every broker, each when all replicas are in sync again after the one before."""
        for broker in self.brokers:
            self.restart(broker)
            self.wait_until_in_sync()

    def cut(self, broker: int) -> None:
        """Break the broker's link to ZooKeeper. Raises KeyError under KRaft, where there is none."""
        self._links[broker].cut()

    def heal(self, broker: int) -> None:
        """Mend the broker's link to ZooKeeper."""
        self._links[broker].heal()

    def lose_tail(self, broker: int, topic: str, partition: int, keep: float = 0.9) -> int:
        """Lose the end of a stopped broker's log, as a power failure does; returns the bytes lost.

        keep: the share of the active segment's bytes that is still there.
        """
        server = self._servers[broker]
        if server.running:
            msg = f"Broker {broker} is running; stop or kill it before its disk loses anything."
            raise RuntimeError(msg)
        segment = max((server.log_dir / f"{topic}-{partition}").glob("*.log"))
        size = segment.stat().st_size
        with segment.open("r+b") as log:
            log.truncate(int(size * keep))
        # Left by a clean stop: the broker would trust the segment unread (Kafka's LogManager.loadLogs).
        (server.log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
        return size - int(size * keep)

    def settle(self) -> None:
        """Undo what faults have left behind: links healed, brokers thawed, those that are down started, all in sync."""
        for link in self._links.values():
            link.heal()
        for broker, server in self._servers.items():
            server.thaw()
            if not server.running:
                self.start(broker)
        self.wait_until_in_sync()
