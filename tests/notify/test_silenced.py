"""What is silenced waits in the outbox and is posted when the silence ends; what an operator closed is not posted."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.model.findings import Acknowledgement, Closure, Severity, Status, closed_findings
from agent.model.matchers import Matchers, Silence
from agent.notify.base import Message, RateLimited
from agent.notify.dispatcher import Dispatcher
from agent.notify.edit_limit import INTERVAL_MS
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Handle, Outbox
from tests import samples
from tests.notify.test_dispatcher import Clock, ScriptedReceiver

MATCHERS = Matchers.model_validate_json('{"groups": {"include": ["flink-*"]}, "severities": ["warning"]}')
WARNING = samples.incident(
    severity=Severity.WARNING,
    causes=tuple(replace(cause, severity=Severity.INFO) for cause in samples.incident().causes),
    findings=(samples.rewind(severity=Severity.WARNING),),
)


class Setting:
    """A dispatcher with a clock set by hand, its receiver and its outbox."""

    def __init__(
        self, state_file: Path, clock: Clock, *, edits: bool = True, repeat_interval: int | None = None
    ) -> None:
        self.clock, self.receiver, self.outbox = clock, ScriptedReceiver(), Outbox(state_file, "slack")
        self.receiver.edits = edits
        self.configured: list[Silence] = []
        self.dispatcher = Dispatcher(
            state_file, self.receiver, silences=self._at, repeat_interval=repeat_interval, clock=clock
        )

    def _at(self, now: int) -> Sequence[Silence]:
        return [silence for silence in self.configured if silence.is_active(now)]

    def silence(self, seconds: int) -> Silence:
        begin = self.clock.now
        return Silence("SIL-1", MATCHERS, begin, begin + 1000 * seconds, "lena", "planned")

    def deliver(self) -> list[int]:
        """Deliver what is due, and return the numbers of what the receiver has taken so far."""
        for _ in range(10):
            self.dispatcher.deliver_due(self.outbox)
        return [number for _, number in self.receiver.accepted]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("agent.notify.dispatcher.now_ms", clock)
    return clock


@pytest.fixture
def setting(state_file: Path, store: IncidentStore, clock: Clock) -> Iterator[Setting]:
    assert store.position == 0
    made = Setting(state_file, clock)
    yield made
    made.outbox.close()


def test_an_open_incident_is_posted_when_the_silence_ends(store: IncidentStore, setting: Setting) -> None:
    store.decisions.add(setting.silence(60))
    store.save(1, [WARNING])
    assert setting.deliver() == []
    assert store.pending() == 2
    setting.clock.now += 59_999
    assert setting.dispatcher.deliver_due(setting.outbox) == setting.clock.now + 1
    setting.clock.now += 1
    assert setting.deliver() == [0]
    assert store.pending() == 0


def test_silences_of_the_configuration_hold_back_too(store: IncidentStore, setting: Setting) -> None:
    setting.configured = [setting.silence(60)]
    store.save(1, [WARNING])
    assert setting.deliver() == []
    setting.configured = []
    assert setting.deliver() == [0]


def test_an_expired_silence_lets_incidents_pass_at_once(store: IncidentStore, setting: Setting) -> None:
    store.decisions.add(setting.silence(60))
    store.save(1, [WARNING])
    assert setting.deliver() == []
    store.decisions.expire("SIL-1", setting.clock.now)
    assert setting.deliver() == [0]


@pytest.mark.parametrize("status", [Status.RECOVERED, Status.CLOSED])
def test_what_is_over_before_the_silence_ends_is_not_posted(
    store: IncidentStore, setting: Setting, status: Status
) -> None:
    store.decisions.add(setting.silence(60))
    store.save(1, [WARNING])
    assert setting.deliver() == []
    store.save(2, [replace(WARNING, status=status, recovered_at=WARNING.updated_at)])
    assert setting.deliver() == []
    assert store.pending() == 0
    setting.clock.now += 60_000
    store.save(3, [WARNING])  # it reopens
    assert setting.deliver() == [0]


def test_a_finding_outside_of_the_matchers_is_posted(store: IncidentStore, setting: Setting) -> None:
    store.decisions.add(setting.silence(60))
    store.save(1, [WARNING])
    assert setting.deliver() == []
    store.save(2, [replace(WARNING, findings=(*WARNING.findings, samples.rewind(4)), severity=Severity.CRITICAL)])
    assert setting.deliver() == [0]


def test_a_posted_message_is_edited_without_new_thread_entries(store: IncidentStore, setting: Setting) -> None:
    store.save(1, [WARNING])
    assert setting.deliver() == [0]
    store.decisions.add(setting.silence(60))
    store.save(2, [replace(WARNING, status=Status.RECOVERED, recovered_at=WARNING.updated_at)])
    assert setting.deliver() == [0, 0]
    store.save(3, [WARNING])
    setting.clock.now += INTERVAL_MS
    assert setting.deliver() == [0, 0, 0]
    assert store.pending() == 1
    store.save(4, [replace(WARNING, status=Status.RECOVERED, recovered_at=WARNING.updated_at)])
    setting.clock.now += 60_000
    assert setting.deliver() == [0, 0, 0, 1, 0]


def test_a_burst_of_changes_in_a_silence_is_few_edits(store: IncidentStore, setting: Setting) -> None:
    store.save(1, [WARNING])
    assert setting.deliver() == [0]
    store.decisions.add(setting.silence(60))
    for number in range(10):
        store.save(2 + number, [replace(WARNING, title=f"change {number}")])
        setting.deliver()
        setting.clock.now += INTERVAL_MS // 4
    assert setting.deliver() == [0] * 4
    setting.clock.now += INTERVAL_MS
    assert setting.deliver() == [0] * 5


def test_a_receiver_that_cannot_edit_gets_nothing(state_file: Path, store: IncidentStore, clock: Clock) -> None:
    setting = Setting(state_file, clock, edits=False)
    store.save(1, [WARNING])
    assert setting.deliver() == [0]
    store.decisions.add(setting.silence(60))
    store.save(2, [replace(WARNING, status=Status.RECOVERED, recovered_at=WARNING.updated_at)])
    assert setting.deliver() == [0]
    setting.clock.now += 60_000
    assert setting.deliver() == [0, 0, 1]
    setting.outbox.close()


def test_an_attempt_without_an_answer_is_looked_up_after_the_silence(store: IncidentStore, setting: Setting) -> None:
    class Found(ScriptedReceiver):
        def find(self, message: Message, handle: Handle | None, since: int) -> Handle | None:
            del message, handle, since
            return {"ts": "1"}

    store.save(1, [WARNING])
    row = setting.outbox.read(setting.outbox.heads()[0][1])
    assert row is not None
    assert setting.outbox.attempt(row, setting.clock.now)
    store.decisions.add(setting.silence(60))
    store.save(2, [replace(WARNING, status=Status.RECOVERED, recovered_at=WARNING.updated_at)])
    setting.receiver.__class__ = Found
    assert setting.deliver() == []
    assert store.pending() == 2
    setting.clock.now += 60_000
    assert setting.deliver() == [0]


def test_what_no_route_sends_here_is_not_posted(store: IncidentStore, setting: Setting) -> None:
    store.save(1, [replace(WARNING, cluster="elsewhere")])
    assert setting.deliver() == []
    assert store.pending() == 0
    store.save(2, [WARNING])
    assert setting.deliver() == [0]
    store.save(3, [replace(WARNING, cluster="elsewhere")])
    assert setting.deliver() == [0, 0]


def test_an_incident_closed_before_its_message_is_not_posted(store: IncidentStore, setting: Setting) -> None:
    store.decisions.add(setting.silence(60))
    store.save(1, [WARNING])
    assert setting.deliver() == []
    store.decisions.close(WARNING, Closure(at=1, by="omar", reason="a test", findings=closed_findings(WARNING)))
    store.decisions.expire("SIL-1", setting.clock.now)
    assert setting.deliver() == []
    assert store.pending() == 0
    store.save(2, [replace(WARNING, findings=(*WARNING.findings, samples.rewind(4)))])
    assert setting.deliver() == [0]


def test_what_a_silence_holds_back_is_not_overdue(store: IncidentStore, setting: Setting) -> None:
    setting.configured.append(setting.silence(600))
    store.save(1, [WARNING])
    setting.deliver()
    setting.clock.now += 300_000
    assert setting.dispatcher.backlog == (1, 0)
    setting.clock.now += 300_001
    assert setting.deliver()[0] == 0
    assert setting.dispatcher.backlog.oldest == 0


def test_the_message_and_its_thread_show_who_decided_what(store: IncidentStore, setting: Setting) -> None:
    store.save(1, [WARNING])
    setting.deliver()
    seen: list[Message] = []
    deliver = setting.receiver.deliver

    def record(message: Message, handle: Handle | None) -> Handle:
        seen.append(message)
        return deliver(message, handle)

    setting.receiver.deliver = record  # type: ignore[method-assign]
    at = samples.at("23:31:00.0")
    store.decisions.acknowledge(WARNING, Acknowledgement(at=at, by="lena", comment="on it", severity=Severity.WARNING))
    setting.deliver()
    closure = Closure(at=at + 60_000, by="omar", reason="a test", findings=closed_findings(WARNING))
    store.decisions.close(WARNING, closure)
    setting.clock.now += INTERVAL_MS
    setting.deliver()
    acknowledged, closed = [message.report for message in seen if message.number == 0]
    assert acknowledged.context.endswith("acknowledged by lena 23:31:00.0: on it")
    assert (acknowledged.state, closed.state) == ("OPEN", "CLOSED")
    assert closed.context.endswith("acknowledged by lena 23:31:00.0: on it · closed by omar 23:32:00.0: a test")
    assert [line for message in seen for line in message.lines] == [
        "23:31:00.0  acknowledged by lena: on it",
        "23:32:00.0  closed by omar: a test",
    ]


def test_what_a_silence_held_back_is_not_overdue_once_it_ends(store: IncidentStore, setting: Setting) -> None:
    store.decisions.add(setting.silence(8 * 3600))
    store.save(1, [WARNING])
    setting.deliver()
    setting.clock.now += 8 * 3_600_000
    setting.receiver.script = [RateLimited("busy", 1_000)]
    setting.dispatcher.deliver_due(setting.outbox)
    setting.clock.now += 500
    assert setting.dispatcher.backlog == (1, 500)


def test_a_message_no_longer_names_a_silence_that_ended_during_a_restart(
    state_file: Path, store: IncidentStore, clock: Clock
) -> None:
    before = Setting(state_file, clock)
    store.save(1, [WARNING])
    before.deliver()
    before.configured = [before.silence(3600)]
    clock.now += INTERVAL_MS
    assert before.deliver() == [0, 0]
    before.outbox.close()
    after = Setting(state_file, clock)
    clock.now += INTERVAL_MS
    assert after.deliver() == [0]
    assert after.deliver() == [0]
    after.outbox.close()
