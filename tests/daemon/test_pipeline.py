"""What a check answers, all the way: asked by an incident, journaled, joined, told in its thread with its plot; once,
whatever is killed in between.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.config.settings import load
from agent.daemon.pipeline import Pipeline
from agent.engine.check_requests import CheckRequest, CheckResult
from agent.engine.engine import Engine
from agent.model.findings import Finding, Severity, Status, finding_json
from agent.model.observations import BrokerRegistration, CheckFinding, CheckRun, Commit, LogOffsets, Observation, Tick
from agent.model.observations import PartitionState as State
from agent.notify.dispatcher import Dispatcher
from agent.notify.slack import Slack
from agent.storage.incidents import IncidentStore
from agent.storage.journal import Journal, entries
from testbed.slack import Slack as Workspace
from testbed.waiting import wait_until
from testbed.workspace import Message
from tests import samples
from tests.strategies import BEGINNING

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
    pipeline.take_answer(here.history(store.asks()[0]))
"""


def at(second: float) -> int:
    """So many seconds after the beginning, ms."""
    return BEGINNING + round(second * 1_000)


def registration(second: int, broker: int, session: str | None) -> BrokerRegistration:
    """A broker, registered or gone."""
    epoch = None if session is None else int(session, 16)
    return BrokerRegistration(at=at(second), cluster="main", broker=broker, session=session, epoch=epoch)


def led(second: int, leader: int | None) -> State:
    """Who leads t[0]."""
    both = (2005, 2011)
    return State(at=at(second), cluster="main", topic="t", partition=0, leader=leader, replicas=both, isr=both)


def committed(second: int, offset: int) -> Commit:
    """How far g has read t[0]."""
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
]
"""Broker 2005 loses its session, and the group on its partition goes back to the log's start."""

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
"""Both brokers of t[0] are lost together and come back."""


@contextmanager
def opened(
    directory: Path, *, wake: Callable[[], None] = lambda: None, ask: Callable[[CheckRequest], None] = lambda _: None
) -> Iterator[tuple[Pipeline, IncidentStore, Engine]]:
    """The agent's core on this directory, as after a start."""
    with IncidentStore(directory / "state.sqlite3", ["slack"]) as store:
        journal = Journal(directory / "journal", store.position)
        watch = Engine(SHIPPED.rules, SHIPPED.correlations)
        pipeline = Pipeline(journal, store, watch, retention=30 * 86_400_000, wake={"slack": wake}, ask=ask)
        pipeline.restore(entries(directory / "journal"))
        try:
            yield pipeline, store, watch
        finally:
            journal.close()


@contextmanager
def telling(directory: Path, slack: Workspace) -> Iterator[None]:
    """What waits is told, all of it."""
    receiver = Slack(slack.token, lambda _: CHANNEL, base_url=slack.url, timeout=1)
    outbox = Dispatcher(directory / "state.sqlite3", receiver)
    outbox.start()
    try:
        yield
        with IncidentStore(directory / "state.sqlite3", ["slack"]) as store:
            wait_until(lambda: store.pending() == 0, "the outbox to be empty", 60, 0.02)
    finally:
        assert outbox.close(5)


def found(check: str, second: float, seen: float, subject: dict[str, Any], **more: Any) -> CheckFinding:
    """What a run that ended at `seen` found of t[0]."""
    subject = {"cluster": "main", "topic": "t", "partition": 0, **subject}
    fields: dict[str, Any] = {"severity": Severity.CRITICAL, "detail": f"{check} found it"}
    finding = Finding(rule=check, kind=check, at=at(second), subject=subject, **fields | more)
    keys = {name: subject.get(name) for name in ("group", "topic", "partition", "broker")}
    return CheckFinding(at=at(seen), cluster="main", check=check, finding=finding_json(finding), **keys)


def run(check: str, second: float) -> CheckRun:
    """A run that ended then, and found something."""
    return CheckRun(
        at=at(second), cluster="main", check=check, started_at=at(second - 5), complete=False, outcome="found"
    )


def history(ask: CheckRequest | None) -> CheckResult:
    """The rewind, found once more in the journal, with a plot."""
    seen = found("offset_history", 20, 100, {"group": "g"}, severity=Severity.INFO)
    return CheckResult(ask, [seen, run("offset_history", 100)], ("it fell once in 14 days",), samples.PLOT)


def thread(slack: Workspace) -> list[Message]:
    """The replies to the one message."""
    (message,) = slack.messages()
    return slack.threads[message.ts]


def test_a_reset_asks_for_its_history_once_and_is_answered_in_its_thread(tmp_path: Path, slack: Workspace) -> None:
    """The lines under a plain heading, then the plot; later changes of the incident ask nothing more."""
    asked: list[CheckRequest] = []
    with opened(tmp_path, ask=asked.append) as (pipeline, store, _):
        pipeline.take(RESET)
        (ask,) = asked
        assert (ask.check, ask.topics, ask.groups, store.asks()) == ("offset_history", ("t",), ("g",), [ask])
        pipeline.take_answer(history(ask))
        assert store.asks() == []
        pipeline.take([committed(200, 30_000), committed(202, 30_100)])
        assert asked == [ask]
    with telling(tmp_path, slack):
        pass
    lines, plot = [one for one in thread(slack) if one.files or one.text.startswith("Spark")]
    assert lines.text == "Spark, offset_history:\nit fell once in 14 days"
    assert [one.content for one in slack.uploads] == [samples.PLOT]
    assert plot.files == [one.id for one in slack.uploads]


def test_what_was_asked_and_not_answered_is_handed_on_after_a_restart(tmp_path: Path) -> None:
    """Not asked anew: the same ask, and not at all once it was answered."""
    first: list[CheckRequest] = []
    second: list[CheckRequest] = []
    third: list[CheckRequest] = []
    with opened(tmp_path, ask=first.append) as (pipeline, _, _):
        pipeline.take(RESET)
    with opened(tmp_path, ask=second.append) as (pipeline, _, _):
        pipeline.take_answer(history(second[0]))
    with opened(tmp_path, ask=third.append) as (pipeline, _, _):
        pipeline.take([committed(300, 31_000)])
    assert (first, second, third) == (second, first, [])
    assert len(first) == 1


@pytest.mark.parametrize("moment", ["journaled", "saved"])
def test_killed_between_the_answer_and_its_thread_it_is_told_once(
    tmp_path: Path, slack: Workspace, moment: str
) -> None:
    """Before it was saved the check runs again, after that it waits in the outbox."""
    with opened(tmp_path) as (pipeline, _, _):
        pipeline.take(RESET)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), moment], env=environment, timeout=60, check=False
    )
    assert child.returncode == -signal.SIGKILL
    asked: list[CheckRequest] = []
    with opened(tmp_path, ask=asked.append) as (pipeline, _, _):
        assert len(asked) == (moment == "journaled")
        for ask in asked:
            pipeline.take_answer(history(ask))
    with telling(tmp_path, slack):
        pass
    assert [one.text for one in thread(slack) if one.text.startswith("Spark")] == [
        "Spark, offset_history:\nit fell once in 14 days"
    ]
    assert len(slack.uploads) == 1


def test_a_lost_answer_of_slack_to_the_upload_leaves_the_plot_there_once(tmp_path: Path, slack: Workspace) -> None:
    """It is looked for by its name first."""
    slack.close_connection(method="files.completeUploadExternal", after=True)
    with opened(tmp_path) as (pipeline, store, _), telling(tmp_path, slack):
        pipeline.take(RESET)
        pipeline.take_answer(history(store.asks()[0]))
    assert sum(len(one.files) for one in thread(slack)) == 1


def test_a_power_loss_asks_by_itself_and_both_faults_are_one_incident(tmp_path: Path, slack: Workspace) -> None:
    """Nothing is told before the checks have answered; then one message names both, with the brokers as its cause."""
    asked: list[CheckRequest] = []
    dip = found(
        "log_segments", 31, 140, {"broker": 2011, "file": LOG}, labels=("offsets_went_back",), position=161_857,
        previous={"offset": 7_999}, current={"offset": 7_852},
    )  # fmt: skip
    told = "2005 and 2011 differ from offset 7,101 on"
    apart = found("replica_divergence", 30, 190, {"brokers": [2005, 2011]}, detail=told)
    with opened(tmp_path, ask=asked.append) as (pipeline, store, _):
        pipeline.take(POWER_LOSS)
        assert [one.check for one in asked] == ["log_segments", "replica_divergence"]
        assert store.pending() == 0
        segments, replicas = asked
        pipeline.take_answer(CheckResult(segments, [dip, run("log_segments", 140)], ("one dip",)))
        pipeline.take_answer(CheckResult(replicas, [apart, run("replica_divergence", 190)], ("one range",)))
        assert store.asks() == []
        (incident,) = [one for one in store.incidents() if one.findings and one.severity is Severity.CRITICAL]
        assert sorted(one.kind for one in incident.findings) == ["log_segments", "replica_divergence"]
    with telling(tmp_path, slack):
        pass
    (message,) = slack.messages()
    assert f"7,852 follows 7,999 at byte 161,857 of {LOG}" in message.words
    assert told in message.words
    assert "brokers 2005 and 2011 were away at the same time" in message.words
    assert [one.text for one in thread(slack) if one.text.startswith("Spark")] == [
        "Spark, log_segments:\none dip", "Spark, replica_divergence:\none range",
    ]  # fmt: skip


def test_an_answer_about_what_stands_no_more_strikes_its_ask_off(tmp_path: Path) -> None:
    """And one that could not be run: both say nothing."""
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.take(RESET)
        (ask,) = store.asks()
        before = store.pending()
        pipeline.take_answer(CheckResult(samples.ask(finding=("session", "{}", 1)), [], ("of long ago",)))
        pipeline.take_answer(CheckResult(ask, []))
        assert (store.asks(), store.pending()) == ([], before)


def test_a_scheduled_run_tells_of_the_one_incident_that_its_findings_make(tmp_path: Path, slack: Workspace) -> None:
    """With its plot; a clean run tells nothing."""
    dip = found("log_segments", 31, 140, {"broker": 2011, "file": LOG})
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.take(POWER_LOSS[:3])
        pipeline.take_answer(CheckResult(None, [run("log_segments", 100)], ("12 segments are whole",)))
        assert store.pending() == 0
        pipeline.take_answer(CheckResult(None, [dip, run("log_segments", 140)], ("one dip",)))
    with telling(tmp_path, slack):
        pass
    assert [one.text for one in thread(slack)][1:] == ["Spark, log_segments:\none dip"]


def test_an_answer_that_cannot_be_saved_is_saved_with_the_next_batch(
    tmp_path: Path, slack: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk loses nothing of it."""

    def full(*_: object) -> frozenset[str]:
        msg = "database or disk is full"
        raise sqlite3.OperationalError(msg)

    with opened(tmp_path) as (pipeline, store, _):
        pipeline.take(RESET)
        with monkeypatch.context() as disk:
            disk.setattr(store, "save", full)
            pipeline.take_answer(history(store.asks()[0]))
            assert len(store.asks()) == 1
        pipeline.take([committed(102, 9_100)])
        assert store.asks() == []
    with telling(tmp_path, slack):
        pass
    assert len([one for one in thread(slack) if one.text.startswith("Spark")]) == 1


def test_batches_and_answers_are_taken_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """By the one thread, and all of them before it stops."""
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.start()
        pipeline.put(RESET)
        wait_until(store.asks, "the ask", 10)
        pipeline.answer(history(store.asks()[0]))
        assert pipeline.close(10)
        assert (store.asks(), pipeline.failure) == ([], None)


def test_what_is_over_for_longer_than_the_journal_is_kept_is_forgotten(tmp_path: Path, slack: Workspace) -> None:
    """Once it was told; its message in Slack stays."""
    day = 86_400
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.take([*RESET, committed(200, 30_000), committed(202, 30_100)])
        pipeline.take([Tick(at=at(day))])
        pipeline.take([Tick(at=at(32 * day))])
        assert {one.status for one in store.incidents()} == {Status.CLOSED}
    with telling(tmp_path, slack):
        pass
    with opened(tmp_path) as (pipeline, store, _):
        pipeline.take([Tick(at=at(33 * day))])
        assert store.incidents() == []
    assert len(slack.messages()) == 1
