"""The kill matrix: an agent is killed at each named fault point, started again, and what Slack has is compared.

The agent's own journal, engine, state file and dispatcher run in a process of their own against the strict Slack
stand-in. SIGKILL comes from inside, before or after a call, so each point is hit exactly. Run it with `make faults`.
"""

import argparse
import faulthandler
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from agent.config.settings import load, shipped
from agent.daemon.pipeline import Pipeline
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.engine.engine import Engine
from agent.model.findings import Status
from agent.model.observations.base import Observation, Tick
from agent.model.observations.checks import CheckRun
from agent.model.observations.kafka import BrokerRegistration, Commit, LogOffsets, PartitionState
from agent.model.times import millis
from agent.notify.dispatcher import Dispatcher
from agent.notify.slack import Slack as Receiver
from agent.storage.database import FILE
from agent.storage.incidents import IncidentStore
from agent.storage.journal import Journal, entries, read
from testbed.slack import Slack
from testbed.waiting import wait_until

_BEGINNING = millis("2026-11-20T23:00:00Z")
_PLOT = b"\x89PNG\r\n\x1a\n a plot"
_SEGMENT_BYTES = 4_000
_ID = re.compile(r"INC-[0-9A-F]{8}")


class Point(NamedTuple):
    """A fault point: before or after a call, or halfway through a write. target: module:name of what is called."""

    name: str
    target: str
    moment: str


_CALLS = (
    ("journal: segment file created", "agent.storage.journal.segments:Stream.__init__"),
    ("journal: flush", "agent.storage.journal:Journal.flush"),
    ("journal: write", "agent.storage.journal.segments:os.pwrite"),
    ("journal: write forced to disk", "agent.storage.journal.segments:os.fdatasync"),
    ("journal: rotation", "agent.storage.journal:Journal.seal"),
    ("journal: sealed file written", "agent.storage.journal.segments:write"),
    ("journal: sealed file renamed", "pathlib:Path.rename"),
    ("journal: stream removed", "pathlib:Path.unlink"),
    ("journal: close", "agent.storage.journal:Journal.close"),
    ("state: transaction", "agent.storage.incidents:IncidentStore.save"),
    ("state: incident written", "agent.storage.incidents:IncidentStore._put"),
    ("state: delivery queued", "agent.storage.incidents:queue_log_entry"),
    ("state: check result saved", "agent.storage.incidents:queue_check_report"),
    ("restore: journal recovered", "agent.storage.journal:recover"),
    ("restore: facts and incidents", "agent.daemon.pipeline:Pipeline.restore"),
    ("outbox: attempt recorded", "agent.storage.outbox:Outbox.attempt"),
    ("outbox: delivery confirmed", "agent.storage.outbox:Outbox.confirmed"),
    ("outbox: entry skipped", "agent.storage.outbox:Outbox.skip"),
    ("Slack: request, then its answer", "http.client:HTTPConnection.getresponse"),
    ("Slack: message posted", "slack_sdk:WebClient.chat_postMessage"),
    ("Slack: message edited", "slack_sdk:WebClient.chat_update"),
    ("plot: upload announced", "slack_sdk:WebClient.files_getUploadURLExternal"),
    ("plot: upload completed", "slack_sdk:WebClient.files_completeUploadExternal"),
)

POINTS = (
    *(Point(name, target, moment) for name, target in _CALLS for moment in ("before", "after")),
    Point("journal: write", "agent.storage.journal.segments:os.pwrite", "halfway"),
)


class Outcome(NamedTuple):
    """What the kills at one point did. unreached: runs that ended before the point was reached."""

    point: Point
    kills: int
    unreached: int
    lost: int
    doubled: int


def workload() -> list[Observation]:
    """Return two incidents: a reset after an expired session, which requests a check, and a rewind by itself."""
    observations: list[Observation] = [
        _registration(0, "0x1"),
        *(_state(0, topic, 2005) for topic in ("t", "u")),
        *(
            LogOffsets(at=_at(1), cluster="main", topic=topic, partition=0, log_start=0, log_end=20_000)
            for topic in "tu"
        ),
        *(_commit(second, "g", "t", 9_000 + 100 * second) for second in range(2, 12, 2)),
        *(_commit(second, "h", "u", 9_000 + 100 * second) for second in range(2, 200, 4)),
        _registration(12, None),
        _state(13, "t", 2011),
        _registration(18, "0x2"),
        *(_commit(second, "g", "t", 100 * second) for second in range(20, 110, 4)),
        *(_commit(second, "h", "u", 10 * second) for second in range(200, 300, 4)),
        _commit(301, "h", "u", 30_000),
        *(Tick(at=_at(second)) for second in range(0, 310, 10)),
        *(Tick(at=_at(second)) for second in range(310, 9_000, 600)),
    ]
    return sorted(observations, key=lambda observation: observation.at)


def run_agent(directory: Path, slack: tuple[str, str], kill: tuple[Point, int] | None, counts: Path | None) -> None:
    """Process what the journal lacks of the workload and deliver it all.

    slack: base URL and token. kill: die at the nth call of this point. counts: where to write how often each is called.
    """
    faulthandler.enable()
    calls: Counter[Point] = Counter()
    for point, number in [(point, 0) for point in POINTS] if counts is not None else filter(None, [kill]):
        _arm(point, number, calls)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    settings = load(shipped(), need_clusters=False)
    state, journal_directory = directory / FILE, directory / "journal"
    store = IncidentStore(state, ["slack"])
    journal = Journal(journal_directory, store.position, segment_bytes=_SEGMENT_BYTES)
    receiver = Receiver(slack[1], lambda _: "C0000000001", base_url=slack[0])
    dispatcher = Dispatcher(state, receiver)
    pipeline = Pipeline(
        journal,
        store,
        Engine(settings.rules, settings.correlations, settings.incidents),
        retention=30 * 86_400_000,
        wake={"slack": dispatcher.wake},
        run_check=lambda request: pipeline.put_check_result(_result(request)),
    )
    pipeline.restore(entries(journal_directory))
    taken = Counter(read(journal_directory))
    dispatcher.start()
    pipeline.start()
    for observation in (Counter(workload()) - taken).elements():
        pipeline.put([observation])
    with IncidentStore(state, ["slack"]) as own:
        wait_until(lambda: _is_done(own), "everything to be delivered", 60, 0.02)
    dispatcher.close(5)
    pipeline.close(10)
    journal.close()
    store.close()
    if counts is not None:
        counts.write_text("\n".join(str(calls[candidate]) for candidate in POINTS), encoding="ascii")


class Matrix:
    """Runs the agent against one Slack stand-in per run, in processes forked from a server that has all modules."""

    def __init__(self, directory: Path) -> None:
        """directory: for the agents' state."""
        self.crashes = 0
        self._directory = directory
        self._processes = get_context("forkserver")
        self._processes.set_forkserver_preload(["testbed.kill_matrix"])
        counts = directory / "counts"
        with Slack() as slack:
            self._run(slack, directory / "reference", None, counts)
            self._reference = _content(slack)
        if not self._reference:
            msg = "the agent delivered nothing without a kill"
            raise RuntimeError(msg)
        numbers = map(int, counts.read_text(encoding="ascii").split())
        self._calls = dict(zip(POINTS, numbers, strict=True))

    def kill_at(self, point: Point, times: int) -> Outcome:
        """Kill an agent at the point, at calls spread over the run, start it again, and compare."""
        kills = unreached = lost = doubled = 0
        for turn in range(times):
            number = 1 + turn * max(self._calls[point] - 1, 0) // max(times - 1, 1)
            directory = self._directory / f"{POINTS.index(point)}-{turn}"
            with Slack() as slack:
                is_killed = self._run(slack, directory, (point, number)) == -signal.SIGKILL
                if is_killed:
                    self._run(slack, directory, None)
                content = _content(slack)
            shutil.rmtree(directory)
            kills += is_killed
            unreached += not is_killed
            missing, extra = self._reference.keys() - content.keys(), content - self._reference
            if missing or extra:
                print(f"{point} call {number}: lost {sorted(missing)}, doubled {dict(extra)}", file=sys.stderr)  # noqa: T201
            lost += len(missing)
            doubled += sum(extra.values())
        return Outcome(point, kills, unreached, lost, doubled)

    def _run(self, slack: Slack, directory: Path, kill: tuple[Point, int] | None, counts: Path | None = None) -> int:
        """Run an agent until it has delivered everything or dies; return its exit status, negative for a signal."""
        directory.mkdir(exist_ok=True)
        process = self._processes.Process(target=run_agent, args=(directory, (slack.url, slack.token), kill, counts))
        process.start()
        process.join(120)
        status = process.exitcode
        if status is None:
            process.kill()
        if status == -signal.SIGSEGV:
            self.crashes += 1
            print(f"segmentation fault with {kill}", file=sys.stderr)  # noqa: T201
            return -signal.SIGKILL  # as good as a kill: what follows must hold after it as well
        if status not in (0, -signal.SIGKILL) or (status != 0 and kill is None):
            msg = f"the agent ended with status {status}, killed at {kill}; see {directory}"
            raise RuntimeError(msg)
        return status


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the outcomes as a table in Markdown."""
    yield "| fault point | moment | kills | lost | doubled |"
    yield "|---|---|---|---|---|"
    for point, kills, _, lost, doubled in outcomes:
        yield f"| {point.name} | {point.moment} | {kills} | {lost} | {doubled} |"
    totals = [sum(column) for column in zip(*((out.kills, out.lost, out.doubled) for out in outcomes), strict=True)]
    yield f"| **all** | | {totals[0]} | {totals[1]} | {totals[2]} |"


def main() -> int:
    """Print the table; return 1 if anything was lost or doubled, or a point was never reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="kills at each point")
    parser.add_argument("--only", default="", help="parts of points' names, with commas between")
    arguments = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as directory:
        matrix = Matrix(Path(directory))
        for point in POINTS:
            if any(part in point.name for part in arguments.only.split(",")):
                outcomes.append(matrix.kill_at(point, arguments.times))
                print(f"{point.name}, {point.moment}: {outcomes[-1].kills} kills", file=sys.stderr)  # noqa: T201
    print("\n".join(table(outcomes)))  # noqa: T201
    if matrix.crashes:
        print(f"{matrix.crashes} segmentation faults; see above", file=sys.stderr)  # noqa: T201
    return int(
        bool(matrix.crashes) or any(outcome.lost or outcome.doubled or not outcome.kills for outcome in outcomes)
    )


def _arm(point: Point, number: int, calls: Counter[Point]) -> None:
    """Kill this process at the nth call of the point; 0: only count the calls."""
    module, _, path = point.target.partition(":")
    owner: Any = import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original: Callable[..., Any] = getattr(owner, name)

    @wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        calls[point] += 1
        is_last = calls[point] == number
        if is_last and point.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_last and point.moment == "halfway":
            file, content, offset = arguments
            original(file, content[: len(content) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


def _is_done(store: IncidentStore) -> bool:
    incidents = [incident for incident in store.incidents() if incident.findings]
    is_closed = len(incidents) >= 2 and all(incident.status is Status.CLOSED for incident in incidents)
    return is_closed and not store.check_requests() and not store.pending()


def _content(slack: Slack) -> Counter[str]:
    """Return what the channel and the threads hold: each incident, each line of its thread, each plot."""
    content: Counter[str] = Counter()
    for message in slack.messages():
        (incident,) = set(_ID.findall(message.words)) or {message.words}
        content[incident] += 1
        replies = slack.threads.get(message.ts, ())
        lines = [line for reply in replies for line in reply.text.splitlines()]
        if "Closed." in lines:  # an entry that is composed after the incident closed does not say that it recovered
            lines = [line for line in lines if not line.endswith("  recovered")]
        content.update(f"{incident}: {line}" for line in lines)
        content[f"{incident}: plot"] += sum(len(reply.files) for reply in replies)
    return +content


def _result(request: CheckRequest) -> CheckResult:
    run = CheckRun(
        at=request.until, cluster="main", check=request.check, started_at=request.until, complete=False, outcome="found"
    )
    return CheckResult(request, [run], ("one rewind in 14 days",), _PLOT)


def _at(second: float) -> int:
    return _BEGINNING + round(second * 1_000)


def _registration(second: int, session: str | None) -> BrokerRegistration:
    epoch = None if session is None else int(session, 16)
    return BrokerRegistration(at=_at(second), cluster="main", broker=2005, session=session, epoch=epoch)


def _state(second: int, topic: str, leader: int) -> PartitionState:
    both = (2005, 2011)
    return PartitionState(
        at=_at(second), cluster="main", topic=topic, partition=0, leader=leader, replicas=both, isr=both
    )


def _commit(second: int, group: str, topic: str, offset: int) -> Commit:
    return Commit(at=_at(second), cluster="main", group=group, topic=topic, partition=0, offset=offset)
