"""What the demos share: the run's directory, progress and Slack messages on the terminal, and the result."""

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from agent.cli.common import fail
from agent.model.exit_status import WRONG
from testbed.slack import Slack
from testbed.workspace import Message


class Progress:
    """Prints progress with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        click.echo(f"[{time.monotonic() - self._started:6.1f} s] {line}")


_MARK = ".backflow-demo"


def prepare_directory(directory: Path) -> None:
    """Create the directory that keeps a run, or empty it if an earlier run made it.

    Ends with exit status 2 if it holds anything else.
    """
    is_ours = (directory / _MARK).exists()
    if not is_ours and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        fail(WRONG, f"{directory} is not empty and does not belong to an earlier demo; name another directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / _MARK).touch()


@contextmanager
def report_slack(slack: Slack, progress: Progress) -> Iterator[None]:
    """Print the headline of each message as it is posted or changes."""
    stop = threading.Event()

    def follow() -> None:
        headlines: dict[str, str] = {}
        while not stop.wait(0.2):
            for message in slack.messages():
                headline = message.words.partition("\n")[0]
                if headlines.get(message.ts) != headline:
                    progress(f"Slack, {'edited' if message.ts in headlines else 'posted'}: {headline}")
                    headlines[message.ts] = headline

    follower = threading.Thread(target=follow, name="slack-follower", daemon=True)
    follower.start()
    try:
        yield
    finally:
        stop.set()
        follower.join()


def has_recovered(slack: Slack) -> bool:
    """Return whether a message in the channel reports a recovery."""
    return any("RECOVERED" in message.words for message in slack.messages())


def select_unmerged(incidents: Sequence[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    """Return the incidents that are not merged into another one and have a finding of one of the kinds."""
    return [
        incident
        for incident in incidents
        if incident["merged_into"] is None and any(finding["kind"] in kinds for finding in incident["findings"])
    ]


def select_critical(incidents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the critical incidents that are not merged into another one."""
    return [
        incident for incident in incidents if incident["merged_into"] is None and incident["severity"] == "critical"
    ]


def messages_of(slack: Slack, incident: Mapping[str, Any]) -> list[Message]:
    """Return the messages in the channel that report an incident."""
    return [message for message in slack.messages() if incident["id"] in message.words]


def thread_of(slack: Slack, incident: Mapping[str, Any]) -> list[Message]:
    """Return the replies to the incident's messages."""
    threads = slack.threads
    return [reply for message in messages_of(slack, incident) for reply in threads.get(message.ts, [])]


def thread_text(slack: Slack, incident: Mapping[str, Any]) -> str:
    """Return the text of the incident's thread."""
    return "\n".join(reply.words for reply in thread_of(slack, incident))


def plots_of(slack: Slack, incident: Mapping[str, Any]) -> list[bytes]:
    """Return the PNG files in the incident's thread."""
    uploads = {upload.id: upload.content for upload in slack.uploads}
    files = [uploads[file] for reply in thread_of(slack, incident) for file in reply.files]
    return [content for content in files if content is not None and content.startswith(b"\x89PNG\r\n\x1a\n")]


def find_message_problems(
    slack: Slack, incident: Mapping[str, Any], expected: Sequence[str], *, others: int | None = None
) -> Iterator[str]:
    """Yield what is wrong with an incident's message: exactly one is posted, and it contains the expected texts.

    others: how many messages about other incidents the channel may have; None for any number.
    """
    messages = messages_of(slack, incident)
    if len(messages) != 1:
        yield f"the incident has {len(messages)} messages, not 1"
        return
    if others is not None and len(slack.messages()) - 1 > others:
        yield f"the channel has {len(slack.messages()) - 1} other messages, not at most {others}"
    for text in expected:
        if text not in messages[0].words:
            yield f"the message does not contain {text!r}"


def save_plots(directory: Path, slack: Slack, incidents: Sequence[Mapping[str, Any]]) -> None:
    """Save the plot of the incidents' threads as `plot.png`."""
    for incident in incidents:
        for plot in plots_of(slack, incident):
            (directory / "plot.png").write_bytes(plot)


def print_messages(slack: Slack, incidents: Sequence[dict[str, Any]]) -> None:
    """Print the messages and threads of the critical incidents."""
    for incident in select_critical(incidents):
        for message in messages_of(slack, incident):
            click.echo(f"\nThe Slack message, edited {len(message.edits)} times:\n\n{message.words}\n")
        for reply in thread_of(slack, incident):
            lines = (reply.words.strip() or "(the plot, a PNG)").replace("\n", "\n          ")
            click.echo(f"  thread: {lines}")
    click.echo("")


def finish(directory: Path, slack: Slack, incidents: Sequence[dict[str, Any]], problems: Sequence[str]) -> int:
    """Save and print the messages and the problems, and return the exit status: 0 without problems, else 3."""
    slack.dump(directory / "slack.jsonl")
    (directory / "incidents.jsonl").write_bytes(
        b"".join(msgspec.json.encode(incident) + b"\n" for incident in incidents)
    )
    print_messages(slack, incidents)
    for problem in problems:
        click.echo(f"PROBLEM: {problem}")
    files = sorted(path.name for path in directory.iterdir() if path.name != _MARK)
    click.echo(f"saved in {directory}: {', '.join(files)}")
    return 3 if problems else 0
