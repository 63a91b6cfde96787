"""What each address of the HTTP server answers."""

import re
from functools import partial
from http import HTTPStatus

from agent.daemon.groups import by_lag
from agent.daemon.reports import encode
from agent.daemon.status import StatusReader
from agent.daemon.web.metrics import CONTENT_TYPE, exposition
from agent.daemon.web.page import POLICY, group_page, groups_page, incident_page, status_page
from agent.daemon.web.server import Request, Respond, Response, text
from agent.daemon.web.style import ICON

_INCIDENT = re.compile(r"/incidents/(INC-[0-9A-F]{1,16})(/plot\.png)?")
_HTML = "text/html; charset=utf-8"


def make_routes(reader: StatusReader) -> Respond:
    """Return the function that answers requests from the reader's status."""
    return partial(_respond, reader)


def _respond(reader: StatusReader, request: Request) -> Response:
    match request.path:
        case "/":
            status = reader.status()
            groups = by_lag(reader.groups()) if status.is_complete else []
            return _html(status_page(status, groups))
        case "/groups":
            name = request.query.get("name")
            if name is None:
                return _html(groups_page(by_lag(reader.groups())))
            return _html(group_page(name, reader.groups(name, in_detail=True)))
        case "/icon.svg":
            return Response(HTTPStatus.OK, "image/svg+xml", ICON)
        case "/metrics":
            return Response(HTTPStatus.OK, CONTENT_TYPE, exposition(reader))
        case "/health":
            stuck = reader.parts.progress.stuck()
            return _verdict(f"without progress: {', '.join(stuck)}" if stuck else "")
        case "/ready":
            unread = reader.unread()
            return _verdict(f"not read yet: {', '.join(unread)}" if unread else "")
        case "/status.json":
            return _json(encode(reader.status()))
        case "/groups.json":
            pattern = request.query.get("name")
            return _json(encode(reader.groups(pattern or "*", in_detail=pattern is not None)))
    match _INCIDENT.fullmatch(request.path):
        case re.Match() as match if match[2]:
            plot = reader.plot(match[1])
            if plot is not None:
                return Response(HTTPStatus.OK, "image/png", plot)
        case re.Match() as match:
            record = reader.incident(match[1])
            if record is not None:
                return _html(incident_page(record))
    return text("not found", HTTPStatus.NOT_FOUND)


def _verdict(problem: str) -> Response:
    return text(problem, HTTPStatus.SERVICE_UNAVAILABLE) if problem else text("ok")


def _html(body: bytes) -> Response:
    return Response(HTTPStatus.OK, _HTML, body, POLICY)


def _json(body: bytes) -> Response:
    return Response(HTTPStatus.OK, "application/json", body)
