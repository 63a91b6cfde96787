"""What every demo does on its stage: a directory swept, progress and Slack's messages shown, the verdict told."""

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from agent.cli.common import WRONG, fail
from testbed.slack import Slack
from testbed.workspace import Message


class Say:
    """Prints progress with the seconds since the beginning."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def __call__(self, line: str) -> None:
        click.echo(f"[{time.monotonic() - self._begin:6.1f} s] {line}")


_MARK = ".backflow-demo"


def sweep(directory: Path) -> None:
    """Make the directory that keeps a run, without what an earlier run has left.

    Ends with exit status 2 where it holds anything else.
    """
    ours = (directory / _MARK).exists()
    if not ours and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        fail(WRONG, f"{directory} is not empty and no earlier run of the demo is kept there; name another directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / _MARK).touch()


@contextmanager
def telling(slack: Slack, say: Say) -> Iterator[None]:
    """Say what the channel is told while it is told."""
    stop = threading.Event()

    def tell() -> None:
        told: dict[str, str] = {}
        while not stop.wait(0.2):
            for message in slack.messages():
                first = message.words.partition("\n")[0]
                if told.get(message.ts) != first:
                    say(f"Slack, {'edited' if message.ts in told else 'posted'}: {first}")
                    told[message.ts] = first

    teller = threading.Thread(target=tell, name="slack-watcher", daemon=True)
    teller.start()
    try:
        yield
    finally:
        stop.set()
        teller.join()


def messages_of(slack: Slack, incident: Mapping[str, Any]) -> list[Message]:
    """The messages in the channel that stand for an incident."""
    return [one for one in slack.messages() if incident["id"] in one.words]


def thread_of(slack: Slack, incident: Mapping[str, Any]) -> list[Message]:
    """The replies to them."""
    threads = slack.threads
    return [reply for message in messages_of(slack, incident) for reply in threads.get(message.ts, [])]


def plots_of(slack: Slack, incident: Mapping[str, Any]) -> list[bytes]:
    """The PNG files in their threads."""
    sent = {one.id: one.content for one in slack.uploads}
    files = [sent[file] for reply in thread_of(slack, incident) for file in reply.files]
    return [one for one in files if one is not None and one.startswith(b"\x89PNG\r\n\x1a\n")]


def show(slack: Slack, incidents: Sequence[Mapping[str, Any]]) -> None:
    """Print the messages and threads of the critical incidents that stand."""
    for incident in incidents:
        if incident["merged_into"] is None and incident["severity"] == "critical":
            for message in messages_of(slack, incident):
                click.echo(f"\nThe Slack message, edited {len(message.edits)} times:\n\n{message.words}\n")
            for reply in thread_of(slack, incident):
                click.echo(f"  thread: {reply.words.strip() or 'the plot, a PNG'}")
    click.echo("")


def conclude(directory: Path, slack: Slack, incidents: Sequence[Mapping[str, Any]], problems: Sequence[str]) -> int:
    """Keep what was said, show it, tell what is wrong with it. Returns the exit status: 0 where nothing is, else 3."""
    slack.dump(directory / "slack.jsonl")
    (directory / "incidents.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in incidents))
    show(slack, incidents)
    for problem in problems:
        click.echo(f"NOT AS IT SHOULD BE: {problem}")
    kept = sorted(one.name for one in directory.iterdir() if one.name != _MARK)
    click.echo(f"kept in {directory}: {', '.join(kept)}")
    return 3 if problems else 0
