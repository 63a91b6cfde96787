"""The webhook against an endpoint that verifies each delivery as the how-to does."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from agent.config.credentials import Credential
from agent.config.http_client import HttpClient
from agent.model.findings import Severity, Status, incident_fields
from agent.notify.base import RateLimited, Refused, Unanswered
from agent.notify.http_calls import HttpCaller
from agent.notify.receivers.webhook import Webhook, WebhookSettings
from agent.storage.incidents import IncidentStore
from tests import samples
from tests.notify.dispatching import run_dispatcher, wait_until_delivered
from tests.notify.receivers.standins import CLOSED, LATE, LOST, PASSWORD, Fault, HttpStandIn, WebhookStandIn


@pytest.fixture
def endpoint() -> Iterator[WebhookStandIn]:
    with WebhookStandIn(PASSWORD) as stand_in:
        yield stand_in


@pytest.fixture
def webhook(endpoint: WebhookStandIn) -> Webhook:
    return make_webhook(endpoint)


def make_webhook(endpoint: WebhookStandIn, key: str | None = PASSWORD, path: str = "/hook") -> Webhook:
    caller = HttpCaller(HttpClient(), secrets=[PASSWORD, "/hook"], timeout=0.5)
    return Webhook("webhook own", endpoint.url + path, caller, key=key)


def test_each_change_is_an_event(webhook: Webhook, endpoint: WebhookStandIn) -> None:
    handle = None
    versions = [
        samples.incident(severity=Severity.WARNING),
        samples.incident(),
        samples.recovered(),
        samples.recovered(samples.incident(status=Status.CLOSED)),
        samples.incident(),
        samples.incident(merged_into="INC-B00257"),
    ]
    for incident in versions:
        handle = webhook.deliver(samples.message(incident), handle)
    assert endpoint.events == ["opened", "updated", "closed", "opened", "closed"]


def test_the_body_is_the_documented_incident(webhook: Webhook, endpoint: WebhookStandIn) -> None:
    incident = samples.incident()
    webhook.deliver(samples.message(incident), None)
    (body,) = endpoint.deliveries.values()
    assert body["incident"] == json.loads(json.dumps(incident_fields(incident)))
    assert body["text"].splitlines() == samples.message(incident).report.lines()
    assert body["lines"] == []


def test_check_reports_and_reminders_are_updates(webhook: Webhook, endpoint: WebhookStandIn) -> None:
    handle = webhook.deliver(samples.message(), None)
    handle = webhook.deliver(samples.message(number=1, lines=("23:25:14.0  a leader changed",)), handle)
    handle = webhook.deliver(samples.message(number=2, lines=("Still open after 4 h: it fell",)), handle)
    handle = webhook.deliver(samples.message(number=3, lines=("Spark: it fell once",), check_report=1), handle)
    webhook.deliver(samples.message(number=4, check_report=1, plot=samples.PLOT), handle)
    lines = [delivery["lines"] for delivery in endpoint.deliveries.values()]
    assert lines == [[], ["Still open after 4 h: it fell"], ["Spark: it fell once"]]
    assert endpoint.events == ["opened", "updated", "updated"]


def test_equal_changes_are_two_deliveries(webhook: Webhook, endpoint: WebhookStandIn) -> None:
    handle = webhook.deliver(samples.message(), None)
    for sighted in (False, True, False, True):
        handle = webhook.deliver(samples.message(samples.incident(sighted=sighted)), handle)
    assert len(endpoint.deliveries) == 5


def test_a_wrong_or_missing_signature_is_refused(endpoint: WebhookStandIn) -> None:
    for key in ("wrong", None):
        with pytest.raises(Refused, match="401"):
            make_webhook(endpoint, key).deliver(samples.message(), None)
    assert endpoint.deliveries == {}


def test_an_answer_that_drips_is_not_waited_for() -> None:
    """A call that lasted longer than the watchdog waits would end the agent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not over.wait(0.05):
                    connection.sendall(b"x")

        over = threading.Event()
        thread = threading.Thread(target=drip)
        thread.start()
        caller = HttpCaller(HttpClient(), timeout=0.5)
        answer = caller.post(f"http://127.0.0.1:{server.getsockname()[1]}", b"{}")
        over.set()
        thread.join()
    assert answer.status == HTTPStatus.OK
    assert 0 < len(answer.body) < 100


def test_failures_are_classified(webhook: Webhook, endpoint: WebhookStandIn) -> None:
    endpoint.faults.append(Fault(429, {"Retry-After": "7"}))
    with pytest.raises(RateLimited) as limited:
        webhook.deliver(samples.message(), None)
    assert limited.value.retry_after == 7_000
    for fault, reason in ((Fault(503), "503"), (LATE, "timed out|TimeoutError"), (CLOSED, "RemoteDisconnected")):
        endpoint.faults.append(fault)
        with pytest.raises(Unanswered, match=reason):
            webhook.deliver(samples.message(), None)
    endpoint.faults.append(Fault(302, {"Location": f"{endpoint.url}/hook"}))
    with pytest.raises(Refused, match="302"):
        webhook.deliver(samples.message(), None)
    with pytest.raises(Refused, match="404") as refused:
        make_webhook(endpoint, path="/secret-path").deliver(samples.message(), None)
    assert "secret-path" not in str(refused.value)


def test_secrets_that_an_answer_repeats_are_left_out(tmp_path: Path) -> None:
    class Echo(HttpStandIn):
        def take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
            del body
            return 404, {"error": f"Cannot {method} {path} or {path.partition('?')[0]} as {headers['authorization']}"}

    with Echo() as server:
        (tmp_path / "url").write_text(f"{server.url}/services/T024?key=abc123")
        (tmp_path / "token").write_text("xyz789")
        http_client = HttpClient(token=Credential(file=tmp_path / "token"))
        settings = WebhookSettings(url=Credential(file=tmp_path / "url"), http_client=http_client)
        with pytest.raises(Refused) as refused:
            settings.connect("webhook own").deliver(samples.message(), None)
    assert str(refused.value).partition(" refused it: ")[2] == (
        '404 {"error": "Cannot POST ***?*** or *** as Bearer ***"}'
    )


@pytest.mark.parametrize("fault", [LOST, LATE, CLOSED, Fault(500), Fault(429, {"Retry-After": "0"})])
def test_a_lost_answer_doubles_nothing(
    endpoint: WebhookStandIn, webhook: Webhook, state_file: Path, fault: Fault
) -> None:
    endpoint.faults.append(fault)
    with IncidentStore(state_file, [webhook.name]) as store:
        store.save(1, [samples.eventful()])
        with run_dispatcher(state_file, webhook) as dispatcher:
            wait_until_delivered(store)
            endpoint.faults.append(fault)
            store.save(2, [samples.recovered(samples.eventful())])
            dispatcher.wake()
            wait_until_delivered(store)
    assert endpoint.events == ["opened", "closed"]


def test_an_incident_that_ends_again_after_a_lost_answer_is_closed(webhook: Webhook, endpoint: WebhookStandIn) -> None:
    handle = webhook.deliver(samples.message(samples.recovered()), webhook.deliver(samples.message(), None))
    webhook.deliver(samples.message(samples.incident()), handle)  # its answer is lost
    webhook.deliver(samples.message(samples.recovered(), in_doubt=True), handle)
    assert endpoint.events == ["opened", "closed", "opened", "closed"]
