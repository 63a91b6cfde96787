"""The `logs` source on real files: where it starts, what it emits, and how it treats unreadable files."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.config.sources import Logs
from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.logs import LogFile, LogLine
from agent.model.times import millis
from agent.sources.base import HEARTBEAT_MS
from agent.sources.logs import files as log_files
from agent.sources.logs import source as logs
from agent.sources.logs.followed_logs import IDLE_MS
from agent.sources.logs.source import LogSource

NOW = millis("2026-11-21T12:00:00Z")
RESET = (
    "[2026-11-21 06:21:30,654] INFO Fetch offset {} is out of range for partition my-topic-2-2, resetting offset (F)\n"
)


class Agent:
    """A source and the batches it has emitted."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        self.batches: list[list[Observation]] = []
        self.sources: list[LogSource] = []
        patch.setattr(logs, "now_ms", lambda: self.now)

    def start(self, *paths: Path | str, patterns: tuple[str, ...] = (), **options: str) -> LogSource:
        """Start a source that knows what was emitted before, and poll it once."""
        known = {fact.subject: fact for batch in self.batches for fact in batch}
        settings = Logs(paths=tuple(map(str, paths)), **options)  # type: ignore[arg-type]
        source = LogSource(
            "brokers", settings, patterns, lambda batch: self.batches.append(list(batch)), known.values()
        )
        self.sources.append(source)
        source.poll()
        return source

    def emitted(self) -> list[Observation]:
        """Return everything emitted so far."""
        return [fact for batch in self.batches for fact in batch]

    def lines(self) -> list[LogLine]:
        """Return the lines emitted so far."""
        return [fact for fact in self.emitted() if isinstance(fact, LogLine)]

    def offsets(self) -> list[str]:
        """Return the offsets that the emitted lines name."""
        return [line.values["offset"] for line in self.lines()]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Yield an agent whose sources are closed afterwards."""
    started = Agent(monkeypatch)
    yield started
    for source in started.sources:
        source.close()


def _append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def test_lines_before_the_first_start_are_skipped(agent: Agent, tmp_path: Path) -> None:
    """The old file is read from its end, including a half-written line; a new one from its start."""
    old, new = tmp_path / "a.log", tmp_path / "b.log"
    old.write_text(RESET.format(1) + RESET.format(2)[:50])
    source = agent.start(tmp_path / "*.log")
    _append(old, RESET.format(2)[50:])
    new.write_text(RESET.format(3))
    source.poll()
    assert sorted(agent.offsets()) == ["2", "3"]


def test_lines_of_an_added_path_are_skipped_too(agent: Agent, tmp_path: Path) -> None:
    first, added = tmp_path / "first.log", tmp_path / "added.log"
    _append(first, RESET.format(1))
    _append(added, RESET.format(2))
    agent.start(first).close()
    source = agent.start(first, added)
    _append(added, RESET.format(3))
    source.poll()
    assert agent.offsets() == ["3"]


def test_a_file_made_while_the_agent_was_down_is_read(agent: Agent, tmp_path: Path) -> None:
    _append(tmp_path / "a.log", RESET.format(1))
    agent.start(tmp_path / "*.log").close()
    _append(tmp_path / "b.log", RESET.format(2))
    agent.start(tmp_path / "*.log", tmp_path / "b.log")
    assert agent.offsets() == ["2"]


def test_a_removed_path_is_no_longer_followed(agent: Agent, tmp_path: Path) -> None:
    kept, removed = tmp_path / "kept.log", tmp_path / "removed.log"
    for path in (kept, removed):
        path.touch()
    agent.start(tmp_path / "*.log").close()
    source = agent.start(kept)
    _append(removed, RESET.format(1))
    _append(kept, RESET.format(2))
    source.poll()
    assert agent.offsets() == ["2"]


def test_line_is_emitted_in_one_batch_with_its_file_position(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(path, cluster="main", host="kafka-1", time_zone="Europe/Berlin")
    path.write_text(RESET.format(7))
    source.poll()
    line, position = agent.batches[-1]
    assert line == LogLine(
        at=millis("2026-11-21T05:21:30.654Z"),
        seen_at=NOW,
        cluster="main",
        log=str(path),
        component="consumer",
        pattern="fetch_offset_out_of_range",
        topic="my-topic-2",
        partition=2,
        host="kafka-1",
        values={"offset": "7", "topic": "my-topic-2", "partition": "2"},
        text=RESET.format(7).rstrip(),
    )
    assert isinstance(position, LogFile)
    assert (position.cluster, position.log, position.read) == ("brokers", str(path), path.stat().st_size)
    assert position.inode == path.stat().st_ino


def test_position_is_emitted_once_and_then_as_a_heartbeat(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(path)
    assert [type(fact) for fact in agent.emitted()] == [LogFile]
    for _ in range(3):
        _append(path, "[2026-11-21 06:21:30,654] INFO nothing of interest\n")
        source.poll()
    assert len(agent.batches) == 1
    agent.now += HEARTBEAT_MS
    source.poll()
    assert len(agent.batches) == 2
    _append(path, "[2026-11-21 06:21:30,654] INFO nothing of interest\n")
    source.poll()
    source.close()
    last = agent.batches[-1][-1]
    assert isinstance(last, LogFile)
    assert last.read == path.stat().st_size


def test_half_written_line_waits_for_its_end(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(path)
    for part in (RESET.format(1)[:40], RESET.format(1)[40:-1]):
        _append(path, part)
        source.poll()
        assert agent.lines() == []
    _append(path, "\n")
    source.poll()
    assert agent.offsets() == ["1"]


def test_no_line_is_dated_after_it_was_read(agent: Agent, tmp_path: Path) -> None:
    """A clock ahead, or a wrong time zone; a line without a timestamp is dated now."""
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(path, patterns=("plain",))
    _append(path, "plain\n" + RESET.replace("2026", "2027").format(1))
    source.poll()
    assert [line.at for line in agent.lines()] == [NOW, NOW]


def test_groups_of_a_rule_pattern_become_fields(agent: Agent, tmp_path: Path) -> None:
    """Also within a stack trace, whose line comes with the first of its entry; a word is no partition."""
    path = tmp_path / "server.log"
    path.touch()
    pattern = r"Caused by: (?P<what>\w+) of broker (?P<broker>\d+), (?P<topic>\w+)/(?P<partition>\w+)"
    source = agent.start(path, patterns=(pattern, "nothing"), flink="jobs")
    _append(path, "2026-11-21 06:21:30,654 ERROR org.apache.flink.X - failed\n\tat a.b(C.java:1)\n")
    source.poll()
    _append(path, "Caused by: death of broker 2005, t/7\n\tat d.e\nCaused by: loss of broker 1, t/x\n")
    source.poll()
    first, second = agent.lines()
    assert (first.pattern, first.cluster, first.component) == (pattern, "jobs", "flink")
    assert (first.broker, first.topic, first.partition, first.values["what"]) == (2005, "t", 7, "death")
    assert first.at == second.at == millis("2026-11-21T06:21:30.654Z")
    assert first.text.splitlines() == [
        "2026-11-21 06:21:30,654 ERROR org.apache.flink.X - failed",
        "Caused by: death of broker 2005, t/7",
    ]
    assert (second.broker, second.partition) == (1, None)


def test_stack_trace_is_dated_by_its_entry_after_a_restart(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    agent.start(path, patterns=("Caused by",)).close()
    _append(path, "2026-11-21 06:21:30,654 ERROR failed\n\tat a.b(C.java:1)\n")
    agent.start(path, patterns=("Caused by",)).close()
    _append(path, "Caused by: death\n")
    agent.start(path, patterns=("Caused by",))
    (line,) = agent.lines()
    assert line.at == millis("2026-11-21T06:21:30.654Z")


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("time_zone", "Mars", 'unknown time zone "Mars"'),
        ("time_zone", "Europe", 'unknown time zone "Europe"'),
        ("time_zone", "../zoneinfo/UTC", 'unknown time zone "../zoneinfo/UTC"'),
        ("time_zone", "b." * 900, 'unknown time zone "b.b.'),
        ("encoding", "klingon", 'unknown text encoding "klingon"'),
        ("encoding", "base64", 'unknown text encoding "base64"'),
    ],
)
def test_unknown_zone_or_encoding_is_refused(option: str, value: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Logs.model_validate({"paths": ("a.log",), option: value})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-be", "cp037"])
def test_log_is_read_in_its_encoding(agent: Agent, tmp_path: Path, encoding: str) -> None:
    """UTF-16 has a byte order mark at the file's beginning only; lines end in CRLF or LF."""
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(path, patterns=(r"größer als (?P<größe>\S+)$",), encoding=encoding)
    text = RESET.format(1) + "2026-11-21 06:21:30,654 größer als größtes\r\n" + RESET.format(2)
    raw = text.encode(encoding)
    for cut in range(0, len(raw), 61):
        _append(path, raw[cut : cut + 61])
        source.poll()
    assert [line.values.get("offset", line.values.get("größe")) for line in agent.lines()] == ["1", "größtes", "2"]


def test_undecodable_bytes_are_replaced(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(path, patterns=("id=(?P<id>.*);",))
    _append(path, b"2026-11-21 06:21:30,654 id=a\xff\xfeb;\n" + RESET.format(1).encode())
    source.poll()
    first, second = agent.lines()
    assert first.values == {"id": "a\ufffd\ufffdb"}
    assert second.values["offset"] == "1"


def test_endless_line_is_bounded_and_hides_no_other(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning is searched, the rest skipped, and the next line read; also after a restart within it."""
    monkeypatch.setattr(log_files, "BLOCK", 4096)
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(path)
    _append(path, RESET.format(1).rstrip() + "x" * 10_000)
    source.poll()
    source.close()
    source = agent.start(path)
    _append(path, RESET.format(2).rstrip() + "y" * 10_000 + "\n" + RESET.format(3))
    source.poll()
    assert agent.offsets() == ["1", "3"]
    assert max(len(line.text) for line in agent.lines()) == 500


def test_backlog_is_read_poll_by_poll_each_file_in_turn(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "BLOCK", 4096)
    monkeypatch.setattr(logs, "BYTES_PER_POLL", 16_384)
    big, small = tmp_path / "a.log", tmp_path / "b.log"
    source = agent.start(tmp_path / "*.log")
    big.write_text("".join(RESET.format(number) for number in range(1_000)))
    small.write_text(RESET.format("5555"))
    source.poll()
    assert 10 < len(agent.lines()) < 300
    assert "5555" in agent.offsets()
    while len(agent.lines()) < 1_001:
        before = len(agent.lines())
        source.poll()
        assert len(agent.lines()) > before
    assert sorted(map(int, agent.offsets())) == [*range(1_000), 5555]


def test_unreadable_files_are_reported_once_and_others_followed(agent: Agent, tmp_path: Path) -> None:
    good, missing, broken = tmp_path / "good.log", tmp_path / "missing.log", tmp_path / "broken.log"
    good.touch()
    broken.symlink_to(tmp_path / "nowhere")
    source = agent.start(good, missing, broken)
    (unavailable,) = (fact for fact in agent.emitted() if isinstance(fact, Unavailable))
    assert (unavailable.source, unavailable.cluster) == ("logs", "brokers")
    assert f"no file matches {missing}" in unavailable.reason
    assert f"cannot read {broken}: No such file or directory" in unavailable.reason
    _append(good, RESET.format(1))
    source.poll()
    assert agent.offsets() == ["1"]
    missing.write_text(RESET.format(2))
    (tmp_path / "nowhere").write_text(RESET.format(3))
    source.poll()
    source.poll()
    availability = [type(fact) for fact in agent.emitted() if isinstance(fact, Unavailable | Available)]
    assert availability == [Unavailable, Available]
    assert sorted(agent.offsets()) == ["1", "2", "3"]


@pytest.mark.parametrize("restarts", [False, True])
def test_old_lines_are_skipped_also_in_a_file_that_was_closed_to_us(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    """Until the operator adds the agent to a group, for which it is usually restarted."""
    opened, closed = tmp_path / "opened.log", tmp_path / "closed.log"
    _append(opened, RESET.format(1))
    _append(closed, RESET.format(2))
    open_file = log_files._open

    def refuse(path: str) -> int:
        if path == str(closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open_file(path)

    with monkeypatch.context() as patch:
        patch.setattr(log_files, "_open", refuse)
        source = agent.start(tmp_path / "*.log")
        source.poll()
    if restarts:
        source.close()
        source = agent.start(tmp_path / "*.log")
    source.poll()
    _append(closed, RESET.format(3))
    source.poll()
    assert agent.offsets() == ["3"]


def test_file_with_two_names_is_one_log(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "server-1.log"
    path.touch()
    (tmp_path / "current.log").symlink_to(path)
    source = agent.start(tmp_path / "*.log")
    _append(path, RESET.format(1))
    source.poll()
    source.close()
    _append(path, RESET.format(2))
    agent.start(tmp_path / "*.log")
    assert agent.offsets() == ["1", "2"]


def test_lines_written_to_a_renamed_file_are_read(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(path)
    with path.open("a") as file:
        path.rename(tmp_path / "server.log.1")
        path.write_text(RESET.format(1))
        source.poll()
        file.write(RESET.format(2))
        file.flush()
        source.poll()
    assert agent.offsets() == ["1", "2"]


def test_a_deleted_log_is_closed_though_its_rotated_file_remains(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(tmp_path / "*.log")
    path.rename(tmp_path / "server.log.1")
    path.write_text(RESET.format(1))
    agent.now = path.stat().st_mtime_ns // 1_000_000
    source.poll()
    (followed,) = source._logs
    assert [file.is_open for file in followed.all_files()] == [True, True]
    agent.now += IDLE_MS + 1
    source.poll()
    assert len(followed.all_files()) == 1
    path.unlink()
    source.poll()
    source.poll()
    assert list(source._logs) == []
    assert agent.offsets() == ["1"]


def test_a_stale_file_is_opened_again_and_hides_no_other(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS returns ESTALE for a file that was deleted on the server."""
    paths = [tmp_path / f"{name}.log" for name in "abc"]
    for path in paths:
        path.touch()
    source = agent.start(tmp_path / "*.log")
    stale = {followed.file._file for followed in source._logs if followed.path == str(paths[1])}
    fstat, close = os.fstat, os.close

    def fail_if_stale(file: int) -> os.stat_result:
        if file in stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return fstat(file)

    def close_stale(file: int) -> None:
        stale.discard(file)
        close(file)

    monkeypatch.setattr(os, "fstat", fail_if_stale)
    monkeypatch.setattr(os, "close", close_stale)
    paths[1].unlink()
    for number, path in enumerate(paths):
        _append(path, RESET.format(number))
    source.poll()
    assert sorted(agent.offsets()) == ["0", "1", "2"]


def test_deleted_file_is_read_to_its_end_and_closed(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    agent.now = path.stat().st_mtime_ns // 1_000_000
    source = agent.start(path)
    _append(path, RESET.format(1))
    path.unlink()
    source.poll()
    assert agent.offsets() == ["1"]
    open_files = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not any(str(tmp_path) in file for file in open_files)


def test_deleted_logs_are_forgotten(agent: Agent, tmp_path: Path) -> None:
    source = agent.start(tmp_path / "*.log", encoding="utf-8")
    for number in range(5):
        (tmp_path / f"{number}.log").write_bytes(RESET.format(1).encode() + b"\xff\n")
        source.poll()
        (tmp_path / f"{number}.log").unlink()
        source.poll()
    source.poll()
    assert len(agent.lines()) == 5
    assert (source._emitted, source._undecodable) == ({}, set())


def test_hole_left_after_a_truncation_hides_nothing(agent: Agent, tmp_path: Path) -> None:
    """Copy and truncate under a writer that does not append: zeros, then the line."""
    path = tmp_path / "server.log"
    with path.open("w") as file:
        source = agent.start(path)
        file.write(RESET.format(1) * 3)
        file.flush()
        source.poll()
        os.truncate(path, 0)
        file.write(RESET.format(2))
        file.flush()
        source.poll()
    assert agent.offsets() == ["1", "1", "1", "2"]


@pytest.mark.parametrize("numbered", [True, False])
def test_file_rotated_while_down_is_read_despite_late_writes(agent: Agent, tmp_path: Path, *, numbered: bool) -> None:
    """Two rotations, and a writer that keeps the first file open: modification times do not show their order."""
    path, older = tmp_path / "server.log", tmp_path / "server.log.0-of-old"
    older.write_text(_at(1, 0))
    path.write_text(_at(2, 1))
    times = iter(range(path.stat().st_mtime_ns, 1 << 62, 1_000_000_000))
    agent.now = next(times) // 1_000_000
    agent.start(path).close()
    first = tmp_path / ("server.log.2" if numbered else "server.log.2026-11-21-06")
    second = tmp_path / ("server.log.1" if numbered else "server.log.2026-11-21-07")
    path.rename(first)
    for file, text in ((path, _at(3, 3)), (first, _at(3, 4)), (None, ""), (path, _at(4, 5))):
        if file is None:
            path.rename(second)
        else:
            _append(file, text)
            os.utime(file, ns=(next(times),) * 2)
    os.utime(first, ns=(next(times),) * 2)
    agent.start(path)
    assert sorted(agent.offsets()) == ["3", "4", "5"]


def _at(hour: int, number: int) -> str:
    return RESET.replace(" 06:", f" {hour:02}:").format(number)


def test_a_link_that_cannot_be_looked_at_hides_no_other(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "a.log").symlink_to("n" * 300)  # no file may have so long a name
    other = tmp_path / "b.log"
    other.touch()
    source = agent.start(tmp_path / "*.log")
    _append(other, RESET.format(1))
    source.poll()
    assert agent.offsets() == ["1"]
    (reason,) = [fact.reason for fact in agent.emitted() if isinstance(fact, Unavailable)]
    assert reason == f"cannot read {tmp_path}/a.log: {os.strerror(errno.ENAMETOOLONG)}"


@pytest.mark.parametrize("is_server_ahead", [False, True])
def test_a_rotated_file_is_not_read_again_while_the_new_one_is_empty(
    agent: Agent, tmp_path: Path, *, is_server_ahead: bool
) -> None:
    """Its writer goes on for a moment, or the file server's clock is ahead of the agent's."""
    path, rotated = tmp_path / "server.log", tmp_path / "server.log.1"
    path.touch()
    source = agent.start(path)
    for number in (1, 2):
        _append(path, RESET.format(number))
        source.poll()
    path.rename(rotated)
    path.touch()
    agent.now = path.stat().st_mtime_ns // 1_000_000 - (5_000 if is_server_ahead else 0)
    source.poll()
    if not is_server_ahead:
        _append(rotated, RESET.format(3))
        os.utime(rotated, ns=(0, (agent.now + 1_000) * 1_000_000))
    source.close()
    expected = ["1", "2"] if is_server_ahead else ["1", "2", "3"]
    source = agent.start(path)
    assert agent.offsets() == expected
    _append(path, RESET.format(4))
    source.poll()
    assert agent.offsets() == [*expected, "4"]


def test_a_copy_of_a_rotated_file_is_not_read(agent: Agent, tmp_path: Path) -> None:
    path, rotated, copy = tmp_path / "server.log", tmp_path / "server.log.1", tmp_path / "server.log.1.bak"
    path.touch()
    source = agent.start(path)
    _append(path, RESET.format(1))
    source.poll()
    path.rename(rotated)
    path.touch()
    source.poll()
    copy.write_bytes(rotated.read_bytes())
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(copy, ns=(later, later))
    source.poll()
    _append(path, RESET.format(2))
    os.utime(path, ns=(later + 1, later + 1))
    source.poll()
    assert agent.offsets() == ["1", "2"]


@pytest.mark.parametrize("more", [0, 5])
def test_the_first_file_of_a_pattern_is_read_if_it_was_made_while_down(agent: Agent, tmp_path: Path, more: int) -> None:
    known, made = tmp_path / "a.log", tmp_path / "b" / "c.log"
    known.touch()
    made.parent.mkdir()
    patterns = (known, made.parent / "*.log", *(tmp_path / f"{number}" / "*.log" for number in range(more)))
    agent.start(*patterns).close()
    _append(made, RESET.format(1))
    agent.start(*patterns)
    assert agent.offsets() == ["1"]


def test_a_log_behind_a_link_is_read_to_its_end_after_a_rotation_while_down(agent: Agent, tmp_path: Path) -> None:
    """As the kubelet has it: links in one folder lead to the files in others, where they are rotated."""
    target, link = tmp_path / "pods" / "0.log", tmp_path / "containers" / "x.log"
    for path in (target, link):
        path.parent.mkdir()
    target.touch()
    link.symlink_to(target)
    source = agent.start(link.parent / "*.log")
    _append(target, RESET.format(1))
    source.poll()
    source.close()
    _append(target, RESET.format(2))
    target.rename(target.with_name("0.log.20261121-120000"))
    _append(target, RESET.format(3))
    agent.start(link.parent / "*.log")
    assert agent.offsets() == ["1", "2", "3"]
    assert {line.log for line in agent.lines()} == {str(link)}


def test_a_hole_counts_towards_the_limit_of_a_poll(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "BLOCK", 4096)
    monkeypatch.setattr(logs, "BYTES_PER_POLL", 16_384)
    path = tmp_path / "server.log"
    path.touch()
    source = agent.start(path)
    with path.open("r+b") as file:
        file.seek(100_000)
        file.write(RESET.format(1).encode())
    for _ in range(6):
        source.poll()
        assert agent.offsets() == []
    source.poll()
    assert agent.offsets() == ["1"]
