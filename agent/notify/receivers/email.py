"""E-mail by SMTP: an incident is one thread, by Message-ID and References.

A mail is sent when an incident opens, gets worse, is over or opens again. Mails cannot be looked up: one whose
answer was lost is sent again, with the same Message-ID, by which some servers and clients drop the second.
"""

import smtplib
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import format_datetime
from pathlib import Path
from typing import Annotated, Literal, NoReturn, Self

import structlog
from pydantic import AfterValidator, Field, model_validator

from agent.config.credentials import Credential, CredentialError
from agent.config.receivers import ReceiverSettings, SecretReader, authorities, read_matching
from agent.config.toml_places import KeyPath
from agent.model.config_types import non_empty
from agent.model.findings import Incident
from agent.notify.base import Handle, Message, NotDelivered, Refused, SingleChannel, Unanswered
from agent.notify.http_calls import TIMEOUT_S, failure, quoted
from agent.notify.policy import Why, repeat, summary
from agent.render.thread import is_reminder

PORTS = {"starttls": 587, "implicit": 465, "none": 25}
"""The usual port for each kind of TLS."""

_SENT = {Why.FIRST, Why.SEVERITY_RAISED, Why.MERGED, Why.RESOLVED, Why.REOPENED}
_SUBJECT_LIMIT = 200
_RECIPIENT_LIMITS = 8
"""How many time limits of a step all recipients may take: a call of minutes would pass for one that hangs."""

log = structlog.get_logger(__name__)


def _mailbox(value: str) -> str:
    local, _, domain = value.rpartition("@")
    if not local or not domain or not value.isascii() or any(character in '<>,;" \t\r\n\\' for character in value):
        msg = f'expected an address such as "backflow@example.com", got "{value}"'
        raise ValueError(msg)
    return value


Mailbox = Annotated[str, AfterValidator(_mailbox)]
"""An address without a name."""


class EmailSettings(ReceiverSettings):
    """E-mail by an SMTP server, when an incident opens, becomes more severe, and is resolved.

    For example:

        [receivers.mail]
        kind = "email"
        host = "smtp.example.com"
        username = "backflow"
        password = { credential = "smtp-password" }
        sender = "backflow@example.com"
        recipients = ["streams@example.com"]
    """

    host: Annotated[str, Field(min_length=1)]
    """The server."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Its port. Default: 587 with STARTTLS, 465 with implicit TLS, 25 without."""
    tls: Literal["starttls", "implicit", "none"] = "starttls"
    """How the connection is encrypted: after `STARTTLS`, from the start, or not at all."""
    ca: Path | None = None
    """PEM file with the certificates of trusted authorities. Default: those of the system."""
    username: str | None = None
    """User name, if the server asks for one."""
    password: Credential | None = None
    """Where to read the password."""
    sender: Mailbox
    """Address in `From`."""
    recipients: Annotated[tuple[Mailbox, ...], AfterValidator(non_empty)]
    """Addresses in `To`."""

    @model_validator(mode="after")
    def _require_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            msg = "`username` and `password` belong together"
            raise ValueError(msg)
        if self.tls == "none" and self.password is not None:
            msg = '`password` needs TLS: `tls` must not be "none"'
            raise ValueError(msg)
        return self

    def secrets(self) -> Iterator[tuple[KeyPath, Credential, SecretReader]]:
        """Yield the key path, the source and the reader of each secret."""
        if self.password is not None:
            yield ("password",), self.password, self.read_password
        yield from authorities(self.ca)

    def read_password(self) -> str | None:
        """Return the password. Raises CredentialError."""
        if self.password is None:
            return None
        return read_matching(self.password, "[ -~]+", "a password of ASCII characters").get_secret_value()

    def connect(self, name: str) -> "Email":
        """Return the receiver. Raises CredentialError."""
        return Email(name, self, self.read_password(), accepts=self.match_any)


class Email(SingleChannel):
    """The receiver of one list of recipients."""

    edits = False

    def __init__(
        self,
        name: str,
        settings: EmailSettings,
        password: str | None,
        *,
        accepts: Callable[[Incident], bool] = lambda _: True,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """timeout: seconds for each step of a session. Raises CredentialError."""
        super().__init__(name, accepts)
        self._settings, self._password, self._timeout = settings, password, timeout
        try:
            self._context = ssl.create_default_context(cafile=settings.ca)
        except OSError as error:
            msg = f"the file of `ca` cannot be read: {error.strerror or type(error).__name__}"
            raise CredentialError(msg) from error

    def identify(self) -> str:
        """Log in, and return where. Raises NotDelivered."""
        with self._session() as server:
            self._require(server.noop())
        user = "without login" if self._settings.username is None else f"as {self._settings.username}"
        return f"{self._server_name} accepts connections {user}"

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Send a mail if the incident opened, got worse, is over or opened again, a reminder or a digest.

        Raises NotDelivered.
        """
        known = handle or {}
        is_note = message.number > 0
        if is_note and not is_reminder(message.lines):
            return known
        is_update = not is_note and not message.is_digest and not message.is_report and not message.in_doubt
        if is_update and repeat(message.incident, known) not in _SENT:
            return known
        mails = known.get("mails", 0)
        subject = known.get("subject") or _cut(message.report.headline)
        self._send(self._mail(message, mails, subject))
        state = known if is_note else summary(message.incident)
        return {**state, "mails": mails + 1, "subject": subject}

    @property
    def _server_name(self) -> str:
        return f"{self._settings.host}:{self._port}"

    @property
    def _port(self) -> int:
        return self._settings.port or PORTS[self._settings.tls]

    def _mail(self, message: Message, mails: int, subject: str) -> EmailMessage:
        """Return the mail. mails: how many of the incident were sent; the first is what all others refer to."""
        incident = message.incident
        mail = EmailMessage(policy=SMTP_POLICY)
        mail["From"] = f"Backflow <{self._settings.sender}>"
        mail["To"] = ", ".join(self._settings.recipients)
        mail["Subject"] = f"Re: {subject}" if mails else subject  # clients join mails by it too
        mail["Date"] = format_datetime(datetime.now(UTC))
        mail["Message-ID"] = self._message_id(incident, mails)
        if mails:
            mail["In-Reply-To"] = self._message_id(incident, 0)
            mail["References"] = self._message_id(incident, 0)
        mail["Auto-Submitted"] = "auto-generated"
        mail["Backflow-Incident"] = incident.id
        lines = message.lines if message.number > 0 else message.report.lines()
        mail.set_content("\n".join(lines) + "\n", cte="quoted-printable")
        return mail

    def _message_id(self, incident: Incident, number: int) -> str:
        domain = self._settings.sender.rpartition("@")[2]
        return f"<{incident.id}.{number}@{domain}>"

    def _send(self, mail: EmailMessage) -> None:
        with self._session() as server:
            self._require(server.mail(self._settings.sender))
            refused = self._refused(server, self._settings.recipients)
            try:
                code, text = server.data(mail.as_bytes())
            except smtplib.SMTPDataError as error:  # to the command, before the mail
                self._reject(error.smtp_code, error.smtp_error)
            except (OSError, smtplib.SMTPException) as error:
                msg = f"{self._server_name} did not confirm the mail: {failure(error)}"
                raise Unanswered(msg) from None
            self._require((code, text))
        for recipient, reason in refused.items():
            log.warning("recipient_refused", receiver=self.name, recipient=recipient, reason=reason)

    def _refused(self, server: smtplib.SMTP, recipients: Sequence[str]) -> dict[str, str]:
        """Return the recipients that are refused and why. Raises NotDelivered if all are."""
        answers: dict[str, tuple[int, bytes]] = {}
        deadline = time.monotonic() + _RECIPIENT_LIMITS * self._timeout
        for recipient in recipients:
            if time.monotonic() > deadline:
                msg = f"{self._server_name} is too slow: it took {len(answers)} of {len(recipients)} recipients in time"
                raise NotDelivered(msg)
            answers[recipient] = server.rcpt(recipient)
        refused = {recipient: answer for recipient, answer in answers.items() if answer[0] not in (250, 251)}
        if len(refused) == len(answers):
            self._reject(*min(refused.values(), key=lambda answer: answer[0]))
        return {recipient: self._said(*answer) for recipient, answer in refused.items()}

    @contextmanager
    def _session(self) -> Iterator[smtplib.SMTP]:
        """Yield a connection after the login. Raises NotDelivered; what ends a session before the mail is certain."""
        try:
            server = self._connect()
            try:
                if self._settings.tls == "starttls":
                    server.starttls(context=self._context)
                server.ehlo_or_helo_if_needed()
                if self._settings.username is not None:
                    server.login(self._settings.username, self._password or "")
                yield server
                # The mail is confirmed by now.
                with suppress(OSError, smtplib.SMTPException):
                    server.quit()
            finally:
                server.close()
        except smtplib.SMTPNotSupportedError as error:
            msg = f"{self._server_name}: {error}"
            raise Refused(msg) from None
        except smtplib.SMTPResponseException as error:
            self._reject(error.smtp_code, error.smtp_error)
        except ssl.SSLCertVerificationError as error:
            msg = f"{self._server_name}: {failure(error)}"
            raise Refused(msg) from None
        except (OSError, smtplib.SMTPException) as error:
            msg = f"{self._server_name} cannot be used: {failure(error)}"
            raise NotDelivered(msg) from None

    def _connect(self) -> smtplib.SMTP:
        if self._settings.tls == "implicit":
            return smtplib.SMTP_SSL(self._settings.host, self._port, timeout=self._timeout, context=self._context)
        return smtplib.SMTP(self._settings.host, self._port, timeout=self._timeout)

    def _require(self, answer: tuple[int, bytes]) -> None:
        """Raise NotDelivered unless the answer is a success."""
        if not 200 <= answer[0] < 300:
            self._reject(*answer)

    def _reject(self, code: int, text: bytes | str) -> NoReturn:
        """Raise what an answer means: codes from 500 on last until somebody changes something."""
        reason = f"{self._server_name} refused it: {self._said(code, text)}"
        if code >= 500:
            raise Refused(reason, str(code))
        raise NotDelivered(reason)

    def _said(self, code: int, text: bytes | str) -> str:
        said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return quoted(f"{code} {said.replace(self._password, '***') if self._password else said}")


def _cut(subject: str) -> str:
    return subject if len(subject) <= _SUBJECT_LIMIT else f"{subject[: _SUBJECT_LIMIT - 1]}…"
