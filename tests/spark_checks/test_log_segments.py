"""log_segments: faults with broker, file, byte and offsets; nothing on intact logs."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from agent.kafka_log.digest import write_digest
from agent.kafka_log.log_directory import Segment
from agent.model.findings import Severity, finding_from_json, finding_json
from spark_checks import log_segments
from spark_checks.logs.replicas import pack
from spark_checks.options import Options, Report
from tests.spark_checks import disks

# PySpark leaves the socket of a result to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def check(spark: SparkSession, *paths: str, topics: tuple[str, ...] = ()) -> Report:
    """Run the check over brokers' directories or digests."""
    options = Options(own={"paths": paths}, topics=topics)
    assert log_segments.mistakes(options) == []
    return log_segments.run(spark, options, lambda _: None)


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """A log directory: offsets that decrease in a gzip wrapper, a flipped bit, a torn tail, and healthy segments."""
    back = [*disks.log(1, "gzip", 50), *disks.log(1, "gzip", 75, start=45)]
    disks.write(tmp_path, "back", 0, {0: b"".join(back)})
    flipped = bytearray(b"".join(disks.log(2, "zstd", 100)))
    flipped[len(b"".join(disks.log(2, "zstd", 50))) + 70] ^= 1  # among the records from offset 50 on
    disks.write(tmp_path, "bits", 1, {0: bytes(flipped), 100: b"".join(disks.log(2, "zstd", 150, start=100))})
    disks.write(tmp_path, "torn", 2, {0: b"".join(disks.log(0, "snappy", 60))[:-7]})
    disks.write(tmp_path, "well", 3, {0: b"".join(disks.log(2, "lz4", 60)), 60: b""})
    return tmp_path


def test_every_fault_has_its_file_byte_and_offsets(spark: SparkSession, broker: Path) -> None:
    report = check(spark, f"2005={broker}")
    back, bits, torn = report.findings
    assert back.subject == {
        "cluster": "main",
        "broker": 2005,
        "topic": "back",
        "partition": 0,
        "file": "back-0/00000000000000000000.log",
    }
    position = len(b"".join(disks.log(1, "gzip", 50)))
    assert (back.labels, back.position, back.severity) == (("offsets_went_back",), position, Severity.CRITICAL)
    assert (back.previous, back.current, back.at) == ({"offset": 49}, {"offset": 45}, disks.STARTED + 45)
    assert back.detail.startswith(
        f"Broker 2005, back-0/00000000000000000000.log, byte {position}: offset 45 follows 49. "
    )
    assert (bits.labels, bits.previous["offset"], bits.severity) == (("crc_mismatch",), 49, Severity.CRITICAL)
    assert (torn.labels, torn.previous, torn.severity) == (("torn_tail",), {"offset": 49}, Severity.WARNING)
    assert torn.at == (broker / "torn-2" / f"{0:020d}.log").stat().st_mtime_ns // 1_000_000
    assert report.summary.endswith("4 partitions on broker 2005: 3 faults in 3 files.")
    assert [finding_from_json(finding_json(finding)) for finding in report.findings] == report.findings


def test_digest_has_the_faults_of_its_directory(spark: SparkSession, broker: Path) -> None:
    made = broker / "digest.parquet"
    write_digest(2005, str(broker), made)
    whole, digested = check(spark, f"2005={broker}").findings, check(spark, f"2005={made}").findings
    assert [(line.subject, line.labels, line.position) for line in digested] == [
        (entry.subject, entry.labels, entry.position) for entry in whole
    ]
    assert digested[:2] == whole[:2]
    assert check(spark, f"2005={made.as_uri()}").findings == digested


def test_only_selected_topics_are_read(spark: SparkSession, broker: Path) -> None:
    made = broker / "digest.parquet"
    write_digest(2005, str(broker), made)
    for path in (broker, made):
        findings = check(spark, f"2005={path}", topics=("b?t*", "well")).findings
        assert [finding.subject["topic"] for finding in findings] == ["bits"]


def test_intact_log_has_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    disks.write(tmp_path, "t", 0, {0: b"".join(disks.log(2, "none", 60))})
    report = check(spark, f"1={tmp_path}")
    assert report.findings == []
    assert report.summary.startswith("Read 1 segment (0.0 MB), 1 partition on broker 1: no fault")


def test_segments_are_packed_evenly_largest_first() -> None:
    sizes = [1000, 10, 10, 500, 20, 400, *([5] * 100)]
    segments = [Segment(1, "d", "t", 0, f"{number}.log", number, None, size, 0) for number, size in enumerate(sizes)]
    packs = pack(segments, cores=2)
    loads = [sum(segment.size for segment in of_task) for of_task in packs]
    assert sorted(segment.base_offset for of_task in packs for segment in of_task) == list(range(len(sizes)))
    assert (len(packs), max(loads)) == (8, 1000)
    assert max(loads[3:]) - min(loads[3:]) <= 10
    assert pack([], cores=2) == []
