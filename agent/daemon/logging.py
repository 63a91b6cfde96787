"""Set-up of the agent's own log: one event per line on stderr, JSON under systemd, colours on a terminal."""

import logging
import sys
from typing import Literal

import structlog

from agent.model.text import visible


def configure(log_format: Literal["auto", "json", "console"]) -> None:
    """Configure structlog and the standard library's logging in the same way."""
    coloured = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor] = (
        [
            _make_visible,
            structlog.dev.ConsoleRenderer(
                # The plain formatter shows no local variables, which may be secrets.
                colors=sys.stderr.isatty(),
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
        if coloured
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    # The sources log lost connections themselves.
    for name in ("kazoo", "apscheduler", "librdkafka"):
        logging.getLogger(name).setLevel(logging.ERROR if name != "apscheduler" else logging.WARNING)


def _make_visible(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Return the event with control characters in names as escapes, as JSON has them: a terminal obeys them."""
    return {
        name: visible(value) if isinstance(value, str) and name != "traceback" else value
        for name, value in event.items()
    }
