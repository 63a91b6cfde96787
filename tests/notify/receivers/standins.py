"""Strict stand-ins of receivers on loopback: they refuse what the real service refuses, and fail on demand."""

import base64
import hmac
import json
import re
import socket
import ssl
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer, ThreadingTCPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self

ROUTING_KEY = "R0" + "a1" * 15
PASSWORD = "correct horse"


if TYPE_CHECKING:
    from email.message import EmailMessage


class Fault(NamedTuple):
    """What happens to one request. status: the answer, without the request having any effect; 0: none.

    is_taken: it takes effect first. is_hanging: no answer comes; else the connection is closed.
    """

    status: int = 0
    headers: Mapping[str, str] = {}
    is_taken: bool = False
    is_hanging: bool = False


LOST = Fault(is_taken=True)
LATE = Fault(is_taken=True, is_hanging=True)
CLOSED = Fault()


class StandIn:
    """A server in a thread of its own, until the end of a `with` block."""

    def __init__(self, server: TCPServer) -> None:
        self.closing = threading.Event()
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class HttpStandIn(StandIn):
    """An HTTP server whose subclasses decide what a request deserves."""

    def __init__(self) -> None:
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        super().__init__(_Server(("127.0.0.1", 0), partial(_Handler, self)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        raise NotImplementedError


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, stand_in: HttpStandIn, *connection: Any) -> None:
        self._stand_in = stand_in
        super().__init__(*connection)

    def do_POST(self) -> None:
        stand_in = self._stand_in
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = stand_in.faults.popleft() if stand_in.faults else None
        if fault is not None and fault.status:
            self._answer(fault.status, {"message": "fault"}, fault.headers)
            return
        if fault is None or fault.is_taken:
            stand_in.requests.append((self.path, headers, body))
            answer = stand_in.take(self.command, self.path, headers, body)
            if fault is None:
                self._answer(*answer)
                return
        if fault.is_hanging:
            stand_in.closing.wait(30)
        self.close_connection = True

    do_GET = do_POST  # noqa: N815 - http.server looks for this name

    def log_message(self, *_: object) -> None: ...

    def _answer(self, status: int, body: Any, headers: Mapping[str, str] = {}) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(content), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(content)


class WebhookStandIn(HttpStandIn):
    """A user's endpoint that checks each delivery as the how-to does and ignores keys that it knows."""

    def __init__(self, secret: str | None = None) -> None:
        self.secret = secret
        self.deliveries: dict[str, dict[str, Any]] = {}
        super().__init__()

    def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if (method, path) != ("POST", "/hook"):
            return 404, {}
        if headers.get("content-type") != "application/json":
            return 415, {}
        if self.secret is not None and not verify(self.secret, headers, body):
            return 401, {"error": "bad signature"}
        decoded = json.loads(body)
        if decoded["version"] != 1 or set(decoded) != {"version", "event", "incident", "text", "lines"}:
            return 400, {}
        if decoded["event"] not in ("opened", "updated", "closed", "digest") or not decoded["text"]:
            return 400, {}
        known = self.deliveries.setdefault(headers["idempotency-key"], decoded)
        return (204, {}) if known == decoded else (422, {"error": "the key was used for another body"})

    @property
    def events(self) -> list[str]:
        return [delivery["event"] for delivery in self.deliveries.values()]


def verify(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Verify a signature without the agent's code."""
    timestamp = headers.get("backflow-timestamp", "")
    if abs(datetime.now(UTC).timestamp() - int(timestamp)) > 300:
        return False
    expected = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, sha256).hexdigest()
    return hmac.compare_digest(f"v1={expected}", headers.get("backflow-signature", ""))


class PagerDutyStandIn(HttpStandIn):
    """PagerDuty's Events API v2: alerts by dedup_key, with the actions that were taken."""

    _KEYS = frozenset(
        {"routing_key", "event_action", "dedup_key", "payload", "client", "client_url", "links", "images"}
    )
    _PAYLOAD = frozenset(
        {"summary", "source", "severity", "timestamp", "component", "group", "class", "custom_details"}
    )

    def __init__(self) -> None:
        self.alerts: dict[str, str] = {}
        self.actions: list[str] = []
        self.payloads: list[dict[str, Any]] = []
        super().__init__()

    def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if (method, path) != ("POST", "/v2/enqueue"):
            return 404, {}
        errors = list(self._mistakes(json.loads(body), headers)) if len(body) <= 512_000 else ["too large"]
        if errors:
            return 400, {"status": "invalid event", "message": "Event object is invalid", "errors": errors}
        event = json.loads(body)
        key, action = event["dedup_key"], event["event_action"]
        self.actions.append(action)
        if action == "trigger":
            self.payloads.append(event["payload"])
            if self.alerts.get(key) != "acknowledged":
                self.alerts[key] = "triggered"
        elif self.alerts.get(key, "resolved") != "resolved":
            self.alerts[key] = {"acknowledge": "acknowledged", "resolve": "resolved"}[action]
        return 202, {"status": "success", "message": "Event processed", "dedup_key": key}

    def _mistakes(self, event: Any, headers: dict[str, str]) -> Iterator[str]:
        if headers.get("content-type") != "application/json":
            yield "Content-Type"
        if unknown := set(event) - self._KEYS:
            yield f"unknown: {unknown}"
        if event.get("routing_key") != ROUTING_KEY:
            yield f"'routing_key' {event.get('routing_key')} is invalid"
        if event.get("event_action") not in ("trigger", "acknowledge", "resolve"):
            yield "'event_action' is invalid"
        if not 0 < len(event.get("dedup_key", "")) <= 255:
            yield "'dedup_key' is invalid"
        payload = event.get("payload")
        if (event.get("event_action") == "trigger") != isinstance(payload, dict):
            yield "'payload' is missing or has no meaning"
            return
        if payload is None:
            return
        if unknown := set(payload) - self._PAYLOAD:
            yield f"unknown: {unknown}"
        if not 0 < len(payload.get("summary", "")) <= 1024:
            yield "'payload.summary' is invalid"
        if payload.get("severity") not in ("critical", "error", "warning", "info"):
            yield "'payload.severity' is invalid"
        if not payload.get("source") or not isinstance(payload["source"], str):
            yield "'payload.source' is missing or blank"
        if not isinstance(payload.get("custom_details", {}), dict):
            yield "'payload.custom_details' is invalid"
        datetime.fromisoformat(payload["timestamp"])


class AlertmanagerStandIn(HttpStandIn):
    """Alertmanager's API v2: alerts by labels, merged as Alertmanager does, at a time set by the test."""

    _LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.alerts: dict[frozenset[tuple[str, str]], dict[str, Any]] = {}
        self.posts = 0
        super().__init__()

    def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if (method, path) == ("GET", "/api/v2/status"):
            return 200, {"versionInfo": {"version": "0.28.1"}, "cluster": {"status": "ready"}}
        if (method, path) != ("POST", "/api/v2/alerts"):
            return 404, {}
        if headers.get("content-type") != "application/json":
            return 415, {"code": 415, "message": "unsupported media type"}
        alerts = json.loads(body)
        if not isinstance(alerts, list):
            return 400, {"code": 602, "message": "parsing alerts body failed"}
        for alert in alerts:
            if mistake := self._mistake(alert):
                return 400, mistake
        self.posts += 1
        for alert in alerts:
            key = frozenset(alert["labels"].items())
            old = self.alerts.get(key)
            starts, ends = (datetime.fromisoformat(alert[name]) for name in ("startsAt", "endsAt"))
            is_overlapping = old is not None and (
                old["starts"] < ends < old["ends"] or old["starts"] < starts < old["ends"]
            )
            if old is not None and is_overlapping and ends > self.now:
                ends = max(ends, old["ends"])
            self.alerts[key] = {"starts": starts, "ends": ends, "annotations": alert["annotations"]}
        return 200, {}

    def _mistake(self, alert: Any) -> str | None:
        if set(alert) - {"labels", "annotations", "startsAt", "endsAt", "generatorURL"}:
            return "unknown key"
        if not alert["labels"] or not all(alert["labels"].values()):
            return "at least one label pair required"
        for name, value in {**alert["labels"], **alert["annotations"]}.items():
            if not self._LABEL.fullmatch(name) or not isinstance(value, str):
                return f"invalid label set: {name}"
        starts, ends = (datetime.fromisoformat(alert[name]) for name in ("startsAt", "endsAt"))
        return "start time must be before end time" if ends < starts else None

    @property
    def firing(self) -> list[dict[str, str]]:
        return [dict(key) for key, alert in self.alerts.items() if alert["ends"] > self.now]

    def advance(self, **time: float) -> None:
        self.now += timedelta(**time)


class SmtpStandIn(StandIn):
    """An SMTP server (RFC 5321) with STARTTLS or TLS from the start, and AUTH; strict about order, lines and headers.

    faults: what the next session does: an answer (code, text) to a command, or LOST or LATE after the mail.
    """

    def __init__(self, certificate: Path | None = None, *, implicit: bool = False, login: bool = False) -> None:
        self.mails: list[EmailMessage] = []
        self.envelopes: list[tuple[str, list[str]]] = []
        self.faults: deque[Fault | tuple[str, str]] = deque()
        self.unknown_recipients: set[str] = set()
        self.login, self.implicit = login, implicit
        self.context: ssl.SSLContext | None = None
        if certificate is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate)
        super().__init__(_SmtpServer(("127.0.0.1", 0), partial(_SmtpSession, self)))


class _SmtpServer(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None: ...  # a client that rejects the certificate


class _SmtpSession(StreamRequestHandler):
    def __init__(self, stand_in: SmtpStandIn, *connection: Any) -> None:
        self._stand_in = stand_in
        self._is_encrypted = self._is_logged_in = self._is_greeted = False
        self._sender: str | None = None
        self._recipients: list[str] = []
        super().__init__(*connection)

    def handle(self) -> None:
        stand_in = self._stand_in
        if stand_in.implicit:
            self._encrypt()
        fault = stand_in.faults.popleft() if stand_in.faults else None
        self._reply("220 stand-in ESMTP")
        while line := self.rfile.readline(1002):
            if not line.endswith(b"\r\n"):
                return self._reply("500 bare LF or line too long")
            verb, _, rest = line[:-2].decode("ascii").partition(" ")
            verb = verb.upper()
            if isinstance(fault, tuple) and fault[0] == verb:
                self._reply(fault[1])
                fault = None
                continue
            if verb == "QUIT":
                return self._reply("221 bye")
            if verb == "DATA" and self._sender is not None and self._recipients:
                self._reply("354 go ahead")
                answer = self._take(self._read_mail())
                if isinstance(fault, Fault):
                    if fault.is_hanging:
                        stand_in.closing.wait(30)
                    return None
                self._reply(answer)
                self._sender, self._recipients = None, []
            else:
                self._reply(self._answer(verb, rest))
        return None

    def finish(self) -> None:
        super().finish()
        self.connection.close()  # of TLS, which the server does not know

    def _answer(self, verb: str, rest: str) -> str:
        stand_in = self._stand_in
        if verb == "EHLO" and rest:
            self._is_greeted = True
            starttls = ["STARTTLS"] if stand_in.context is not None and not self._is_encrypted else []
            auth = ["AUTH PLAIN"] if stand_in.login and self._is_encrypted else []
            words = ["stand-in", "SIZE 1000000", *starttls, *auth]
            return "\r\n".join([*(f"250-{word}" for word in words[:-1]), f"250 {words[-1]}"])
        if verb == "NOOP":
            return "250 ok"
        if not self._is_greeted:
            return "503 EHLO first"
        if verb == "STARTTLS" and stand_in.context is not None and not self._is_encrypted:
            self._reply("220 ready")
            self._encrypt()
            self._is_greeted = False
            return ""
        if verb == "AUTH" and stand_in.login and self._is_encrypted:
            user, password = base64.b64decode(rest.removeprefix("PLAIN ")).decode().split("\0")[1:]
            self._is_logged_in = (user, password) == ("backflow", PASSWORD)
            return "235 welcome" if self._is_logged_in else f"535 5.7.8 not {password}"
        if stand_in.login and not self._is_logged_in:
            return "530 authentication required"
        address = re.fullmatch(r"(?:FROM|TO):<([^<>@\s]+@[^<>@\s]+)>(?: (?:size|SIZE)=\d+)?", rest)
        if verb == "MAIL" and address and self._sender is None:
            self._sender = address[1]
            return "250 ok"
        if verb == "RCPT" and address and self._sender is not None:
            if address[1] in stand_in.unknown_recipients:
                return "550 5.1.1 no such user"
            self._recipients.append(address[1])
            return "250 ok"
        return "503 bad sequence or syntax"

    def _read_mail(self) -> bytes:
        lines = []
        while (line := self.rfile.readline(1002)) != b".\r\n":
            if not line.endswith(b"\r\n") or not line.isascii():
                return b""
            lines.append(line[1:] if line.startswith(b".") else line)
        return b"".join(lines)

    def _take(self, content: bytes) -> str:
        mail = message_from_bytes(content, policy=policy.default)
        counts = {name: len(mail.get_all(name) or ()) for name in ("From", "To", "Date", "Message-ID", "Subject")}
        if set(counts.values()) != {1} or mail.defects:
            return "554 5.6.0 the message is malformed"
        if not re.fullmatch(r"<[^<>@\s]+@[^<>@\s]+>", str(mail["Message-ID"])):
            return "554 5.6.0 the Message-ID is malformed"
        self._stand_in.mails.append(mail)
        self._stand_in.envelopes.append((self._sender or "", list(self._recipients)))
        return "250 queued"

    def _encrypt(self) -> None:
        assert self._stand_in.context is not None
        self.request: socket.socket = self._stand_in.context.wrap_socket(self.request, server_side=True)
        self.connection = self.request
        self.rfile = self.connection.makefile("rb")
        self._is_encrypted = True

    def _reply(self, text: str) -> None:
        if text:
            self.request.sendall(text.encode() + b"\r\n")


def make_certificate(directory: Path) -> Path:
    """Return a PEM file with a key and a certificate of 127.0.0.1 that is its own authority."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *request.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    both = directory / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


@contextmanager
def refused_port() -> Iterator[int]:
    """Yield a port on which nothing listens while it is held."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
