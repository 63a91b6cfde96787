"""Facts about the ZooKeeper ensemble of a Kafka cluster."""

from agent.model.observations.base import Observation


class ZooKeeperHealth(Observation, frozen=True, kw_only=True, tag="zookeeper_health", gc=False):
    """What the servers of a ZooKeeper ensemble answer to `srvr`, and how Backflow's own session fares.

    cluster: the cluster's name in rules.toml. serving: servers (`host:port`) that serve requests. not_serving: servers
    that answer that they do not, because they see no quorum. unreachable: servers that do not answer. A server that
    refuses `srvr` is in none of them. latency_ms: the slowest answer to a request of Backflow's session in the last
    minute, rounded down to 100 ms; null if there was none. expiries: how many of Backflow's sessions have expired since
    it started.
    """

    key = ("cluster",)

    cluster: str
    serving: tuple[str, ...] = ()
    not_serving: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    latency_ms: int | None = None
    expiries: int = 0
