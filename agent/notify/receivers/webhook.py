"""A webhook of one's own: each change of an incident as a POST of versioned JSON, signed if there is a secret.

The body of a repeated attempt is the same byte for byte, and so is its Idempotency-Key.
"""

import hmac
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b, sha256
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from agent.config.credentials import Credential, resolve
from agent.config.http_client import HttpClient
from agent.config.receivers import URL_PATTERN, ReceiverSettings, SecretReader, Url, read_matching
from agent.config.toml_places import KeyPath
from agent.model.findings import Incident, incident_fields
from agent.notify.base import Handle, Message, SingleChannel
from agent.notify.http_calls import HttpCaller
from agent.render.thread import is_reminder

VERSION = 1
"""Version of the body: it changes if a field is removed or gets another meaning, not if one is added."""


class WebhookSettings(ReceiverSettings):
    """An HTTP endpoint of your own that gets each change of an incident as JSON. Any 2xx answer confirms it.

    For example:

        [receivers.runbooks]
        kind = "webhook"
        url = "https://runbooks.example.com/backflow"
        secret = { credential = "webhook-secret" }
    """

    url: Url | Credential
    """Where to POST; where to read the address if it is secret."""
    secret: Credential | None = None
    """Where to read the key of the HMAC-SHA256 signature. Without it nothing is signed."""
    http_client: HttpClient = HttpClient()
    """Authentication and TLS."""
    proxy: Url | None = None
    """Address of an HTTP proxy. Default: that of the environment (`https_proxy`)."""

    def secrets(self) -> Iterator[tuple[KeyPath, Credential, SecretReader]]:
        """Yield the key path, the source and the reader of each secret."""
        if isinstance(self.url, Credential):
            yield ("url",), self.url, self.read_url
        if (secret := self.secret) is not None:
            yield ("secret",), secret, lambda: resolve(secret)
        yield from self.http_client.files()

    def read_url(self) -> str:
        """Return the address. Raises CredentialError."""
        if not isinstance(self.url, Credential):
            return self.url
        return read_matching(self.url, URL_PATTERN, "an http or https URL without a user name").get_secret_value()

    def connect(self, name: str) -> "Webhook":
        """Return the receiver. Raises CredentialError."""
        key = None if self.secret is None else resolve(self.secret).get_secret_value()
        url = self.read_url()
        caller = HttpCaller(self.http_client, proxy=self.proxy, secrets=[*_secret_parts(url), *([key] if key else [])])
        return Webhook(name, url, caller, key=key, accepts=self.match_any)


class Webhook(SingleChannel):
    """The receiver behind one address."""

    edits = False
    is_keyed = True

    def __init__(
        self,
        name: str,
        url: str,
        caller: HttpCaller,
        *,
        key: str | None = None,
        accepts: Callable[[Incident], bool] = lambda _: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """key: of the signature. clock: seconds since the epoch."""
        super().__init__(name, accepts)
        self._url, self._caller, self._key, self._clock = url, caller, key, clock

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Post the incident if it changed, a check report, a reminder or a digest. Raises NotDelivered."""
        last = handle or {}
        if message.number > 0 and not (message.check_report and message.lines) and not is_reminder(message.lines):
            return last
        event = _event(message, last.get("event"))
        if message.number == 0 and event == last.get("event") == "closed" and not message.in_doubt:
            return last
        count = last.get("deliveries", 0)
        body = msgspec.json.encode(body_of(message, event))
        self._caller.post(self._url, body, self._headers(body, count))
        known = event if message.number == 0 else last.get("event")
        return {"deliveries": count + 1, "event": known}

    def _headers(self, body: bytes, count: int) -> dict[str, str]:
        """Return the headers of a delivery. count: how many came before it: equal bodies may be two deliveries."""
        key = blake2b(f"{self.name} {count} ".encode() + body, digest_size=16).hexdigest()
        timestamp = str(int(self._clock()))
        headers = {"Idempotency-Key": key, "Backflow-Timestamp": timestamp}
        if self._key is not None:
            headers["Backflow-Signature"] = f"v1={signature(self._key, timestamp, body)}"
        return headers


def _secret_parts(url: str) -> list[str]:
    """Return what errors of a server may repeat of an address whose path and query may be secret."""
    parts = urlsplit(url)
    found = {url, parts.path, parts.path.rstrip("/"), unquote(parts.path), parts.query, *parts.query.split("&")}
    return sorted(found - {"", "/"}, key=len, reverse=True)


def body_of(message: Message, event: str) -> dict[str, Any]:
    """Return the public body of a delivery."""
    return {
        "version": VERSION,
        "event": event,
        "incident": incident_fields(message.incident),
        "text": "\n".join(message.report.lines()),
        "lines": list(message.lines),
    }


def signature(key: str, timestamp: str, body: bytes) -> str:
    """Return HMAC-SHA256 of the timestamp, a full stop and the body, in hex."""
    return hmac.new(key.encode(), timestamp.encode() + b"." + body, sha256).hexdigest()


def _event(message: Message, last: str | None) -> str:
    """Return what has happened since the last event, which is None before the first."""
    if message.number > 0:
        return "updated"
    if message.is_report:
        return "report"
    if message.is_digest:
        return "digest"
    if message.report.is_resolved:
        return "closed"
    return "opened" if last in (None, "closed") else "updated"
