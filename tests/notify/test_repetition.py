"""An open critical incident is announced again and again, until it is over, silenced or acknowledged."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.findings import Acknowledgement, Incident, Severity, Status
from agent.notify.base import Message, NotDelivered, RateLimited, Unanswered
from agent.notify.policy import repetition
from agent.render.thread import is_announcement
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Handle, Outbox
from tests import samples
from tests.notify.test_dispatcher import Clock
from tests.notify.test_silenced import Setting

HOUR = 3_600_000


class Repeating(Setting):
    """A dispatcher that repeats after an hour; `lines` are what was announced so far."""

    def __init__(self, state_file: Path, clock: Clock) -> None:
        super().__init__(state_file, clock, repeat_interval=HOUR)
        self.lines: list[str] = []
        deliver = self.receiver.deliver

        def record(message: Message, handle: Handle | None) -> Handle:
            answer = deliver(message, handle)
            self.lines += message.lines if is_announcement(message.lines) else ()
            return answer

        self.receiver.deliver = record  # type: ignore[method-assign]

    def wait(self, ms: int) -> list[str]:
        self.clock.now += ms
        self.deliver()
        return self.lines


@pytest.fixture
def setting(state_file: Path, store: IncidentStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repeating]:
    assert store.position == 0
    clock = Clock()
    clock.now = samples.at("23:30:00.0")
    monkeypatch.setattr("agent.notify.dispatcher.now_ms", clock)
    made = Repeating(state_file, clock)
    yield made
    made.outbox.close()


def test_it_is_repeated_each_interval_until_it_is_over(store: IncidentStore, setting: Repeating) -> None:
    store.save(1, [samples.incident()])
    assert setting.wait(0) == []
    assert setting.wait(HOUR - 1) == []
    assert setting.wait(1) == [f"Still open after 1 h 4 min, not acknowledged: {samples.incident().title}"]
    assert len(setting.wait(HOUR - 1)) == 1
    assert len(setting.wait(1)) == 2
    store.save(2, [samples.recovered()])
    assert len(setting.wait(5 * HOUR)) == 2


def test_acknowledged_and_silenced_incidents_are_not_repeated(store: IncidentStore, setting: Repeating) -> None:
    store.save(1, [samples.incident(causes=())])
    setting.wait(0)
    critical = setting.silence(2 * HOUR // 1000)
    setting.configured = [critical._replace(matchers=critical.matchers.model_copy(update={"severities": None}))]
    assert setting.wait(HOUR) == []
    assert len(setting.wait(HOUR)) == 1
    taken = Acknowledgement(at=setting.clock.now, by="lena", severity=Severity.CRITICAL)
    store.decisions.acknowledge(samples.incident(causes=()), taken)
    assert len(setting.wait(3 * HOUR)) == 1


def test_a_restart_between_queue_and_delivery_repeats_once(
    state_file: Path, store: IncidentStore, setting: Repeating
) -> None:
    store.save(1, [samples.incident()])
    setting.wait(0)
    setting.clock.now += HOUR
    (due,) = setting.outbox.announced(setting.clock.now)
    assert due[1] == setting.clock.now - HOUR
    setting.outbox.announce(due[0].id, "Still open after 65 min", setting.clock.now)
    again = Repeating(state_file, setting.clock)
    again.outbox.close()
    again.outbox = Outbox(state_file, "slack")
    assert again.wait(0) == ["Still open after 65 min"]
    again.outbox.close()


@pytest.mark.parametrize(
    "error", [Unanswered("no response"), RateLimited("busy", 1_000)], ids=["unanswered", "limited"]
)
def test_a_receiver_that_was_away_gets_no_old_repetitions(
    store: IncidentStore, setting: Repeating, error: NotDelivered
) -> None:
    store.save(1, [samples.incident()])
    setting.wait(0)
    setting.receiver.script = [error] * 1_000
    for _ in range(5):
        assert setting.wait(HOUR) == []
    assert store.pending() == 1
    store.save(2, [samples.recovered()])
    setting.receiver.script = []
    setting.wait(HOUR)
    assert setting.wait(HOUR) == []
    assert store.pending() == 0


INCIDENTS = st.builds(
    samples.incident,
    status=st.sampled_from(Status),
    severity=st.sampled_from(Severity),
    merged_into=st.none() | st.just("INC-1"),
    opened_at=st.integers(0, 10),
)


@given(INCIDENTS, st.none() | st.sampled_from(Severity), st.integers(10, 60), st.integers(1, 20), st.integers(60, 90))
def test_only_what_is_open_critical_and_not_taken_is_repeated(
    incident: Incident, taken: Severity | None, announced_at: int, interval: int, now: int
) -> None:
    if taken is not None:
        incident = replace(incident, acknowledged=Acknowledgement(at=10, by="lena", severity=taken))
    line = repetition(incident, announced_at, interval, now)
    expected = (
        (incident.status, incident.severity, incident.merged_into) == (Status.OPEN, Severity.CRITICAL, None)
        and taken is not Severity.CRITICAL
        and announced_at + interval <= now
    )
    assert bool(line) is expected
    assert is_announcement([line]) is expected


def test_a_rise_to_critical_is_not_repeated_at_once(store: IncidentStore, setting: Repeating) -> None:
    warned = samples.incident(severity=Severity.WARNING)
    store.save(1, [warned])
    setting.wait(0)
    setting.clock.now += 3 * HOUR
    store.save(2, [samples.incident()])
    assert setting.wait(0) == ["Severity raised to critical, was warning."]
    assert len(setting.wait(HOUR - 1)) == 1
    assert len(setting.wait(1)) == 2
