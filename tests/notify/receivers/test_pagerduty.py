"""PagerDuty against a stand-in of its Events API v2 that refuses what the service refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.config.http_client import HttpClient
from agent.model.findings import Acknowledgement, Incident, Severity, Status
from agent.model.matchers import Matchers, Silence
from agent.notify.base import RateLimited, Refused, Unanswered
from agent.notify.dispatcher import Dispatcher
from agent.notify.http_calls import HttpCaller
from agent.notify.receivers.pagerduty import SUMMARY_LIMIT, PagerDuty
from agent.notify.retries import FIRST_RETRY_MS
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Outbox
from testbed.waiting import wait_until
from tests import samples
from tests.notify.dispatching import run_dispatcher, wait_until_delivered
from tests.notify.receivers.standins import CLOSED, LATE, LOST, ROUTING_KEY, Fault, PagerDutyStandIn
from tests.notify.test_dispatcher import Clock
from tests.notify.test_quiet_hours import OVER
from tests.notify.test_silenced import WARNING

ID = samples.incident().id


@pytest.fixture
def service() -> Iterator[PagerDutyStandIn]:
    with PagerDutyStandIn() as stand_in:
        yield stand_in


@pytest.fixture
def pagerduty(service: PagerDutyStandIn) -> PagerDuty:
    return make_receiver(service)


def make_receiver(service: PagerDutyStandIn, key: str = ROUTING_KEY) -> PagerDuty:
    caller = HttpCaller(HttpClient(), secrets=[key], timeout=0.5)
    return PagerDuty("pagerduty on-call", f"{service.url}/v2/enqueue", key, caller)


def acknowledged(**more: object) -> Incident:
    taken = Acknowledgement(at=samples.at("23:26:00"), by="ada", severity=Severity.CRITICAL)
    return samples.incident(acknowledged=taken, **more)


def test_an_incident_is_triggered_acknowledged_and_resolved(service: PagerDutyStandIn, pagerduty: PagerDuty) -> None:
    handle = None
    for incident in (samples.incident(), samples.incident(title="other"), acknowledged(), acknowledged()):
        handle = pagerduty.deliver(samples.message(incident), handle)
        handle = pagerduty.deliver(samples.message(incident, 1, ("a line",)), handle)
    assert service.alerts == {ID: "acknowledged"}
    for _ in range(2):
        handle = pagerduty.deliver(samples.message(samples.recovered(acknowledged())), handle)
    assert service.alerts == {ID: "resolved"}
    pagerduty.deliver(samples.message(acknowledged()), handle)
    assert service.actions == ["trigger", "acknowledge", "resolve", "trigger", "acknowledge"]
    assert service.alerts == {ID: "acknowledged"}


def test_a_higher_severity_and_a_cause_are_sent(service: PagerDutyStandIn, pagerduty: PagerDuty) -> None:
    handle = None
    for severity, causes in ((Severity.WARNING, ()), (Severity.CRITICAL, ()), (Severity.CRITICAL, None)):
        fields = {} if causes is None else {"causes": causes}
        handle = pagerduty.deliver(samples.message(samples.incident(severity=severity, **fields)), handle)
    assert [payload["severity"] for payload in service.payloads] == ["warning", "critical", "critical"]


def test_the_payload_says_what_happened_and_what_to_do(service: PagerDutyStandIn, pagerduty: PagerDuty) -> None:
    pagerduty.deliver(samples.message(samples.incident(title="x" * 2_000)), None)
    (payload,) = service.payloads
    assert len(payload["summary"]) == SUMMARY_LIMIT
    assert payload["timestamp"] == "2026-11-20T23:25:08.300Z"
    assert (payload["source"], payload["class"]) == ("main", "offset_rewind")
    details = payload["custom_details"]
    assert (details["groups"], details["topics"]) == (["flink-job"], ["topic-124"])
    assert details["records"]["reread"] == 12_223
    assert details["do_now"]


def test_a_large_incident_fits(service: PagerDutyStandIn, pagerduty: PagerDuty) -> None:
    pagerduty.deliver(samples.message(samples.burst(200)), None)
    assert service.actions == ["trigger"]


def test_what_is_over_before_its_first_delivery_is_recorded(service: PagerDutyStandIn, pagerduty: PagerDuty) -> None:
    pagerduty.deliver(samples.message(samples.recovered()), None)
    assert service.actions == ["trigger", "resolve"]


def test_an_event_that_was_over_at_once_is_resolved_when_it_closes(
    service: PagerDutyStandIn, pagerduty: PagerDuty
) -> None:
    moment = samples.rewind(recovered_at=samples.rewind().at)
    fields = {"findings": (moment,), "recovered_at": moment.at}
    handle = pagerduty.deliver(samples.message(samples.incident(status=Status.RECOVERED, **fields)), None)
    assert service.alerts == {ID: "triggered"}
    pagerduty.deliver(samples.message(samples.incident(status=Status.CLOSED, **fields)), handle)
    assert service.alerts == {ID: "resolved"}


def test_failures_are_classified_without_the_key(service: PagerDutyStandIn, pagerduty: PagerDuty) -> None:
    service.faults.append(Fault(429))
    with pytest.raises(RateLimited) as limited:
        pagerduty.deliver(samples.message(), None)
    assert limited.value.retry_after == 60_000
    for fault in (Fault(500), LATE, CLOSED):
        service.faults.append(fault)
        with pytest.raises(Unanswered):
            pagerduty.deliver(samples.message(), None)
    other = "b2" * 16
    with pytest.raises(Refused, match=r"400 .*'routing_key' \*\*\* is invalid") as refused:
        make_receiver(service, other).deliver(samples.message(), None)
    assert other not in str(refused.value)
    service.faults.append(Fault(200))
    with pytest.raises(Refused, match="not PagerDuty's"):
        pagerduty.deliver(samples.message(), None)


def test_a_limit_after_the_first_action_leaves_it_in_doubt(service: PagerDutyStandIn, pagerduty: PagerDuty) -> None:
    taken: list[str] = []

    def limit_second(*request: object) -> tuple[int, object]:
        taken.append("x")
        if len(taken) == 2:
            return 429, {}
        return PagerDutyStandIn.take(service, *request)  # type: ignore[arg-type]

    service.take = limit_second  # type: ignore[method-assign,assignment]
    with pytest.raises(Unanswered, match="429"):
        pagerduty.deliver(samples.message(acknowledged()), None)
    assert service.alerts == {ID: "triggered"}


@pytest.mark.parametrize("fault", [LOST, LATE, CLOSED, Fault(503), Fault(429, {"Retry-After": "0"})])
def test_a_lost_answer_doubles_nothing(
    service: PagerDutyStandIn, pagerduty: PagerDuty, state_file: Path, fault: Fault
) -> None:
    service.faults.append(fault)
    with IncidentStore(state_file, [pagerduty.name]) as store:
        store.save(1, [samples.eventful()])
        with run_dispatcher(state_file, pagerduty) as dispatcher:
            wait_until_delivered(store)
            assert service.alerts == {ID: "triggered"}
            service.faults.append(fault)
            store.save(2, [samples.recovered(samples.eventful())])
            dispatcher.wake()
            wait_until_delivered(store)
    assert service.alerts == {ID: "resolved"}


def test_what_is_withdrawn_after_a_lost_answer_is_resolved(
    service: PagerDutyStandIn, pagerduty: PagerDuty, state_file: Path
) -> None:
    clock = [0]
    service.faults.append(LOST)
    with IncidentStore(state_file, [pagerduty.name]) as store:
        outbox = Outbox(state_file, pagerduty.name)
        dispatcher = Dispatcher(state_file, pagerduty, clock=lambda: clock[0])
        store.save(1, [samples.incident()])
        dispatcher.deliver_due(outbox)
        assert service.alerts == {ID: "triggered"}
        store.save(2, [samples.incident(status=Status.CLOSED, findings=(), causes=())])
        clock[0] += FIRST_RETRY_MS
        dispatcher.deliver_due(outbox)
        outbox.close()
    assert service.alerts == {ID: "resolved"}


def test_a_silenced_incident_that_reopens_pages_no_one(
    state_file: Path, service: PagerDutyStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("agent.notify.dispatcher.now_ms", clock)
    silences: list[Silence] = []
    receiver = make_receiver(service)
    store = IncidentStore(state_file, [receiver.name])
    dispatcher = Dispatcher(state_file, receiver, silences=lambda _: silences, clock=clock)
    outbox = Outbox(state_file, receiver.name)

    def deliver(incident: Incident) -> list[str]:
        store.save(store.position + 1, [incident])
        clock.now += 60_000
        for _ in range(5):
            dispatcher.deliver_due(outbox)
        return service.actions

    assert receiver.notifies(WARNING, {})  # after a lost answer
    assert deliver(WARNING) == ["trigger"]
    matchers = Matchers.model_validate_json('{"clusters": {"include": ["*"]}}')
    silences.append(Silence("SIL-1", matchers, clock.now, clock.now + 3_600_000, "lena", "planned"))
    assert deliver(replace(WARNING, **OVER)) == ["trigger", "resolve"]
    assert deliver(WARNING) == ["trigger", "resolve"]
    silences.clear()
    assert deliver(WARNING) == ["trigger", "resolve", "trigger"]
    outbox.close()
    store.close()


@pytest.mark.parametrize("fault", [LOST, LATE, CLOSED, Fault(503)])
def test_an_incident_that_turns_after_a_lost_answer_ends_as_it_is(
    service: PagerDutyStandIn, pagerduty: PagerDuty, state_file: Path, fault: Fault
) -> None:
    clock = Clock()
    dispatcher = Dispatcher(state_file, pagerduty, clock=clock)
    with IncidentStore(state_file, [pagerduty.name]) as store:
        outbox = Outbox(state_file, pagerduty.name)

        def save(incident: Incident, *faults: Fault) -> dict[str, str]:
            store.save(store.position + 1, [incident])
            service.faults.extend(faults)
            for _ in range(4):
                dispatcher.deliver_due(outbox)
                if not faults:
                    clock.now += 60_000
            return service.alerts

        assert save(samples.incident()) == {ID: "triggered"}
        save(samples.recovered(), fault)
        assert save(samples.incident()) == {ID: "triggered"}
        assert save(samples.recovered()) == {ID: "resolved"}
        save(samples.incident(), fault)
        assert save(samples.recovered()) == {ID: "resolved"}
        assert store.pending() == 0
        outbox.close()


def test_without_the_state_file_patterns_still_select(
    service: PagerDutyStandIn, state_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had what is unknown then. The end is sent in any case: an alert may be there."""
    receiver = make_receiver(service)
    monkeypatch.setattr(receiver, "_accepts", lambda incident: incident.severity is Severity.CRITICAL)
    clock = Clock()
    with IncidentStore(state_file, [receiver.name]) as store:
        store.mark_rebuilt(WARNING.opened_at + 1)
        outbox, dispatcher = Outbox(state_file, receiver.name), Dispatcher(state_file, receiver, clock=clock)
        for incident in (WARNING, replace(WARNING, title="another"), replace(WARNING, **OVER)):
            assert service.actions == []
            store.save(store.position + 1, [incident])
            for _ in range(3):
                dispatcher.deliver_due(outbox)
        assert service.actions == ["resolve"]
        store.save(store.position + 1, [replace(samples.incident(), id="INC-C0FFEE")])
        dispatcher.deliver_due(outbox)
        assert service.alerts["INC-C0FFEE"] == "triggered"
        outbox.close()


def test_a_receiver_that_was_taken_out_for_a_while_gets_what_happened_meanwhile(
    service: PagerDutyStandIn, pagerduty: PagerDuty, state_file: Path
) -> None:
    names = ["slack", pagerduty.name]
    versions = (samples.incident(), samples.recovered(), replace(samples.recovered(), status=Status.CLOSED))
    for position, (receivers, incident) in enumerate(zip((names, ["slack"], ["slack"]), versions, strict=True)):
        with IncidentStore(state_file, receivers) as store:
            assert store.save(position, [incident]) == set(receivers)
            if pagerduty.name in receivers:
                with run_dispatcher(state_file, pagerduty):
                    wait_until(lambda: service.alerts == {ID: "triggered"}, "the alert")
    with IncidentStore(state_file, [pagerduty.name]) as store, run_dispatcher(state_file, pagerduty):
        wait_until_delivered(store)
    assert service.alerts == {ID: "resolved"}


def test_a_receiver_that_is_added_gets_what_is_open(
    service: PagerDutyStandIn, pagerduty: PagerDuty, state_file: Path
) -> None:
    over = replace(samples.recovered(), id="INC-0E4A11")
    with IncidentStore(state_file, ["slack"]) as store:
        store.save(1, [samples.incident(), over])
    with IncidentStore(state_file, ["slack", pagerduty.name]) as store:
        for _ in range(2):
            store.queue_open()
            with run_dispatcher(state_file, pagerduty):
                wait_until(
                    lambda: all(not found.waiting for found in store.deliveries(ID) if found.receiver != "slack"),
                    "the outbox to be empty",
                )
    assert service.alerts == {ID: "triggered"}
    assert service.actions == ["trigger"]
