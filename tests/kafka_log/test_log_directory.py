"""A broker's log directory is listed with its checkpoints, without what the broker no longer uses."""

import pickle
from pathlib import Path

import pytest

from agent.kafka_log.log_directory import LogDirectoryError, list_partitions, open_file_system
from tests.kafka_log.writer import entry


def write_log_directory(root: Path) -> Path:
    """Write a log directory as a running broker has it."""
    for folder in (
        "orders-0",
        "orders-12",
        "with-dash-and.dot-3",
        "__consumer_offsets-7",
        "orders-1.5f0c9d3e-delete",
        "orders-2.5f0c9d3e-future",
        "orders-3.5f0c9d3e-stray",
        "lost+found",
    ):
        (root / folder).mkdir(parents=True)
    for base in (0, 100, 250):
        (root / f"orders-0/{base:020d}.log").write_bytes(entry(2, "none", base, 10))
        (root / f"orders-0/{base:020d}.index").touch()
    for name in (
        "00000000000000000300.log.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000400.log.swap",
    ):
        (root / "orders-0" / name).touch()
    (root / "orders-0/leader-epoch-checkpoint").write_text("0\n2\n0 0\n5 120\n")
    (root / "orders-12/00000000000000000040.log").touch()
    (root / "replication-offset-checkpoint").write_text("0\n2\norders 0 255\nwith-dash-and.dot 3 8\n")
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 17\n")
    (root / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 100\n")
    (root / "meta.properties").write_text("version=0\n")
    return root


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_partitions_are_listed_with_segments_and_checkpoints(tmp_path: Path, prefix: str) -> None:
    directory = f"{prefix}{write_log_directory(tmp_path / 'log')}"
    partitions = list_partitions(2005, directory)
    assert [(partition.topic, partition.partition) for partition in partitions] == [
        ("__consumer_offsets", 7), ("orders", 0), ("orders", 12), ("with-dash-and.dot", 3),
    ]  # fmt: skip
    orders = partitions[1]
    assert (orders.high_watermark, orders.log_start, orders.cleaned_up_to) == (255, 17, 100)
    assert orders.epochs == ((0, 0), (5, 120))
    assert [(segment.base_offset, segment.next_base, segment.active) for segment in orders.segments] == [
        (0, 100, False), (100, 250, False), (250, None, True),
    ]  # fmt: skip
    assert orders.segments[0].file == "orders-0/00000000000000000000.log"
    assert orders.segments[0].size == len(entry(2, "none", 0, 10))
    assert orders.segments[0].mtime > 0
    assert pickle.loads(pickle.dumps(partitions)) == partitions  # noqa: S301 - our own bytes


def test_log_start_is_that_of_the_first_segment_by_default(tmp_path: Path) -> None:
    """Brokers below 0.11 do not write retention by whole segments to the checkpoint."""
    orders = list_partitions(1, str(write_log_directory(tmp_path)), ["orders"])[1]
    assert (orders.high_watermark, orders.log_start, orders.cleaned_up_to, orders.epochs) == (None, 40, None, ())


def test_topics_are_selected_by_shell_patterns(tmp_path: Path) -> None:
    partitions = list_partitions(1, str(write_log_directory(tmp_path)), ["__*", "with-*"])
    assert [partition.topic for partition in partitions] == ["__consumer_offsets", "with-dash-and.dot"]


def test_half_written_checkpoint_is_ignored(tmp_path: Path) -> None:
    root = write_log_directory(tmp_path)
    for text in ("", "0", "0\nx\n", "7\n1\norders 0 9\n", "0\n3\norders 0 9 9\norders 0 x\n\xff\n"):
        (root / "replication-offset-checkpoint").write_text(text)
        assert [partition.high_watermark for partition in list_partitions(1, str(root))] == [None] * 4


def test_numbers_that_no_broker_writes_are_ignored(tmp_path: Path) -> None:
    root = write_log_directory(tmp_path)
    for number in ("\u00b2", "--1", "9" * 5_000):
        for text in (f"0\n1\norders 0 {number}\n", f"0\n{number}\norders 0 9\n"):
            (root / "replication-offset-checkpoint").write_text(text, encoding="utf-8")
            assert [partition.high_watermark for partition in list_partitions(1, str(root))] == [None] * 4
    (root / "replication-offset-checkpoint").write_text("0\n1\x1e\norders 0 9\n")
    assert 9 in [partition.high_watermark for partition in list_partitions(1, str(root))]
    (root / "meta.properties").write_text(f"broker.id={'9' * 5_000}\n", encoding="utf-8")
    assert len(list_partitions(1, str(root))) == 4


def test_wrong_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for place, problem in (("missing", "no such"), ("empty", "no partitions"), ("file", "no such")):
        with pytest.raises(LogDirectoryError, match=problem):
            list_partitions(1, str(tmp_path / place))
    with pytest.raises(LogDirectoryError, match="cannot be opened"):
        list_partitions(1, "nothing://here")


def test_relative_path_starts_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log_directory(tmp_path / "log")
    monkeypatch.chdir(tmp_path)
    assert open_file_system("log")[1] == str(tmp_path / "log")
    assert len(list_partitions(1, "log")) == 4


def test_log_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    """Mixed-up ids would swap which replica loses which records."""
    (tmp_path / "t-0").mkdir()
    for key in ("broker.id", "node.id"):
        (tmp_path / "meta.properties").write_text(f"version=0\n{key}=2005\n")
        assert len(list_partitions(2005, str(tmp_path))) == 1
        with pytest.raises(LogDirectoryError, match="of broker 2005, not of 2011"):
            list_partitions(2011, str(tmp_path))
