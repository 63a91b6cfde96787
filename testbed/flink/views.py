"""The state of a Flink cluster as its REST API and its znodes in ZooKeeper show it; nothing here writes znodes."""

import http.client
import json
import struct
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from testbed.flink.versions import FlinkVersion


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a standby of 1.4 redirects to its idea of the leader, which may be outdated."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def request_json(address: str, path: str, method: str = "GET", seconds: float = 5) -> Any | None:
    """Return the JSON of a response, or None without a timely one, on an error, and on a redirect."""
    request = urllib.request.Request(address + path, method=method)  # noqa: S310  # always http:
    try:
        with _OPENER.open(request, timeout=seconds) as response:
            return json.load(response)
    except (OSError, http.client.HTTPException, ValueError):  # urllib.error's are OSErrors
        return None


def answers_http(address: str, seconds: float = 2) -> bool:
    """Return whether the address speaks HTTP; a standby's redirects and errors count."""
    try:
        with _OPENER.open(address + "/overview", timeout=seconds):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException):
        return False


class Leadership(NamedTuple):
    """The leading JobManager: its number, ZooKeeper session (0x hex), leader id, and since when (ms)."""

    job_manager: int
    session: str
    id: str
    since: int


class JobGraph(NamedTuple):
    """A job graph's znode: when it was created, and the session (0x0: not ephemeral) of each lock by name."""

    czxid: int
    ctime: int
    locks: Mapping[str, str]


class Znodes:
    """Reads the znodes below a cluster's root."""

    def __init__(self, client: KazooClient, root: str, flink: FlinkVersion) -> None:
        self._client = client
        self._leader_node = f"{root}/{flink.leader_node}"
        self._graphs = f"{root}/{flink.graphs}"
        self._locks = flink.locks

    def leader(self, addresses: Mapping[str, int]) -> Leadership | None:
        """Return the leader, identified by the prefix of its address, or None if there is no leader."""
        try:
            content, stat = self._client.retry(self._client.get, self._leader_node)
        except NoNodeError:
            return None
        # A java.io.ObjectOutputStream: writeUTF(address), writeObject(UUID), whose two longs end the stream.
        (length,) = struct.unpack(">H", content[6:8])
        address = content[8 : 8 + length].decode()
        low, high = struct.unpack(">QQ", content[-16:])
        leader = next((number for prefix, number in addresses.items() if address.startswith(prefix)), None)
        if leader is None:
            return None
        return Leadership(leader, hex(stat.ephemeralOwner), str(uuid.UUID(int=high << 64 | low)), stat.ctime)

    def job_graphs(self) -> dict[str, JobGraph]:
        """Return the job graphs by job id."""
        graphs = {}
        for job in self._children(self._graphs):
            stat = self._client.retry(self._client.exists, self.graph_path(job))
            if stat is not None:
                graphs[job] = JobGraph(stat.czxid, stat.ctime, self._owners(self.graph_path(job) + self._locks))
        return graphs

    def graph_path(self, job: str) -> str:
        """Return the path of a job graph's znode."""
        return f"{self._graphs}/{job}"

    def _owners(self, path: str) -> dict[str, str]:
        stats = {name: self._client.retry(self._client.exists, f"{path}/{name}") for name in self._children(path)}
        return {name: hex(stat.ephemeralOwner) for name, stat in stats.items() if stat is not None}

    def _children(self, path: str) -> list[str]:
        try:
            return list(self._client.retry(self._client.get_children, path))
        except NoNodeError:
            return []
