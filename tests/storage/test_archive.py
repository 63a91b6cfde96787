"""The archive has each sealed row of a journal once, after failures, merges, kills and restored copies."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from errno import EIO
from pathlib import Path

import duckdb
import pytest

from agent.clock import monotonic_ms
from agent.model.observations.base import Tick
from agent.storage.journal import archive, archiver
from agent.storage.journal.archive import Archive, Content
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.places import JournalFiles, open_journals, read_id
from agent.storage.journal.reader import chunks, entries
from agent.storage.journal.retention import TRUST_MS
from agent.storage.journal.segments import DAY_MS, find
from agent.storage.journal.writer import Journal
from testbed.waiting import wait_until
from tests.storage.archives import NOON, archived, fail, files, merge, observation, ship, write


@pytest.fixture
def store(tmp_path: Path) -> Archive:
    return Archive(f"file://{tmp_path}/archive")


def test_everything_sealed_is_archived_once(local: Path, store: Archive) -> None:
    shipper = ship(local, store)
    before = files(store)
    shipper.ship()
    ship(local, store)
    assert files(store) == before
    assert archived(store) == list(entries(local, unreadable=fail))
    assert shipper.progress[:3] == (0, 0.0, 12)


def test_the_archive_is_partitioned_as_in_hive(local: Path, store: Archive) -> None:
    ship(local, store)
    journal = read_id(local)
    (path,) = {path.parent.relative_to(store.root) for path in files(store) if path.parts[-5] == "tick"} - {
        Path(f"tick/date=2026-11-21/agent=a/journal={journal}")
    }
    assert str(path) == f"tick/date=2026-11-20/agent=a/journal={journal}"


def test_duckdb_reads_an_archive_of_several_agents(local: Path, store: Archive) -> None:
    ship(local, store)
    ship(local, store, "b")
    with duckdb.connect() as db:
        files = db.read_parquet(f"{store.root}/commit/*/*/*/*.parquet", hive_partitioning=True)
        rows = files.filter("date = '2026-11-20'").aggregate("agent, count(*)").order("agent").fetchall()
    assert rows == [("a", 270), ("b", 270)]


def test_an_open_segment_is_not_archived(local: Path, store: Archive) -> None:
    with closing(Journal(local)) as journal:
        journal.append([observation(number) for number in range(600, 700)])
        journal.flush()
        ship(local, store)
        both = JournalFiles("a", local, store)
        assert len(archived(store)) == 600
        assert len(list(entries(both, unreadable=fail))) == 700
    assert len(list(entries(both, unreadable=fail))) == 700
    ship(local, store)
    assert archived(store) == list(entries(local, unreadable=fail))


def test_local_and_archived_segments_are_read_once(local: Path, store: Archive) -> None:
    expected = list(entries(local, unreadable=fail))
    ship(local, store)
    shutil.rmtree(local / "commit" / "date=2026-11-20")
    write(local, 600, 1)
    expected += [entry for entry in entries(local, unreadable=fail) if entry[0] >= 600]
    for places in ((str(local), store.url), (store.url, None)):
        (journal,) = open_journals(*places)
        found = list(entries(journal, unreadable=fail))
        assert found == [entry for entry in expected if places[1] or entry[0] < 600]


def test_a_window_is_read_from_its_dates_only(local: Path, store: Archive) -> None:
    ship(local, store)
    window = (NOON + DAY_MS, NOON + DAY_MS + 350)
    expected = list(entries(local, *window, unreadable=fail))
    assert expected
    assert list(entries(JournalFiles("a", None, store), *window, unreadable=fail)) == expected


@pytest.mark.parametrize("most", [0, 64])
def test_an_agents_dates_are_listed_alone_or_with_all_others(
    local: Path, store: Archive, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(archive, "_MOST_LISTINGS", most)
    for agent in "ab":
        ship(local, store, agent)
    day = NOON // DAY_MS
    for days in (None, range(day, day + 1), range(day - 9, day), range(day - 9, day + 9)):
        found = store.find(["commit", "tick"], days, "b")
        expected = [segment for segment in find(local, ["commit", "tick"], days) if segment.last is not None]
        assert sorted((s.kind, s.day, s.first, s.last) for s in found) == sorted(
            (s.kind, s.day, s.first, s.last) for s in expected
        )
        assert all("/agent=b/" in str(segment.path) for segment in found)


def test_of_merged_files_only_the_rest_is_archived(local: Path, store: Archive) -> None:
    ship(local, store)
    write(local, 600, 2)
    for folder in (local / "commit").iterdir():
        merge(folder)
    ship(local, store)
    expected = list(entries(local, unreadable=fail))
    assert archived(store) == expected
    assert list(entries(JournalFiles("a", local, store), unreadable=fail)) == expected
    assert not list(local.rglob("*.tmp"))


def test_files_merged_after_they_were_archived_are_not_archived_again(local: Path, store: Archive) -> None:
    ship(local, store)
    before = files(store)
    for folder in (local / "commit").iterdir():
        merge(folder)
    ship(local, store)
    assert files(store) == before
    assert len(list(entries(JournalFiles("a", local, store), unreadable=fail))) == 600


def test_a_file_in_flight_at_a_kill_is_shipped_again(
    local: Path, store: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(archive, "measure", lambda _: Content(0, "the process was killed before this"))
        with pytest.raises(OSError, match="is not what was written"):
            ship(local, store)
    (unfinished,) = files(store)
    content = unfinished.read_bytes()
    unfinished.rename(unfinished.with_name(unfinished.name.removeprefix("_").removesuffix(".tmp")))
    (whole,) = files(store)
    whole.write_bytes(bytes(len(content)))  # of the same size, as the listing shows
    for folder in (local / whole.parts[-5]).iterdir():
        merge(folder)
    ship(local, store)
    assert archived(store) == list(entries(local, unreadable=fail))
    assert not (local / "archive-in-flight").exists()


def test_a_truncated_file_is_shipped_again(local: Path, store: Archive) -> None:
    ship(local, store)
    for path in files(store)[::2]:
        os.truncate(path, 100)
    ship(local, store)
    assert archived(store) == list(entries(local, unreadable=fail))


def test_agents_do_not_collide_in_an_archive(tmp_path: Path, store: Archive) -> None:
    for name, rounds in (("a", 2), ("b", 3)):
        write(tmp_path / name, rounds=rounds)
        ship(tmp_path / name, store, name)
    journals = open_journals(store.url)
    assert [(journal.agent, len(list(entries(journal)))) for journal in journals] == [("a", 400), ("b", 600)]
    assert [journal.agent for journal in open_journals(store.url, agents=["b*"])] == ["b"]
    together = open_journals(str(tmp_path / "b"), store.url)
    assert sum(len(part) for journal in together for chunk in chunks(journal) for part in chunk) == 1_000


def test_a_new_journal_of_the_same_agent_does_not_replace_the_old(local: Path, store: Archive) -> None:
    ship(local, store)
    old = archived(store)
    shutil.rmtree(local)
    write(local, 50, 1)
    shipper = Archiver(local, store, "a", 200, unreadable=fail)
    shipper.ship()
    new = list(entries(local, unreadable=fail))
    assert sorted(archived(store), key=repr) == sorted(old + new, key=repr)


def copy_and_go_on(local: Path, copy: Path, store: Archive) -> None:
    """Copy an archived journal, as a backup does, and archive what is written after that."""
    ship(local, store)
    shutil.copytree(local, copy)
    write(local, 600, 2)
    ship(local, store)


def test_a_restored_journal_continues_under_another_id(
    local: Path, tmp_path: Path, store: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_and_go_on(local, tmp_path / "copy", store)
    first = read_id(local)
    monkeypatch.setattr(archiver, "_new_id", lambda: f"{first}-later")
    write(tmp_path / "copy", 5_000, 1)
    ship(tmp_path / "copy", store, begin=600)
    assert read_id(tmp_path / "copy") == f"{first}-later"
    later = [found for _, found in entries(JournalFiles("a", tmp_path / "copy", store), unreadable=fail)]
    assert {observation(number) for number in range(5_000, 5_200)} <= set(later)


def test_a_restored_journal_keeps_its_id_after_a_failure(
    local: Path, tmp_path: Path, store: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it archived before the failure is its own."""
    copy_and_go_on(local, tmp_path / "copy", store)
    write(tmp_path / "copy", 5_000, 2)
    monkeypatch.setattr(archiver, "_new_id", iter(("later", "latest")).__next__)
    put, calls = store.put, iter(range(100))

    def put_once_in_vain(source: Path, content: Content, target: str) -> None:
        if next(calls) == 4:  # of a folder's files, those after the restore are the fourth and the fifth
            raise OSError(EIO, "the store is unavailable")
        put(source, content, target)

    monkeypatch.setattr(store, "put", put_once_in_vain)
    shipper = Archiver(tmp_path / "copy", store, "a", 600, unreadable=fail)
    with pytest.raises(OSError, match="unavailable"):
        shipper.ship()
    shipper.ship()
    assert read_id(tmp_path / "copy") == "later"
    new = [found for _, found in archived(store) if found in [observation(number) for number in range(5_000, 5_400)]]
    assert len(new) == 400


def test_local_retention_keeps_what_is_not_archived(local: Path, store: Archive) -> None:
    shipper = Archiver(local, store, "a", 0, unreadable=fail)
    now = NOON + 40 * DAY_MS
    with closing(Journal(local)) as journal:
        journal.append([Tick(at=now)])
        journal.flush()
        assert journal.retain(30, now, shipper.is_archived) == 4
        assert len(list(entries(local, unreadable=fail))) == 601
        shipper.ship()
        assert journal.retain(30, now, shipper.is_archived) == 0
        assert len(list(entries(local, unreadable=fail))) == 1
    assert len(archived(store)) == 600
    assert len(list(entries(JournalFiles("a", local, store), unreadable=fail))) == 601


def test_the_archive_has_a_retention_for_each_agent(
    local: Path, tmp_path: Path, store: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(local, store)
    ship(local, store, "b")
    monkeypatch.setattr("agent.storage.journal.archiver.now_ms", lambda: NOON + 31 * DAY_MS)
    write(tmp_path / "new", 100, 1, 100)
    archiver = Archiver(tmp_path / "new", store, "a", 0, retention=30, unreadable=fail)
    archiver.ship()
    assert len(archived(store)) == 700, "the clock may be ahead, and be corrected soon"
    started = monotonic_ms()
    monkeypatch.setattr("agent.storage.journal.archiver.monotonic_ms", lambda: started + TRUST_MS)
    archiver.ship()
    assert {found.at // DAY_MS - NOON // DAY_MS for _, found in archived(store)} == {1}
    assert len(archived(store, "b")) == 600


def test_damaged_files_are_reported_and_the_rest_is_archived(local: Path, store: Archive) -> None:
    damaged = sorted((local / "commit" / "date=2026-11-20").iterdir())[1]
    damaged.write_bytes(b"no Parquet")
    reported = []
    shipper = Archiver(local, store, "a", 0, unreadable=lambda path, reason: reported.append((path, reason)))
    shipper.ship()
    assert [path for path, _ in reported] == [damaged]
    assert reported[0][1].startswith("is not archived because it is damaged: ")
    assert len(files(store)) == 11


@pytest.fixture
def started() -> Iterator[Callable[[Archiver], Archiver]]:
    """Start an archiver; it is closed at the end."""
    archivers = []

    def start(shipper: Archiver) -> Archiver:
        archivers.append(shipper)
        shipper.start()
        return shipper

    yield start
    for shipper in archivers:
        assert shipper.close(10)


def test_failures_are_retried_and_reported_if_they_last(
    local: Path, store: Archive, tmp_path: Path, started: Callable[[Archiver], Archiver]
) -> None:
    (tmp_path / "archive").write_text("in the way of the folder")
    problems: list[str] = []
    worked: list[bool] = []
    shipper = started(
        Archiver(
            local,
            store,
            "a",
            0,
            failed=problems.append,
            works=lambda: worked.append(True),
            patience=0.1,
            unreadable=fail,
        )
    )
    wait_until(lambda: problems, "the problem")
    assert "12 files of the journal wait on the local disk" in problems[0]
    assert shipper.progress.pending == 12
    assert not worked
    (tmp_path / "archive").unlink()
    wait_until(lambda: worked, "the archive to work")
    assert shipper.progress.pending == 0
    assert archived(store) == list(entries(local, unreadable=fail))


def test_sealing_wakes_the_archiver(local: Path, store: Archive, started: Callable[[Archiver], Archiver]) -> None:
    shipper = started(Archiver(local, store, "a", 0, unreadable=fail))
    wait_until(lambda: shipper.progress.archived == 12, "the journal to be archived")
    with closing(Journal(local, sealed=shipper.wake)) as journal:
        journal.append([observation(600)])
    wait_until(lambda: shipper.progress.archived == 13, "the new segment to be archived")
