"""What the running agent shows of itself: sources, deliveries, incidents, checks and groups."""

import os
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from agent.checks.runner import Checks
from agent.clock import now_ms
from agent.daemon.groups import GroupProgress, count_subjects, group_progress
from agent.daemon.health import Health
from agent.daemon.heartbeat import Heartbeat
from agent.daemon.loops import Progress
from agent.daemon.offsets import find_reader_offsets
from agent.daemon.pipeline import Pipeline
from agent.daemon.reports import (
    AgentStatus,
    ArchiveStatus,
    ButtonsStatus,
    CheckStatus,
    HeartbeatStatus,
    IncidentRecord,
    OpenIncident,
    ReceiverStatus,
    SourceStatus,
)
from agent.engine.engine import Engine
from agent.engine.impact_and_root_cause import worst_first
from agent.model.findings import Incident, Status
from agent.model.observations.agent import name_of_source
from agent.model.observations.base import Observation, Unavailable
from agent.model.observations.checks import CheckRun
from agent.model.text import count, span, unavailable_parts, visible
from agent.notify.dispatcher import Dispatcher
from agent.notify.slack_presses import SlackPresses
from agent.sources.base import Source
from agent.storage.incidents import IncidentStore
from agent.storage.journal.archiver import Archiver

BUTTONS = "Slack buttons"
"""The part of the agent that a lasting loss of Slack's socket is reported of."""

_SOCKET_PATIENCE_S = 60

DELIVERY_PATIENCE_MS = 120_000
"""Deliveries do not work if one has been pending for longer than this."""


class Parts(NamedTuple):
    """The parts of the agent that the status is read from."""

    state_directory: Path
    sources: Sequence[Source]
    pipeline: Pipeline
    dispatchers: Mapping[str, Dispatcher]
    checks: Checks
    health: Health
    progress: Progress
    rules: Sequence[str]
    presses: SlackPresses | None = None
    archiver: Archiver | None = None


class CheckRuns:
    """The last run of each check on each cluster, and how long runs took. Used by any thread."""

    def __init__(self, earlier: Iterable[CheckRun] = ()) -> None:
        """earlier: runs before this start of the agent, the oldest first; their durations are not counted."""
        self._last = {(run.check, run.cluster): run for run in earlier}
        self._durations: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._lock = threading.Lock()

    def add(self, run: CheckRun) -> None:
        """Take note of a run that has ended."""
        with self._lock:
            self._last[run.check, run.cluster] = run
            number, total = self._durations[run.check, run.outcome]
            self._durations[run.check, run.outcome] = (number + 1, total + max(0, run.at - run.started_at))

    @property
    def last(self) -> list[CheckRun]:
        """The last run of each check on each cluster, by name."""
        with self._lock:
            return [run for _, run in sorted(self._last.items())]

    @property
    def durations(self) -> dict[tuple[str, str], tuple[int, int]]:
        """The number of runs since the start and their total duration (ms), by check and outcome."""
        with self._lock:
            return dict(self._durations)


class StatusReader:
    """Reads the status of the running agent, from any thread."""

    def __init__(self, parts: Parts, check_runs: CheckRuns, *, patience: float = 3.0) -> None:
        """patience: how long the pipeline may take to answer, s."""
        self.patience = patience
        self.parts = parts
        self.check_runs = check_runs
        self.heartbeat: Heartbeat | None = None
        self.started_at = now_ms()
        self._began = time.monotonic()

    @property
    def uptime(self) -> float:
        """For how long the agent has run, s."""
        return time.monotonic() - self._began

    def status(self) -> AgentStatus:
        """Return everything but groups and what is stored of incidents."""
        now, parts = now_ms(), self.parts
        view, problems = _View([], [], [], set()), list[str]()
        try:
            view = parts.pipeline.read(_view, self.patience)
        except TimeoutError:
            waiting = f"observations that wait: {parts.pipeline.queued:,}"
            problems.append(f"The pipeline has not answered within {self.patience:.0f} s; {waiting}")
        is_complete = not problems
        sources = tuple(_source_status(source, view.unavailable) for source in parts.sources)
        receivers = tuple(self.receivers())
        running_checks, waiting_checks = parts.checks.load
        heartbeat = self.heartbeat
        problems += self._problems(sources, receivers, now)
        return AgentStatus(
            at=now,
            version=version("backflow"),
            pid=os.getpid(),
            started_at=self.started_at,
            state_directory=str(parts.state_directory.absolute()),
            is_complete=is_complete,
            problems=tuple(map(visible, problems)),
            sources=sources,
            subjects=count_subjects(view.last_known, view.groups_with_offsets),
            queued=parts.pipeline.queued,
            delay_ms=parts.pipeline.delay,
            receivers=receivers,
            incidents=tuple(open_incidents(view.incidents)),
            checks=tuple(map(_check_status, self.check_runs.last)),
            running_checks=running_checks,
            waiting_checks=waiting_checks,
            heartbeat=None
            if heartbeat is None
            else HeartbeatStatus(sent_at=heartbeat.sent_at, problem=heartbeat.problem),
            buttons=self.buttons(),
            archive=self.archive(),
        )

    def groups(self, pattern: str = "*", *, in_detail: bool = False) -> list[GroupProgress]:
        """Return how far groups are. Raises TimeoutError if the pipeline does not answer."""
        histories = self.parts.pipeline.read(lambda engine, _: engine.histories(), self.patience)
        return group_progress(histories, now_ms(), pattern, in_detail=in_detail)

    def incident(self, incident_id: str) -> IncidentRecord | None:
        """Return what is stored of an incident, None if there is none. Raises TimeoutError like `groups`."""
        return self.parts.pipeline.read(partial(_read_incident, incident_id), self.patience)

    def plot(self, incident_id: str) -> bytes | None:
        """Return the latest plot of a check about the incident, a PNG. Raises TimeoutError like `groups`."""
        return self.parts.pipeline.read(partial(_read_plot, incident_id), self.patience)

    def current_incidents(self) -> list[Incident]:
        """Return the incidents that may still change. Raises TimeoutError like `groups`."""
        return self.parts.pipeline.read(_current_incidents, self.patience)

    def unavailable(self) -> list[Unavailable]:
        """Return what cannot be read. Raises TimeoutError like `groups`."""
        return self.parts.pipeline.read(lambda engine, _: engine.unavailable(), self.patience)

    def unread(self) -> list[str]:
        """Return the sources that have not been read since the start."""
        return [name_of_source(source.cluster, source.name) for source in self.parts.sources if source.read_at is None]

    def receivers(self) -> Iterable[ReceiverStatus]:
        """Yield how far deliveries are."""
        for name, dispatcher in self.parts.dispatchers.items():
            backlog = dispatcher.backlog
            yield ReceiverStatus(
                receiver=name,
                pending=backlog.incidents,
                oldest_ms=backlog.oldest,
                delivered=dispatcher.delivered,
                failed=dict(dispatcher.failed),
                problem=dispatcher.problem,
            )

    def buttons(self) -> ButtonsStatus | None:
        """Return the state of the buttons in Slack, None if there are none."""
        presses = self.parts.presses
        if presses is None:
            return None
        socket = presses.socket
        is_connected = socket.is_connected
        return ButtonsStatus(
            is_connected=is_connected,
            problem="" if is_connected else socket.problem,
            pressed=dict(presses.done),
            failed=presses.failed,
            malformed=socket.malformed,
        )

    def archive(self) -> ArchiveStatus | None:
        """Return how far the archive of the journal is, None if there is none."""
        if self.parts.archiver is None:
            return None
        progress = self.parts.archiver.progress
        return ArchiveStatus(
            pending=progress.pending,
            oldest_ms=round(progress.oldest_s * 1000),
            archived=progress.archived,
            failed=progress.failures,
            problem=progress.problem,
        )

    def impairment(self) -> str:
        """Return why the agent might not notify anybody of an incident, or an empty string."""
        if not self.parts.pipeline.alive:
            return "the pipeline has ended"
        if stuck := self.parts.progress.stuck():
            return f"without progress: {', '.join(stuck)}"
        overdue = [receiver for receiver in self.receivers() if receiver.oldest_ms > DELIVERY_PATIENCE_MS]
        return "; ".join(_delay(receiver) for receiver in overdue)

    def _problems(
        self, sources: Iterable[SourceStatus], receivers: Iterable[ReceiverStatus], now: int
    ) -> Iterable[str]:
        for source in sources:
            name = name_of_source(source.cluster, source.source)
            if source.read_at is None:
                reason = f": {source.unavailable[0]}" if source.unavailable else ""
                yield f"{name} has not been read since the start {span(now - self.started_at)} ago{reason}"
            else:
                yield from (f"{name}: {reason}" for reason in source.unavailable)
        if stuck := self.parts.progress.stuck():
            yield f"Without progress for two minutes: {', '.join(stuck)}"
        yield from (_delay(receiver) for receiver in receivers if receiver.problem)
        reported = self.parts.health.problems
        yield from (f"{part}: {problem}" for part, problem in reported.items())
        buttons = self.buttons()
        if buttons is not None and buttons.problem and BUTTONS not in reported:
            yield f"{BUTTONS}: {buttons.problem}"
        if self.heartbeat is not None and self.heartbeat.problem:
            yield f"heartbeat: {self.heartbeat.problem}"


def open_incidents(incidents: Iterable[Incident]) -> Iterable[OpenIncident]:
    """Yield the incidents that are not closed, the worst and newest first."""
    current = [
        incident
        for incident in incidents
        if incident.findings and incident.merged_into is None and incident.status is not Status.CLOSED
    ]
    order = sorted(
        current, key=lambda incident: (incident.status is not Status.OPEN, -incident.severity.rank, -incident.opened_at)
    )
    for incident in order:
        yield OpenIncident(
            id=incident.id,
            status=incident.status.value,
            severity=incident.severity.value,
            rule=worst_first(incident.findings)[0].rule,
            title=visible(incident.title),
            opened_at=incident.opened_at,
        )


def report_buttons(presses: SlackPresses, health: Health) -> None:
    """Report the buttons in Slack as not working if presses have not arrived for a minute."""
    broken_since = presses.socket.broken_since
    if broken_since is None:
        health.works(BUTTONS)
    elif time.monotonic() - broken_since > _SOCKET_PATIENCE_S:
        health.failed(BUTTONS, f"Presses do not arrive: {presses.socket.problem}. All else works.")


class _View(NamedTuple):
    """What the pipeline knows at one moment."""

    incidents: list[Incident]
    unavailable: list[Unavailable]
    last_known: list[Observation]
    groups_with_offsets: set[tuple[str, str]]


def _current_incidents(engine: Engine, store: IncidentStore) -> list[Incident]:
    """Return the incidents that may still change, with what operators decided if the state can be read."""
    try:
        return store.decisions.all_handled(engine.incidents)
    except sqlite3.Error:
        return engine.incidents


def _view(engine: Engine, store: IncidentStore) -> _View:
    return _View(
        _current_incidents(engine, store), engine.unavailable(), engine.last_known(), engine.groups_with_offsets()
    )


def _read_incident(incident_id: str, engine: Engine, store: IncidentStore) -> IncidentRecord | None:
    incident = store.incident(incident_id)
    if incident is None:
        return None
    return IncidentRecord(
        store.decisions.handled(incident),
        store.check_reports(incident_id),
        store.deliveries(incident_id),
        store.plot(incident_id) is not None,
        find_reader_offsets(incident, engine),
    )


def _read_plot(incident_id: str, engine: Engine, store: IncidentStore) -> bytes | None:
    del engine
    found = store.plot(incident_id)
    return None if found is None else found[1]


def _source_status(source: Source, unavailable: Iterable[Unavailable]) -> SourceStatus:
    own = [fact for fact in unavailable if is_about(fact, source)]
    wholes = [fact for fact in own if fact.is_whole]
    parts = [fact for fact in own if not fact.is_whole]
    reasons = [fact.reason for fact in wholes]
    if parts and not wholes:
        reasons = [
            f"{phrase.removeprefix(f'{source.name} ')}: {parts[0].reason}" for phrase in unavailable_parts(parts)
        ]
    return SourceStatus(
        cluster=source.cluster,
        source=source.name,
        read_at=source.read_at,
        is_readable=not any(fact.source == source.name for fact in wholes),
        unavailable=tuple(map(visible, reasons)),
    )


def is_about(report: Unavailable, source: Source) -> bool:
    """Return whether the source, or a part of it such as flink_storage of flink, has reported this."""
    is_own = report.source == source.name or report.source.startswith(f"{source.name}_")
    return is_own and report.cluster == source.cluster


def _check_status(run: CheckRun) -> CheckStatus:
    return CheckStatus(
        check=run.check,
        cluster=run.cluster,
        outcome=run.outcome,
        ended_at=run.at,
        took_ms=max(0, run.at - run.started_at),
        reason=run.reason,
    )


def _delay(receiver: ReceiverStatus) -> str:
    waiting = f"{receiver.receiver}: {count(receiver.pending, 'incident')} waiting for {span(receiver.oldest_ms)}"
    return f"{waiting}: {receiver.problem}" if receiver.problem else waiting
