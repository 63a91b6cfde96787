"""What Flink's high availability keeps in ZooKeeper, as observations, in every layout from 1.4 to 2.x. Our own session
lives in flink_zookeeper.

Paths: ZooKeeperUtils and HighAvailabilityOptions of 1.4.2, 1.14.0, 1.20.1 and 2.3.0. Locks hang directly under their
node up to 1.14, under its child `locks` since.
"""

import re
import struct
import time
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from agent.model.observations import JobGraph
from agent.sources.zookeeper.znodes import UndecodableError

_GRAPHS = ("jobgraphs", "execution-plans")
"""Where job graphs stand; from 2.0 on they are called execution plans."""
_LEADERS = ("leader/dispatcher/connection_info", "leader/dispatcher_lock", f"leader/{'0' * 32}/job_manager_lock")
"""Who leads, in 1.14 and later, from 1.5 to 1.13, in 1.4. Where there is a dispatcher it is what recovers jobs."""
_REST = ("leader/rest_server/connection_info", "leader/rest_server_lock")
_CHECKPOINTS = ("jobs/{}/checkpoints", "checkpoints/{}")
"""1.14 and later, before."""
_LOCKS = "locks"
_JOB = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(rb"submitted(?:JobGraph|ExecutionPlan)[0-9a-f]{12}")


class Leader(NamedTuple):
    """Who leads: its address, which is that of REST from 1.5 on, the leader session's UUID, the ZooKeeper session that
    owns its znode (0x hex), and since when (ms, by ZooKeeper's clock).
    """

    address: str
    id: str | None
    session: str
    since: int


class Tree(NamedTuple):
    """What stands in ZooKeeper at a moment; leader is None while nobody leads."""

    leader: Leader | None
    graphs: list[JobGraph]


def connection(path: str, content: bytes) -> tuple[str, str | None] | None:
    """The address and the leader session's UUID that a leader's znode holds; None where it holds nothing.

    It is a java.io.ObjectOutputStream: writeUTF(address), then writeObject(UUID), whose fields are two longs, the low
    one first. Raises UndecodableError.
    """
    if not content:
        return None
    try:
        magic, kind = struct.unpack_from(">IB", content)
        begin = {0x77: 6, 0x7A: 9}[kind]  # TC_BLOCKDATA has a length of one byte, TC_BLOCKDATALONG of four
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


def read(client: KazooClient, root: str, cluster: str, now: int, deadline: float) -> Tree | None:
    """The tree below `root`; None where there is no such znode.

    Raises UndecodableError, kazoo's errors, and its timeout past the deadline of time.monotonic().
    """
    if _answers([(root, client.exists_async(root))], deadline)[root] is None:
        return None
    parents = _children(client, [f"{root}/{one}" for one in _GRAPHS], deadline)
    jobs = {
        job: f"{parent}/{job}"
        for parent, names in parents.items()
        for job in sorted(names or ())
        if _JOB.fullmatch(job)
    }
    nodes = _nodes(client, jobs.values(), deadline)
    locks = _locks(client, list(jobs.values()), deadline)
    kept = _children(client, [f"{root}/{one.format(job)}" for job in jobs for one in _CHECKPOINTS], deadline)
    graphs = []
    for job, path in jobs.items():
        node = nodes[path]
        if node is None:
            continue
        content, stat = node
        file = _FILE.search(content)
        checkpoints = [name for one in _CHECKPOINTS for name in kept[f"{root}/{one.format(job)}"] or ()]
        graphs.append(
            JobGraph(
                at=now,
                cluster=cluster,
                job=job,
                made_at=stat.ctime,
                locks=locks[path],
                file=file[0].decode() if file else None,
                checkpoints=sum(name.isdigit() for name in checkpoints),
                znode=path,
            )
        )
    return Tree(_leader(client, root, deadline), graphs)


def _leader(client: KazooClient, root: str, deadline: float) -> Leader | None:
    paths = [f"{root}/{one}" for one in (*_LEADERS, *_REST)]
    nodes = _nodes(client, paths, deadline)
    leaders = []
    for path in paths:
        node = nodes[path]
        told = connection(path, node[0]) if node is not None else None
        if node is not None and told is not None:
            leaders.append(Leader(*told, hex(node[1].ephemeralOwner), node[1].mtime))
    if not leaders:
        return None
    # REST's address is what people and we can use. In 1.14 its leader may be another process than the dispatcher's.
    first, last = leaders[0], leaders[-1]
    return first._replace(address=last.address) if last.session == first.session else first


def _locks(client: KazooClient, paths: list[str], deadline: float) -> dict[str, tuple[str, ...]]:
    """The sessions that own locks of nodes, by the node's path."""
    parents = [parent for path in paths for parent in (path, f"{path}/{_LOCKS}")]
    children = _children(client, parents, deadline)
    locks = [f"{parent}/{name}" for parent in parents for name in children[parent] or () if name != _LOCKS]
    stats = _answers([(path, client.exists_async(path)) for path in locks], deadline)
    owners: dict[str, set[str]] = {path: set() for path in paths}
    for lock, stat in stats.items():
        if stat is not None and stat.ephemeralOwner:
            owners[lock.rpartition("/")[0].removesuffix(f"/{_LOCKS}")].add(hex(stat.ephemeralOwner))
    return {path: tuple(sorted(sessions)) for path, sessions in owners.items()}


def _children(client: KazooClient, paths: list[str], deadline: float) -> dict[str, list[str] | None]:
    return _answers([(path, client.get_children_async(path)) for path in paths], deadline)


def _nodes(client: KazooClient, paths: Iterable[str], deadline: float) -> dict[str, Any]:
    """(content, ZnodeStat) by path."""
    return _answers([(path, client.get_async(path)) for path in paths], deadline)


def _answers(asked: Iterable[tuple[str, Any]], deadline: float) -> dict[str, Any]:
    """What was asked for, all at once, by path; None where there is no such znode."""
    answers = {}
    for path, answer in asked:
        try:
            answers[path] = answer.get(timeout=max(deadline - time.monotonic(), 0.001))
        except NoNodeError:
            answers[path] = None
    return answers


def _undecodable(path: str, content: bytes) -> UndecodableError:
    return UndecodableError(f"the znode {path} is not what Flink writes there: {content[:120]!r}")
