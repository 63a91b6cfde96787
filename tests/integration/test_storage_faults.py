"""What happens to the state directory, with the agent as a process and real files: it goes on and says what is lost."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agent.model.observations.base import Tick
from agent.model.observations.logs import LogFile
from agent.model.times import rfc3339
from agent.storage.database import FILE, SCHEMA
from agent.storage.journal.reader import read
from agent.storage.journal.writer import Journal
from agent.storage.state_file import current, leave_shelter
from testbed.agent import Agent, logs_table
from testbed.processes import free_port
from testbed.slack import Slack
from testbed.waiting import wait_until
from tests.integration.scenes import now

pytestmark = pytest.mark.integration

RULE = '\n[rules.boom]\nkind = "log_pattern"\npattern = "BOOM"\nseverity = "critical"\n'
HOUR_MS = 3_600_000


class Watched:
    """An agent that follows a log file, and the file."""

    def __init__(self, directory: Path, slack: Slack) -> None:
        self.log = directory / "app.log"
        self.log.write_text("")
        self.slack = slack
        kafka = {"bootstrap_servers": f"127.0.0.1:{free_port()}"}
        self.agent = Agent(directory / "agent", {"main": kafka}, slack, logs_table("app", [str(self.log)]) + RULE)
        self.home = self.agent.state / FILE
        self.agent.state.mkdir(parents=True)

    def start(self) -> None:
        self.agent.start()
        self.agent.wait_until_watching()

    def boom(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{rfc3339(now())[:23].replace('T', ' ').replace('.', ',')} ERROR BOOM {text}\n")

    def wait_for_words(self, words: str) -> None:
        wait_until(lambda: self.words(words), f"Slack to have {words!r}", 90)

    def words(self, words: str) -> bool:
        replies = [reply.text for thread in self.slack.threads.values() for reply in thread]
        return any(words in text for text in [*replies, *(message.words for message in self.slack.messages())])

    def booms(self) -> int:
        return sum("boom in" in message.words for message in self.slack.messages())

    def stop(self) -> None:
        self.agent.stop(seconds=10)
        assert self.agent.exit_status == 0


@contextmanager
def following(directory: Path) -> Iterator[Watched]:
    with Slack() as slack:
        watched = Watched(directory, slack)
        try:
            yield watched
        finally:
            if watched.agent.running:
                watched.agent.kill()
            leave_shelter(watched.home)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with following(tmp_path) as followed:
        yield followed


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A file system of 3 MiB in this directory."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(file: Path) -> None:
    size = shutil.disk_usage(file.parent).free
    file.write_bytes(bytes(size))


@pytest.mark.acceptance
def test_incidents_are_posted_while_the_disk_is_full(watched: Watched) -> None:
    with small_disk(watched.agent.state):
        watched.start()
        watched.boom("before")
        watched.wait_for_words("BOOM before")
        fill(watched.agent.state / "rest")
        watched.boom("while it is full")
        watched.wait_for_words("BOOM while it is full")
        watched.wait_for_words("state file")
        watched.stop()
        watched.start()
        watched.boom("after a restart")
        watched.wait_for_words("BOOM after a restart")
        (watched.agent.state / "rest").unlink()
        wait_until(lambda: current(watched.home) == watched.home, "the state to be back", 90)
        watched.boom("with space again")
        watched.wait_for_words("BOOM with space again")
        watched.stop()
    assert watched.booms() == 1


def test_read_only_directory_at_start_is_reported(watched: Watched) -> None:
    with small_disk(watched.agent.state):
        watched.start()
        watched.boom("before")
        watched.wait_for_words("BOOM before")
        watched.stop()
        subprocess.run(["mount", "-o", "remount,ro", str(watched.agent.state)], check=True)
        watched.start()
        watched.boom("read-only")
        watched.wait_for_words("BOOM read-only")
        watched.wait_for_words("state file")
        watched.stop()
    assert watched.booms() == 1


def test_deleted_state_directory_is_written_again(watched: Watched) -> None:
    watched.start()
    watched.boom("before")
    watched.wait_for_words("BOOM before")
    shutil.rmtree(watched.agent.state)
    watched.wait_for_words("deleted while the agent was running")
    watched.boom("after")
    watched.wait_for_words("BOOM after")
    watched.stop()
    watched.start()
    watched.boom("after a restart")
    watched.wait_for_words("BOOM after a restart")
    watched.stop()
    assert watched.booms() == 1


def truncate(home: Path) -> None:
    os.truncate(home, home.stat().st_size // 2)


def overwrite(home: Path) -> None:
    home.write_bytes(b"not a database at all" * 1000)


def change_schema(home: Path) -> None:
    with closing(sqlite3.connect(home)) as db:
        db.execute("ALTER TABLE incidents RENAME TO other")


@pytest.mark.parametrize("damage", [truncate, overwrite, change_schema])
def test_damaged_state_is_kept_aside_and_nothing_posted_twice(watched: Watched, damage: object) -> None:
    assert callable(damage)
    watched.start()
    watched.boom("before")
    watched.wait_for_words("BOOM before")
    watched.stop()
    damage(watched.home)
    watched.start()
    watched.wait_for_words("damaged state file: ")
    watched.boom("after")
    watched.wait_for_words("BOOM after")
    watched.stop()
    assert watched.booms() == 1
    assert len(list(watched.agent.state.glob(f"{FILE}.damaged-*"))) == 1


@pytest.mark.acceptance
def test_locked_state_is_left_and_returned_to(watched: Watched) -> None:
    watched.start()
    watched.stop()
    with closing(sqlite3.connect(watched.home, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        watched.start()
        watched.boom("locked")
        watched.wait_for_words("BOOM locked")
        watched.wait_for_words("state file")
        other.execute("ROLLBACK")
    wait_until(lambda: current(watched.home) == watched.home, "the state to be back", 90)
    watched.stop()


def test_newer_state_is_refused_with_a_sentence(watched: Watched) -> None:
    watched.start()
    watched.stop()
    with closing(sqlite3.connect(watched.home)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    watched.agent.start()
    watched.agent.wait_for_line("a newer Backflow wrote this state")
    wait_until(lambda: watched.agent.exit_status == 3, "the agent to end", 20)


def test_folder_that_is_no_date_is_ignored(watched: Watched) -> None:
    (watched.agent.state / "journal" / "tick" / "date=2026-13-45").mkdir(parents=True)
    watched.start()
    watched.agent.wait_until_evaluated(now())
    watched.stop()


def test_lines_after_a_kill_before_the_first_tick_are_read(watched: Watched) -> None:
    watched.start()
    watched.agent.wait_for(lambda fact: isinstance(fact, LogFile), "the position in the file")
    watched.agent.kill()
    shutil.rmtree(watched.agent.state / "journal" / "tick", ignore_errors=True)
    watched.boom("while it was down")
    watched.start()
    watched.wait_for_words("BOOM while it was down")
    watched.stop()


def test_journal_that_was_cut_is_reported_and_goes_on(watched: Watched) -> None:
    watched.start()
    watched.boom("before")
    watched.wait_for_words("BOOM before")
    watched.agent.wait_until_evaluated(now())
    watched.agent.kill()
    streams = list(watched.agent.state.glob("journal/*/*/_*.arrow"))
    assert streams
    for stream in streams:
        os.truncate(stream, stream.stat().st_size // 2)
    watched.start()
    watched.wait_for_words(f"{watched.agent.state / 'journal'} lacks the last ")
    watched.boom("after")
    watched.wait_for_words("BOOM after")
    watched.stop()
    assert sum("BOOM before" in message.words for message in watched.slack.messages()) == 1


def test_clock_that_was_ahead_is_reported_and_does_no_harm(watched: Watched) -> None:
    watched.start()
    watched.boom("before")
    watched.wait_for_words("BOOM before")
    watched.stop()
    journal = Journal(watched.agent.state / "journal")
    journal.append([Tick(at=now() + 25 * HOUR_MS)])
    journal.close()
    watched.start()
    watched.wait_for_words("The clock of this host was set back by 1 d")
    watched.boom("after")
    watched.wait_for_words("BOOM after")
    watched.stop()
    watched.start()
    watched.agent.wait_until_evaluated(now())
    watched.stop()
    assert sum("was set back" in message.words for message in watched.slack.messages()) == 1
    assert any(tick.at > now() for tick in read(watched.agent.state / "journal", kinds=["tick"]))
