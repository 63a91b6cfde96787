"""What receivers forget is sent again; a failure or a defect there ends no deliveries."""

from collections.abc import Sequence
from pathlib import Path

import structlog

from agent.notify.base import Handle, Unanswered
from agent.notify.dispatcher import Dispatcher
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Outbox
from tests import samples
from tests.notify.test_dispatcher import Clock, ScriptedReceiver

INTERVAL_MS = 8_000


class ForgetfulReceiver(ScriptedReceiver):
    """A receiver that records what it is reminded of, or raises the scripted errors first."""

    refresh_interval = INTERVAL_MS

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)
        self.refreshed: list[tuple[int, list[Handle]]] = []
        self.clock = Clock()
        self._begun = self.clock.now

    def refresh(self, handles: Sequence[Handle]) -> None:
        self.refreshed.append((self.clock.now - self._begun, list(handles)))
        if self.failures:
            raise self.failures.pop(0)


def run_for(seconds: int, receiver: ForgetfulReceiver, state_file: Path) -> list[dict[str, object]]:
    """Run a dispatcher, a turn each second; return what is logged."""
    dispatcher = Dispatcher(state_file, receiver, clock=receiver.clock)
    outbox = Outbox(state_file, receiver.name)
    with structlog.testing.capture_logs() as logged:
        for _ in range(seconds):
            dispatcher.deliver_due(outbox)
            receiver.clock.now += 1_000
    outbox.close()
    return [dict(entry) for entry in logged if str(entry["event"]).startswith("refresh")]


def test_what_was_delivered_and_is_not_closed_is_sent_again(state_file: Path, store: IncidentStore) -> None:
    receiver = ForgetfulReceiver()
    store.save(1, [samples.incident(), samples.incident(id="INC-INFO", severity="info")])
    assert run_for(20, receiver, state_file) == []
    assert receiver.refreshed == [(0, []), (8_000, [{"ts": "1"}]), (16_000, [{"ts": "1"}])]


def test_a_failure_is_logged_once_and_repeated_sooner(state_file: Path, store: IncidentStore) -> None:
    receiver = ForgetfulReceiver(Unanswered("h did not answer"), Unanswered("h did not answer"), KeyError("alert"))
    store.save(1, [samples.incident()])
    logged = run_for(8, receiver, state_file)
    assert [at for at, _ in receiver.refreshed] == [0, 2_000, 4_000, 6_000]
    assert [(entry["event"], entry.get("reason")) for entry in logged] == [
        ("refresh_failed", "h did not answer"),
        ("refresh_failed", "internal error: KeyError"),
        ("refresh_resumed", None),
    ]
    assert (samples.incident().id, 0) in receiver.accepted
