"""What a press of a button in Slack does: the same as the commands, with an answer that only who pressed sees."""

import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import structlog
from slack_sdk.web import WebClient

from agent.clock import now_ms
from agent.model.findings import Incident
from agent.model.matchers import matchers_about
from agent.model.text import day_of, instant, visible
from agent.notify.base import NotDelivered
from agent.notify.slack import call
from agent.notify.slack_blocks import clipped
from agent.notify.slack_buttons import Button, is_taken
from agent.notify.slack_socket import Press, SlackSocket
from agent.render.explanation import explanation
from agent.storage import operators
from agent.storage.database import StorageError
from agent.storage.incidents import IncidentStore

_HOUR_MS = 3_600_000
_LASTS = {Button.SILENCE_HOUR: _HOUR_MS, Button.SILENCE_DAY: 24 * _HOUR_MS}
_MOST_WAITING = 100
_ANSWER_LIMIT = 3_900

log = structlog.get_logger(__name__)


class SlackPresses:
    """A worker that does what was pressed, one press after the other. It writes to the state file as commands do.

    done: how many presses were answered, by button; failed: how many could not be done or answered.
    """

    def __init__(
        self, socket: SlackSocket, client: WebClient, path: Callable[[], Path], wake: Callable[[], None]
    ) -> None:
        """client: answers with the bot's token. path: returns where the state file is. wake: lets dispatchers look."""
        self.socket = socket
        self.done: Counter[str] = Counter()
        self.failed = 0
        self._client = client
        self._path = path
        self._wake = wake
        self._waiting: queue.Queue[Press | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="slack-presses", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self.socket.start(self._put)

    def close(self) -> None:
        """Stop after the presses that have arrived; that may take some seconds."""
        self.socket.close()
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def act(self, press: Press) -> str:
        """Do what was pressed; return the answer, empty if the message itself shows it.

        Raises StorageError, sqlite3.Error, NotDelivered.
        """
        path, now = self._path(), now_ms()
        if not path.exists():
            msg = f"{path} does not exist"
            raise StorageError(msg)
        with IncidentStore(path) as store:
            found = store.incident(press.incident)
            if found is None:
                return (
                    f"This agent has no incident {visible(press.incident)}: it is older than the "
                    "journal's retention, or another agent has posted it. Each agent needs a Slack app of its own."
                )
            incident = store.decisions.handled(found)
            try:
                if press.button is Button.WHY:
                    return "\n".join(_explained(incident))
                if press.button is Button.PLOT:
                    return self._plot(store, incident, press)
                if press.button is Button.ACKNOWLEDGE:
                    return _acknowledge(store, incident, press, now)
                return _silence(store, incident, press, now)
            except operators.UndecidableError as error:
                return f"Nothing to decide: {error}."

    def _put(self, press: Press) -> None:
        try:
            self._waiting.put_nowait(press)
        except queue.Full:
            self.failed += 1
            log.warning("slack_press_dropped", user=press.user, incident=visible(press.incident), waiting=_MOST_WAITING)

    def _run(self) -> None:
        while (press := self._waiting.get()) is not None:
            try:
                answer = self._act_in_words(press)
                if answer:
                    text = clipped(answer, _ANSWER_LIMIT)
                    call(self._client.chat_postEphemeral, channel=press.channel, user=press.user, text=text)
                self.done[press.button.value] += 1
            except NotDelivered as error:
                self._count_failure(press, f"the answer was not delivered: {error}")
            except Exception as error:  # noqa: BLE001 - a defect in one answer must not end the others
                self._count_failure(press, repr(error))

    def _act_in_words(self, press: Press) -> str:
        """Do what was pressed, and say so if it cannot be done."""
        log.info(
            "slack_button_pressed",
            button=press.button.value,
            incident=visible(press.incident),
            user=press.user,
            name=press.name,
        )
        try:
            answer = self.act(press)
        except (StorageError, sqlite3.Error) as error:
            self._count_failure(press, str(error))
            return f"The agent's state cannot be used, so nothing was done; press again later. {error}"
        except NotDelivered as error:
            self._count_failure(press, str(error))
            return f"It could not be posted: {error}"
        self._wake()
        return answer

    def _count_failure(self, press: Press, reason: str) -> None:
        self.failed += 1
        log.error("slack_press_failed", button=press.button.value, incident=visible(press.incident), reason=reason)

    def _plot(self, store: IncidentStore, incident: Incident, press: Press) -> str:
        """Post the latest plot into the thread. Raises NotDelivered."""
        found = store.plot(incident.id)
        if found is None:
            return (
                f"{incident.id} has no plot yet: Spark checks make them, for incidents with findings that they can "
                "check. `backflow status` shows which run or wait."
            )
        number, plot = found
        upload, name = self._client.files_upload_v2, f"{incident.id}-plot-{number}.png"
        alt = "plot of a check's findings"
        call(upload, channel=press.channel, thread_ts=press.ts, filename=name, content=plot, alt_txt=alt)
        return ""


def _explained(incident: Incident) -> tuple[str, ...]:
    if incident.merged_into is not None:
        return (f"{incident.id} was merged into {incident.merged_into}: see its message.",)
    return explanation(incident)


def _acknowledge(store: IncidentStore, incident: Incident, press: Press, now: int) -> str:
    operators.check_open(incident)
    taken = incident.acknowledged
    if taken is not None and is_taken(incident):
        since = instant(taken.at, day_of(incident.opened_at))
        return (
            f"{incident.id} is acknowledged by {taken.by} since {since} UTC. "
            f"`backflow ack {incident.id}` takes it over."
        )
    operators.acknowledge(store, incident, by=_author(press), now=now)
    return ""


def _silence(store: IncidentStore, incident: Incident, press: Press, now: int) -> str:
    operators.check_open(incident)
    ends_at = now + _LASTS[press.button]
    comment = f"{incident.id}, by its button"
    silences = operators.silence(
        store, matchers_about(incident), ends_at=ends_at, by=_author(press), now=now, comment=comment
    )
    until = instant(ends_at, day_of(now))
    lines = [f"Silenced until {until} UTC, with all that these patterns match:"]
    lines += [f"{silence.id}: {silence.matchers}" for silence in silences]
    return "\n".join([*lines, "`backflow silence expire ID` ends one."])


def _author(press: Press) -> str:
    return f"{press.name} (Slack)"
