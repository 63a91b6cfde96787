"""Alertmanager by its API v2, for those whose routing is there: one alert per incident.

An alert is idempotent by its labels. It ends by itself unless it is sent again: while the incident lasts, each minute.
https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
import structlog
from pydantic import AfterValidator

from agent.config.credentials import Credential
from agent.config.http_client import HttpClient
from agent.config.receivers import ReceiverSettings, SecretReader, Url
from agent.config.toml_places import KeyPath
from agent.engine.impact_and_root_cause import worst_first
from agent.model.config_types import PositiveDuration, non_empty
from agent.model.findings import Incident, Status
from agent.model.times import rfc3339
from agent.notify.base import Handle, Message, NotDelivered, SingleChannel, Unanswered
from agent.notify.http_calls import HttpCaller

LASTS = 4
"""After how many intervals without another request an alert ends, as with Prometheus."""

CLOCK_SLACK_MS = 10_000
"""How far Alertmanager's clock may be behind: an end in its future leaves the alert firing until it ends by itself."""

_BATCH = 100
"""Alerts in one request."""

log = structlog.get_logger(__name__)


class AlertmanagerSettings(ReceiverSettings):
    """An Alertmanager, or the members of its cluster. Its own routes, silences and repetitions apply.

    For example:

        [receivers.alerts]
        kind = "alertmanager"
        urls = ["http://alertmanager-1:9093", "http://alertmanager-2:9093"]
    """

    urls: Annotated[tuple[Url, ...], AfterValidator(non_empty)]
    """Addresses of all members, with the path prefix if there is one. Each gets every alert; one must accept it."""
    http_client: HttpClient = HttpClient()
    """Authentication and TLS."""
    proxy: Url | None = None
    """Address of an HTTP proxy. Default: that of the environment (`https_proxy`)."""
    resend_interval: PositiveDuration = 60_000
    """How often an open incident's alert is sent again. It ends after four intervals without Backflow."""

    def secrets(self) -> Iterator[tuple[KeyPath, Credential, SecretReader]]:
        """Yield the key path, the source and the reader of each secret."""
        yield from self.http_client.files()

    def connect(self, name: str) -> "Alertmanager":
        """Return the receiver. Raises CredentialError."""
        caller = HttpCaller(self.http_client, proxy=self.proxy)
        return Alertmanager(name, self.urls, caller, refresh_interval=self.resend_interval, accepts=self.match_any)


class Alertmanager(SingleChannel):
    """The receiver of one Alertmanager cluster.

    refresh_interval: how often the alerts of open incidents are sent again, ms.
    """

    edits = True
    is_keyed = True

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        caller: HttpCaller,
        *,
        refresh_interval: int,
        accepts: Callable[[Incident], bool] = lambda _: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """clock: seconds since the epoch."""
        super().__init__(name, accepts)
        self.refresh_interval = refresh_interval
        self._urls = [url.rstrip("/") for url in urls]
        self._caller, self._clock = caller, clock
        self._failed: set[str] = set()

    def identify(self) -> str:
        """Return the version of each member and the state of the cluster. Raises NotDelivered."""
        found = []
        for url in self._urls:
            answer = self._caller.get(f"{url}/api/v2/status")
            try:
                status = msgspec.json.decode(answer.body)
                found.append(f"{status['versionInfo']['version']}, cluster {status['cluster']['status']}")
            except (ValueError, LookupError, TypeError, RecursionError):
                msg = f"the answer is not Alertmanager's: {self._caller.quoted(answer.body)}"
                raise Unanswered(msg) from None
        return "; ".join(found)

    def notifies(self, incident: Incident, handle: Handle) -> bool:
        """Return whether the alert has ended and would fire again, or another one with a new severity would."""
        alert = handle.get("alert")
        is_other = alert is not None and alert["labels"]["severity"] != incident.severity.value
        return alert is None or (is_other and incident.status is Status.OPEN)

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Send the incident's alert as it is now, ended if the incident is over. Raises NotDelivered.

        Digests and thread entries are no alerts. The labels stay those of the first delivery, except the severity: with
        another one it is another alert to Alertmanager, and the first is ended.
        """
        if message.number > 0 or message.is_digest or message.is_report:
            return handle or {}
        known = (handle or {}).get("alert")
        now = self._now()
        alert = {
            "labels": (_labels(message.incident) if known is None else known["labels"])
            | {"severity": message.incident.severity.value},
            "annotations": _annotations(message),
            "startsAt": rfc3339(min(message.incident.opened_at, now)),
        }
        if message.report.is_resolved:
            ended = _ended(alert if known is None else {**alert, "labels": known["labels"]}, message.incident, now)
            self._post([ended])
            return {"alert": None}
        replaced = [] if known is None or known["labels"] == alert["labels"] else [_ended(known, None, now)]
        self._post([*replaced, self._lasting(alert, now)])
        return {"alert": alert}

    def refresh(self, handles: Sequence[Handle]) -> None:
        """Send again the alerts that were delivered and have not ended. Raises NotDelivered."""
        alerts = [handle["alert"] for handle in handles if handle.get("alert") is not None]
        now = self._now()
        for begin in range(0, len(alerts), _BATCH):
            self._post([self._lasting(alert, now) for alert in alerts[begin : begin + _BATCH]], self._urls)

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _lasting(self, alert: dict[str, Any], now: int) -> dict[str, Any]:
        return {**alert, "endsAt": rfc3339(now + LASTS * self.refresh_interval)}

    def _post(self, alerts: Sequence[dict[str, Any]], members: Sequence[str] = ()) -> None:
        """Send to members, by default to those that did not fail last; one must take it. Raises NotDelivered.

        One that failed gets the alerts that last with the next refresh: its time limit would delay all others.
        """
        body = msgspec.json.encode(alerts)
        errors: dict[str, NotDelivered] = {}
        members = members or [url for url in self._urls if url not in self._failed] or self._urls
        for url in members:
            try:
                self._caller.post(f"{url}/api/v2/alerts", body)
            except NotDelivered as error:
                errors[url] = error
            else:
                self._failed.discard(url)
        if len(errors) == len(members):
            self._failed.update(errors)
            first = next(iter(errors.values()))
            raise next((error for error in errors.values() if isinstance(error, Unanswered)), first)
        for url in errors.keys() - self._failed:
            log.warning("alertmanager_member_failed", receiver=self.name, reason=str(errors[url]))
        self._failed.update(errors)


def _ended(alert: dict[str, Any], incident: Incident | None, now: int) -> dict[str, Any]:
    """Return the alert with its end: when the incident recovered, else just now. It never ends before it starts."""
    recovered = now if incident is None or incident.recovered_at is None else incident.recovered_at
    return {**alert, "endsAt": max(rfc3339(min(recovered, now - CLOCK_SLACK_MS)), alert["startsAt"])}


def _labels(incident: Incident) -> dict[str, str]:
    """Return what identifies the alert and what routes match: names of the worst effect."""
    effect = next(iter(worst_first(incident.findings)), None)
    subject = {} if effect is None else effect.subject
    labels = {
        "alertname": "backflow" if effect is None else effect.kind,
        "rule": "" if effect is None else effect.rule,
        "cluster": incident.cluster or "",
        "group": str(subject.get("group") or subject.get("job_name") or ""),
        "topic": str(subject.get("topic") or ""),
        "severity": incident.severity.value,
        "incident": incident.id,
    }
    return {name: value for name, value in labels.items() if value}


def _annotations(message: Message) -> dict[str, str]:
    report = message.report
    texts = {
        "summary": report.title,
        "description": report.paragraph,
        "timeline": "\n".join(report.timeline_lines),
        **{section.heading.lower().replace(" ", "_"): "\n".join(section.lines) for section in report.sections()},
        "context": report.context,
    }
    return {name: text for name, text in texts.items() if text}
