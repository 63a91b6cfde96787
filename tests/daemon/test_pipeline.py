"""The result of a check from its request to the incident's thread; posted once despite kills in between."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.clock import monotonic_ms, now_ms
from agent.config.loading import load
from agent.daemon.pipeline import Pipeline
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.engine.engine import Engine
from agent.model.batches import CommitBatch
from agent.model.findings import Finding, Severity, Status, finding_json
from agent.model.observations.base import Observation, Tick
from agent.model.observations.checks import CheckFinding, CheckRun
from agent.model.observations.kafka import BrokerRegistration, Commit, LogOffsets
from agent.model.observations.kafka import PartitionState as State
from agent.notify.dispatcher import Dispatcher
from agent.notify.slack import Slack
from agent.storage.database import UnusableError
from agent.storage.incidents import IncidentStore
from agent.storage.journal.reader import Positioned, entries, positioned_chunks
from agent.storage.journal.writer import Journal
from agent.storage.state_file import current, leave_shelter
from testbed.slack import Slack as Workspace
from testbed.waiting import wait_until
from testbed.workspace import Message
from tests import samples
from tests.builders import BEGINNING

ROOT = Path(__file__).parents[2]
SHIPPED = load(ROOT / "rules.toml", need_clusters=False)
CHANNEL = "C0000000001"
LOG = "00000000000000000000.log"

CHILD = """
import os, signal, sys
from pathlib import Path
from tests.daemon import test_pipeline as here
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
directory, moment = Path(sys.argv[1]), sys.argv[2]
with here.opened(directory, wake=die if moment == "saved" else lambda: None) as (pipeline, store, _):
    if moment == "journaled":
        store.save = die
    pipeline.take_check_result(here.history(store.check_requests()[0]))
"""


def at(second: float) -> int:
    return BEGINNING + round(second * 1_000)


def registration(second: int, broker: int, session: str | None) -> BrokerRegistration:
    epoch = None if session is None else int(session, 16)
    return BrokerRegistration(at=at(second), cluster="main", broker=broker, session=session, epoch=epoch)


def led(second: int, leader: int | None) -> State:
    both = (2005, 2011)
    return State(at=at(second), cluster="main", topic="t", partition=0, leader=leader, replicas=both, isr=both)


def committed(second: int, offset: int) -> Commit:
    return Commit(at=at(second), cluster="main", group="g", topic="t", partition=0, offset=offset)


RESET: list[Observation] = [
    registration(0, 2005, "0x1"),
    led(0, 2005),
    LogOffsets(at=at(1), cluster="main", topic="t", partition=0, log_start=0, log_end=20_000),
    *(committed(second, 9_000 + 100 * second) for second in range(2, 12, 2)),
    registration(12, 2005, None),
    led(13, 2011),
    registration(18, 2005, "0x2"),
    *(committed(second, 100 * second) for second in range(20, 30, 2)),
    Tick(at=at(28)),
    Tick(at=at(29)),
]
"""Broker 2005's session expires, and the group on its partition is reset to the log start.

After the ticks Backflow is suspended: what is dated today is not months of observing.
"""

POWER_LOSS: list[Observation] = [
    registration(0, 2005, "0x1"),
    registration(0, 2011, "0x2"),
    led(0, 2005),
    registration(10, 2005, None),
    led(10, 2011),
    registration(11, 2011, None),
    led(11, None),
    registration(20, 2005, "0x3"),
    registration(25, 2011, "0x4"),
    led(26, 2005),
]
"""Both brokers of t[0] are down at the same time and come back."""


@contextmanager
def opened(
    directory: Path,
    *,
    wake: Callable[[], None] = lambda: None,
    run_check: Callable[[CheckRequest], None] = lambda _: None,
) -> Iterator[tuple[Pipeline, IncidentStore, Engine]]:
    with IncidentStore(directory / "state.sqlite3", ["slack"]) as store:
        journal = Journal(directory / "journal", store.position)
        engine = Engine(SHIPPED.rules, SHIPPED.correlations)
        pipeline = Pipeline(
            journal, store, engine, retention=30 * 86_400_000, wake={"slack": wake}, run_check=run_check
        )
        pipeline.restore(positioned_chunks(directory / "journal", 0))
        try:
            yield pipeline, store, engine
        finally:
            journal.close()


@contextmanager
def delivering(directory: Path, slack: Workspace) -> Iterator[None]:
    receiver = Slack(slack.token, lambda _: CHANNEL, base_url=slack.url, timeout=1)
    dispatcher = Dispatcher(directory / "state.sqlite3", receiver)
    dispatcher.start()
    try:
        yield
        with IncidentStore(directory / "state.sqlite3", ["slack"]) as store:
            wait_until(lambda: store.pending() == 0, "the dispatcher to be empty", 60, 0.02)
    finally:
        assert dispatcher.close(5)


def found(check: str, second: float, seen: float, subject: dict[str, Any], **more: Any) -> CheckFinding:
    subject = {"cluster": "main", "topic": "t", "partition": 0, **subject}
    fields: dict[str, Any] = {"severity": Severity.CRITICAL, "detail": f"{check} found it"}
    finding = Finding(rule=check, kind=check, at=at(second), subject=subject, **fields | more)
    keys = {name: subject.get(name) for name in ("group", "topic", "partition", "broker")}
    return CheckFinding(at=at(seen), cluster="main", check=check, finding=finding_json(finding), **keys)


def run(check: str, second: float) -> CheckRun:
    return CheckRun(
        at=at(second), cluster="main", check=check, started_at=at(second - 5), complete=False, outcome="found"
    )


def history(request: CheckRequest | None) -> CheckResult:
    seen = found("offset_history", 20, 100, {"group": "g"}, severity=Severity.INFO)
    return CheckResult(request, [seen, run("offset_history", 100)], ("one rewind in 14 days",), samples.PLOT)


def thread(slack: Workspace) -> list[Message]:
    (message,) = slack.messages()
    return slack.threads[message.ts]


def test_reset_requests_its_history_once(tmp_path: Path, slack: Workspace) -> None:
    requests: list[CheckRequest] = []
    with opened(tmp_path, run_check=requests.append) as (pipeline, store, _):
        pipeline.take(RESET)
        (request,) = requests
        assert (request.check, request.topics, request.groups, store.check_requests()) == (
            "offset_history",
            ("t",),
            ("g",),
            [request],
        )
        pipeline.take_check_result(history(request))
        assert store.check_requests() == []
        pipeline.take([committed(200, 30_000), committed(202, 30_100)])
        assert requests == [request]
    with delivering(tmp_path, slack):
        pass
    lines, plot = [post for post in thread(slack) if post.files or post.text.startswith("Spark")]
    assert lines.text == "Spark, offset_history:\none rewind in 14 days"
    assert [upload.content for upload in slack.uploads] == [samples.PLOT]
    assert plot.files == [post.id for post in slack.uploads]


def test_request_without_result_is_repeated_after_a_restart(tmp_path: Path) -> None:
    first: list[CheckRequest] = []
    second: list[CheckRequest] = []
    third: list[CheckRequest] = []
    with opened(tmp_path, run_check=first.append) as (pipeline, _, _):
        pipeline.take(RESET)
    with opened(tmp_path, run_check=second.append) as (pipeline, _, _):
        pipeline.take_check_result(history(second[0]))
    with opened(tmp_path, run_check=third.append) as (pipeline, _, _):
        pipeline.take([committed(300, 31_000)])
    assert (first, second, third) == (second, first, [])
    assert len(first) == 1


@pytest.mark.parametrize("moment", ["journaled", "saved"])
def test_result_is_posted_once_after_a_kill(tmp_path: Path, slack: Workspace, moment: str) -> None:
    with opened(tmp_path) as (pipeline, _, _):
        pipeline.take(RESET)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), moment], env=environment, timeout=60, check=False
    )
    assert child.returncode == -signal.SIGKILL
    requests: list[CheckRequest] = []
    with opened(tmp_path, run_check=requests.append) as (pipeline, _, _):
        assert len(requests) == (moment == "journaled")
        for request in requests:
            pipeline.take_check_result(history(request))
    with delivering(tmp_path, slack):
        pass
    assert [post.text for post in thread(slack) if post.text.startswith("Spark")] == [
        "Spark, offset_history:\none rewind in 14 days"
    ]
    assert len(slack.uploads) == 1


def test_plot_is_posted_once_if_slacks_response_is_lost(tmp_path: Path, slack: Workspace) -> None:
    slack.close_connection(method="files.completeUploadExternal", after=True)
    with opened(tmp_path) as (pipeline, store, _), delivering(tmp_path, slack):
        pipeline.take(RESET)
        pipeline.take_check_result(history(store.check_requests()[0]))
    assert sum(len(post.files) for post in thread(slack)) == 1


def test_power_loss_requests_checks_and_is_one_incident(tmp_path: Path, slack: Workspace) -> None:
    requests: list[CheckRequest] = []
    dip = found(
        "log_segments", 31, 140, {"broker": 2011, "file": LOG}, labels=("offsets_went_back",), position=161_857,
        previous={"offset": 7_999}, current={"offset": 7_852}, detail="offset 7852 comes after 7999",
    )  # fmt: skip
    difference = "2005 and 2011 differ from offset 7,101 on"
    apart = found("replica_divergence", 30, 190, {"brokers": [2005, 2011]}, detail=difference)
    with opened(tmp_path, run_check=requests.append) as (pipeline, store, _):
        pipeline.take(POWER_LOSS)
        assert [request.check for request in requests] == ["log_segments", "replica_divergence"]
        assert {incident.severity for incident in store.incidents()} == {Severity.INFO}
        segments, replicas = requests
        pipeline.take_check_result(CheckResult(segments, [dip, run("log_segments", 140)], ("one dip",)))
        pipeline.take_check_result(CheckResult(replicas, [apart, run("replica_divergence", 190)], ("one range",)))
        assert store.check_requests() == []
        (incident,) = [
            incident for incident in store.incidents() if incident.findings and incident.severity is Severity.CRITICAL
        ]
        assert sorted(finding.kind for finding in incident.findings) == ["log_segments", "replica_divergence"]
    with delivering(tmp_path, slack):
        pass
    (message,) = slack.messages()
    assert "t[0] on broker 2011: offset 7,852 follows 7,999 at byte 161,857" in message.words
    assert difference in message.words
    assert "brokers 2005 and 2011 down at the same time" in message.words
    assert [post.text for post in thread(slack) if post.text.startswith("Spark")] == [
        "Spark, log_segments:\none dip", "Spark, replica_divergence:\none range",
    ]  # fmt: skip


def test_result_for_a_withdrawn_finding_removes_its_request(tmp_path: Path) -> None:
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.take(RESET)
        (request,) = store.check_requests()
        before = store.pending()
        pipeline.take_check_result(
            CheckResult(samples.check_request(finding=("session", "{}", 1)), [], ("of long ago",))
        )
        pipeline.take_check_result(CheckResult(request, []))
        assert (store.check_requests(), store.pending()) == ([], before)


def test_scheduled_run_reports_to_the_incident_of_its_findings(tmp_path: Path, slack: Workspace) -> None:
    dip = found("log_segments", 31, 140, {"broker": 2011, "file": LOG})
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.take(POWER_LOSS[:3])
        pipeline.take_check_result(CheckResult(None, [run("log_segments", 100)], ("12 segments are whole",)))
        assert {incident.severity for incident in store.incidents()} <= {Severity.INFO}
        pipeline.take_check_result(CheckResult(None, [dip, run("log_segments", 140)], ("one dip",)))
    with delivering(tmp_path, slack):
        pass
    assert [post.text for post in thread(slack)] == ["Spark, log_segments:\none dip"]


def test_state_goes_on_in_memory_and_returns(tmp_path: Path, slack: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "state.sqlite3"
    try:
        with opened(tmp_path) as (pipeline, store, _):
            pipeline.take(RESET)
            (pages,) = store._db.execute("PRAGMA page_count").fetchone()
            store._db.execute(f"PRAGMA max_page_count = {pages}")  # as on a full disk, for this connection
            large = samples.PLOT + bytes(8_192 * pages)
            pipeline.take_check_result(history(store.check_requests()[0])._replace(plot=large))
            assert store.path == current(home) != home
            monkeypatch.setattr("agent.daemon.state_keeper._RETRY_S", 0)
            pipeline.take([committed(102, 9_100), Tick(at=at(200))])
            assert store.path == current(home) == home
            assert store.check_requests() == []
        with delivering(tmp_path, slack):
            pass
    finally:
        leave_shelter(home)
    posts = [post for message in slack.messages() for post in slack.threads.get(message.ts, ())]
    assert len([post for post in posts if post.text.startswith("Spark, offset_history")]) == 1
    assert sum("Backflow is impaired: state file" in message.words for message in slack.messages()) == 1
    assert len(slack.messages()) == 2


def test_state_without_room_in_memory_is_kept_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "state.sqlite3"
    closed = samples.incident(status=Status.CLOSED)

    def refuse(path: Path, now: int) -> None:
        del path, now
        reason = "database or disk is full"
        raise UnusableError(reason)

    try:
        with opened(tmp_path) as (pipeline, store, _):
            store.save(0, [closed])
            pipeline.take(RESET)
            (pages,) = store._db.execute("PRAGMA page_count").fetchone()
            store._db.execute(f"PRAGMA max_page_count = {pages}")
            large = samples.PLOT + bytes(8_192 * pages)
            with monkeypatch.context() as full:
                full.setattr(store, "move", refuse)
                pipeline.take_check_result(history(store.check_requests()[0])._replace(plot=large))
            assert store.path == current(home) != home
            monkeypatch.setattr("agent.daemon.state_keeper._RETRY_S", 0)
            pipeline.take([committed(102, 9_100), Tick(at=at(200))])
            assert store.path == current(home) == home
    finally:
        leave_shelter(home)
    (kept,) = tmp_path.glob("state.sqlite3.damaged-*Z")
    with IncidentStore(kept) as store:
        assert store.incident(closed.id) == closed


def test_state_that_can_no_longer_be_read_is_saved_anew(tmp_path: Path) -> None:
    home = tmp_path / "state.sqlite3"
    try:
        with opened(tmp_path) as (pipeline, store, engine):
            pipeline.take(RESET)
            store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            content = bytearray(home.read_bytes())
            content[4096:] = b"\xff" * len(content[4096:])
            home.write_bytes(content)
            store._db.execute("PRAGMA shrink_memory")
            pipeline.take([committed(32, 3_200), *(committed(second, 30_000) for second in range(300, 310))])
            assert store.path != home
            assert {incident.id for incident in store.incidents()} == {incident.id for incident in engine.incidents}
    finally:
        leave_shelter(home)


def test_batch_that_fails_does_not_end_the_pipeline(tmp_path: Path) -> None:
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.start()
        pipeline._inputs.put([None])  # type: ignore[list-item]
        pipeline.put(RESET)
        wait_until(store.incidents, "the incident", 60)
        assert pipeline.close(10)
        assert pipeline.failure is None


def test_commits_in_columns_make_the_same_incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = at(60)
    monkeypatch.setattr("agent.daemon.pipeline.now_ms", lambda: now)
    commits = [fact for fact in RESET if isinstance(fact, Commit)]
    batch = CommitBatch.of(commits)
    assert batch is not None
    ahead = replace(batch, at=np.append(batch.at[:-1], now + 3_600_000))
    with opened(tmp_path) as (pipeline, store, engine):
        pipeline.start()
        pipeline.put([fact for fact in RESET if not isinstance(fact, Commit)])
        pipeline.put(batch)
        wait_until(store.incidents, "the incident", 60)
        pipeline.put(ahead)
        assert pipeline.close(10)
        assert engine.now == now
    journaled = [fact for _, fact in entries(tmp_path / "journal") if isinstance(fact, Commit)]
    assert journaled[: len(commits)] == commits
    assert journaled[-1].at == now


def test_clock_that_was_ahead_hides_nothing_after_a_restart(tmp_path: Path) -> None:
    day = 86_400
    ahead = [committed(day + second, 9_000 + second) for second in range(3)]
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.take([LogOffsets(at=at(1), cluster="main", topic="t", partition=0, log_start=0, log_end=20_000)])
        pipeline.take([committed(2, 8_000), *ahead, Tick(at=at(day + 10))])
        assert store.incidents() == []
    now = at(60)
    with IncidentStore(tmp_path / "state.sqlite3", ["slack"]) as store:
        journal = Journal(tmp_path / "journal", store.position)
        pipeline = Pipeline(
            journal,
            store,
            Engine(SHIPPED.rules, SHIPPED.correlations),
            retention=day * 1_000,
            wake={"slack": lambda: None},
        )
        pipeline.restore(positioned_chunks(tmp_path / "journal", 0), now)
        assert store.incidents() == []
        pipeline.take([committed(62, 100), Tick(at=at(64))])
        (incident,) = store.incidents()
        assert [finding.current["offset"] for finding in incident.findings] == [100]
        journal.close()


def test_a_long_restore_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.daemon.pipeline._PROGRESS", 10)
    watched: list[int] = []
    with opened(tmp_path) as (pipeline, _, engine):
        pipeline.restore(
            [[Positioned(np.full(20, -1), [committed(second, second) for second in range(20)])]],
            progressed=lambda: watched.append(len(engine.histories())),
        )
    assert watched == [1, 1]


def test_nothing_is_dated_later_than_it_was_put_in(tmp_path: Path) -> None:
    with opened(tmp_path) as (pipeline, _, engine):
        pipeline.start()
        begun = now_ms()
        pipeline.put([Tick(at=begun + 3_600_000)])
        assert pipeline.close(10)
        assert begun <= engine.now <= now_ms()


def test_batches_and_results_are_processed_in_order(tmp_path: Path) -> None:
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.start()
        pipeline.put(RESET)
        wait_until(store.check_requests, "the request", 10)
        pipeline.put_check_result(history(store.check_requests()[0]))
        assert pipeline.close(10)
        assert (store.check_requests(), pipeline.failure) == ([], None)


def test_incident_closed_before_the_retention_is_deleted(
    tmp_path: Path, slack: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, monotonic = 86_400, monotonic_ms()
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.take([*RESET, committed(200, 12_000), committed(202, 12_100)])
        pipeline.take([Tick(at=at(day - 1)), Tick(at=at(day))])
        pipeline.take([Tick(at=at(32 * day))])
        assert {incident.status for incident in store.incidents()} == {Status.CLOSED}
    with delivering(tmp_path, slack):
        pass
    with opened(tmp_path) as (pipeline, store, _):
        monkeypatch.setattr("agent.daemon.pipeline.monotonic_ms", lambda: monotonic + 3_600_000)
        pipeline.take([Tick(at=at(33 * day))])
        assert store.incidents() == []
    assert len(slack.messages()) == 1


def test_nothing_is_removed_by_a_clock_that_is_ahead_at_the_start(tmp_path: Path) -> None:
    with opened(tmp_path) as (pipeline, _, _):
        pipeline.take([*RESET, Tick(at=at(299)), Tick(at=at(300))])
    with opened(tmp_path) as (pipeline, _, _):
        pipeline.take([Tick(at=at(32 * 86_400))])
    assert [observation for _, observation in entries(tmp_path / "journal")][: len(RESET)] == RESET


def test_a_view_is_read_between_two_batches(tmp_path: Path) -> None:
    with opened(tmp_path) as (pipeline, _, _):
        with pytest.raises(TimeoutError):
            pipeline.read(lambda engine, _: engine.now, 0.01)
        pipeline.take([Tick(at=at(0))])
        pipeline.start()
        try:
            assert pipeline.read(lambda engine, _: engine.now, 30) == at(0)
            with pytest.raises(ZeroDivisionError):
                pipeline.read(lambda *_: 1 // 0, 30)
            assert pipeline.read(lambda engine, _: len(engine.histories()), 30) == 1
        finally:
            assert pipeline.close(30)


def test_delay_is_how_long_ticks_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as (pipeline, _, _):
        now = now_ms()
        monkeypatch.setattr("agent.daemon.pipeline.now_ms", lambda: now)
        pipeline.take([Tick(at=now - 7_000)])
        assert 7_000 <= pipeline.delay < 30_000
        pipeline.take([Tick(at=now)])
        assert pipeline.delay < 5_000
        pipeline.put([Tick(at=now)])
        assert pipeline.queued == 1
