"""Alertmanager against a stand-in of its API v2 that merges and ends alerts as it does."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from agent.config.http_client import HttpClient
from agent.model.findings import Severity, Status
from agent.notify.base import Handle, RateLimited, Refused, Unanswered
from agent.notify.dispatcher import Dispatcher
from agent.notify.http_calls import HttpCaller
from agent.notify.receivers.alertmanager import Alertmanager
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Outbox
from tests import samples
from tests.notify.dispatching import run_dispatcher, wait_until_delivered
from tests.notify.receivers.standins import CLOSED, LATE, LOST, AlertmanagerStandIn, Fault, refused_port

NOW = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
INTERVAL_MS = 60_000

LABELS = {
    "alertname": "offset_rewind",
    "rule": "rewind",
    "cluster": "main",
    "group": "flink-job",
    "topic": "topic-124",
    "severity": "critical",
    "incident": "INC-7F3A9C",
}


@pytest.fixture
def server() -> Iterator[AlertmanagerStandIn]:
    with AlertmanagerStandIn(NOW) as stand_in:
        yield stand_in


@pytest.fixture
def receiver(server: AlertmanagerStandIn) -> Alertmanager:
    return make_receiver(server, server.url)


def make_receiver(server: AlertmanagerStandIn, *urls: str, ahead: float = 0) -> Alertmanager:
    caller = HttpCaller(HttpClient(), timeout=0.5)

    def clock() -> float:
        return server.now.timestamp() + ahead

    return Alertmanager("alertmanager all", urls, caller, refresh_interval=INTERVAL_MS, clock=clock)


def test_an_incident_fires_with_its_labels_until_it_recovers(
    server: AlertmanagerStandIn, receiver: Alertmanager
) -> None:
    handle = receiver.deliver(samples.message(), None)
    handle = receiver.deliver(samples.message(number=1, lines=("a line",)), handle)
    assert server.firing == [LABELS]
    (alert,) = server.alerts.values()
    assert alert["starts"].isoformat() == "2026-11-20T23:25:08.300000+00:00"
    assert alert["annotations"]["summary"] == "flink-job rewound 12,223 records on topic-124[8]"
    handle = receiver.deliver(samples.message(samples.recovered()), handle)
    assert server.firing == []
    assert handle == {"alert": None}
    receiver.deliver(samples.message(), handle)
    assert server.firing == [LABELS]


def test_an_alert_ends_at_once_if_the_clock_there_is_behind(server: AlertmanagerStandIn) -> None:
    receiver = make_receiver(server, server.url, ahead=9)
    handle = receiver.deliver(samples.message(), None)
    closed = samples.incident(status=Status.CLOSED)
    receiver.deliver(samples.message(closed), handle)
    assert server.firing == []


def test_a_higher_severity_replaces_the_alert(server: AlertmanagerStandIn, receiver: Alertmanager) -> None:
    handle = receiver.deliver(samples.message(samples.incident(severity=Severity.WARNING)), None)
    server.advance(seconds=10)
    receiver.deliver(samples.message(), handle)
    assert server.firing == [LABELS]
    assert len(server.alerts) == 2


def test_the_labels_stay_if_another_effect_becomes_worse(server: AlertmanagerStandIn, receiver: Alertmanager) -> None:
    handle = receiver.deliver(samples.message(), None)
    worse = samples.rewind(1, 50_000, group="other", topic="orders")
    receiver.deliver(samples.message(samples.incident(findings=(samples.rewind(), worse))), handle)
    assert server.firing == [LABELS]


def test_what_is_withdrawn_ends(server: AlertmanagerStandIn, receiver: Alertmanager) -> None:
    handle = receiver.deliver(samples.message(), None)
    server.advance(seconds=10)
    receiver.deliver(samples.message(samples.incident(status=Status.CLOSED, findings=(), causes=())), handle)
    assert server.firing == []


def test_an_open_incident_fires_as_long_as_the_agent_runs(
    server: AlertmanagerStandIn, receiver: Alertmanager, state_file: Path
) -> None:
    clock = [0]
    with IncidentStore(state_file, [receiver.name]) as store:
        store.save(1, [samples.incident()])
        outbox = Outbox(state_file, receiver.name)
        for _ in range(2):  # the second is a restarted agent
            dispatcher = Dispatcher(state_file, receiver, clock=lambda: clock[0])
            for _ in range(30):
                dispatcher.deliver_due(outbox)
                assert server.firing == [LABELS]
                server.advance(seconds=50)
                clock[0] += 50_000
        assert server.posts <= 62
        store.save(2, [samples.recovered()])
        for _ in range(3):
            dispatcher.deliver_due(outbox)
            assert server.firing == []
            clock[0] += INTERVAL_MS
        outbox.close()
    assert server.posts <= 63


def test_without_the_agent_an_alert_ends(server: AlertmanagerStandIn, receiver: Alertmanager) -> None:
    receiver.deliver(samples.message(), None)
    server.advance(milliseconds=4 * INTERVAL_MS)
    assert server.firing == []


def test_a_failed_refresh_is_repeated_soon(
    server: AlertmanagerStandIn, receiver: Alertmanager, state_file: Path
) -> None:
    clock = [0]
    with IncidentStore(state_file, [receiver.name]) as store:
        store.save(1, [samples.incident()])
        outbox = Outbox(state_file, receiver.name)
        dispatcher = Dispatcher(state_file, receiver, clock=lambda: clock[0])
        dispatcher.deliver_due(outbox)
        server.faults.extend([Fault(503), CLOSED])
        for _ in range(3 * INTERVAL_MS // 5_000):
            server.advance(seconds=5)
            clock[0] += 5_000
            dispatcher.deliver_due(outbox)
            assert server.firing == [LABELS]
        outbox.close()
    assert not server.faults


def test_many_alerts_are_sent_again(server: AlertmanagerStandIn, receiver: Alertmanager) -> None:
    handles: list[Handle] = [
        receiver.deliver(samples.message(samples.incident(id=f"INC-{number:06}")), None) for number in range(250)
    ]
    server.advance(milliseconds=INTERVAL_MS)
    before = server.posts
    receiver.refresh([*handles, {"alert": None}, {}])
    server.advance(milliseconds=3.5 * INTERVAL_MS)
    assert len(server.firing) == 250
    assert server.posts - before == 3


def test_one_member_of_a_cluster_is_enough(server: AlertmanagerStandIn) -> None:
    with refused_port() as port:
        down = f"http://127.0.0.1:{port}"
        make_receiver(server, down, server.url).deliver(samples.message(), None)
        assert server.firing == [LABELS]
        with pytest.raises(Unanswered, match="Connection refused"):
            make_receiver(server, down).deliver(samples.message(), None)


def test_failures_are_classified(server: AlertmanagerStandIn, receiver: Alertmanager) -> None:
    server.faults.append(Fault(429, {"Retry-After": "3"}))
    with pytest.raises(RateLimited):
        receiver.deliver(samples.message(), None)
    server.faults.append(Fault(400))
    with pytest.raises(Refused, match="400"):
        receiver.deliver(samples.message(), None)
    assert receiver.identify() == "0.28.1, cluster ready"


@pytest.mark.parametrize("fault", [LOST, LATE, CLOSED, Fault(500), Fault(429, {"Retry-After": "0"})])
def test_a_lost_answer_doubles_nothing(
    server: AlertmanagerStandIn, receiver: Alertmanager, state_file: Path, fault: Fault
) -> None:
    with IncidentStore(state_file, [receiver.name]) as store:
        store.save(1, [samples.eventful()])
        server.faults.append(fault)
        with run_dispatcher(state_file, receiver) as dispatcher:
            wait_until_delivered(store)
            assert server.firing == [LABELS]
            server.faults.append(fault)
            store.save(2, [samples.recovered(samples.eventful())])
            dispatcher.wake()
            wait_until_delivered(store)
    assert server.firing == []
    assert len(server.alerts) == 1


def test_an_alert_that_fires_anew_notifies(receiver: Alertmanager) -> None:
    """It waits for the end of silences and quiet hours, as an end does not."""
    warning = samples.incident(severity=Severity.WARNING)
    fired = receiver.deliver(samples.message(warning), None)
    assert not receiver.notifies(warning, fired)
    assert receiver.notifies(samples.incident(), fired)
    assert not receiver.notifies(samples.recovered(), fired)
    ended = receiver.deliver(samples.message(samples.recovered(warning)), fired)
    assert receiver.notifies(warning, ended)


def test_a_member_that_fails_is_tried_with_each_refresh_only(server: AlertmanagerStandIn) -> None:
    """Its time limit would delay the alerts of the others, so that they end."""
    with AlertmanagerStandIn(NOW) as other:
        receiver = make_receiver(server, other.url, server.url)
        other.faults += [Fault(500), Fault(500)]
        handles = [receiver.deliver(samples.message(samples.incident(id=f"INC-{number}")), None) for number in range(3)]
        assert (len(server.firing), len(other.faults)) == (3, 1)
        with structlog.testing.capture_logs() as logs:
            receiver.refresh(handles)
        assert (logs, other.firing, len(other.faults)) == ([], [], 0)
        receiver.refresh(handles)
        assert len(other.firing) == 3
        receiver.deliver(samples.message(samples.incident(id="INC-3")), None)
        assert len(other.firing) == len(server.firing) == 4
