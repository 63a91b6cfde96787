"""The table [flink.NAME] of rules.toml as a type: its keys, defaults and what they mean."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, model_validator

from agent.config.http_address import http_address
from agent.config.sections import ZooKeeperClient, ensemble
from agent.model.config_types import ConfigModel, NameFilter, PositiveDuration, non_empty


def _rest_address(value: str) -> str:
    expected = 'the address of a JobManager\'s REST such as "http://jobmanager-1:8081"'
    return http_address(value, expected).rstrip("/")


class Flink(ConfigModel):
    """[flink.NAME]: a Flink cluster to watch."""

    rest: Annotated[tuple[Annotated[str, AfterValidator(_rest_address)], ...], AfterValidator(non_empty)]
    """The REST addresses of all its JobManagers, standbys too."""
    zookeeper: Annotated[str, AfterValidator(ensemble)] | None = None
    """The servers of its high availability, the chroot behind the last; None where it has none."""
    zookeeper_root: str = "/flink"
    """Flink's high-availability.zookeeper.path.root."""
    cluster_id: str = "/default"
    """Flink's high-availability.cluster-id."""
    zookeeper_client: ZooKeeperClient = ZooKeeperClient()
    storage_directory: Path | None = None
    """Flink's high-availability.storageDir as a path on this host; None where this host does not see it."""
    kafka: str | None = None
    """The [clusters.NAME] that its jobs read; without it no positions are read."""
    jobs: NameFilter = NameFilter()
    """Whose states, checkpoints and positions are watched, by the jobs' names."""
    poll_interval: PositiveDuration = 2_000
    timeout: PositiveDuration = 5_000
    """How long a poll waits for answers."""
    metrics_interval: PositiveDuration = 10_000
    """How often positions are read. Flink renews its metrics every 10 s (metrics.fetcher.update-interval)."""

    @model_validator(mode="after")
    def _there_is_a_zookeeper_to_connect_to(self) -> Self:
        if self.zookeeper is None:
            given = {"zookeeper_root", "cluster_id", "zookeeper_client"} & self.model_fields_set
            if self.storage_directory is not None:
                given -= {"cluster_id"}
            if given:
                msg = f"`{min(given)}` has no effect without `zookeeper`"
                raise ValueError(msg)
        return self

    @property
    def zookeeper_path(self) -> str:
        """The znode below which the cluster keeps everything, such as /flink/default."""
        parts = [one.strip("/") for one in (self.zookeeper_root, self.cluster_id)]
        return "/" + "/".join(one for one in parts if one)
