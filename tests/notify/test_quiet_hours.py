"""Quiet hours hold back warnings; at their end one digest names them, and what is open is posted."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.findings import Incident, Severity, Status
from agent.notify.base import Message, Unanswered
from agent.notify.dispatcher import Dispatcher
from agent.notify.quiet_hours import summarize
from agent.notify.slack import Slack
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Handle, Outbox
from testbed.slack import Slack as Workspace
from tests import samples
from tests.notify.dispatching import wait_until_delivered
from tests.notify.test_dispatcher import Clock
from tests.notify.test_silenced import WARNING, Setting

OTHER = replace(
    WARNING, id="INC-000B", title="billing rewound 800 records on topic-124[3]", opened_at=samples.at("23:40:00.0")
)
OVER = {"status": Status.RECOVERED, "recovered_at": samples.at("23:50:00.0")}


class Night(Setting):
    """A dispatcher with quiet hours until `end`; `reports` are the messages that were accepted."""

    def __init__(self, state_file: Path, clock: Clock) -> None:
        super().__init__(state_file, clock)
        self.end: int | None = clock.now + 60_000
        self.messages: list[Message] = []
        self.dispatcher = Dispatcher(
            state_file, self.receiver, silences=self._at, quiet_until=self._quiet_until, clock=clock
        )
        deliver = self.receiver.deliver

        def record(message: Message, handle: Handle | None) -> Handle:
            answer = deliver(message, handle)
            self.messages.append(message)
            return answer

        self.receiver.deliver = record  # type: ignore[method-assign]

    def _quiet_until(self, now: int) -> int | None:
        return self.end if self.end is not None and now < self.end else None

    @property
    def titles(self) -> list[str]:
        return [message.report.title for message in self.messages if message.number == 0]


@pytest.fixture
def night(state_file: Path, store: IncidentStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    assert store.position == 0
    clock = Clock()
    clock.now = samples.at("23:45:00.0")
    monkeypatch.setattr("agent.notify.dispatcher.now_ms", clock)
    made = Night(state_file, clock)
    yield made
    made.outbox.close()


def test_a_digest_names_what_was_held_back(store: IncidentStore, night: Night) -> None:
    store.save(1, [WARNING, OTHER])
    assert night.deliver() == []
    store.save(2, [replace(OTHER, **OVER)])
    assert night.deliver() == []
    night.clock.now += 60_000
    night.deliver()
    assert night.titles == ["2 warnings during quiet hours, 1 still open", WARNING.title]
    assert night.messages[0].report.timeline == (
        f"23:25:08.3  OPEN {WARNING.title} (INC-7F3A9C)",
        f"23:40:00.0  RECOVERED {OTHER.title} (INC-000B)",
    )
    assert store.pending() == 0
    night.clock.now += 60_000
    store.save(3, [OTHER])  # it reopens by day
    night.deliver()
    assert night.titles[2:] == [OTHER.title]


def test_what_is_or_becomes_critical_is_posted(store: IncidentStore, night: Night) -> None:
    store.save(1, [WARNING, replace(OTHER, severity=Severity.CRITICAL)])
    night.deliver()
    assert night.titles == [OTHER.title]
    store.save(2, [replace(WARNING, severity=Severity.CRITICAL)])
    night.deliver()
    assert night.titles == [OTHER.title, WARNING.title]
    night.clock.now += 60_000
    night.deliver()
    assert len(night.titles) == 2  # nothing is left for a digest


def test_a_posted_warning_is_edited_at_night(store: IncidentStore, night: Night) -> None:
    end, night.end = night.end, None
    store.save(1, [WARNING])
    night.deliver()
    night.end = end
    store.save(2, [replace(WARNING, **OVER)])
    assert night.deliver() == [0, 0]
    night.clock.now += 60_000
    assert night.deliver() == [0, 0, 1]


def test_what_moves_to_memory_at_night_still_waits(tmp_path: Path, store: IncidentStore, night: Night) -> None:
    """Each pending message is then in doubt, and is looked up before it is posted."""
    store.save(1, [WARNING])
    night.deliver()
    store.move(tmp_path / "moved.sqlite3", night.clock.now)
    night.outbox.close()
    night.outbox = Outbox(store.path, "slack")
    assert night.deliver() == []
    night.clock.now += 60_000
    night.deliver()
    assert night.titles == [WARNING.title]


def test_silenced_incidents_are_not_in_the_digest(store: IncidentStore, night: Night) -> None:
    store.decisions.add(night.silence(120))
    store.save(1, [WARNING])
    assert night.deliver() == []
    night.clock.now += 60_000
    assert night.deliver() == []
    night.clock.now += 60_000
    night.deliver()
    assert night.titles == [WARNING.title]


def test_a_restart_after_the_night_sends_the_digest(state_file: Path, store: IncidentStore, night: Night) -> None:
    store.save(1, [WARNING, OTHER])
    night.deliver()
    store.save(2, [replace(incident, **OVER) for incident in (WARNING, OTHER)])
    night.clock.now += 7_200_000
    morning = Night(state_file, night.clock)
    morning.end = None
    morning.receiver.script = [Unanswered("no response")]
    morning.deliver()
    assert morning.titles == []
    morning.clock.now += 60_000
    morning.deliver()
    morning.outbox.close()
    assert morning.titles == ["2 warnings during quiet hours, 0 still open"]
    assert store.pending() == 0


@pytest.mark.parametrize("after", [True, False], ids=["slack-had-it", "slack-had-it-not"])
def test_slack_has_the_digest_once(state_file: Path, store: IncidentStore, slack: Workspace, *, after: bool) -> None:
    store.save(1, [WARNING, OTHER])
    quiet: list[int | None] = [samples.at("23:59:59.0")]
    receiver = Slack(slack.token, lambda _: "C0000000001", base_url=slack.url, timeout=1)
    dispatcher = Dispatcher(state_file, receiver, quiet_until=lambda _: quiet[0])
    night = Setting(state_file, Clock())
    dispatcher.deliver_due(night.outbox)
    night.outbox.close()
    store.save(2, [replace(incident, **OVER) for incident in (WARNING, OTHER)])
    assert slack.messages() == []
    quiet[0] = None
    slack.close_connection(method="chat.postMessage", after=after)
    dispatcher.start()
    wait_until_delivered(store)
    assert dispatcher.close(5)
    (message,) = slack.messages()
    assert "2 warnings during quiet hours, 0 still open" in message.words
    assert OTHER.title in message.words


def test_what_cannot_be_described_is_in_the_digest(store: IncidentStore, night: Night) -> None:
    wrong = samples.rewind(severity=Severity.WARNING, current={"offset": "no number"})
    store.save(1, [replace(OTHER, title="billing\nrewound", findings=(wrong,))])
    night.deliver()
    night.clock.now += 60_000
    night.deliver()
    assert night.titles == ["1 warning during quiet hours, 1 still open", "billing\\nrewound"]
    assert night.messages[0].report.timeline == ("23:40:00.0  OPEN billing\\nrewound (INC-000B)",)


def test_an_old_digest_is_pruned(store: IncidentStore, night: Night) -> None:
    store.save(1, [WARNING])
    night.deliver()
    store.save(2, [replace(WARNING, **OVER)])
    night.clock.now += 60_000
    night.deliver()
    (digest,) = [message.incident.id for message in night.messages]
    store.prune(night.clock.now)
    assert len(store.deliveries(digest)) == 1
    store.prune(night.clock.now + 1)
    assert store.deliveries(digest) == []


INCIDENTS = st.lists(
    st.builds(
        lambda number, **fields: replace(WARNING, id=f"INC-{number:04}", **fields),
        st.integers(0, 9_999),
        status=st.sampled_from(Status),
        severity=st.sampled_from(Severity),
        merged_into=st.none() | st.just("INC-1"),
    ),
    unique_by=lambda incident: incident.id,
    max_size=30,
)


@given(INCIDENTS)
def test_each_warning_is_in_the_digest_and_only_what_is_over_ends(held: list[Incident]) -> None:
    """What is neither in the digest nor over keeps its place in the outbox."""
    digest = summarize(held, [], "QUIET-1", samples.at("23:59:00.0"))
    expected = [found for found in held if found.severity is Severity.WARNING and found.merged_into is None]
    assert (digest is None) is (not expected)
    if digest is not None:
        assert len(digest.lines) == len(expected)
        assert all(found.id in line for found, line in zip(expected, digest.lines, strict=True))
        assert set(digest.over) == {found.id for found in expected if found.status is not Status.OPEN}
