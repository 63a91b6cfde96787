"""The daemon's Spark checks: queued, run a few at a time in threads of their own, each run told as one CheckResult.

When a check is due is the scheduler's business (daemon); the process itself is in process.
"""

import tempfile
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from agent.checks.arguments import (
    asked_options,
    client_options,
    clusters,
    kept_options,
    places,
    scheduled_options,
    spark_options,
)
from agent.checks.process import Limits, Outcome, run_check
from agent.config.settings import Settings
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.model.findings import Finding, finding_json
from agent.model.observations import CheckFinding, CheckRun, Observation
from agent.notify.dispatcher import now_ms

_LINES = 5

log = structlog.get_logger(__name__)


class _Job(NamedTuple):
    """A run to come. due: not before, ms. number: of two that are due the one that came first."""

    due: int
    number: int
    check: str
    cluster: str
    ask: CheckRequest | None

    @property
    def id(self) -> tuple[str, ...]:
        """The same question has the same."""
        return (self.check, self.cluster) if self.ask is None else (self.ask.id,)


class Checks:
    """Runs checks one after the other, or as many at a time as [spark] allows."""

    def __init__(self, settings: Settings, answer: Callable[[CheckResult], None]) -> None:
        """answer: told what came of each run, from a thread of the checks."""
        self._settings = settings
        self._answer = answer
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

    def ask(self, ask: CheckRequest) -> None:
        """Run a check because an incident asks, once things have settled; from any thread.

        Asked twice it runs once, for what was asked last. Where it cannot run, as nothing is configured for it, it is
        answered at once with nothing.
        """
        check = self._settings.checks.get(ask.check)
        enabled = check is not None and check.enabled and self._settings.spark.enabled
        if check is None or not enabled or not self._has_places(ask.check, ask.cluster):
            why = "no such check" if check is None else "nothing to look at" if enabled else "not enabled"
            log.info("check not run", check=ask.check, cluster=ask.cluster, ask=ask.id, reason=why)
            self._answer(CheckResult(ask, []))
        else:
            self._put(max(ask.due, now_ms() + check.settle), ask.check, ask.cluster, ask)

    def run_on_schedule(self, check: str) -> None:
        """Run a check now for each cluster that has something for it to look at; what still waits or runs, once."""
        for cluster in clusters(check, self._settings):
            if self._has_places(check, cluster):
                self._put(now_ms(), check, cluster, None)

    def close(self) -> None:
        """End the running checks and forget those to come; a second or two."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _has_places(self, check: str, cluster: str) -> bool:
        known = cluster in clusters(check, self._settings)
        return known and bool(places(check, self._settings, cluster))

    def _put(self, due: int, check: str, cluster: str, ask: CheckRequest | None) -> None:
        job = _Job(due, next(self._number), check, cluster, ask)
        with self._changed:
            if job.id in self._running:
                return
            before = self._waiting.get(job.id, job)
            self._waiting[job.id] = job._replace(due=min(before.due, due), number=before.number)
            self._changed.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            answer = self._run(job)
            if answer is None:
                return  # what was asked stays stored, and runs at the next start
            with self._changed:
                self._running.discard(job.id)
            self._answer(answer)

    def _next(self) -> _Job | None:
        """The next job, once it is due; None at the end."""
        with self._changed:
            while not self._stop.is_set():
                job = min(self._waiting.values(), default=None)
                wait = None if job is None else (job.due - now_ms()) / 1000
                if job is not None and wait is not None and wait <= 0:
                    self._running.add(job.id)
                    return self._waiting.pop(job.id)
                self._changed.wait(wait)
        return None

    def _run(self, job: _Job) -> CheckResult | None:
        started_at = now_ms()
        log.info("check started", check=job.check, cluster=job.cluster, ask=job.ask and job.ask.id)
        with tempfile.TemporaryDirectory(prefix="backflow-check-") as scratch:
            report = Path(scratch, "report")
            try:
                outcome = self._outcome(job, report, started_at)
            except Exception as error:  # a defect of ours is told like any other failure, and the next check runs
                log.exception("check failed", check=job.check)
                outcome = Outcome("failed", f"the agent could not run it: {error!r}; its log says where")
            if self._stop.is_set():
                log.info("check stopped", check=job.check, cluster=job.cluster)
                return None
            told = {"reason": outcome.reason, "log": "\n".join(outcome.log)} if outcome.reason else {}
            log.info("check ended", check=job.check, cluster=job.cluster, outcome=outcome.outcome, **told)
            return _answer(job, outcome, started_at, report, complete=self._complete(job))

    def _outcome(self, job: _Job, report: Path, now: int) -> Outcome:
        settings, check = self._settings, self._settings.checks[job.check]
        if job.ask is None:
            window = scheduled_options(job.check, settings, now)
        else:
            window = [*asked_options(job.ask), *kept_options(job.ask, settings)]
        arguments = [
            job.check, "--cluster", job.cluster, *places(job.check, settings, job.cluster),
            *client_options(job.check, settings, job.cluster, report.parent), *window,
            *spark_options(settings.spark, report.parent), "--report", str(report),
        ]  # fmt: skip
        limits = Limits(
            check.time_limit or settings.spark.time_limit, check.memory_limit or settings.spark.memory_limit
        )
        return run_check(arguments, limits, self._stop)

    def _complete(self, job: _Job) -> bool:
        """Whether it looks at all that there is."""
        if job.ask is None:
            return self._settings.checks[job.check].window is None
        return not asked_options(job.ask)


def _answer(job: _Job, outcome: Outcome, started_at: int, report: Path, *, complete: bool) -> CheckResult:
    ended_at = now_ms()
    observations: list[Observation] = [_observed(job, one, ended_at) for one in outcome.findings]
    run = CheckRun(
        at=ended_at,
        cluster=job.cluster,
        check=job.check,
        started_at=started_at,
        complete=complete and not outcome.left_out,
        outcome=outcome.outcome,
        reason=outcome.account,
    )
    summary, plot = report / "summary.txt", report / "plot.png"
    return CheckResult(
        job.ask,
        [*observations, run],
        _lines(job.check, outcome, summary.read_text(encoding="utf-8").strip() if summary.exists() else ""),
        plot.read_bytes() if plot.exists() else None,
    )


def _observed(job: _Job, finding: Finding, at: int) -> CheckFinding:
    keys: dict[str, Any] = {
        name: finding.subject.get(name) for name in ("group", "topic", "partition", "broker") if name in finding.subject
    }
    return CheckFinding(at=at, cluster=job.cluster, check=job.check, finding=finding_json(finding), **keys)


def _lines(check: str, outcome: Outcome, summary: str) -> tuple[str, ...]:
    """What to say in the thread: that it failed, the gravest findings, or that all is well."""
    ordered = sorted(outcome.findings, key=lambda one: (-one.severity.rank, one.at, one.key))
    lines = [one.detail for one in ordered[:_LINES]]
    more = len(ordered) + outcome.left_out - len(lines)
    if more:
        lines.append(f"and {more:,} more")
    if outcome.outcome == "failed":
        return (f"{check} failed: {outcome.reason}", *lines)
    return tuple(lines) or (summary or f"{check} found nothing",)
