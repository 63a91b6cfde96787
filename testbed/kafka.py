"""A Kafka cluster on loopback: its processes, its topics, and single faults."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaPythonPartition

from testbed.artifacts import KAFKA
from testbed.proxy import Proxy
from testbed.security import LISTENERS, Security
from testbed.servers import DEFAULTS, HEAP_MB, KRAFT_DEFAULTS, ZOOKEEPER_DEFAULTS, Config, KafkaServer, ZooKeeperServer
from testbed.views import KRaftView, PartitionView, Registration, View, ZooKeeperView, live_brokers, metadata
from testbed.waiting import wait_until

_CONTROLLER_NODE = 9000


class Cluster:
    """Brokers of one version with ZooKeeper, or with one KRaft controller from 4.0 on; a context manager.

    Each broker reaches ZooKeeper through its own proxy, so that its link can be cut. All waits raise TimeoutError.
    """

    def __init__(
        self,
        version: str = "0.11.0.0",
        brokers: Sequence[int] = (2005, 2011, 2024),
        *,
        workdir: Path,
        unclean: bool = True,
        config: Config | None = None,
        offsets_on: Sequence[int] | None = None,
        security: Security | None = None,
        linked: bool = False,
        heap_mb: int = HEAP_MB,
    ) -> None:
        """Prepare the servers; entering the context starts them.

        version: a key of artifacts.KAFKA. workdir: holds logs and disks, and must not hold another cluster's. unclean:
        whether a replica outside the ISR may be elected. config: broker properties that override servers.DEFAULTS.
        offsets_on: the brokers that hold __consumer_offsets; by default the last one, so that faults of the others
        leave commits alone. The first of them starts first, and so becomes the controller. security: adds the
        listeners SASL_SSL and SSL, and an authorizer; from 2.7 on.
        linked: adds the listener LINKED, which clients reach through a proxy of each broker, one of `client_links`.
        heap_mb: of each broker.
        """
        self.version = version
        self.brokers = tuple(brokers)
        self.workdir = workdir
        self.kraft = not version.startswith(("0.", "1.", "2.", "3."))
        self.zookeeper: str | None = None
        self._config: Config = {"unclean.leader.election.enable": str(unclean).lower(), **(config or {})}
        self._offsets_on = list(offsets_on or self.brokers[-1:])
        self._security = security
        listeners = LISTENERS if security else ("LINKED",) if linked else ()
        self._servers = {
            broker: KafkaServer("broker", broker, version, workdir, listeners, heap_mb=heap_mb)
            for broker in self.brokers
        }
        self._quorum: ZooKeeperServer | KafkaServer | None = None
        self._links: dict[int, Proxy] = {}
        self.client_links: dict[int, Proxy] = {}
        self._closing = ExitStack()
        self.bootstrap_servers = self.servers("PLAINTEXT")

    def servers(self, listener: str) -> str:
        """Return the bootstrap servers of a listener; of LINKED, in the context."""
        if listener == "LINKED":
            return ",".join(link.address for link in self.client_links.values())
        return ",".join(server.addresses[listener] for server in self._servers.values())

    # --- lifecycle

    def __enter__(self) -> Self:
        with self._closing:
            # librdkafka's log lines about unreachable brokers would only repeat the faults made here.
            self.admin = AdminClient(
                {"bootstrap.servers": self.bootstrap_servers, "socket.timeout.ms": 5000, "log_level": 0}
            )
            for broker, server in self._servers.items():
                if "LINKED" in server.addresses:
                    port = int(server.addresses["LINKED"].rpartition(":")[2])
                    self.client_links[broker] = self._closing.enter_context(Proxy("127.0.0.1", port))
            self._view = self._start_controller() if self.kraft else self._start_zookeeper()
            # It becomes the controller, so that faults of the others do not change that.
            first = self._offsets_on[0]
            for brokers in ([first], [broker for broker in self.brokers if broker != first]):
                for broker in brokers:
                    self._closing.callback(self._servers[broker].kill)
                    self._servers[broker].start()
                for broker in brokers:
                    self._wait_until_up(broker)
            self._prepare()
            self._closing = self._closing.pop_all()
        return self

    def _prepare(self) -> None:
        """Create __consumer_offsets as a first commit would (OffsetConfig of Kafka 0.11), on the chosen brokers."""
        partitions = int({**DEFAULTS, **self._config}["offsets.topic.num.partitions"])
        self.create_topic(
            "__consumer_offsets",
            assignment=dict.fromkeys(range(partitions), self._offsets_on),
            config={"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
        )

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
            kafka.configure(DEFAULTS, ZOOKEEPER_DEFAULTS, own, self._listeners_of(broker), self._config)
        return ZooKeeperView(client)

    def _start_controller(self) -> View:
        controller = KafkaServer("controller", _CONTROLLER_NODE, self.version, self.workdir)
        servers = [controller, *self._servers.values()]
        for server in servers:
            own: Config = {
                "node.id": server.node,
                "process.roles": server.role,
                "controller.quorum.voters": f"{_CONTROLLER_NODE}@{controller.address}",
            }
            server.configure(DEFAULTS, KRAFT_DEFAULTS, own, self._listeners_of(server.node), self._config)
        with ThreadPoolExecutor() as pool:
            list(pool.map(KafkaServer.format, servers))
        self._quorum = self._closing.enter_context(controller)
        controller.wait_until_started()
        return KRaftView(self.admin, controller.log)

    def _listeners_of(self, node: int) -> Config:
        """Return the properties of the listeners beside PLAINTEXT."""
        if self._security is not None:
            return self._security.broker_properties(node, kraft=self.kraft)
        if node not in self.client_links:
            return {}
        plain = "PLAINTEXT:PLAINTEXT,LINKED:PLAINTEXT"
        addresses = f"PLAINTEXT://{self._servers[node].address},LINKED://{self.client_links[node].address}"
        return {
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{plain}" if self.kraft else plain,
            "inter.broker.listener.name": "PLAINTEXT",
            "advertised.listeners": addresses,
        }

    def _wait_until_up(self, broker: int) -> None:
        self._servers[broker].wait_until_started()
        self.wait_until_registered(broker)
        wait_until(lambda: broker in live_brokers(self.admin), f"clients to know broker {broker}")

    # --- state

    @property
    def pids(self) -> list[int]:
        """The process ids of the brokers and of ZooKeeper or the controller."""
        servers = (self._quorum, *self._servers.values())
        return [server.pid for server in servers if server is not None and server.pid is not None]

    def registration(self, broker: int) -> Registration | None:
        """Return the broker's current registration, or None."""
        return self._view.registration(broker)

    def partition_state(self, topic: str, partition: int) -> PartitionView | None:
        """Return the partition's current leader and ISR, or None if it does not exist."""
        return self._view.partition(topic, partition)

    def wait_for_leader(
        self,
        topic: str,
        partition: int,
        leader: int | None = None,
        isr: Sequence[int] | None = None,
        seconds: float = 60,
    ) -> PartitionView:
        """Wait until the partition has this leader (None: any) and, if given, exactly this ISR in any order."""
        last: list[PartitionView | None] = [None]

        def leads() -> PartitionView | None:
            state = last[0] = self.partition_state(topic, partition)
            if state is None or state.leader < 0 or leader not in (None, state.leader):
                return None
            return state if isr is None or set(state.isr) == set(isr) else None

        wanted = "any broker" if leader is None else f"broker {leader}"
        try:
            return wait_until(leads, f"{topic}[{partition}] to be led by {wanted}, ISR {isr or 'any'}", seconds)
        except TimeoutError as error:
            msg = f"{error} Its state was {last[0]}."
            raise TimeoutError(msg) from error

    def wait_until_in_sync(self, seconds: float = 120) -> None:
        """Wait until all brokers are registered and all partitions have a leader and a full ISR."""
        for broker in self.brokers:
            self.wait_until_registered(broker)
        deadline = time.monotonic() + seconds
        for topic in self._view.topics():
            wait_until(
                partial(self._in_sync, topic), f"all replicas of {topic} to be in sync", deadline - time.monotonic()
            )

    def _in_sync(self, topic: str, partitions: int = 0) -> bool:
        """Return whether the topic has at least `partitions` partitions, all with a leader and a full ISR."""
        states = self._view.partitions(topic).values()
        return len(states) >= partitions and all(
            state.leader >= 0 and set(state.isr) == set(state.replicas) for state in states
        )

    def wait_until_gone(self, broker: int) -> None:
        """Wait until the broker has no registration."""
        wait_until(lambda: self.registration(broker) is None, f"the registration of broker {broker} to disappear")

    def wait_until_registered(self, broker: int) -> Registration:
        """Wait until the broker has a registration, and return it."""
        return wait_until(lambda: self.registration(broker), f"broker {broker} to register")

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
        """Create a topic and wait until every partition has a full ISR and a leader that knows it is one.

        assignment: the replicas of each partition, preferred leader first; it overrides `partitions` and `replication`.
        """
        replicas = [list(assignment[number]) for number in sorted(assignment)] if assignment is not None else None
        if replicas is None:
            topic = NewTopic(name, partitions, replication, config=dict(config or {}))
        else:
            topic = NewTopic(name, len(replicas), replica_assignment=replicas, config=dict(config or {}))
        self._administer(lambda: self.admin.create_topics([topic], operation_timeout=30, request_timeout=30)[name])
        wait_until(lambda: self._in_sync(name, topic.num_partitions), f"all replicas of {name} to be in sync")
        wait_until(lambda: self._is_led(name, topic.num_partitions), f"the leaders of {name} to respond")

    def _is_led(self, topic: str, partitions: int) -> bool:
        """Return whether the leaders of all partitions respond: brokers learn that they lead after clients do."""
        latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        try:
            return all(end.result().offset >= 0 for end in self.admin.list_offsets(latest, request_timeout=10).values())
        except KafkaException:
            metadata(self.admin, topic)  # as in log_end
            return False

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone from the controller and from clients' metadata."""
        self._administer(lambda: self.admin.delete_topics([name], operation_timeout=30, request_timeout=30)[name])
        wait_until(
            lambda: (
                name not in self._view.topics()
                and (found := metadata(self.admin, name)) is not None
                and not found.topics[name].partitions
            ),
            f"topic {name} to be deleted",
        )

    def _administer(self, call: Callable[[], Future[None]]) -> None:
        """Make an admin call, and repeat it if the broker is no longer the controller.

        A controller whose ZooKeeper session expires during the call returns UNKNOWN_SERVER_ERROR.
        """

        def done() -> bool:
            try:
                call().result()
            except KafkaException as error:
                if error.args[0].code() not in (KafkaError.NOT_CONTROLLER, KafkaError.UNKNOWN):
                    raise
                metadata(self.admin, "__consumer_offsets")  # refreshes the client's controller
                return False
            return True

        wait_until(done, "the controller to take an admin request")

    def log_end(self, topic: str, partition: int) -> int | None:
        """Return the high watermark of the partition, or None while the leader does not respond."""
        place = TopicPartition(topic, partition)
        try:
            offset: int = (
                self.admin.list_offsets({place: OffsetSpec.latest()}, request_timeout=3)[place].result().offset
            )
        except KafkaException:
            # librdkafka 2.16 does not refresh metadata that say "no leader" by itself (_NOENT).
            metadata(self.admin, topic)
            return None
        return None if offset < 0 else offset  # -1001 without an error: the leader is unavailable

    def log_start(self, topic: str, partition: int) -> int:
        """Return the log start offset of the partition. Raises KafkaException while the leader does not respond."""
        place = TopicPartition(topic, partition)
        found = self.admin.list_offsets({place: OffsetSpec.earliest()}, request_timeout=3)[place]
        return int(found.result().offset)

    def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Set a topic's properties and reset all others to the broker's defaults (AlterConfigs, from 0.11 on)."""
        topic = ConfigResource(ConfigResource.Type.TOPIC, name, set_config=dict(config))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # its replacement needs Kafka 2.3
            self._administer(lambda: self.admin.alter_configs([topic], request_timeout=30)[topic])

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records below an offset (DeleteRecords), as kafka-delete-records.sh does."""
        place = TopicPartition(topic, partition, before)
        self.admin.delete_records([place], request_timeout=30)[place].result()

    def reassign(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
        """Begin to move partitions to other brokers (KIP-455). Raises KafkaError of kafka-python."""
        places = {KafkaPythonPartition(topic, number): list(brokers) for number, brokers in assignment.items()}
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))
        try:
            for error in admin.alter_partition_reassignments(places).values():
                if error is not None:
                    raise error
        finally:
            admin.close()

    def throttle(self, rate: int) -> None:
        """Limit what each broker sends to the throttled replicas that are out of sync, bytes/s.

        A topic's are set by `leader.replication.throttled.replicas`, `*` for all.
        """
        for broker in self.brokers:
            entry = ConfigEntry(
                "leader.replication.throttled.rate", str(rate), incremental_operation=AlterConfigOpType.SET
            )
            resource = ConfigResource(ConfigResource.Type.BROKER, str(broker), incremental_configs=[entry])
            self.admin.incremental_alter_configs([resource])[resource].result(30)

    def log_directory(self, broker: int) -> Path:
        """Return the folder of the broker's partitions; it outlives the process, as a disk does."""
        return self._servers[broker].log_dir

    # --- faults

    def freeze(self, broker: int) -> None:
        """Suspend the broker (SIGSTOP). If others can be the controller of Kafka 0.11, one of them is first.

        A controller of 0.11 that freezes until its session expires takes over once more when it resumes, and may leave
        the elected one with an old controller epoch: no broker takes its requests any longer.
        """
        view = self._view
        if self.version.startswith("0.") and isinstance(view, ZooKeeperView):
            others = [other for other in self.brokers if other != broker and view.registration(other)]
            if others and self._servers[broker].running:
                wait_until(lambda: view.is_led_by_another(broker), f"another controller than {broker}", every=0.5)
        self._servers[broker].freeze()

    def thaw(self, broker: int) -> None:
        """Resume a suspended broker (SIGCONT)."""
        self._servers[broker].thaw()

    def expire_session(self, broker: int) -> tuple[Registration, Registration]:
        """Freeze the broker until its session expires, thaw it, and return its registrations before and after.

        Under KRaft the registration is gone once the controller has fenced the broker.
        """
        before = self.wait_until_registered(broker)
        self.freeze(broker)
        self.wait_until_gone(broker)
        self.thaw(broker)
        return before, self.wait_until_registered(broker)

    def kill(self, broker: int) -> None:
        """Kill the broker (SIGKILL); its registration stays until its session expires."""
        self._servers[broker].kill()

    def stop(self, broker: int) -> None:
        """Shut the broker down cleanly: it hands its partitions over first."""
        self._servers[broker].stop()

    def start(self, broker: int) -> None:
        """Start a broker that is down, and wait until clients see it.

        It waits for the old registration to go: 0.11 exits with FATAL while its znode still exists.
        """
        self.wait_until_gone(broker)
        self._servers[broker].start()
        self._wait_until_up(broker)

    def restart(self, broker: int) -> None:
        """Shut the broker down cleanly and start it again."""
        self.stop(broker)
        self.start(broker)

    def rolling_restart(self) -> None:
        """Restart all brokers one by one; all replicas are in sync before the next one."""
        for broker in self.brokers:
            self.restart(broker)
            self.wait_until_in_sync()

    def cut(self, broker: int) -> None:
        """Break the broker's link to ZooKeeper. Raises KeyError under KRaft, which has no ZooKeeper."""
        self._links[broker].cut()

    def heal(self, broker: int) -> None:
        """Restore the broker's link to ZooKeeper."""
        self._links[broker].heal()

    def lose_tail(self, broker: int, topic: str, partition: int, keep: float = 0.9) -> int:
        """Truncate the log of a stopped broker, as a power failure does, and return the bytes lost.

        keep: the share of the active segment's bytes that remains.
        """
        server = self._servers[broker]
        if server.running:
            msg = f"Broker {broker} is running; stop or kill it before truncating its log."
            raise RuntimeError(msg)
        segment = max((server.log_dir / f"{topic}-{partition}").glob("*.log"))
        size = segment.stat().st_size
        with segment.open("r+b") as log:
            log.truncate(int(size * keep))
        # Left by a clean stop: the broker would trust the segment unread (Kafka's LogManager.loadLogs).
        (server.log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
        return size - int(size * keep)

    def repair(self) -> None:
        """Undo all faults: heal links, thaw and start brokers, and wait until everything is in sync."""
        for link in self._links.values():
            link.heal()
        for broker, server in self._servers.items():
            server.thaw()
            if not server.running:
                self.start(broker)
        self.wait_until_in_sync()
