"""replica_divergence: exact offsets of differences, and nothing where replicas may differ."""

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from agent.kafka_log.digest import write_digest
from agent.model.findings import Finding
from spark_checks import replica_divergence
from spark_checks.options import Options, Report
from tests.spark_checks import disks

A, B, C = 2005, 2011, 2024

# PySpark leaves the socket of a result to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def check(spark: SparkSession, paths: dict[int, Path], **own: Any) -> Report:
    """Run the check over brokers' directories or digests."""
    options = Options(own={"paths": tuple(f"{broker}={path}" for broker, path in paths.items())}, **own)
    assert replica_divergence.mistakes(options) == []
    return replica_divergence.run(spark, options, lambda _: None)


def sides(finding: Finding) -> list[tuple[int, list[list[int]], int]]:
    """What each replica alone holds: broker, ranges, records."""
    return [(side["broker"], side["ranges"], side["records"]) for side in (finding.previous, finding.current)]


@pytest.fixture
def power_loss(tmp_path: Path) -> dict[int, Path]:
    """The shape of KAFKA-3919: B kept 0..7999 and took the leader's batch 7900..8099, which straddles 8000, whole."""
    old = disks.log(1, "snappy", 7100, size=100) + disks.log(1, "snappy", 8000, start=7100, size=100, text="old")
    kept = disks.log(1, "snappy", 7100, size=100)
    new = disks.log(1, "snappy", 7900, start=7100, size=200, text="new")
    after = disks.log(1, "snappy", 9500, start=7900, size=200, text="new")
    disks.write(tmp_path / "a", "t", 0, {0: b"".join(kept + new + after)}, high_watermark=9500)
    disks.write(tmp_path / "b", "t", 0, {0: b"".join(old + after)}, high_watermark=9500)
    return {A: tmp_path / "a", B: tmp_path / "b"}


def test_power_loss_divergence_has_the_loss_per_leader(spark: SparkSession, power_loss: dict[int, Path]) -> None:
    position = sum(map(len, disks.log(1, "snappy", 7100, size=100))) + sum(
        map(len, disks.log(1, "snappy", 8000, start=7100, size=100, text="old"))
    )
    report = check(spark, power_loss)
    (found,) = report.findings
    assert found.subject == {"cluster": "main", "brokers": [A, B], "topic": "t", "partition": 0}
    assert sides(found) == [(A, [[7100, 7899]], 800), (B, [[7100, 7999]], 900)]
    assert (found.labels, found.records.lost, found.at) == (("records_differ",), 900, disks.STARTED + 7100)
    assert found.detail == (
        "t[0] differs between brokers 2005 and 2011 from offset 7,100 on (offsets 7,100-7,999; lower high"
        " watermark 9,500): if 2005 leads, 2011 loses 900 records (offsets 7,100-7,999); if 2011 leads, 2005"
        " loses 800 records (offsets 7,100-7,899). Broker 2011's own log is faulty there: offset 7,900 comes after"
        f" 7,999 (t-0/{0:020d}.log, byte {position:,})."
    )
    assert report.summary == (
        "Compared 1 pair of replicas of 1 partition on brokers 2005, 2011, below the high watermark: 1 difference."
    )


def test_records_held_twice_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    same, old = disks.log(2, "none", 40), disks.log(2, "none", 60, start=40, text="old")
    again = disks.log(2, "none", 80, start=50, text="again")
    disks.write(tmp_path / "a", "t", 0, {0: b"".join(disks.log(2, "none", 80))}, high_watermark=80)
    disks.write(tmp_path / "b", "t", 0, {0: b"".join([*same, *old, *again])}, high_watermark=80)
    disks.write(tmp_path / "a", "u", 0, {0: b"".join([*same, *same[2:], *old])}, high_watermark=60)
    disks.write(tmp_path / "b", "u", 0, {0: b"".join(disks.log(2, "none", 60))}, high_watermark=60)
    faulty, elsewhere = check(spark, {A: tmp_path / "a", B: tmp_path / "b"}).findings
    assert sides(faulty)[1] == (B, [[40, 79]], 50)
    assert "2011 loses 50 records (offsets 40-79, 10 of them at offsets that it holds more than once)" in faulty.detail
    assert "Broker 2011's own log is faulty there: offset 50 comes after 59 (" in faulty.detail
    assert "2005 loses 40 records (offsets 40-79)" in faulty.detail
    assert "faulty" not in elsewhere.detail


def test_digests_give_the_findings_of_their_directories(
    spark: SparkSession, power_loss: dict[int, Path], tmp_path: Path
) -> None:
    whole = check(spark, power_loss).findings
    digests = {broker: tmp_path / f"{broker}.parquet" for broker in power_loss}
    for broker, path in power_loss.items():
        write_digest(broker, str(path), digests[broker])
    assert check(spark, digests).findings == whole
    assert check(spark, {A: digests[A], B: power_loss[B]}).findings == whole


def test_damaged_digest_fails_the_check(spark: SparkSession, power_loss: dict[int, Path], tmp_path: Path) -> None:
    digest = tmp_path / "2005.parquet"
    write_digest(A, str(power_loss[A]), digest)
    entries, metadata = parquet.read_table(digest), parquet.read_metadata(digest).metadata
    # Plain pages: a changed byte is another valid number, which only the checksum of its page shows.
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    with parquet.ParquetWriter(digest, entries.schema, **plain) as writer:
        writer.write_table(entries)
        writer.add_key_value_metadata(metadata)
    content = bytearray(digest.read_bytes())
    crc = entries["crc"][0].as_py().to_bytes(4, "little")
    content[content.index(crc)] ^= 1
    digest.write_bytes(content)
    with pytest.raises((Py4JError, PySparkException), match=r"CRC|checksum"):
        check(spark, {A: digest, B: power_loss[B]})


def test_other_segment_bounds_and_lag_are_no_divergence(spark: SparkSession, tmp_path: Path) -> None:
    entries = disks.log(2, "lz4", 200)
    parts = {first: b"".join(entries[first // 10 : last // 10]) for first, last in ((0, 70), (70, 150), (150, 200))}
    disks.write(tmp_path / "a", "t", 0, parts, high_watermark=170)
    late = {30: b"".join(entries[3:12]), 120: b"".join(entries[12:18])}
    disks.write(tmp_path / "b", "t", 0, late, high_watermark=180, log_start=35)
    report = check(spark, {A: tmp_path / "a", B: tmp_path / "b"})
    assert report.findings == []
    assert report.summary.endswith("no difference.")


def test_only_offsets_within_all_bounds_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    same = disks.log(2, "none", 100)
    other = [disks.entry(2, "none", 0, 20, "other"), *same[2:8], disks.entry(2, "none", 80, 20, "other")]
    for topic, bounds in {
        "hidden": {"high_watermark": 80, "log_start": 20},
        "cleaned": {"high_watermark": 80, "cleaned": 20},
        "seen": {"high_watermark": 81, "log_start": 19},
    }.items():
        disks.write(tmp_path / "a", topic, 0, {0: b"".join(same)}, high_watermark=100)
        disks.write(tmp_path / "b", topic, 0, {0: b"".join(other)}, **bounds)
    (found,) = check(spark, {A: tmp_path / "a", B: tmp_path / "b"}).findings
    assert found.subject["topic"] == "seen"
    assert sides(found) == [(A, [[19, 19], [80, 80]], 2), (B, [[19, 19], [80, 80]], 2)]


def test_three_replicas_truncated_apart_are_three_pairs(spark: SparkSession, tmp_path: Path) -> None:
    for broker, cut in ((A, 40), (B, 60), (C, 80)):
        entries = disks.log(1, "gzip", cut) + disks.log(1, "gzip", 100, start=cut, text=str(broker))
        disks.write(tmp_path / str(broker), "t", 3, {0: b"".join(entries)}, high_watermark=100)
    found = check(spark, {broker: tmp_path / str(broker) for broker in (A, B, C)}).findings
    assert [(entry.subject["brokers"], entry.previous["offset"], entry.records.lost) for entry in found] == [
        ([A, B], 40, 60),
        ([A, C], 40, 60),
        ([B, C], 60, 40),
    ]


def test_same_bytes_under_another_epoch_differ(spark: SparkSession, tmp_path: Path) -> None:
    for broker, epoch in ((A, 3), (B, 4)):
        raw = disks.entry(2, "none", 0, 10) + _under(epoch, disks.entry(2, "none", 10, 5))
        disks.write(tmp_path / str(broker), "t", 0, {0: raw}, high_watermark=15)
    (found,) = check(spark, {A: tmp_path / str(A), B: tmp_path / str(B)}).findings
    assert (found.labels, found.records.lost) == (("epochs_differ",), 0)
    assert sides(found) == [(A, [[10, 14]], 5), (B, [[10, 14]], 5)]


def test_records_missing_below_both_watermarks_are_found(spark: SparkSession, tmp_path: Path) -> None:
    entries = disks.log(0, "none", 50)
    disks.write(tmp_path / "a", "t", 0, {0: b"".join(entries[:3])}, high_watermark=50)
    disks.write(tmp_path / "b", "t", 0, {0: b"".join(entries)}, high_watermark=50)
    (found,) = check(spark, {A: tmp_path / "a", B: tmp_path / "b"}).findings
    assert (found.labels, found.at > 0) == (("records_missing",), True)
    assert sides(found) == [(A, [], 0), (B, [[30, 49]], 20)]
    assert found.detail.endswith(
        "if 2005 leads, 2011 loses 20 records (offsets 30-49); if 2011 leads, 2005 loses nothing."
    )


def test_log_under_compaction_is_compared_in_active_segment(spark: SparkSession, tmp_path: Path) -> None:
    entries = disks.log(2, "none", 100)
    disks.write(tmp_path / "a", "t", 0, {0: b"".join(entries[:6]), 60: b"".join(entries[6:])}, high_watermark=100)
    cleaned = b"".join([*entries[1:3], *entries[5:6]])
    other = b"".join([*entries[6:9], disks.entry(2, "none", 90, 10, "other")])
    folder = disks.write(tmp_path / "b", "t", 0, {0: cleaned, 60: other}, high_watermark=100)
    paths = {A: tmp_path / "a", B: tmp_path / "b"}
    assert [finding.previous["offset"] for finding in check(spark, paths).findings] == [0]
    (folder / f"{60:020d}.log.cleaned").touch()
    assert [finding.previous["offset"] for finding in check(spark, paths).findings] == [90]


def _under(epoch: int, batch: bytes) -> bytes:
    """A format 2 batch as another leader would have written it."""
    return batch[:12] + epoch.to_bytes(4) + batch[16:]
