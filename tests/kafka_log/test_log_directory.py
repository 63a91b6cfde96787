"""What lies in a broker's log directory is listed with its checkpoints, and what a broker is done with is left out."""

import pickle
from pathlib import Path

import pytest

from agent.kafka_log.log_directory import LogDirectoryError, opened, partitions
from tests.kafka_log.writer import entry


def lay_out(root: Path) -> Path:
    """A log directory as a broker at work leaves it."""
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
    """By path and by URL alike; the last segment is the active one."""
    directory = f"{prefix}{lay_out(tmp_path / 'log')}"
    found = partitions(2005, directory)
    assert [(one.topic, one.partition) for one in found] == [
        ("__consumer_offsets", 7), ("orders", 0), ("orders", 12), ("with-dash-and.dot", 3),
    ]  # fmt: skip
    one = found[1]
    assert (one.high_watermark, one.log_start, one.cleaned_up_to) == (255, 17, 100)
    assert one.epochs == ((0, 0), (5, 120))
    assert [(two.base_offset, two.next_base, two.active) for two in one.segments] == [
        (0, 100, False), (100, 250, False), (250, None, True),
    ]  # fmt: skip
    assert one.segments[0].file == "orders-0/00000000000000000000.log"
    assert one.segments[0].size == len(entry(2, "none", 0, 10))
    assert one.segments[0].mtime > 0
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 - our own bytes


def test_a_log_starts_where_its_first_segment_does_when_no_checkpoint_says_more(tmp_path: Path) -> None:
    """Retention by whole segments is not in the checkpoint of brokers below 0.11."""
    one = partitions(1, str(lay_out(tmp_path)), ["orders"])[1]
    assert (one.high_watermark, one.log_start, one.cleaned_up_to, one.epochs) == (None, 40, None, ())


def test_topics_are_chosen_by_shell_patterns(tmp_path: Path) -> None:
    """Any of them."""
    found = partitions(1, str(lay_out(tmp_path)), ["__*", "with-*"])
    assert [one.topic for one in found] == ["__consumer_offsets", "with-dash-and.dot"]


def test_a_checkpoint_half_written_says_nothing(tmp_path: Path) -> None:
    """Not a reason to stop: nothing is known then."""
    root = lay_out(tmp_path)
    for text in ("", "0", "0\nx\n", "7\n1\norders 0 9\n", "0\n3\norders 0 9 9\norders 0 x\n\xff\n"):
        (root / "replication-offset-checkpoint").write_text(text)
        assert [one.high_watermark for one in partitions(1, str(root))] == [None] * 4


def test_a_wrong_directory_is_told_in_a_sentence(tmp_path: Path) -> None:
    """One that is missing, one that holds no log, one that is no directory, a URL that nothing opens."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for place, what in (("missing", "no such"), ("empty", "no partitions"), ("file", "no such")):
        with pytest.raises(LogDirectoryError, match=what):
            partitions(1, str(tmp_path / place))
    with pytest.raises(LogDirectoryError, match="cannot be opened"):
        partitions(1, "nothing://here")


def test_a_relative_path_is_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator types it."""
    lay_out(tmp_path / "log")
    monkeypatch.chdir(tmp_path)
    assert opened("log")[1] == str(tmp_path / "log")
    assert len(partitions(1, "log")) == 4


def test_the_log_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    """Ids that are mixed up would turn round what is said of which replica loses what."""
    (tmp_path / "t-0").mkdir()
    for key in ("broker.id", "node.id"):
        (tmp_path / "meta.properties").write_text(f"version=0\n{key}=2005\n")
        assert len(partitions(2005, str(tmp_path))) == 1
        with pytest.raises(LogDirectoryError, match="of broker 2005, not of 2011"):
            partitions(2011, str(tmp_path))
