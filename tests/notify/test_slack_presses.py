"""What buttons in Slack do, from the press to the message: the same as the commands, once, and in words if not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from agent.clock import now_ms
from agent.model.findings import Finding, Incident, Severity, Status
from agent.model.matchers import find_silence
from agent.notify.dispatcher import Dispatcher
from agent.notify.slack import Slack, web_client
from agent.notify.slack_buttons import Button
from agent.notify.slack_presses import SlackPresses
from agent.notify.slack_socket import Press, SlackSocket
from agent.storage import operators
from agent.storage.incidents import CheckReport, IncidentStore
from testbed.slack import Slack as Workspace
from testbed.workspace import Message
from tests import samples
from tests.notify.dispatching import CHECK_REPORT, run_dispatcher

CHANNEL = "C0000000001"
HOUR = 3_600_000


class Office:
    """A dispatcher and the buttons of its messages."""

    def __init__(self, slack: Workspace, dispatcher: Dispatcher, store: IncidentStore) -> None:
        self.slack, self.dispatcher, self.store = slack, dispatcher, store
        client = web_client(slack.token, slack.url, 2)
        socket = SlackSocket(slack.app_token, base_url=slack.url, timeout=2)
        self.path = store.path
        self.presses = SlackPresses(socket, client, lambda: self.path, dispatcher.wake)
        self.presses.start()
        slack.wait_for(lambda: socket.is_connected, 30)

    def post(self, *incidents: Incident, reports: tuple[CheckReport, ...] = ()) -> Message:
        """Save incidents; return the message of the last one once it has nothing pending."""
        self.store.save(self.store.position + 1, list(incidents), [], list(reports))
        self.dispatcher.wake()
        self.slack.wait_for(lambda: self.store.pending() == 0, 30)
        return self.slack.messages()[-1]

    def wait_for_edit(self, part: str) -> Message:
        """Return the message once it shows this."""
        return self.slack.wait_for(
            lambda: next((message for message in self.slack.messages() if part in message.words), None), 30
        )  # type: ignore[return-value]

    def answer(self, number: int = 1) -> str:
        """Return the text of the nth message that only who pressed sees."""
        self.slack.wait_for(lambda: len(self.slack.ephemerals) >= number, 30)
        return self.slack.ephemerals[number - 1].text


@pytest.fixture
def office(slack: Workspace, state_file: Path, store: IncidentStore) -> Iterator[Office]:
    receiver = Slack(slack.token, lambda _: CHANNEL, base_url=slack.url, timeout=2, has_buttons=True)
    with run_dispatcher(state_file, receiver) as dispatcher:
        office = Office(slack, dispatcher, store)
        yield office
        office.presses.close()
    assert slack.socket.violations == []


def labels(message: Message) -> list[str]:
    """Return the labels of the buttons."""
    blocks = [block for attachment in message.attachments for block in attachment["blocks"]]
    return [button["text"]["text"] for block in blocks if block["type"] == "actions" for button in block["elements"]]


def test_who_acknowledges_is_shown_in_the_message(office: Office, slack: Workspace, store: IncidentStore) -> None:
    message = office.post(samples.incident())
    assert labels(message) == ["Acknowledge", "Silence 1 h", "Silence 1 d", "Why?", "Plot"]
    envelope = slack.press(message, "Acknowledge", name="lena")
    slack.socket.send_again(envelope)
    shown = office.wait_for_edit("acknowledged by lena (Slack)")
    assert labels(shown) == ["Silence 1 h", "Silence 1 d", "Why?", "Plot"]
    taken = store.decisions.handled(samples.incident()).acknowledged
    assert taken is not None
    assert (taken.by, taken.severity) == ("lena (Slack)", Severity.CRITICAL)
    slack.wait_for(
        lambda: any("acknowledged by lena (Slack)" in reply.text for reply in slack.threads.get(message.ts, ()))
    )
    assert slack.ephemerals == []
    assert office.presses.done == {"backflow_acknowledge": 1}


def test_a_second_acknowledgement_is_answered(office: Office, slack: Workspace, store: IncidentStore) -> None:
    message = office.post(samples.incident())
    slack.press(message, "Acknowledge", name="lena")
    slack.press(message, "Acknowledge", user="U0OMAR", name="omar")
    assert "INC-7F3A9C is acknowledged by lena (Slack) since " in office.answer()
    assert slack.ephemerals[0][:2] == (CHANNEL, "U0OMAR")
    taken = store.decisions.handled(samples.incident()).acknowledged
    assert taken is not None
    assert taken.by == "lena (Slack)"


@pytest.mark.parametrize(("label", "lasts"), [("Silence 1 h", HOUR), ("Silence 1 d", 24 * HOUR)])
def test_a_silence_holds_back_what_is_alike(
    office: Office, slack: Workspace, store: IncidentStore, label: str, lasts: int
) -> None:
    message = office.post(samples.incident())
    before = now_ms()
    slack.press(message, label)
    shown = office.wait_for_edit("silenced until ")
    assert "by anna (Slack): INC-7F3A9C, by its button" in shown.words
    silences = store.decisions.silences(before)
    assert all(before <= silence.begins_at == silence.ends_at - lasts <= now_ms() for silence in silences)
    assert {silence.author for silence in silences} == {"anna (Slack)"}
    again = samples.incident(id="INC-AGAIN")
    other = samples.incident(id="INC-OTHER", causes=(), findings=(_of_group("payments"),))
    assert find_silence(again, silences) is not None
    assert find_silence(other, silences) is None
    assert silences[0].id in office.answer()
    for silence in silences:
        store.decisions.expire(silence.id, now_ms())
    office.dispatcher.wake()
    slack.wait_for(lambda: "silenced" not in slack.messages()[0].words, 30)


def _of_group(group: str) -> Finding:
    found = samples.rewind()
    return replace(found, subject={**found.subject, "group": group, "job": group})


def test_a_silence_ends_if_the_warning_gets_critical(office: Office, slack: Workspace, store: IncidentStore) -> None:
    warning = samples.incident(causes=(), findings=(replace(samples.rewind(), severity=Severity.WARNING),))
    warning = replace(warning, severity=Severity.WARNING)
    slack.press(office.post(warning), "Silence 1 h")
    office.wait_for_edit("silenced until ")
    silences = store.decisions.silences(0)
    assert find_silence(warning, silences) is not None
    assert find_silence(samples.incident(causes=()), silences) is None


def test_why_is_answered_with_evidence_to_who_asked(office: Office, slack: Workspace) -> None:
    message = office.post(samples.incident())
    slack.press(message, "Why?", user="U0OMAR")
    answer = office.answer()
    assert "Ruled out: operator reset (flink-job kept committing from 23:25:11.0 to 23:25:17.0)" in answer
    assert "broker 2005: session expired" in answer
    assert slack.ephemerals[0].user == "U0OMAR"
    assert not message.edits


def test_the_plot_is_posted_into_the_thread(office: Office, slack: Workspace) -> None:
    message = office.post(samples.incident(), reports=(CHECK_REPORT,))
    slack.wait_for(lambda: len(slack.uploads) == 1)
    slack.press(message, "Plot")
    slack.wait_for(lambda: len(slack.uploads) == 2)
    slack.wait_for(lambda: len([reply for reply in slack.threads.get(message.ts, ()) if reply.files]) == 2)
    assert slack.uploads[1].content == samples.PLOT
    assert slack.ephemerals == []


def test_without_a_plot_the_answer_says_what_makes_one(office: Office, slack: Workspace) -> None:
    slack.press(office.post(samples.incident()), "Plot")
    assert office.answer().startswith("INC-7F3A9C has no plot yet: Spark checks make them")


def test_a_plot_that_slack_refuses_is_answered(office: Office, slack: Workspace) -> None:
    message = office.post(samples.incident(), reports=(CHECK_REPORT,))
    slack.withhold("files:write")
    slack.press(message, "Plot")
    assert "It could not be posted: Slack refused files.getUploadURLExternal: missing_scope" in office.answer()
    slack.wait_for(lambda: office.presses.failed == 1)


def test_a_closed_incident_is_answered_in_words(office: Office, slack: Workspace, store: IncidentStore) -> None:
    incident = samples.incident()
    message = replace(office.post(incident))
    operators.close(store, incident, by="omar", now=now_ms(), reason="a test")
    for number, label in enumerate(("Acknowledge", "Silence 1 h"), 1):
        slack.press(message, label)
        assert office.answer(number) == "Nothing to decide: INC-7F3A9C is closed by omar: a test."
    slack.wait_for(lambda: labels(slack.messages()[0]) == ["Why?", "Plot"], 30)
    assert store.decisions.silences(0) == []


def test_a_merged_incident_is_answered_in_words(office: Office, slack: Workspace) -> None:
    message = replace(office.post(samples.incident()))
    office.post(replace(samples.incident(), status=Status.CLOSED, merged_into="INC-OTHER"))
    assert labels(slack.messages()[0]) == []
    slack.press(message, "Acknowledge")
    assert office.answer() == "Nothing to decide: INC-7F3A9C was merged into INC-OTHER: name that."
    slack.press(message, "Why?")
    assert office.answer(2) == "INC-7F3A9C was merged into INC-OTHER: see its message."


def test_an_unknown_incident_is_answered_in_words(office: Office, slack: Workspace) -> None:
    message = office.post(samples.incident(id="INC-<!channel>"))
    office.store.save(office.store.position + 1, [])
    office.store._db.execute("DELETE FROM incidents")
    slack.press(message, "Acknowledge")
    assert office.answer().startswith("This agent has no incident INC-&lt;!channel&gt;: it is older than")


def test_a_state_that_cannot_be_used_is_answered(office: Office, slack: Workspace, tmp_path: Path) -> None:
    message = office.post(samples.incident())
    office.path = tmp_path / "gone.sqlite3"
    with structlog.testing.capture_logs() as logged:
        slack.press(message, "Acknowledge")
        assert "nothing was done; press again later" in office.answer()
    assert not office.path.exists()
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["slack_press_failed"]
    office.path = office.store.path
    slack.press(message, "Acknowledge")
    office.wait_for_edit("acknowledged by anna (Slack)")


def test_who_is_not_in_the_channel_may_press(office: Office, slack: Workspace, store: IncidentStore) -> None:
    message = office.post(samples.incident())
    slack.workspace.outsiders.add("U0ANNA")
    slack.press(message, "Why?")
    slack.wait_for(lambda: office.presses.failed == 1)
    slack.press(message, "Acknowledge")
    office.wait_for_edit("acknowledged by anna (Slack)")
    assert store.decisions.handled(samples.incident()).acknowledged is not None


def test_delivery_goes_on_without_a_socket(office: Office, slack: Workspace) -> None:
    message = office.post(samples.incident())
    slack.refuse("internal_error", method="apps.connections.open", times=None)
    slack.socket.drop(cleanly=False)
    slack.wait_for(lambda: "internal_error" in office.presses.socket.problem, 30)
    office.post(samples.recovered())
    assert "RECOVERED" in slack.messages()[0].words
    slack.clear()
    slack.wait_for(lambda: office.presses.socket.is_connected, 60)
    slack.press(slack.messages()[0], "Why?")
    assert office.answer().startswith("INC-7F3A9C: ")
    assert message.ts == slack.messages()[0].ts


def test_more_presses_than_can_wait_are_counted(slack: Workspace, state_file: Path) -> None:
    socket = SlackSocket(slack.app_token, base_url=slack.url)
    presses = SlackPresses(socket, web_client(slack.token, slack.url, 2), lambda: state_file, lambda: None)
    for number in range(103):
        presses._put(Press(Button.WHY, f"INC-{number}", "U0ANNA", "anna", CHANNEL, "1.0"))
    assert presses.failed == 3


def test_without_an_app_token_there_are_no_buttons(slack: Workspace) -> None:
    Slack(slack.token, lambda _: CHANNEL, base_url=slack.url).deliver(samples.message(samples.incident()), None)
    assert labels(slack.messages()[0]) == []
