"""Asking a JobManager's REST address. What the answers mean differs by version: dialects.py."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A standby of 1.4 sends us to whom it takes for the leader; who that is, ZooKeeper tells."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def ask(address: str, path: str, method: str = "GET", seconds: float = 5) -> Any | None:
    """The JSON that it answers; None where it does not answer, not in time, with an error, or with a redirect."""
    request = urllib.request.Request(address + path, method=method)  # noqa: S310  # http: is all that is asked
    try:
        with _OPENER.open(request, timeout=seconds) as answer:
            return json.load(answer)
    except (OSError, http.client.HTTPException, ValueError):  # urllib.error's are OSErrors
        return None


def speaks(address: str, seconds: float = 2) -> bool:
    """Whether it speaks HTTP at all, a standby's redirects and refusals included."""
    try:
        with _OPENER.open(address + "/overview", timeout=seconds):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException):
        return False
