"""Calls of HTTP receivers: without redirects, with a time limit, and without a secret in any error."""

import http.client
import re
import ssl
import time
import urllib.request
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from agent.config.credentials import CredentialError
from agent.config.http_client import HttpClient
from agent.model.text import visible
from agent.notify.base import RateLimited, Refused, Unanswered

TIMEOUT_S = 10
"""How long a call may take, seconds."""

_LARGEST_ANSWER = 1 << 16
_MAX_QUOTED = 500
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]*)?")
_MAX_RETRY_S = 3_600
_UNKNOWN_RETRY_S = 60.0


class RefuseRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would carry secrets to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no request, so that the redirect is an error."""


class Answer(NamedTuple):
    """An HTTP response. headers: by name in lower case. body: its first 64 KiB."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpCaller:
    """Calls the HTTP interface of one receiver."""

    def __init__(
        self, client: HttpClient, *, proxy: str | None = None, secrets: Iterable[str] = (), timeout: float = TIMEOUT_S
    ) -> None:
        """client: how to authenticate, and whom to trust. proxy: an address; None: that of the environment.

        secrets: are left out of errors, as what authenticates is. timeout: seconds per call. Raises CredentialError.
        """
        try:
            context = client.tls_context()
        except OSError as error:
            msg = f"the files of TLS cannot be read: {error.strerror or type(error).__name__}"
            raise CredentialError(msg) from error
        proxies = [] if proxy is None else [urllib.request.ProxyHandler({"http": proxy, "https": proxy})]
        self._opener = urllib.request.build_opener(
            RefuseRedirects, urllib.request.HTTPSHandler(context=context), *proxies
        )
        login = client.headers()
        self._headers = {"User-Agent": "backflow", **login}
        self._secrets = (*secrets, *(value.partition(" ")[2] for value in login.values()))
        self._timeout = timeout

    def post(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """Send JSON and return the answer, which is a success. Raises NotDelivered."""
        return self._call(url, body, {"Content-Type": "application/json", **(headers or {})})

    def get(self, url: str) -> Answer:
        """Return the answer, which is a success. Raises NotDelivered."""
        return self._call(url, None, {})

    def quoted(self, body: bytes) -> str:
        """Return what the receiver wrote as one line without secrets."""
        text = body.decode("utf-8", "replace")
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return quoted(text)

    def _call(self, url: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        host = urlsplit(url).netloc
        request = urllib.request.Request(url, data=body, headers={**self._headers, **headers})  # noqa: S310 - as validated
        try:
            answer = self._answer(request)
        except (OSError, http.client.HTTPException, ValueError) as error:
            msg = f"{host} did not answer: {failure(error)}"
            raise Unanswered(msg) from None
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            msg = f"{host} limits the rate (429)"
            raise RateLimited(msg, retry_after(answer.headers))
        said = " ".join(filter(None, (str(answer.status), self.quoted(answer.body))))
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.REQUEST_TIMEOUT:
            msg = f"{host} failed: {said}"
            raise Unanswered(msg)
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            msg = f"{host} refused it: {said}"
            raise Refused(msg, str(answer.status))
        return answer

    def _answer(self, request: urllib.request.Request) -> Answer:
        """Return the answer; of one that comes byte by byte, what came in time: its status says what matters."""
        deadline = time.monotonic() + self._timeout
        try:
            response = self._opener.open(request, timeout=self._timeout)
        except HTTPError as error:
            response = error
        with response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            body = b""
            while len(body) < _LARGEST_ANSWER and time.monotonic() < deadline:
                part = response.read1(_LARGEST_ANSWER - len(body))
                if not part:
                    break
                body += part
            return Answer(response.status, headers, body)


def failure(error: Exception) -> str:
    """Return why a connection failed, without an address or anything else that was sent."""
    reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {reason.verify_message}"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return type(reason).__name__


def quoted(text: str) -> str:
    """Return what somebody else wrote as one line of bearable length."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= _MAX_QUOTED else f"{line[: _MAX_QUOTED - 1]}…"


def retry_after(headers: Mapping[str, str]) -> int:
    """Return how long a 429 asks to wait, ms: at most an hour; a minute if it names no seconds.

    headers: by name in lower case.
    """
    text = str(headers.get("retry-after", ""))
    seconds = float(text) if _SECONDS.fullmatch(text) else _UNKNOWN_RETRY_S
    return int(min(seconds, _MAX_RETRY_S) * 1000)
