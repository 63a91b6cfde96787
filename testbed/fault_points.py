"""Named fault points of the agent, and how a process dies at one: SIGKILL from inside, around a call of that process.

Functions are replaced in the process that is to die; the product's code knows nothing of it.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Collection
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A fault point.

    name: what happens there. moment: before or after the call, or halfway through what it writes. target: what is
    called, as module:name. after: the point of an earlier kill; this one is then at the start that follows it.
    """

    name: str
    moment: str
    target: str
    after: "Point | None" = None


_SEGMENTS, _SLACK = "agent.storage.journal.segments", "slack_sdk:WebClient"
_BOTH = ("before", "after")
_POSTED = Point("Slack has a message, its answer is lost", "after", f"{_SLACK}.chat_postMessage")
_UPLOADED = Point("Slack has a plot, its answer is lost", "after", f"{_SLACK}.files_completeUploadExternal")
_FLUSHED = Point("journal on disk, incidents not saved", "after", "agent.storage.journal.writer:Journal.flush")


def _points(
    group: str, calls: tuple[tuple[str, str, tuple[str, ...]], ...], after: Point | None = None
) -> tuple[Point, ...]:
    return tuple(
        Point(f"{group}: {name}", moment, target, after) for name, target, moments in calls for moment in moments
    )


POINTS = (
    *_points(
        "journal",
        (
            ("segment file created", f"{_SEGMENTS}:Stream.__init__", _BOTH),
            ("write", f"{_SEGMENTS}:os.pwrite", ("before", "halfway", "after")),
            ("write on disk", f"{_SEGMENTS}:os.fdatasync", ("after",)),
            ("all kinds written", "agent.storage.journal.writer:Journal.flush", _BOTH),
        ),
    ),
    *_points(
        "rotation",
        (
            ("segment closed", "agent.storage.journal.writer:Journal._end", _BOTH),
            ("sealed rows written", "pyarrow.parquet:ParquetWriter.write_table", _BOTH),
            ("sealed file on disk", f"{_SEGMENTS}:write", ("after",)),
            ("sealed file renamed", "pathlib:Path.rename", _BOTH),
            ("stream removed", "pathlib:Path.unlink", _BOTH),
        ),
    ),
    *_points(
        "state",
        (
            ("observations evaluated", "agent.engine.engine:Engine.take", _BOTH),
            ("transaction", "agent.storage.incidents:IncidentStore.save", _BOTH),
            ("incident written", "agent.storage.incidents:IncidentStore._put", _BOTH),
            ("message queued", "agent.storage.incidents:queue_message", ("after",)),
            ("thread entry queued", "agent.storage.incidents:queue_log_entry", ("after",)),
            ("check result", "agent.daemon.pipeline:Pipeline.take_check_result", _BOTH),
            ("check report queued", "agent.storage.incidents:queue_check_report", _BOTH),
        ),
    ),
    *_points(
        "outbox",
        (
            ("entry read", "agent.storage.outbox:Outbox.read", ("after",)),
            ("attempt recorded", "agent.storage.outbox:Outbox.attempt", _BOTH),
            ("delivery confirmed", "agent.storage.outbox:Outbox.confirmed", _BOTH),
            ("entry skipped", "agent.storage.outbox:Outbox.skip", _BOTH),
        ),
    ),
    *_points(
        "Slack",
        (
            ("request sent", "http.client:HTTPConnection.request", _BOTH),
            ("status received", "http.client:HTTPConnection.getresponse", ("after",)),
            ("answer received", "http.client:HTTPResponse.read", ("after",)),
            ("message posted", f"{_SLACK}.chat_postMessage", _BOTH),
            ("message edited", f"{_SLACK}.chat_update", _BOTH),
        ),
    ),
    *_points(
        "plot",
        (
            ("announced", f"{_SLACK}.files_getUploadURLExternal", _BOTH),
            ("uploaded", "slack_sdk.web.client:WebClient._upload_file", _BOTH),
            ("shared in the thread", f"{_SLACK}.files_completeUploadExternal", _BOTH),
        ),
    ),
    *_points(
        "restore",
        (
            ("journal recovered", "agent.storage.journal.writer:recover", _BOTH),
            ("left segment sealed", f"{_SEGMENTS}:write", _BOTH),
            ("sealed file renamed", "pathlib:Path.rename", _BOTH),
            ("left segment removed", "pathlib:Path.unlink", _BOTH),
            ("state opened", "agent.daemon.daemon:open_state", _BOTH),
            ("facts and incidents", "agent.engine.engine:Engine.resume", _BOTH),
            ("unsaved observations evaluated", "agent.engine.engine:Engine.take", _BOTH),
            ("saved", "agent.storage.incidents:IncidentStore.save", _BOTH),
        ),
        _FLUSHED,
    ),
    *_points(
        "look-up of a message",
        (
            ("search", "agent.notify.slack:Slack.find", _BOTH),
            ("found", "agent.storage.outbox:Outbox.found", _BOTH),
            ("confirmed", "agent.storage.outbox:Outbox.confirmed", ("after",)),
        ),
        _POSTED,
    ),
    *_points(
        "look-up of a plot",
        (
            ("search", "agent.notify.slack:Slack.find", _BOTH),
            ("found", "agent.storage.outbox:Outbox.found", _BOTH),
        ),
        _UPLOADED,
    ),
    *_points(
        "stop",
        (
            ("dispatcher", "agent.notify.dispatcher:Dispatcher.close", _BOTH),
            ("journal", "agent.storage.journal.writer:Journal.close", _BOTH),
        ),
    ),
)

UNSEARCHABLE = (
    _POSTED._replace(name="Slack, without the scope channels:history: message posted"),
    _UPLOADED._replace(name="plot, without the scope channels:history: shared in the thread"),
)
"""Points at which an answer is lost that the token may not look up: what follows is sent twice, never lost."""


def arm(point: Point, number: int) -> None:
    """Kill this process at the nth call of the point."""
    calls = 0

    def is_last() -> bool:
        nonlocal calls
        calls += 1
        return calls == number

    _replace(point, is_last)


def count_calls(points: Collection[Point], calls: Counter[Point]) -> None:
    """Count the calls of each point in this process."""
    for point in points:

        def count(point: Point = point) -> bool:
            calls[point] += 1
            return False

        _replace(point, count)


def _replace(point: Point, is_last: Callable[[], bool]) -> None:
    module, _, path = point.target.partition(":")
    owner: Any = import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original: Callable[..., Any] = getattr(owner, name)

    @wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        if not is_last():
            return original(*arguments, **named)
        if point.moment == "halfway":
            file, content, offset = arguments
            original(file, content[: len(content) // 2], offset)
        elif point.moment == "after":
            original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    setattr(owner, name, call)
