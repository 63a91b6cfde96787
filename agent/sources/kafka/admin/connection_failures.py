"""Why connections to brokers fail, according to the lines that librdkafka logs about it. Makes no calls.

A call to a broker that cannot be connected to only times out. The log has the reason: the broker's host name does not
exist, its certificate has expired, it refuses the password.
"""

import re
from typing import NamedTuple

import msgspec

from agent.sources.kafka.admin.protocol import ConnectionFailure

_LINE = re.compile(
    r"(?:\w+://)?(?P<address>\S+:\d+)/(?P<broker>\d+|bootstrap): (?P<text>.*?)(?P<state> \(after \d+ms in state .*\))?"
)
"""`sasl_ssl://kafka-1:9093/2005: SSL handshake failed: ... (after 5ms in state SSL_HANDSHAKE)`, from librdkafka 1.x."""

_OPENSSL = re.compile(r"error:[0-9A-F]+:SSL routines:[^:]*:")
_ALERT = re.compile(r"ssl/tls alert ([\w ]*(?:certificate|ca)\b[\w ]*)")
_LASTS_MS = 60_000
"""How long a failure explains why a broker does not answer: librdkafka suppresses a repeated line for 30 s."""

_MAX_REASONS = 3
_WRONG_PROTOCOL = "APIVERSION_QUERY"
_ACCESS = ("SASL", "SSL", "certificate", "OAUTHBEARER")


class _Timed(NamedTuple):
    failure: ConnectionFailure
    at: int


def parse_failure(text: str) -> ConnectionFailure | None:
    """Return the failure that a line of librdkafka's log, or an error of it, is about; None if it is about none.

    Without the time that the attempt took, so that the same failure has the same text.
    """
    match = _LINE.fullmatch(text.strip())
    if match is None:
        return None
    reason = _OPENSSL.sub("", match["text"]).removeprefix("Disconnected: ")
    if alert := _ALERT.search(reason):
        reason = f"the broker refuses our client certificate ({alert[1]})"
    if "connection closed by peer" in reason and _WRONG_PROTOCOL in (match["state"] or ""):
        reason = "the broker closed the connection at the first request: does its listener expect TLS or SASL?"
    broker = None if match["broker"] == "bootstrap" else int(match["broker"])
    return ConnectionFailure(match["address"], broker, reason)


class ConnectionFailures:
    """The recent connection failures of a cluster, by address."""

    def __init__(self) -> None:
        self._failures: dict[str, _Timed] = {}

    def add(self, failure: ConnectionFailure, at: int) -> None:
        """Add a failure that was logged at `at`, ms."""
        before = self._failures.get(failure.address)
        if failure.broker is None and before is not None:
            failure = msgspec.structs.replace(failure, broker=before.failure.broker)
        self._failures[failure.address] = _Timed(failure, at)

    def client_failure(self, now: int) -> str | None:
        """Return why the client itself cannot work, such as a secret that cannot be read; None if it can."""
        return next((failure.text for failure in self._recent(now) if not failure.address), None)

    def is_access_denied(self, now: int) -> bool:
        """Return whether a broker recently refused our credentials or certificate, or we refused its certificate."""
        return any(word in failure.text for failure in self._recent(now) for word in _ACCESS)

    def reasons(self, now: int, broker: int | None = None) -> str:
        """Return why brokers cannot be connected to: addresses by reason; empty if none is known. broker: only it."""
        addresses: dict[str, list[str]] = {}
        for failure in self._recent(now):
            if broker is None or failure.broker == broker:
                addresses.setdefault(failure.text, []).append(failure.address)
        reasons = [
            f"{', '.join(filter(None, places))}: {text}" for text, places in list(addresses.items())[:_MAX_REASONS]
        ]
        return "; ".join(reason.removeprefix(": ") for reason in reasons)

    def _recent(self, now: int) -> list[ConnectionFailure]:
        """Return the failures of the last minute, in the order of their addresses so that their text is stable."""
        return [timed.failure for _, timed in sorted(self._failures.items()) if now - timed.at <= _LASTS_MS]
