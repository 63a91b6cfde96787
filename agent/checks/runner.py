"""The daemon's Spark checks: queued, run a few at a time in their own threads, each run ending in a CheckResult."""

import tempfile
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import structlog

from agent.checks.arguments import (
    client_options,
    clusters_of,
    input_options,
    page_options,
    requested_options,
    result_options,
    scheduled_options,
)
from agent.checks.kept_process import KeptProcess
from agent.checks.process import Limits, Outcome
from agent.clock import now_ms
from agent.config.settings import Settings
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.model.check_protocol import PLOT, SUMMARY
from agent.model.findings import Finding, finding_json
from agent.model.observations.checks import CheckFinding, CheckRun
from agent.rules import CHECK_RULES

_LINES = 5
"""How many findings a result lists."""

_NARROWING = frozenset({"--from", "--to", "--topic", "--group"})
"""The options with which a run does not examine everything."""

_AHEAD_MS = 60_000
"""How long before a check is due Spark starts."""

log = structlog.get_logger(__name__)


class _Job(NamedTuple):
    """A queued run. due: earliest start, ms. number: queue order among jobs that are due at the same time."""

    due: int
    number: int
    check: str
    cluster: str
    request: CheckRequest | None

    @property
    def id(self) -> tuple[str, ...]:
        """The same for a repeated request and for a repeated scheduled run."""
        return (self.check, self.cluster) if self.request is None else (self.request.id,)


class _Files(NamedTuple):
    """The files of a check's --report. summary: one sentence, empty if there is none. plot: a PNG."""

    summary: str = ""
    plot: bytes | None = None

    @classmethod
    def read(cls, report: Path) -> Self:
        """Return what is in the directory. Raises OSError."""
        summary, plot = report / SUMMARY, report / PLOT
        return cls(
            summary.read_text(encoding="utf-8").strip() if summary.exists() else "",
            plot.read_bytes() if plot.exists() else None,
        )


class Checks:
    """Runs checks one after the other, or as many at a time as [spark] allows."""

    def __init__(self, settings: Settings, on_result: Callable[[CheckResult], None]) -> None:
        """on_result: called with the result of each run, from a thread of the checks."""
        self._settings = settings
        self._on_result = on_result
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, ...], _Job] = {}
        self._running: set[tuple[str, ...]] = set()
        self._number = count()
        self._threads = [
            threading.Thread(target=self._work, name=f"checks {number}") for number in range(settings.spark.concurrency)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def request(self, request: CheckRequest) -> None:
        """Queue a check for an incident, to run after its settle time; from any thread.

        A repeated request runs once, with the latest content. A check that cannot run here, because it is disabled or
        has no input configured, gets an empty result at once.
        """
        check = self._settings.checks.get(request.check)
        enabled = check is not None and check.enabled and self._settings.spark.enabled
        if check is None or not enabled or not self._has_input(request.check, request.cluster):
            reason = "unknown check" if check is None else "no input configured" if enabled else "disabled"
            log.info("check_skipped", check=request.check, cluster=request.cluster, request=request.id, reason=reason)
            self._on_result(CheckResult(request, []))
        else:
            self._put(max(request.due, now_ms() + check.settle), request.check, request.cluster, request)

    def run_on_schedule(self, check: str) -> None:
        """Queue a check for each cluster that has input for it, unless it is queued or running already."""
        for cluster in clusters_of(check, self._settings):
            if self._has_input(check, cluster):
                self._put(now_ms(), check, cluster, None)

    @property
    def load(self) -> tuple[int, int]:
        """How many runs are in progress, and how many wait or are not due yet."""
        with self._changed:
            return len(self._running), len(self._waiting)

    def close(self) -> None:
        """Stop the running checks and drop the queue; takes a second or two."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _has_input(self, check: str, cluster: str) -> bool:
        is_known = cluster in clusters_of(check, self._settings)
        return is_known and bool(input_options(check, self._settings, cluster))

    def _put(self, due: int, check: str, cluster: str, request: CheckRequest | None) -> None:
        job = _Job(due, next(self._number), check, cluster, request)
        with self._changed:
            if job.id in self._running:
                return
            queued = self._waiting.get(job.id, job)
            self._waiting[job.id] = job._replace(due=min(queued.due, due), number=queued.number)
            self._changed.notify()

    def _work(self) -> None:
        with KeptProcess(self._settings.spark) as process:
            self._keep_ready(process)
            while (job := self._next(process)) is not None:
                result = self._run(job, process)
                if result is None:
                    return  # the request stays stored and runs after the next start
                with self._changed:
                    self._running.discard(job.id)
                self._on_result(result)
                self._keep_ready(process)

    def _keep_ready(self, process: KeptProcess) -> None:
        if self._settings.spark.enabled and self._settings.spark.always_ready:
            _prepare(process)

    def _next(self, process: KeptProcess) -> _Job | None:
        """Wait for the next job that is due; None once stopped. Spark starts ahead of it, or ends if it is idle."""
        prepared: tuple[str, ...] | None = None
        while not self._stop.is_set():
            with self._changed:
                job, now = min(self._waiting.values(), default=None), now_ms()
                if job is not None and job.due <= now:
                    self._running.add(job.id)
                    return self._waiting.pop(job.id)
                soon = job if job is not None and job.due - now <= _AHEAD_MS else None
                idle_left = process.seconds_left if soon is None else None
                if (soon is None or soon.id == prepared) and (idle_left is None or idle_left > 0):
                    event = None if job is None else (job.due - now - (_AHEAD_MS if soon is None else 0)) / 1000
                    self._changed.wait(min((left for left in (event, idle_left) if left is not None), default=None))
                    continue
            if soon is None:
                process.close("it was idle")
            else:
                prepared = soon.id
                _prepare(process, soon.check)
        return None

    def _run(self, job: _Job, process: KeptProcess) -> CheckResult | None:
        started_at = now_ms()
        log.info("check_started", check=job.check, cluster=job.cluster, request=job.request and job.request.id)
        is_complete = True
        try:
            examined, output = self._options(job, started_at)
            is_complete = _NARROWING.isdisjoint(examined)
            outcome, files = self._outcome(job, process, [*examined, *output])
        except Exception as error:  # an internal error is reported like any failure, and the next check runs
            log.exception("check_run_failed", check=job.check, cluster=job.cluster)
            outcome = Outcome("failed", f"internal error: {error!r}; the agent's log has the details")
            files = _Files()
        if self._stop.is_set():
            log.info("check_stopped", check=job.check, cluster=job.cluster)
            return None
        failure = {"reason": outcome.reason, "log": "\n".join(outcome.log)} if outcome.reason else {}
        log.info("check_finished", check=job.check, cluster=job.cluster, outcome=outcome.outcome, **failure)
        return _result(job, outcome, started_at, files, complete=is_complete)

    def _options(self, job: _Job, now: int) -> tuple[list[str], list[str]]:
        """Return the options that say what to examine, and those that say where to write what is found."""
        settings, request = self._settings, job.request
        if request is None:
            return scheduled_options(job.check, settings, now), page_options(job.check, job.cluster, settings, now)
        return requested_options(request), result_options(request, settings)

    def _outcome(self, job: _Job, process: KeptProcess, options: Sequence[str]) -> tuple[Outcome, _Files]:
        settings, check = self._settings, self._settings.checks[job.check]
        limits = Limits(
            check.time_limit or settings.spark.time_limit, check.memory_limit or settings.spark.memory_limit
        )
        with tempfile.TemporaryDirectory(prefix="backflow-check-", ignore_cleanup_errors=True) as scratch:
            report = Path(scratch, "report")
            arguments = [
                job.check, "--cluster", job.cluster, *input_options(job.check, settings, job.cluster),
                *client_options(job.check, settings, job.cluster, report.parent), *options, "--report", str(report),
            ]  # fmt: skip
            return process.run(arguments, limits, self._stop), _Files.read(report)


def _prepare(process: KeptProcess, check: str | None = None) -> None:
    try:
        process.prepare(check)
    except OSError as error:  # the next run tries again, and reports it
        log.warning("check_process_not_started", reason=str(error))


def _result(job: _Job, outcome: Outcome, started_at: int, files: _Files, *, complete: bool) -> CheckResult:
    ended_at = now_ms()
    findings = [_observation(job, finding, ended_at) for finding in outcome.findings]
    run = CheckRun(
        at=ended_at,
        cluster=job.cluster,
        check=job.check,
        started_at=started_at,
        complete=complete and not outcome.left_out,
        outcome=outcome.outcome,
        reason=outcome.failure,
    )
    return CheckResult(job.request, [*findings, run], _summary_lines(job.check, outcome, files.summary), files.plot)


def _observation(job: _Job, finding: Finding, at: int) -> CheckFinding:
    keys: dict[str, Any] = {
        name: finding.subject.get(name) for name in ("group", "topic", "partition", "broker") if name in finding.subject
    }
    return CheckFinding(at=at, cluster=job.cluster, check=job.check, finding=finding_json(finding), **keys)


def _summary_lines(check: str, outcome: Outcome, summary: str) -> tuple[str, ...]:
    """Return the lines for people: the failure, the worst findings, or the check's summary."""
    if CHECK_RULES[check].posts_report and outcome.outcome != "failed" and summary:
        return tuple(summary.splitlines())
    worst_first = sorted(outcome.findings, key=lambda finding: (-finding.severity.rank, finding.at, finding.key))
    lines = [finding.detail for finding in worst_first[:_LINES]]
    left_out = len(worst_first) + outcome.left_out - len(lines)
    if left_out:
        lines.append(f"and {left_out:,} more")
    if outcome.outcome == "failed":
        return (f"{check} failed: {outcome.reason}", *lines)
    return tuple(lines) or (summary or f"{check} found nothing",)
