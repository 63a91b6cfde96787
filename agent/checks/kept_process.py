"""A process that keeps Spark's session between checks: started ahead, renewed after failures, ended when it is idle.

Spark and its JVM take seconds to start; `spark_checks.server` runs one check after the other in them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import structlog

from agent.checks.arguments import spark_options
from agent.checks.process import CheckProcess, Limits, Outcome
from agent.config.checks import Spark
from agent.config.child_processes import python_module

log = structlog.get_logger(__name__)


class KeptProcess:
    """The process for the checks of the thread that uses it; none until it is needed."""

    def __init__(self, spark: Spark, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: in s."""
        self._spark, self._clock = spark, clock
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close("the agent stops")

    @property
    def seconds_left(self) -> float | None:
        """How long it is kept if no check runs; None if there is none, or if it is always kept."""
        if self._server is None or self._spark.always_ready:
            return None
        return self._server.idle_since + self._spark.session_idle / 1000 - self._clock()

    def prepare(self, check: str | None = None) -> None:
        """Let Spark start, if it has not, for this check or for any. Raises OSError."""
        self._running_server(check)

    def run(self, arguments: Sequence[str], limits: Limits, stop: threading.Event) -> Outcome:
        """Run a check. arguments: its name and its options, without those for Spark.

        If it fails in a process that was there before, it runs once more in a new one: the session may be damaged, or
        lack settings of this check.
        """
        was_there, began = self._server is not None and self._server.process.is_running, self._clock()
        outcome = self._run(arguments, limits, stop)
        has_time = limits.time is None or (self._clock() - began) * 1000 < limits.time
        if outcome.outcome == "failed" and was_there and has_time and not stop.is_set():
            log.info("check_repeated", check=arguments[0], reason=outcome.reason)
            return self._run(arguments, limits, stop)
        return outcome

    def close(self, reason: str) -> None:
        """End the process, if there is one, and all that it started."""
        if self._server is not None:
            log.info("check_process_ended", pid=self._server.process.pid, checks=self._server.runs, reason=reason)
            self._server.close()
            self._server = None

    def _run(self, arguments: Sequence[str], limits: Limits, stop: threading.Event) -> Outcome:
        try:
            server = self._running_server(arguments[0])
        except OSError as error:
            return Outcome.not_started(error)
        try:
            outcome = server.run(arguments, limits, stop)
        except Exception:  # the check may still run there
            self.close("an internal error")
            raise
        server.idle_since = self._clock()
        if outcome.outcome == "failed":
            self.close("a check failed" if not stop.is_set() else "the agent stops")
        elif server.runs >= self._spark.session_checks:
            self.close("it has run enough checks")
        return outcome

    def _running_server(self, check: str | None) -> "_Server":
        if self._server is None or not self._server.process.is_running:
            self.close("it ended by itself")
            self._server = _Server(self._spark, check, self._clock())
            log.info("check_process_started", pid=self._server.process.pid)
        return self._server


class _Server:
    """A process of `spark_checks.server`. runs: checks that it has run. idle_since: by the clock of KeptProcess."""

    def __init__(self, spark: Spark, check: str | None, now: float) -> None:
        """Start it with Spark's settings for a check, None: for any. Raises OSError."""
        self._scratch = TemporaryDirectory(prefix="backflow-spark-")
        self._options = spark_options(spark, Path(self._scratch.name))
        command = python_module("spark_checks.server", *self._options, *([] if check is None else [check]))
        try:
            self.process = CheckProcess(command, spark.environment, is_server=True)
        except OSError:
            self._scratch.cleanup()
            raise
        self.runs, self.idle_since = 0, now

    def run(self, arguments: Sequence[str], limits: Limits, stop: threading.Event) -> Outcome:
        """Run a check."""
        self.runs += 1
        self.process.request([*arguments, *self._options])
        return self.process.wait(limits, stop)

    def close(self) -> None:
        """End it, and remove Spark's temporary files."""
        self.process.close()
        self._scratch.cleanup()
