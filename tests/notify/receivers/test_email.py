"""E-mail against an SMTP server that is strict about order, lines and headers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from agent.model.findings import Severity, Status
from agent.notify.base import NotDelivered, Refused, Unanswered
from agent.notify.receivers.email import Email, EmailSettings
from agent.storage.incidents import IncidentStore
from tests import samples
from tests.notify.dispatching import run_dispatcher, wait_until_delivered
from tests.notify.receivers.standins import LATE, LOST, PASSWORD, Fault, SmtpStandIn, make_certificate, refused_port

RECIPIENTS = ("streams@example.com", "on-call@example.com")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def server() -> Iterator[SmtpStandIn]:
    with SmtpStandIn() as stand_in:
        yield stand_in


@pytest.fixture
def email(server: SmtpStandIn) -> Email:
    return make_receiver(server.port)


def make_receiver(port: int, secret: str | None = None, **more: Any) -> Email:
    table = {"host": "127.0.0.1", "port": port, "sender": "backflow@example.com", "recipients": RECIPIENTS}
    settings = EmailSettings.model_validate_json(json.dumps({**table, "tls": "none", **more}))
    return Email("email all", settings, secret, timeout=0.5)


def test_an_incident_is_one_thread(server: SmtpStandIn, email: Email) -> None:
    handle = None
    for incident in (
        samples.incident(severity=Severity.WARNING, causes=()),
        samples.incident(severity=Severity.WARNING, title="other"),
        samples.incident(),
        samples.recovered(),
        samples.recovered(samples.incident(status=Status.CLOSED)),
    ):
        handle = email.deliver(samples.message(incident), handle)
        handle = email.deliver(samples.message(incident, 1, ("a line",)), handle)
    first, raised, ended = server.mails
    assert first["Subject"] == "WARNING · flink-job rewound 12,223 records on topic-124[8]"
    assert first["In-Reply-To"] is None
    for mail in (raised, ended):
        assert mail["Subject"] == f"Re: {first['Subject']}"
        assert mail["In-Reply-To"] == mail["References"] == first["Message-ID"]
    assert len({mail["Message-ID"] for mail in server.mails}) == 3
    assert (
        first.get_content().splitlines()
        == samples.message(samples.incident(severity=Severity.WARNING, causes=())).report.lines()
    )
    assert ended.get_content().startswith("CRITICAL (RECOVERED) · ")
    assert server.envelopes == [("backflow@example.com", list(RECIPIENTS))] * 3
    assert first["To"] == ", ".join(RECIPIENTS)


def test_a_reminder_is_a_mail_of_the_thread(server: SmtpStandIn, email: Email) -> None:
    handle = email.deliver(samples.message(), None)
    handle = email.deliver(
        samples.message(number=1, lines=("Still open after 4 h, not acknowledged: it fell",)), handle
    )
    email.deliver(samples.message(samples.recovered()), handle)
    assert [mail["References"] for mail in server.mails[1:]] == [server.mails[0]["Message-ID"]] * 2
    assert server.mails[1].get_content().splitlines() == ["Still open after 4 h, not acknowledged: it fell"]


def test_a_server_that_is_slow_with_recipients_is_left(
    server: SmtpStandIn, email: Email, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of minutes would pass for one that hangs, and the watchdog would end the agent."""
    monkeypatch.setattr("agent.notify.receivers.email._RECIPIENT_LIMITS", 0)
    with pytest.raises(NotDelivered, match="is too slow: it took 0 of 2 recipients in time"):
        email.deliver(samples.message(), None)
    assert server.mails == []


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
def test_tls_and_login(certificate: Path, tls: str) -> None:
    login = {"username": "backflow", "password": {"env": "UNUSED"}, "tls": tls, "ca": str(certificate)}
    with SmtpStandIn(certificate, implicit=tls == "implicit", login=True) as server:
        receiver = make_receiver(server.port, PASSWORD, **login)
        receiver.deliver(samples.message(), None)
        assert len(server.mails) == 1
        assert receiver.identify() == f"127.0.0.1:{server.port} accepts connections as backflow"
        wrong = make_receiver(server.port, "hunter2", **login)
        with pytest.raises(Refused, match=r"535 5.7.8 not \*\*\*") as refused:
            wrong.deliver(samples.message(), None)
        assert "hunter2" not in str(refused.value)
        without_ca = make_receiver(server.port, PASSWORD, **login | {"ca": None})
        with pytest.raises(Refused, match="certificate is not trusted"):
            without_ca.deliver(samples.message(), None)


def test_without_starttls_nothing_is_sent(server: SmtpStandIn) -> None:
    with pytest.raises(Refused, match="STARTTLS"):
        make_receiver(server.port, tls="starttls").deliver(samples.message(), None)
    assert server.envelopes == []


def test_failures_before_the_mail_are_certain(server: SmtpStandIn, email: Email) -> None:
    for command, answer in (("MAIL", "451 try later"), ("DATA", "452 no space")):
        server.faults.append((command, answer))
        with pytest.raises(NotDelivered, match=answer) as raised:
            email.deliver(samples.message(), None)
        assert type(raised.value) is NotDelivered
    server.unknown_recipients.update(RECIPIENTS)
    with pytest.raises(Refused, match="no such user"):
        email.deliver(samples.message(), None)
    with refused_port() as port, pytest.raises(NotDelivered, match="Connection refused"):
        make_receiver(port).deliver(samples.message(), None)
    assert server.envelopes == []


def test_one_refused_recipient_keeps_the_mail_from_no_other(server: SmtpStandIn, email: Email) -> None:
    server.unknown_recipients.add(RECIPIENTS[0])
    with structlog.testing.capture_logs() as logged:
        email.deliver(samples.message(), None)
    assert server.envelopes == [("backflow@example.com", [RECIPIENTS[1]])]
    (entry,) = logged
    assert (entry["event"], entry["recipient"]) == ("recipient_refused", RECIPIENTS[0])


def test_a_line_in_a_title_adds_no_header(server: SmtpStandIn, email: Email) -> None:
    email.deliver(samples.message(samples.incident(title="a\r\nBcc: x@example.com\n\nö")), None)
    (mail,) = server.mails
    assert mail["Bcc"] is None


def test_a_large_incident_is_accepted(server: SmtpStandIn, email: Email) -> None:
    email.deliver(samples.message(samples.burst()), None)
    assert len(server.mails) == 1


@pytest.mark.parametrize("fault", [LOST, LATE])
def test_a_mail_without_an_answer_is_sent_again_under_the_same_id(
    server: SmtpStandIn, email: Email, state_file: Path, fault: Fault
) -> None:
    server.faults.append(fault)
    with IncidentStore(state_file, [email.name]) as store:
        store.save(1, [samples.eventful()])
        with run_dispatcher(state_file, email):
            wait_until_delivered(store)
    first, second = server.mails
    assert first["Message-ID"] == second["Message-ID"]


def test_a_lost_answer_is_in_doubt(server: SmtpStandIn, email: Email) -> None:
    server.faults.append(LOST)
    with pytest.raises(Unanswered, match="did not confirm"):
        email.deliver(samples.message(), None)


def test_an_end_is_mailed_though_the_cause_was_found_after_the_first_mail(server: SmtpStandIn, email: Email) -> None:
    handle = None
    for incident in (
        samples.incident(causes=()),
        samples.incident(),
        samples.recovered(),
        samples.incident(),
        samples.incident(merged_into="INC-B00257"),
    ):
        handle = email.deliver(samples.message(incident), handle)
    first, recovered, reopened, merged = (mail.get_content().splitlines()[0] for mail in server.mails)
    assert first == reopened
    assert recovered.startswith("CRITICAL (RECOVERED) · ")
    assert merged.startswith("CRITICAL (MERGED) · ")


def test_what_may_have_been_mailed_is_followed_by_how_it_is_now(server: SmtpStandIn, email: Email) -> None:
    handle = email.deliver(samples.message(samples.incident()), None)
    email.deliver(samples.message(samples.recovered()), handle)  # its answer is lost
    email.deliver(samples.message(samples.incident(), in_doubt=True), handle)
    headlines = [mail.get_content().splitlines()[0] for mail in server.mails]
    assert headlines[0] == headlines[2] != headlines[1]
