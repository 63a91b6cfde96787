"""How often a message is edited: the last state wins, and a higher severity does not wait."""

from pathlib import Path

from msgspec.structs import replace

from agent.model.findings import Severity
from agent.notify.base import Handle, Message
from agent.notify.dispatcher import Dispatcher
from agent.notify.edit_limit import INTERVAL_MS, EditLimit
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Outbox
from tests import samples
from tests.notify.test_dispatcher import Clock, ScriptedReceiver


class TitledReceiver(ScriptedReceiver):
    """A receiver that also records the titles of what it has accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.titles: list[str] = []

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        self.titles.append(message.incident.title)
        return super().deliver(message, handle)


WARNING = replace(samples.incident(), severity=Severity.WARNING)


def test_an_edit_waits_for_two_seconds_after_the_last() -> None:
    clock = Clock()
    limit = EditLimit(clock)
    assert limit.due(WARNING) == 0
    limit.edited(WARNING)
    assert limit.due(WARNING) == clock.now + INTERVAL_MS
    assert limit.due(samples.incident()) == 0, "a higher severity"
    assert limit.due(samples.burst()) == 0, "another message"
    clock.now += INTERVAL_MS
    assert limit.due(WARNING) <= clock.now


def test_edits_of_long_ago_are_forgotten() -> None:
    clock = Clock()
    limit = EditLimit(clock)
    for number in range(1_000):
        limit.edited(replace(WARNING, id=f"INC-{number}"))
        clock.now += INTERVAL_MS // 4
    assert len(limit._edits) <= 5


def test_a_burst_of_changes_is_few_edits_with_the_last_state(state_file: Path, store: IncidentStore) -> None:
    clock, receiver = Clock(), TitledReceiver()
    dispatcher = Dispatcher(state_file, receiver, clock=clock)
    outbox = Outbox(state_file, "slack")
    store.save(1, [WARNING])
    dispatcher.deliver_due(outbox)
    began = clock.now
    for number in range(100):
        store.save(2 + number, [replace(WARNING, title=f"change {number}")])
        dispatcher.deliver_due(outbox)
        clock.now += 100
    edits = [number for _, number in receiver.accepted[1:] if number == 0]
    assert 4 <= len(edits) <= 1 + (clock.now - began) // INTERVAL_MS
    while (due := dispatcher.deliver_due(outbox)) is not None:
        clock.now = max(clock.now, due)
    assert store.pending() == 0
    assert receiver.titles[-1] == "change 99"
    outbox.close()


def test_a_rise_in_severity_is_not_delayed(state_file: Path, store: IncidentStore) -> None:
    clock, receiver = Clock(), ScriptedReceiver()
    dispatcher = Dispatcher(state_file, receiver, clock=clock)
    outbox = Outbox(state_file, "slack")
    for position, changed in enumerate((WARNING, replace(WARNING, title="a change")), 1):
        store.save(position, [changed])
        dispatcher.deliver_due(outbox)
    store.save(3, [replace(WARNING, title="another change")])
    dispatcher.deliver_due(outbox)
    before = [number for _, number in receiver.accepted].count(0)
    store.save(4, [samples.incident()])
    for _ in range(5):  # the clock stands still
        dispatcher.deliver_due(outbox)
    assert store.pending() == 0
    assert [number for _, number in receiver.accepted].count(0) == before + 1
    outbox.close()
