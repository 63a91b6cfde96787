"""Flink's high-availability metadata: leader, job graphs, their locks and checkpoints in ZooKeeper, files in storage.

Paths: ZooKeeperUtils and HighAvailabilityOptions of 1.4.2, 1.14.0, 1.20.1 and 2.3.0. Lock nodes are children of the
job graph's znode up to 1.14, and of its child `locks` since.
"""

import re
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from agent.clock import now_ms
from agent.model.observations.flink import JobGraph, JobGraphFile
from agent.sources.zookeeper.session import Session
from agent.sources.zookeeper.znodes import UndecodableError, session_id

_GRAPHS = ("jobgraphs", "execution-plans")
"""Parents of job graphs, which are called execution plans from 2.0 on."""
_LEADERS = ("leader/dispatcher/connection_info", "leader/dispatcher_lock", f"leader/{'0' * 32}/job_manager_lock")
"""The leader's znode in 1.14 and later, from 1.5 to 1.13, and in 1.4. The dispatcher, if any, recovers the jobs."""
_REST_LEADERS = ("leader/rest_server/connection_info", "leader/rest_server_lock")
_CHECKPOINTS = ("jobs/{}/checkpoints", "checkpoints/{}")
"""Since 1.14, and before."""
_LOCKS = "locks"
_JOB_ID = re.compile(r"[0-9a-f]{32}")
_FILE_NAME = r"submitted(?:JobGraph|ExecutionPlan)[0-9a-f]{12}"
_GRAPH_FILE = re.compile(_FILE_NAME)
_GRAPH_FILE_BYTES = re.compile(_FILE_NAME.encode())

_READ_TIMEOUT_S = 3.0
"""How long a poll waits for all znodes."""


class HaUnavailableError(Exception):
    """The metadata in ZooKeeper is unavailable; the message is a sentence for Unavailable."""


class DisconnectedError(Exception):
    """The connection is down, but not yet for the session's timeout: nothing to report so far."""


class Leader(NamedTuple):
    """The leading JobManager.

    address: that of REST from 1.5 on. id: the leader session's UUID. session: the ZooKeeper session that owns the
    leader's znode, 0x hex. since: when it became leader, ms, by ZooKeeper's clock.
    """

    address: str
    id: str | None
    session: str
    since: int


class HaMetadata(NamedTuple):
    """Metadata in ZooKeeper at one moment; leader is None while there is none."""

    leader: Leader | None
    graphs: list[JobGraph]


class HaZooKeeper:
    """A ZooKeeper session that reads a Flink cluster's metadata when polled, without watches."""

    def __init__(self, connect: str, path: str, cluster: str, read_options: Callable[[], Mapping[str, Any]]) -> None:
        """connect: servers and chroot. path: the Flink cluster's znode.

        read_options: returns KazooClient's keyword arguments with the current secrets.
        """
        self._connect, self._path, self._cluster = connect, path, cluster
        self._session = Session(connect, read_options)
        self._session.start()

    def read(self) -> HaMetadata:
        """Return the metadata as it is now. Raises HaUnavailableError, DisconnectedError."""
        now = now_ms()
        if self._session.disconnected_since is not None:
            if not self._session.is_lost(now):
                raise DisconnectedError
            msg = f"ZooKeeper at {self._connect} does not answer{self._session.failure}"
            raise HaUnavailableError(msg)
        try:
            metadata = read_metadata(
                self._session.client, self._path, self._cluster, now, time.monotonic() + _READ_TIMEOUT_S
            )
        except UndecodableError as error:
            raise HaUnavailableError(str(error)) from error
        except self._session.failures as error:
            if self._session.disconnected_since is not None:
                raise DisconnectedError from error
            msg = f"cannot read {self._path} from ZooKeeper at {self._connect}: {error!r}"
            raise HaUnavailableError(msg) from error
        if metadata is None:
            msg = (
                f"ZooKeeper at {self._connect} has no znode {self._path}: set `zookeeper_root` and `cluster_id` to "
                "Flink's high-availability.zookeeper.path.root and high-availability.cluster-id"
            )
            raise HaUnavailableError(msg)
        return metadata

    def close(self) -> None:
        """End the session within about 3 s."""
        self._session.close()


def read_metadata(client: KazooClient, root: str, cluster: str, now: int, deadline: float) -> HaMetadata | None:
    """Return the metadata below the znode `root`, or None if there is no such znode.

    deadline: of time.monotonic(). Raises UndecodableError, kazoo's errors and, past the deadline, its timeout.
    """
    if _collect([(root, client.exists_async(root))], deadline)[root] is None:
        return None
    parents = _fetch_children(client, [f"{root}/{parent}" for parent in _GRAPHS], deadline)
    paths = {
        job: f"{parent}/{job}"
        for parent, names in parents.items()
        for job in sorted(names or ())
        if _JOB_ID.fullmatch(job)
    }
    nodes = _fetch_nodes(client, paths.values(), deadline)
    locks = _fetch_lock_owners(client, list(paths.values()), deadline)
    checkpoint_paths = {job: [f"{root}/{path.format(job)}" for path in _CHECKPOINTS] for job in paths}
    checkpoints = _fetch_children(client, [path for of_job in checkpoint_paths.values() for path in of_job], deadline)
    graphs = []
    for job, path in paths.items():
        node = nodes[path]
        if node is None:
            continue
        content, stat = node
        file = _GRAPH_FILE_BYTES.search(content)
        names = [name for checkpoint_path in checkpoint_paths[job] for name in checkpoints[checkpoint_path] or ()]
        graphs.append(
            JobGraph(
                at=now,
                cluster=cluster,
                job=job,
                made_at=stat.ctime,
                locks=locks[path],
                file=file[0].decode() if file else None,
                checkpoints=sum(name.isdigit() for name in names),
                znode=path,
            )
        )
    return HaMetadata(_fetch_leader(client, root, deadline), graphs)


def decode_leader(path: str, content: bytes) -> tuple[str, str | None] | None:
    """Return the address and the leader session's UUID from a leader's znode, or None if it is empty.

    The content is a java.io.ObjectOutputStream: writeUTF(address), then writeObject(UUID), whose fields are two longs,
    the low one first. Raises UndecodableError.
    """
    if not content:
        return None
    try:
        magic, block_type = struct.unpack_from(">IB", content)
        begin = {0x77: 6, 0x7A: 9}[block_type]  # TC_BLOCKDATA has a length of one byte, TC_BLOCKDATALONG of four
        (length,) = struct.unpack_from(">H", content, begin)
        address = content[begin + 2 : begin + 2 + length].decode()
        if magic != 0xACED0005 or len(address) < length:
            raise _undecodable(path, content)
        if b"java.util.UUID" not in content:
            return address, None
        low, high = struct.unpack(">QQ", content[-16:])
    except (KeyError, UnicodeDecodeError, struct.error) as error:
        raise _undecodable(path, content) from error
    return address, str(uuid.UUID(int=high << 64 | low))


def list_job_graph_files(directory: Path, cluster_id: str, cluster: str, at: int) -> list[JobGraphFile]:
    """Return the job graph files in the HA storage directory.

    They are in the directory itself in 1.4, and in the cluster id's folder in later versions; without that folder it
    has none. Raises OSError if the directory cannot be read.
    """
    files = []
    for folder in dict.fromkeys((directory, directory / cluster_id.strip("/"))):
        try:
            paths = sorted(folder.iterdir())
        except FileNotFoundError:
            if folder == directory:
                raise
            continue
        for path in paths:
            if not _GRAPH_FILE.fullmatch(path.name):
                continue
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # deleted since the directory was listed
            modified_at = stat.st_mtime_ns // 1_000_000
            files.append(
                JobGraphFile(at=at, cluster=cluster, file=path.name, modified_at=modified_at, size=stat.st_size)
            )
    return files


def _fetch_leader(client: KazooClient, root: str, deadline: float) -> Leader | None:
    paths = [f"{root}/{path}" for path in (*_LEADERS, *_REST_LEADERS)]
    nodes = _fetch_nodes(client, paths, deadline)
    leaders = []
    for path in paths:
        node = nodes[path]
        decoded = decode_leader(path, node[0]) if node is not None else None
        if node is not None and decoded is not None:
            leaders.append(Leader(*decoded, session_id(node[1]), node[1].mtime))
    if not leaders:
        return None
    # REST's address is the one that people and we can use. In 1.14, REST's leader may be another process than the
    # dispatcher's.
    first, last = leaders[0], leaders[-1]
    return first._replace(address=last.address) if last.session == first.session else first


def _fetch_lock_owners(client: KazooClient, paths: Sequence[str], deadline: float) -> dict[str, tuple[str, ...]]:
    """Return the sessions that own locks of each znode."""
    parents = [parent for path in paths for parent in (path, f"{path}/{_LOCKS}")]
    children = _fetch_children(client, parents, deadline)
    locks = [f"{parent}/{name}" for parent in parents for name in children[parent] or () if name != _LOCKS]
    stats = _collect([(path, client.exists_async(path)) for path in locks], deadline)
    owners: dict[str, set[str]] = {path: set() for path in paths}
    for lock, stat in stats.items():
        if stat is not None and stat.ephemeralOwner:
            owners[lock.rpartition("/")[0].removesuffix(f"/{_LOCKS}")].add(session_id(stat))
    return {path: tuple(sorted(sessions)) for path, sessions in owners.items()}


def _fetch_children(client: KazooClient, paths: Iterable[str], deadline: float) -> dict[str, list[str] | None]:
    return _collect([(path, client.get_children_async(path)) for path in paths], deadline)


def _fetch_nodes(client: KazooClient, paths: Iterable[str], deadline: float) -> dict[str, Any]:
    """Return (content, ZnodeStat) by path."""
    return _collect([(path, client.get_async(path)) for path in paths], deadline)


def _collect(requests: Iterable[tuple[str, Any]], deadline: float) -> dict[str, Any]:
    """Wait for requests already sent and return their results by path; None if there is no such znode."""
    results = {}
    for path, request in requests:
        try:
            results[path] = request.get(timeout=max(deadline - time.monotonic(), 0.001))
        except NoNodeError:
            results[path] = None
    return results


def _undecodable(path: str, content: bytes) -> UndecodableError:
    return UndecodableError(f"cannot decode the znode {path}: Flink does not write {content[:120]!r} there")
