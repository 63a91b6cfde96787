"""The paths of a ZooKeeper below which Kafka clusters have registered brokers, for a chroot that is wrong."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from agent.config.credentials import CredentialError
from agent.model.text import join_names
from agent.sources.zookeeper.znodes import BROKER_IDS

_CONNECT_SECONDS = 5
_RESPONSE_SECONDS = 5
_MAX_LISTED = 50
"""How many paths of a level have their children listed."""
_MAX_PATHS = 1_000
"""How many paths are looked at."""
_MAX_NAMED = 5

_OWN_TREES = frozenset({"/zookeeper", "/brokers", "/config", "/admin", "/controller", "/isr_change_notification"})
"""Trees of ZooKeeper itself and of a Kafka cluster without a chroot, below which there is no cluster."""

log = structlog.get_logger(__name__)


def find_chroots(connect: str, read_options: Callable[[], Mapping[str, Any]]) -> list[str]:
    """Return the paths below which brokers have registered, "/" included, at most two levels below it.

    connect: servers, with or without a chroot. read_options: returns KazooClient's keyword arguments. It takes at most
    about 1,000 reads on a connection of its own; empty also if ZooKeeper does not answer them.
    """
    logger = logging.getLogger(f"{__name__}.client")
    logger.setLevel(logging.CRITICAL)
    client = None
    try:
        client = KazooClient(connect.partition("/")[0], logger=logger, **read_options())
        client.start(_CONNECT_SECONDS)
        return _find(client)
    except (KazooException, KazooTimeoutError, CredentialError) as error:
        log.debug("chroots_unknown", servers=connect, reason=repr(error))
        return []
    finally:
        if client is not None:
            client.stop()
            client.close()


def describe_chroots(chroots: list[str]) -> str:
    """Return which paths have brokers, as a sentence; empty if there is none."""
    if not chroots:
        return ""
    names = [chroot if chroot != "/" else "/ (no path after the host names)" for chroot in chroots[:_MAX_NAMED]]
    more = [f"{len(chroots) - _MAX_NAMED} more"] if len(chroots) > _MAX_NAMED else []
    return f"Brokers have registered below {join_names([*names, *more])}"


def _find(client: KazooClient) -> list[str]:
    first = _children(client, ["/"])
    second = _children(client, first)
    return _with_brokers(client, ["/", *first, *second])


def _children(client: KazooClient, parents: Iterable[str]) -> list[str]:
    """Return the paths of the children, except those of trees without clusters."""
    pending = [(path, client.get_children_async(path)) for path in list(parents)[:_MAX_LISTED]]
    paths = []
    for parent, response in pending:
        try:
            names = sorted(response.get(timeout=_RESPONSE_SECONDS))
        except (NoNodeError, NoAuthError):
            continue
        paths += [f"{parent.rstrip('/')}/{name}" for name in names]
    return [path for path in paths if path not in _OWN_TREES][:_MAX_PATHS]


def _with_brokers(client: KazooClient, chroots: list[str]) -> list[str]:
    pending = [(path, client.exists_async(f"{path.rstrip('/')}{BROKER_IDS}")) for path in chroots[:_MAX_PATHS]]
    found = []
    for path, response in pending:
        try:
            if response.get(timeout=_RESPONSE_SECONDS) is not None:
                found.append(path)
        except NoAuthError:
            continue
    return found
