"""Replicas compared: what differs is found with its exact offsets, and what may differ is not."""

from pathlib import Path
from typing import Any

import pytest
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


def test_the_divergence_of_a_power_loss_is_found_with_what_each_leader_would_cost(
    spark: SparkSession, power_loss: dict[int, Path]
) -> None:
    """From the first record that the leader lost to the last that the follower kept, where its own log goes back."""
    position = sum(map(len, disks.log(1, "snappy", 7100, size=100))) + sum(
        map(len, disks.log(1, "snappy", 8000, start=7100, size=100, text="old"))
    )
    report = check(spark, power_loss)
    (found,) = report.findings
    assert found.subject == {"cluster": "main", "brokers": [A, B], "topic": "t", "partition": 0}
    assert sides(found) == [(A, [[7100, 7899]], 800), (B, [[7100, 7999]], 900)]
    assert (found.labels, found.records.lost, found.at) == (("records_differ",), 900, disks.STARTED + 7100)
    assert found.detail == (
        "t[0] differs between brokers 2005 and 2011 from offset 7,100 on (offsets 7,100-7,999; both replicas had"
        " committed up to 9,500): if 2005 leads, 2011 loses 900 records (offsets 7,100-7,999); if 2011 leads, 2005"
        " loses 800 records (offsets 7,100-7,899). Broker 2011's own log is faulty there: offset 7,900 comes after"
        f" 7,999 (t-0/{0:020d}.log, byte {position:,})."
    )
    assert report.summary == (
        "Compared 1 pair of replicas of 1 partition on brokers 2005, 2011, below the high watermark: 1 difference."
    )


def test_what_a_faulty_log_holds_twice_is_counted_and_said(spark: SparkSession, tmp_path: Path) -> None:
    """More records than offsets; a fall elsewhere in the log is the matter of log_segments alone."""
    same, old = disks.log(2, "none", 40), disks.log(2, "none", 60, start=40, text="old")
    again = disks.log(2, "none", 80, start=50, text="again")
    disks.write(tmp_path / "a", "t", 0, {0: b"".join(disks.log(2, "none", 80))}, high_watermark=80)
    disks.write(tmp_path / "b", "t", 0, {0: b"".join([*same, *old, *again])}, high_watermark=80)
    disks.write(tmp_path / "a", "u", 0, {0: b"".join([*same, *same[2:], *old])}, high_watermark=60)
    disks.write(tmp_path / "b", "u", 0, {0: b"".join(disks.log(2, "none", 60))}, high_watermark=60)
    faulty, elsewhere = check(spark, {A: tmp_path / "a", B: tmp_path / "b"}).findings
    assert sides(faulty)[1] == (B, [[40, 79]], 50)
    assert "2011 loses 50 records (offsets 40-79, 10 of them for offsets that it holds more than once)" in faulty.detail
    assert "Broker 2011's own log is faulty there: offset 50 comes after 59 (" in faulty.detail
    assert "2005 loses 40 records (offsets 40-79)" in faulty.detail
    assert "faulty" not in elsewhere.detail


def test_digests_tell_the_same_as_the_directories_they_were_made_of(
    spark: SparkSession, power_loss: dict[int, Path], tmp_path: Path
) -> None:
    """Both, or one of them beside a directory."""
    whole = check(spark, power_loss).findings
    digests = {broker: tmp_path / f"{broker}.parquet" for broker in power_loss}
    for broker, path in power_loss.items():
        write_digest(broker, str(path), digests[broker])
    assert check(spark, digests).findings == whole
    assert check(spark, {A: digests[A], B: power_loss[B]}).findings == whole


def test_segments_that_roll_elsewhere_and_a_follower_that_lags_are_no_divergence(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The same batches in other files; one log starts later, one ends earlier, and their watermarks are stale."""
    entries = disks.log(2, "lz4", 200)
    parts = {first: b"".join(entries[first // 10 : last // 10]) for first, last in ((0, 70), (70, 150), (150, 200))}
    disks.write(tmp_path / "a", "t", 0, parts, high_watermark=170)
    late = {30: b"".join(entries[3:12]), 120: b"".join(entries[12:18])}
    disks.write(tmp_path / "b", "t", 0, late, high_watermark=180, log_start=35)
    report = check(spark, {A: tmp_path / "a", B: tmp_path / "b"})
    assert report.findings == []
    assert report.summary.endswith("no difference.")


def test_below_the_log_start_and_the_cleaners_checkpoint_and_above_the_high_watermark_nothing_is_compared(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each of the bounds hides other records; one offset further, the difference is found."""
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


def test_three_replicas_cut_at_three_places_are_three_pairs(spark: SparkSession, tmp_path: Path) -> None:
    """Each lost power with another end and then took other records."""
    for broker, cut in ((A, 40), (B, 60), (C, 80)):
        entries = disks.log(1, "gzip", cut) + disks.log(1, "gzip", 100, start=cut, text=str(broker))
        disks.write(tmp_path / str(broker), "t", 3, {0: b"".join(entries)}, high_watermark=100)
    found = check(spark, {broker: tmp_path / str(broker) for broker in (A, B, C)}).findings
    assert [(one.subject["brokers"], one.previous["offset"], one.records.lost) for one in found] == [
        ([A, B], 40, 60),
        ([A, C], 40, 60),
        ([B, C], 60, 40),
    ]


def test_the_same_bytes_under_another_epoch_differ(spark: SparkSession, tmp_path: Path) -> None:
    """A format 2 batch's checksum leaves its epoch out; the offset was written under two leaders all the same."""
    for broker, epoch in ((A, 3), (B, 4)):
        raw = disks.entry(2, "none", 0, 10) + _under(epoch, disks.entry(2, "none", 10, 5))
        disks.write(tmp_path / str(broker), "t", 0, {0: raw}, high_watermark=15)
    (found,) = check(spark, {A: tmp_path / str(A), B: tmp_path / str(B)}).findings
    assert (found.labels, found.records.lost) == (("epochs_differ",), 0)
    assert sides(found) == [(A, [[10, 14]], 5), (B, [[10, 14]], 5)]


def test_records_that_one_replica_lacks_below_both_high_watermarks_are_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A log cut below what its broker had noted as committed; the one that lacks them has nothing to lose."""
    entries = disks.log(0, "none", 50)
    disks.write(tmp_path / "a", "t", 0, {0: b"".join(entries[:3])}, high_watermark=50)
    disks.write(tmp_path / "b", "t", 0, {0: b"".join(entries)}, high_watermark=50)
    (found,) = check(spark, {A: tmp_path / "a", B: tmp_path / "b"}).findings
    assert (found.labels, found.at > 0) == (("records_missing",), True)
    assert sides(found) == [(A, [], 0), (B, [[30, 49]], 20)]
    assert found.detail.endswith(
        "if 2005 leads, 2011 loses 20 records (offsets 30-49); if 2011 leads, 2005 loses nothing."
    )


def test_a_log_that_is_being_compacted_is_compared_in_its_active_segment_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The cleaner has swapped its first segment in and is at work on the next; its checkpoint does not know yet."""
    entries = disks.log(2, "none", 100)
    disks.write(tmp_path / "a", "t", 0, {0: b"".join(entries[:6]), 60: b"".join(entries[6:])}, high_watermark=100)
    cleaned = b"".join([*entries[1:3], *entries[5:6]])
    other = b"".join([*entries[6:9], disks.entry(2, "none", 90, 10, "other")])
    folder = disks.write(tmp_path / "b", "t", 0, {0: cleaned, 60: other}, high_watermark=100)
    paths = {A: tmp_path / "a", B: tmp_path / "b"}
    assert [one.previous["offset"] for one in check(spark, paths).findings] == [0]
    (folder / f"{60:020d}.log.cleaned").touch()
    assert [one.previous["offset"] for one in check(spark, paths).findings] == [90]


def _under(epoch: int, batch: bytes) -> bytes:
    """A format 2 batch as another leader would have written it."""
    return batch[:12] + epoch.to_bytes(4) + batch[16:]
