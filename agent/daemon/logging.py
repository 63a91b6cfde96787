"""How the agent logs: one event per line on stderr, JSON under systemd, colours on a terminal. What is logged stands
where it happens.
"""

import logging
import sys
from typing import Literal

import structlog


def configure(log_format: Literal["auto", "json", "console"]) -> None:
    """Set structlog and the standard library's logging up alike."""
    coloured = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor] = (
        [
            structlog.dev.ConsoleRenderer(
                # The plain one shows no local variables: a secret may be among them.
                colors=sys.stderr.isatty(),
                exception_formatter=structlog.dev.plain_traceback,
            )
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
    # The libraries' own chatter: we say ourselves when a connection is lost and found again.
    for name in ("kazoo", "apscheduler", "librdkafka"):
        logging.getLogger(name).setLevel(logging.ERROR if name != "apscheduler" else logging.WARNING)
