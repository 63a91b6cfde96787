"""The broker that the applications of a demo or a test file run against."""

from pathlib import Path

from testbed.kafka import Cluster


def streams_broker(workdir: Path) -> Cluster:
    """A broker of 3.9.1, not started; its transaction log is small, for each partition of it takes time at a start."""
    return Cluster("3.9.1", [2005], workdir=workdir, config={"transaction.state.log.num.partitions": 4})
