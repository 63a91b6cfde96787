"""A Kafka cluster on loopback with faults as verbs. Faults made of several verbs: faults.py; traffic: traffic.py."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec

from testbed.broker import DEFAULTS
from testbed.ensemble import Ensemble
from testbed.views import Registration, metadata
from testbed.waiting import wait_until


class Cluster(Ensemble):
    """A cluster with its topics and its faults; a context manager (see Ensemble for what it takes)."""

    def _prepare(self) -> None:
        """Make __consumer_offsets as a first commit would (OffsetConfig of Kafka 0.11), but on the brokers wanted."""
        partitions = int({**DEFAULTS, **self._config}["offsets.topic.num.partitions"])
        self.create_topic(
            "__consumer_offsets",
            assignment=dict.fromkeys(range(partitions), self._offsets_on),
            config={"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
        )

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
        wait_until(lambda: self._in_sync(name, topic.num_partitions), f"all replicas of {name} to be in sync")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until the controller and the clients' metadata have forgotten it."""
        self._administer(lambda: self.admin.delete_topics([name], operation_timeout=30, request_timeout=30)[name])
        wait_until(
            lambda: (
                name not in self._view.topics()
                and (found := metadata(self.admin, name)) is not None
                and not found.topics[name].partitions
            ),
            f"topic {name} to be gone",
        )

    def _administer(self, call: Callable[[], Future[None]]) -> None:
        """Make an admin call, again when it went to a broker that has ceased to be the controller, or is about to: one
        whose ZooKeeper session expires meanwhile answers UNKNOWN_SERVER_ERROR.
        """

        def done() -> bool:
            try:
                call().result()
            except KafkaException as error:
                if error.args[0].code() not in (KafkaError.NOT_CONTROLLER, KafkaError.UNKNOWN):
                    raise
                metadata(self.admin, "__consumer_offsets")  # tells the client who is
                return False
            return True

        wait_until(done, "the controller to take an admin request")

    def log_end(self, topic: str, partition: int) -> int | None:
        """The end of the log as consumers see it (the high watermark); None while the leader does not answer."""
        where = TopicPartition(topic, partition)
        try:
            offset: int = (
                self.admin.list_offsets({where: OffsetSpec.latest()}, request_timeout=3)[where].result().offset
            )
        except KafkaException:
            # A client whose cached metadata say "no leader" does not ask again by itself (librdkafka 2.16, _NOENT).
            metadata(self.admin, topic)
            return None
        return None if offset < 0 else offset  # -1001 without an error: the leader is away

    def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Set a topic's properties; those not named go back to the broker's defaults (AlterConfigs, from 0.11 on)."""
        topic = ConfigResource(ConfigResource.Type.TOPIC, name, set_config=dict(config))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what is to replace it needs Kafka 2.3
            self._administer(lambda: self.admin.alter_configs([topic], request_timeout=30)[topic])

    def log_directory(self, broker: int) -> Path:
        """Where the broker keeps its partitions; it outlives the process, as a disk does."""
        return self._servers[broker].log_dir

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
