"""Our own ZooKeeper session: whether it is connected, and reading znodes with a watch on each."""

import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError, SessionClosedRequireSaslError
from kazoo.hosts import collect_hosts
from kazoo.protocol.states import Callback, EventType, KeeperState, WatchedEvent

from agent.clock import now_ms
from agent.config.credentials import CredentialError
from agent.sources.background import run_in_thread
from agent.sources.certificates import find_certificate_problem
from agent.sources.zookeeper.znodes import Node

_CONNECTION_RETRY = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}
_MAX_IN_FLIGHT = 500
_RESPONSE_SECONDS = 10
_EVENT_SECONDS = 1
_CLOSE_SECONDS = 3
_OUTDATED_TIMEOUTS = 3
"""After how many session timeouts without a connection servers may have been restored from a backup."""


_SECRET_OPTIONS = frozenset({"auth_data", "keyfile_password"})

_SESSIONS = count(1)

_FAILURES = ("Connection dropped", "Connection time-out", "Cannot resolve", "AUTH_FAILED", "Unhandled exception")
"""How kazoo's log lines about failed connections begin (2.10)."""


_REFUSED = "authentication failed: the user or the password in `zookeeper_client` is missing or wrong"

_INVALID = "the server's certificate is not valid"

_EXPLAIN_SECONDS = 20
"""How often a connection is made to find out what is wrong with a certificate."""

_INVALID_CERTIFICATE = re.compile(r"certificate verify failed: (.+?)(?: \(_ssl\.c:\d+\))?$")
"""How OpenSSL's reason ends a line."""


class _LastFailure(logging.Handler):
    """Keeps why the last connection failed, which kazoo logs only."""

    def __init__(self, explain: Callable[[], str | None]) -> None:
        """explain: returns what is wrong with a server's certificate, for which it connects again."""
        super().__init__(logging.WARNING)
        self.text = ""
        self._explain = explain
        self._explained_at = float(-_EXPLAIN_SECONDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line if it is about a connection."""
        text = record.getMessage()
        if text.startswith(_FAILURES):
            reason = record.exc_info[1] if record.exc_info else None
            self.text = text if reason is None else f"{text}: {str(reason) or type(reason).__name__}"
            if text.startswith("AUTH_FAILED") or isinstance(reason, SessionClosedRequireSaslError):
                self.text = _REFUSED
            elif invalid := _INVALID_CERTIFICATE.search(text):
                self._keep_invalid(invalid[1].rstrip("."))

    def _keep_invalid(self, reason: str) -> None:
        """Keep that the certificate is not valid, and soon also whose it is; a text that says more is kept."""
        text = f"{_INVALID}: {reason}"
        if not self.text.startswith(text):
            self.text = text
        if time.monotonic() - self._explained_at >= _EXPLAIN_SECONDS:
            self._explained_at = time.monotonic()
            run_in_thread("zookeeper-certificate", self._add_explanation)

    def _add_explanation(self) -> None:
        if (problem := self._explain()) is not None and self.text.startswith(_INVALID):
            self.text = f"{_INVALID}: {problem}"


class Session:
    """A session that always reconnects; it may have expired once it was disconnected for longer than its timeout.

    is_tls: whether it connects by TLS. disconnected_since: ms; None while connected. expiries: how many sessions have
    expired, as later ones show. failures: the exceptions that a call to the client may raise.
    """

    def __init__(
        self, connect: str, read_options: Callable[[], Mapping[str, Any]], connected: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare a session. connect: servers and chroot.

        read_options: returns KazooClient's keyword arguments with the current secrets. connected: called on kazoo's
        thread after each (re)connection; it must not block.
        """
        options = read_options()
        self._read_options = read_options
        self._failure = _LastFailure(partial(_find_certificate_problem, connect, options))
        self.disconnected_since: int | None = now_ms()
        self.expiries = 0
        self._id: int | None = None
        self._connected = connected
        self.is_tls = bool(options.get("use_ssl", False))
        self._timeout_ms = int(options.get("timeout", 10) * 1000)
        logger = logging.getLogger(f"kazoo.client.{next(_SESSIONS)}")
        logger.addHandler(self._failure)
        logger.setLevel(logging.WARNING)
        logger.propagate = False  # the source reports what fails
        self.client = KazooClient(connect, connection_retry=_CONNECTION_RETRY, logger=logger, **options)
        self.client.add_listener(self._on_state)
        self.failures = (KazooException, self.client.handler.timeout_exception)

    def start(self) -> None:
        """Connect, and reconnect whenever the connection is lost; return at once."""
        self.client.start_async()

    def is_lost(self, now: int) -> bool:
        """Return whether it was disconnected for so long that it may have expired.

        Restarts a client that has given up for good, as kazoo does when its credentials are refused. After several
        timeouts it forgets which changes it has seen: servers that were restored from a backup have earlier ones, and
        refuse it.
        """
        disconnected_since = self.disconnected_since  # kazoo's thread may change it meanwhile
        if disconnected_since is None or now - disconnected_since <= self._timeout_ms:
            return False
        if self.client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
            self.disconnected_since = now_ms()
            self.client.stop()
            # Its thread has ended and left the request to close in the queue, which would end the next connection.
            self.client._queue.clear()  # noqa: SLF001 - kazoo 2.11 has no other way
            self._renew_secrets()
            self.client.start_async()
        elif now - disconnected_since > _OUTDATED_TIMEOUTS * self._timeout_ms:
            self.client.last_zxid = 0
        return True

    @property
    def failure(self) -> str:
        """Why there is no connection, as a clause that follows a colon; empty if that is unknown."""
        return f": {self._failure.text}" if self._failure.text else ""

    def _renew_secrets(self) -> None:
        """Use the secrets as they are now: they may have been rotated."""
        try:
            options = self._read_options()
        except CredentialError as error:
            self._failure.text = str(error)
            return
        for name in _SECRET_OPTIONS & options.keys():
            setattr(self.client, name, options[name])
        # kazoo 2.11 reads this one from the object of its connections.
        self.client._connection.sasl_options = options.get("sasl_options")  # noqa: SLF001

    def close(self) -> None:
        """Close the session, waiting for at most 3 s."""
        closing = threading.Thread(target=self._close, name="zookeeper-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)

    def _close(self) -> None:
        self.client.stop()
        self.client.close()

    def _on_state(self, state: str) -> None:
        """Note the connection's state; called on kazoo's thread, so it must not block."""
        if state == KazooState.CONNECTED:
            self.disconnected_since = None
            self._failure.text = ""
            if (session := self.client.client_id) is not None:
                self.expiries += self._id not in (None, session[0])
                self._id = session[0]
            self._connected()
        elif self.disconnected_since is None:
            self.disconnected_since = now_ms()


def _find_certificate_problem(connect: str, options: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the first certificate that is refused; None if none is, or that is unknown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(options.get("check_hostname", False))
    context.load_default_certs()
    try:
        if ca := options.get("ca"):
            context.load_verify_locations(ca)
    except OSError:
        return None
    problems = (find_certificate_problem(host, port, context) for host, port in collect_hosts(connect)[0])
    return next(filter(None, problems), None)


def denial(path: str) -> str:
    """Return that a znode's ACL does not let us read it, as a sentence."""
    return (
        f"the ACL of znode {path} does not let Backflow read it; add `r` for its user there (zkCli.sh getAcl, setAcl)"
    )


class ZnodeReader:
    """Reads znodes and watches what it has read: the next change of each path is reported once.

    All methods raise what KazooClient does.
    """

    def __init__(self, client: KazooClient, on_change: Callable[[str], None]) -> None:
        """Read with the client. on_change: called with a path on kazoo's thread; it must not block."""
        self.denied: set[str] = set()
        self._client = client
        self._on_change = on_change

    def exists(self, path: str) -> bool:
        """Return whether the znode exists; does not watch it."""
        return self._client.exists_async(path).get(timeout=_RESPONSE_SECONDS) is not None

    def children(self, path: str) -> list[str]:
        """Return the names of the children; if the path does not exist, return none and watch for its creation."""
        try:
            return list(self._client.get_children_async(path, watch=self._on_event).get(timeout=_RESPONSE_SECONDS))
        except NoNodeError:
            self._watch_creation([path])
            return []
        except NoAuthError as error:
            raise NoAuthError(denial(path)) from error

    def await_changes(self) -> bool:
        """Wait until each change that ZooKeeper has reported by now was passed on; return whether all were."""
        passed_on = threading.Event()
        self._client.handler.dispatch_callback(Callback("watch", passed_on.set, ()))
        return passed_on.wait(_EVENT_SECONDS)

    def get(self, paths: list[str], *, watch: bool = True, watch_creation: bool = False) -> dict[str, Node | None]:
        """Return contents by path; None for a znode that does not exist.

        Those whose ACLs do not let us read are left out; `denied` has their paths. watch: whether changes are reported.
        watch_creation: also the creation of those that do not exist. ZooKeeper keeps that watch until it is created.
        """
        nodes: dict[str, Node | None] = {}
        for start in range(0, len(paths), _MAX_IN_FLIGHT):
            chunk = paths[start : start + _MAX_IN_FLIGHT]
            pending = [(path, self._client.get_async(path, watch=self._on_event if watch else None)) for path in chunk]
            for path, response in pending:
                try:
                    nodes[path] = response.get(timeout=_RESPONSE_SECONDS)
                except NoNodeError:
                    nodes[path] = None
                except NoAuthError:
                    self.denied.add(path)
                    continue
                self.denied.discard(path)
        if watch_creation:
            self._watch_creation([path for path, node in nodes.items() if node is None])
        return nodes

    def _watch_creation(self, paths: list[str]) -> None:
        """Report when the znodes are created; at once for those created since they were read."""
        pending = [(path, self._client.exists_async(path, watch=self._on_event)) for path in paths]
        for path, response in pending:
            if response.get(timeout=_RESPONSE_SECONDS) is not None:
                self._on_change(path)

    def _on_event(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # a session event, which listeners receive too
            self._on_change(event.path)
