"""A dead man's switch: a request to a URL as long as the agent works, so that its absence raises an alarm elsewhere."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit

import structlog
from pydantic import SecretStr

from agent.clock import now_ms
from agent.notify.http_calls import RefuseRedirects

_TIMEOUT_S = 10

log = structlog.get_logger(__name__)


class Heartbeat:
    """Requests the URL unless the agent is impaired. The URL may be secret: only its host is ever shown.

    sent_at: when it last arrived, ms; None if it has not. problem: why the last one was not sent or did not arrive.
    failures: how many were not sent or did not arrive.
    """

    def __init__(self, url: SecretStr, method: str, impairment: Callable[[], str]) -> None:
        """impairment: returns why the agent does not work, or an empty string."""
        self.sent_at: int | None = None
        self.problem = ""
        self.failures = 0
        self._url = url
        self._host = urlsplit(url.get_secret_value()).netloc.rpartition("@")[2]
        self._method = method
        self._impairment = impairment
        # Not the opener of the process, which has Slack's proxy and authorities.
        self._opener = urllib.request.build_opener(RefuseRedirects)

    def beat(self) -> None:
        """Send a heartbeat, or log once why not."""
        impairment = self._impairment()
        problem = f"not sent: {impairment}" if impairment else self._send()
        if not problem:
            self.sent_at = now_ms()
            if self.problem:
                log.info("heartbeat_resumed", host=self._host)
        else:
            self.failures += 1
            if problem != self.problem:
                log.warning("heartbeat_failed", host=self._host, reason=problem)
        self.problem = problem

    def failed(self, error: Exception) -> None:
        """Take note of a defect, without the text of the error: the URL may be part of it."""
        self.failures += 1
        self.problem = f"internal error: {type(error).__name__}"
        log.error("heartbeat_failed", host=self._host, reason=self.problem)

    def _send(self) -> str:
        """Return why it did not arrive, or an empty string."""
        request = urllib.request.Request(  # noqa: S310 - http and https only, as [heartbeat] requires
            self._url.get_secret_value(),
            data=b"" if self._method == "POST" else None,
            method=self._method,
            headers={"User-Agent": "backflow"},
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            return f"{self._host} answers with status {error.code}"
        except urllib.error.URLError as error:
            reason = error.reason.strerror if isinstance(error.reason, OSError) else None
            return f"{self._host} cannot be reached: {reason or type(error.reason).__name__}"
        except TimeoutError:
            return f"{self._host} does not answer within {_TIMEOUT_S} s"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return f"{self._host} cannot be reached: {type(error).__name__}"
