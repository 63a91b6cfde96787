"""What a Flink cluster keeps in ZooKeeper: who leads, which job graphs there are and whose locks hang on them."""

import struct
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from testbed.flink.dialects import Flink


class Leadership(NamedTuple):
    """Which JobManager leads, in which ZooKeeper session (0x hex), the id of its leadership, and since when (ms)."""

    job_manager: int
    session: str
    id: str
    since: int


class JobGraph(NamedTuple):
    """A job graph's znode: when it was made, and the session of each lock by the lock's name (0x0: not ephemeral)."""

    czxid: int
    ctime: int
    locks: Mapping[str, str]


class Tree:
    """The znodes below a cluster's root. Nothing is changed from here."""

    def __init__(self, client: KazooClient, root: str, flink: Flink) -> None:
        self._client = client
        self._leader_node = f"{root}/{flink.leader_node}"
        self._graphs = f"{root}/{flink.graphs}"
        self._locks = flink.locks

    def leader(self, names: Mapping[str, int]) -> Leadership | None:
        """Who leads, by how its address begins; None while nobody does."""
        try:
            told, stat = self._client.retry(self._client.get, self._leader_node)
        except NoNodeError:
            return None
        # A java.io.ObjectOutputStream: writeUTF(address), writeObject(UUID), whose two longs end the stream.
        (length,) = struct.unpack(">H", told[6:8])
        address = told[8 : 8 + length].decode()
        low, high = struct.unpack(">QQ", told[-16:])
        leader = next((number for name, number in names.items() if address.startswith(name)), None)
        if leader is None:
            return None
        return Leadership(leader, hex(stat.ephemeralOwner), str(uuid.UUID(int=high << 64 | low)), stat.ctime)

    def job_graphs(self) -> dict[str, JobGraph]:
        """The job graphs by job id."""
        found = {}
        for job in self._children(self._graphs):
            stat = self._client.retry(self._client.exists, self.graph(job))
            if stat is not None:
                found[job] = JobGraph(stat.czxid, stat.ctime, self._owners(self.graph(job) + self._locks))
        return found

    def graph(self, job: str) -> str:
        """The path of a job graph's znode."""
        return f"{self._graphs}/{job}"

    def _owners(self, path: str) -> dict[str, str]:
        stats = {name: self._client.retry(self._client.exists, f"{path}/{name}") for name in self._children(path)}
        return {name: hex(stat.ephemeralOwner) for name, stat in stats.items() if stat is not None}

    def _children(self, path: str) -> list[str]:
        try:
            return list(self._client.retry(self._client.get_children, path))
        except NoNodeError:
            return []
