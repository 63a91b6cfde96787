"""librdkafka's log lines in the agent's log."""

import structlog


class ClientLog:
    """The part of `logging.Logger` that librdkafka calls."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = log

    def log(self, level: int, text: str, *values: object) -> None:
        """Log a line of librdkafka's."""
        self._log.debug("librdkafka_log", text=text % values, level=level)
