"""PagerDuty by its Events API v2: one alert per incident, whose id is the alert's `dedup_key`.

Every event is idempotent by that key, so nothing is doubled if an answer is lost.
https://developer.pagerduty.com/docs/events-api-v2-overview
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from agent.config.credentials import Credential
from agent.config.http_client import HttpClient
from agent.config.receivers import ReceiverSettings, SecretReader, Url, authorities, read_matching
from agent.config.toml_places import KeyPath
from agent.engine.impact_and_root_cause import worst_first
from agent.model.findings import Incident, Severity
from agent.model.times import rfc3339
from agent.notify.base import Handle, Message, NotDelivered, Refused, SingleChannel, Unanswered
from agent.notify.http_calls import HttpCaller

SUMMARY_LIMIT = 1024
"""Characters of a summary that PagerDuty accepts."""

_NAMES_LIMIT = 20


class PagerDutySettings(ReceiverSettings):
    """A PagerDuty service. Its integration has the type "Events API V2".

    For example:

        [receivers.on-call]
        kind = "pagerduty"
        routing_key = { credential = "pagerduty-key" }
        severities = ["critical"]
    """

    routing_key: Credential
    """Where to read the integration key, 32 letters and digits."""
    url: Url = "https://events.pagerduty.com/v2/enqueue"
    """Address of the Events API; that of the EU is `https://events.eu.pagerduty.com/v2/enqueue`."""
    proxy: Url | None = None
    """Address of an HTTP proxy. Default: that of the environment (`https_proxy`)."""
    ca: Path | None = None
    """PEM file with the certificates of trusted authorities, such as a proxy's. Default: those of the system."""

    def secrets(self) -> Iterator[tuple[KeyPath, Credential, SecretReader]]:
        """Yield the key path, the source and the reader of each secret."""
        yield ("routing_key",), self.routing_key, self.read_key
        yield from authorities(self.ca)

    def read_key(self) -> str:
        """Return the integration key. Raises CredentialError."""
        expected = "the integration key of an Events API V2 integration, 32 letters and digits"
        return read_matching(self.routing_key, "[A-Za-z0-9]{32}", expected).get_secret_value()

    def connect(self, name: str) -> "PagerDuty":
        """Return the receiver. Raises CredentialError."""
        key = self.read_key()
        caller = HttpCaller(HttpClient(ca=self.ca), proxy=self.proxy, secrets=[key])
        return PagerDuty(name, self.url, key, caller, accepts=self.match_any)


class PagerDuty(SingleChannel):
    """The receiver of one service."""

    edits = True
    is_keyed = True

    def __init__(
        self,
        name: str,
        url: str,
        key: str,
        caller: HttpCaller,
        *,
        accepts: Callable[[Incident], bool] = lambda _: True,
    ) -> None:
        """key: the integration key."""
        super().__init__(name, accepts)
        self._url, self._key, self._caller = url, key, caller

    def notifies(self, incident: Incident, handle: Handle) -> bool:
        """Return whether the alert is resolved, or may not exist: triggered, it pages."""
        del incident
        return bool(handle.get("over", True))

    def deliver(self, message: Message, handle: Handle | None) -> Handle:
        """Trigger, acknowledge or resolve the incident's alert, if that is due. Raises NotDelivered.

        Digests and thread entries have no alert: PagerDuty repeats what no one acknowledges by its own rules.
        """
        known = handle or {}
        if message.number > 0 or message.is_digest or message.is_report:
            return known
        actions = list(_due(message, handle))
        for index, action in enumerate(actions):
            try:
                self._send(action, message)
            except NotDelivered as error:
                if index > 0:  # the alert exists, so the attempt is in doubt, whatever this says
                    msg = str(error)
                    raise Unanswered(msg) from None
                raise
        return _state(message)

    def _send(self, action: str, message: Message) -> None:
        event: dict[str, Any] = {
            "routing_key": self._key,
            "event_action": action,
            "dedup_key": message.incident.id,
        }
        if action == "trigger":
            event |= {"client": "Backflow", "payload": _payload(message)}
        answer = self._caller.post(self._url, msgspec.json.encode(event))
        try:
            body = msgspec.json.decode(answer.body)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict) or body.get("status") != "success" or body.get("dedup_key") != event["dedup_key"]:
            msg = f"the answer is not PagerDuty's: {answer.status} {self._caller.quoted(answer.body)}"
            raise Refused(msg)


def _due(message: Message, handle: Handle | None) -> Iterator[str]:
    """Yield the actions that bring the alert up to date."""
    known, state = handle or {}, _state(message)
    if state["over"]:
        if handle is None:  # what is over already must be in the service's history too
            yield "trigger"
        if message.in_doubt or not known.get("over"):
            yield "resolve"
        return
    is_new = message.in_doubt or not known or known["over"]
    if (
        is_new
        or Severity(state["severity"]).rank > Severity(known["severity"]).rank
        or (state["caused"] and not known["caused"])
    ):
        yield "trigger"
    if state["acknowledged"] and (is_new or not known["acknowledged"]):
        yield "acknowledge"


def _state(message: Message) -> dict[str, Any]:
    """Return what decides which actions are due."""
    incident = message.incident
    return {
        "over": message.report.is_resolved,
        "severity": incident.severity.value,
        "caused": bool(incident.causes),
        "acknowledged": incident.acknowledged is not None,
    }


def _payload(message: Message) -> dict[str, Any]:
    incident, report = message.incident, message.report
    effects = worst_first(incident.findings)
    kinds = {"class": effects[0].kind} if effects else {}
    return {
        "summary": _cut(report.headline, SUMMARY_LIMIT),
        "source": incident.cluster or "backflow",
        "severity": incident.severity.value,  # PagerDuty has the same names
        "timestamp": rfc3339(incident.opened_at),
        **kinds,
        "custom_details": {
            "incident": incident.id,
            "cluster": incident.cluster,
            "rules": _names(effect.rule for effect in effects),
            "groups": _names(effect.subject.get("group") or effect.subject.get("job_name") for effect in effects),
            "topics": _names(effect.subject.get("topic") for effect in effects),
            "records": msgspec.to_builtins(incident.records),
            "what_happened": report.paragraph,
            "timeline": list(report.timeline_lines),
            **{section.heading.lower().replace(" ", "_"): list(section.lines) for section in report.sections()},
            "context": report.context,
        },
    }


def _names(names: Iterator[Any]) -> list[str]:
    return list(dict.fromkeys(str(name) for name in names if name))[:_NAMES_LIMIT]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
