"""Files that earlier versions wrote are read: samples of each format are kept beside this test."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from agent.cli.main import main
from agent.model.observations.base import Tick, Unavailable
from agent.model.observations.kafka import Commit, PartitionState
from agent.storage.database import FILE, SCHEMA, read_incidents_since
from agent.storage.incidents import IncidentStore
from agent.storage.journal.reader import read
from agent.storage.journal.writer import VERSION, Journal, JournalRefusedError
from agent.storage.outbox import Outbox
from tests import samples
from tests.storage.conftest import deliver_all

FORMATS = Path(__file__).parent / "formats"
AT = 1_795_000_000_000


def test_samples_of_the_present_formats_are_kept() -> None:
    assert (FORMATS / f"state-{SCHEMA}.sql").exists()
    assert (FORMATS / f"journal-{VERSION}").exists()


def is_decided(sample: Path) -> bool:
    """Return whether the schema has what operators decide."""
    return int(sample.stem.partition("-")[2]) >= 5


@pytest.mark.parametrize("sample", sorted(FORMATS.glob("state-*.sql")), ids=lambda sample: sample.stem)
def test_state_of_each_version_is_read(tmp_path: Path, sample: Path) -> None:
    state_file = tmp_path / FILE
    with closing(sqlite3.connect(state_file)) as db:
        db.executescript(sample.read_text())
    with IncidentStore(state_file, ["slack"]) as store:
        assert store.position == 42
        assert store.incidents() == [samples.incident(id="INC-2"), samples.incident()]
        assert store.check_requests() == []
        assert [silence.id for silence in store.decisions.silences(0)] == (["SIL-00AB12"] if is_decided(sample) else [])
        handled = store.decisions.handled(samples.incident(id="INC-2")).acknowledged
        assert (handled.by if handled else None) == ("lena" if is_decided(sample) else None)
        pruned = 1_790_000_000_000 if int(sample.stem.partition("-")[2]) >= 6 else 0
        assert read_incidents_since(state_file) == pruned
        outbox = Outbox(state_file, "slack")
        # The message of the first incident was delivered; its check report, and all of the second, were not.
        assert [number for number, _ in deliver_all(outbox)].count(0) == 1
        outbox.close()


@pytest.mark.parametrize("sample", sorted(FORMATS.glob("journal-*")), ids=lambda sample: sample.name)
def test_journal_of_each_version_is_read_and_continued(tmp_path: Path, sample: Path) -> None:
    journal = tmp_path / "journal"
    shutil.copytree(sample, journal)
    kept = [
        Tick(at=AT),
        Commit(at=AT + 1, seen_at=AT + 3, since=AT, cluster="main", group="g", topic="t", partition=3, offset=7),
        PartitionState(at=AT + 2, cluster="main", topic="t", partition=3, leader=1, replicas=(1, 2), isr=(1,)),
        Commit(at=AT + 1001, cluster="main", group="g", topic="t", partition=3, offset=None),
        Unavailable(at=AT + 1002, source="kafka", cluster="main", topic="t", reason="no leader"),
    ]
    assert list(read(journal)) == kept
    writer = Journal(journal)
    assert writer.position == len(kept)
    writer.append([Tick(at=AT + 2000)])
    writer.close()
    assert list(read(journal)) == [*kept, Tick(at=AT + 2000)]


@pytest.mark.parametrize("version", ["9" * 5_000, "\u00b2", "", "x"])
def test_damaged_version_of_a_journal_refuses_nothing(tmp_path: Path, version: str) -> None:
    (tmp_path / "version").write_text(version, encoding="utf-8")
    Journal(tmp_path).close()


def test_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "journal").close()
    (tmp_path / "journal" / "version").write_text(f"{VERSION + 1}\n")
    with pytest.raises(JournalRefusedError, match=rf"by a newer Backflow \(version {VERSION + 1}, this one knows"):
        Journal(tmp_path / "journal")
    result = CliRunner().invoke(main, ["replay", str(tmp_path / "journal")])
    assert (result.exit_code, "newer Backflow" in result.output) == (2, True)


def test_backup_made_while_the_agent_writes_is_complete(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    config = tmp_path / "rules.toml"
    config.write_text(f'[agent]\nstate_directory = "{state}"\n')
    with IncidentStore(state / FILE, ["slack"]) as store:
        journal = Journal(state / "journal", segment_bytes=1)
        for number in range(3):
            journal.append([Tick(at=AT + 1000 * number)])
            journal.flush()
            if number < 2:
                journal.seal(AT)
        store.save(journal.position, [samples.incident()])
        result = CliRunner().invoke(main, ["backup", "--config", str(config), str(tmp_path / "copy")])
        assert (result.exit_code, result.output) == (0, f"{tmp_path / 'copy'}: complete\n")
        store.save(journal.position, [replace(samples.incident(), id="INC-LATER")])
        journal.close()
    with IncidentStore(tmp_path / "copy" / FILE, ["slack"]) as restored:
        assert (restored.position, restored.incidents()) == (3, [samples.incident()])
    again = Journal(tmp_path / "copy" / "journal")
    assert (again.position, [tick.at - AT for tick in read(tmp_path / "copy" / "journal")]) == (3, [0, 1000, 2000])
    again.close()
    result = CliRunner().invoke(main, ["backup", "--config", str(config), str(tmp_path / "copy")])
    assert (result.exit_code, result.output) == (2, f"{tmp_path / 'copy'} exists: name a new directory\n")


@pytest.mark.parametrize("name", [b"\x85osition", b"positiom"])
def test_a_stream_without_positions_is_kept_aside(tmp_path: Path, name: bytes) -> None:
    with closing(Journal(tmp_path / "whole")) as journal:
        journal.append([Tick(at=0)])
        journal.flush()
        (stream,) = (tmp_path / "whole").rglob("_*.arrow")
        path = tmp_path / "damaged" / stream.relative_to(tmp_path / "whole")
        path.parent.mkdir(parents=True)
        path.write_bytes(stream.read_bytes().replace(b"position", name))
    reasons: list[str] = []
    Journal(tmp_path / "damaged", unreadable=lambda _, reason: reasons.append(reason)).close()
    assert (len(reasons), [left.suffix for left in path.parent.iterdir()]) == (1, [".damaged"])
