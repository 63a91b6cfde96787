"""changelog_restore against plain Python on the same records: a real broker, transactions, aborts, tombstones."""

import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition

from agent.model.findings import Finding, finding_from_json
from agent.model.observations.kafka import GroupState, LogOffsets, Member
from agent.model.observations.logs import LogLine
from agent.model.times import rfc3339
from agent.sources.streams.changelog_values import key_text
from agent.storage.journal.writer import Journal
from spark_checks.session import JVM_OPTIONS, QUICK_START
from testbed.kafka import Cluster
from testbed.streams.app import streams_broker
from testbed.streams.faults import VARIANTS, instances, lose_state
from testbed.streams.topics import NUMBERS, Record, find_decreases, last_values, records
from tests.spark_checks import places
from tests.spark_checks.changelogs import FORMS, began, by_partition, expected, readable, write

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PARTITIONS = 3
QUICK = () if places.REMOTE else (f"--conf={JVM_OPTIONS}={QUICK_START[JVM_OPTIONS]}",)  # a server has its own options
FEW = (*QUICK, "--conf=spark.sql.shuffle.partitions=4")
"""For few records: half of the CPU time is that of many partitions and of compiling what they run."""
MINUTE = 60_000
BEGIN = 1_790_000_000_000  # when the journal begins; the records' timestamps say something else


class Run(NamedTuple):
    """A run of the command and its findings, in order."""

    status: int
    log: str
    findings: list[Finding]
    keys: list[dict[str, object]]
    plot: bytes | None

    def of(self, topic: str, partition: int) -> list[Finding]:
        """Return the findings about a changelog partition."""
        return [
            finding
            for finding in self.findings
            if (finding.subject["topic"], finding.subject["partition"]) == (topic, partition)
        ]


def run(report: Path, *options: str) -> Run:
    """Run the check by its own command, which downloads Spark's Kafka connector."""
    command = [sys.executable, "-m", "spark_checks", "changelog_restore", *places.OPTIONS, *FEW, *options]
    done = subprocess.run([*command, "--report", str(report)], capture_output=True, text=True, check=False, timeout=400)
    found = [finding_from_json(line) for line in done.stdout.splitlines()]
    keys, plot = report / "keys.parquet", report / "plot.png"
    listed = pq.read_table(keys).to_pylist() if keys.exists() else []
    return Run(done.returncode, done.stderr, found, listed, plot.read_bytes() if plot.exists() else None)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run one broker."""
    with streams_broker(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def written(kafka: Cluster) -> dict[str, dict[int, list[Record]]]:
    """Write a changelog of each form and delete the beginning of one.

    Returns the readable committed records by topic and partition.
    """
    held = {}
    config = {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "86400000"}  # as windowed stores have it
    for seed, form in enumerate(FORMS):
        topic = f"app-s{seed}-changelog"
        kafka.create_topic(topic, PARTITIONS, config=config)
        write(kafka.bootstrap_servers, topic, form, partitions=PARTITIONS, seed=seed)
        if seed == 1:
            begun = TopicPartition(topic, 1, 100)
            kafka.admin.delete_records([begun])[begun].result()
        held[topic] = by_partition(readable(records(kafka.bootstrap_servers, topic), form))
    return held


@pytest.fixture(scope="module")
def bounds(written: dict[str, dict[int, list[Record]]]) -> dict[tuple[str, int], int]:
    """Return the change of owner of each partition, in the middle of its log."""
    return {
        (topic, partition): read[len(read) // 2].offset
        for topic, parted in written.items()
        for partition, read in parted.items()
    }


@pytest.fixture(scope="module")
def journal(
    written: dict[str, dict[int, list[Record]]],
    bounds: dict[tuple[str, int], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Write a journal: thread a owns all partitions until a minute after BEGIN, b from two minutes after it on."""
    directory = tmp_path_factory.mktemp("state") / "journal"
    opened = Journal(directory)
    for owner, at, since in (("a", BEGIN, None), ("b", BEGIN + 2 * MINUTE, BEGIN + MINUTE)):
        inputs = tuple(("orders", partition) for partition in range(PARTITIONS))
        member = Member(id=f"{owner}-consumer-uuid", client_id=f"{owner}-StreamThread-1-consumer", partitions=inputs)
        opened.append([
            GroupState(at=at, since=since, cluster="main", group="app", state="Stable", members=(member,))
        ])  # fmt: skip
    for (topic, partition), bound in bounds.items():
        end = written[topic][partition][-1].offset + 1
        for minutes, log_end in ((0, 0), (1, bound), (3, bound), (4, end), (5, end)):
            at = BEGIN + minutes * MINUTE
            opened.append([
                LogOffsets(at=at, cluster="main", topic=topic, partition=partition, log_start=0, log_end=log_end)
            ])  # fmt: skip
    opened.append([
        LogLine(
            at=BEGIN + 2 * MINUTE + 500, cluster="main", log="b.log", component="streams", pattern="store_restored",
            topic="app-s0-changelog", partition=number,
            values={"store": "s0", "records": "12"}, text="Finished restoring",
        )
        for number in range(PARTITIONS)
    ])  # fmt: skip
    opened.flush()
    opened.close()
    return directory


@pytest.fixture(scope="module")
def compared(
    kafka: Cluster, written: dict[str, dict[int, list[Record]]], journal: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Run the check on all of them and one that does not exist."""
    stores = [f"--store=app/s{seed}={form}" for seed, form in enumerate(FORMS)]
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    report = tmp_path_factory.mktemp("report")
    done = run(report, *servers, *stores, "--store", "app/none=long", "--journal", str(journal))
    assert done.status == 1, done.log
    assert len(written) == len(FORMS)
    return done


def test_keys_values_and_offsets_match_plain_python(compared: Run, written: dict[str, dict[int, list[Record]]]) -> None:
    for (topic, parted), form in zip(written.items(), FORMS, strict=True):
        fell = [fall for read in parted.values() for fall in find_decreases(read, FORMS[form][1])]
        assert len(fell) > 60
        listed = [row for row in compared.keys if row["topic"] == topic]
        last = last_values((record for read in parted.values() for record in read), FORMS[form][1])
        assert any((fall.partition, fall.key) not in last for fall in fell)
        columns = ("partition", "key", "before", "before_offset", "after", "after_offset", "last", "restarted")
        assert [tuple(row[name] for name in columns) for row in listed] == [
            (
                *fall[:-1],
                last.get((fall.partition, fall.key)),
                fall.after <= began(parted[fall.partition], fall, FORMS[form][1]),
            )
            for fall in sorted(fell, key=lambda fall: (fall.partition, fall.after_offset))
        ]
        assert [row["key_text"] for row in listed] == [key_text(row["key"]) for row in listed]  # type: ignore[arg-type]


def test_episode_covers_decreases_under_one_owner(
    compared: Run, written: dict[str, dict[int, list[Record]]], bounds: dict[tuple[str, int], int]
) -> None:
    for (topic, parted), form in zip(written.items(), FORMS, strict=True):
        for partition, read in parted.items():
            bound, end = bounds[topic, partition], read[-1].offset + 1
            sides = [expected(read, form, low, high) for low, high in ((0, bound), (bound, end))]
            found = compared.of(topic, partition)
            assert len(found) == sum(entry is not None for entry in sides)
            for side, entry in zip([entry for entry in sides if entry], found, strict=True):
                names = ("keys", "restarted", "total", "first_offset", "last_offset")
                assert {name: entry.current[name] for name in names} == {name: getattr(side, name) for name in names}
                assert entry.labels == (("values_fell", "restarted") if side.restarted else ("values_fell",))
                assert f"{side.keys:,} of {side.live_keys:,} keys decreased" in entry.detail
                assert (f"{side.unwritten:,} more key" in entry.detail) == (side.unwritten > 0)
                late = side.first_offset >= bound
                since, at = (BEGIN + 3 * MINUTE, BEGIN + 4 * MINUTE) if late else (BEGIN, BEGIN + MINUTE)
                assert (entry.since, entry.at) == (since, at)
                moved = "orders[{}] moved from a-StreamThread-1 to b-StreamThread-1"
                assert (moved.format(partition) in entry.detail) == late


def test_log_lines_about_restoring_are_quoted(compared: Run) -> None:
    said = [finding for finding in compared.findings if "b.log at 14:15:20.5: 12 records restored" in finding.detail]
    late = [
        finding
        for finding in compared.findings
        if finding.subject["topic"] == "app-s0-changelog" and finding.since != BEGIN
    ]
    assert said == late
    assert said


def test_summary_counts_records_and_names_missing_topics(compared: Run, kafka: Cluster) -> None:
    summary = compared.log.splitlines()[-1]
    held = {form: records(kafka.bootstrap_servers, f"app-s{seed}-changelog") for seed, form in enumerate(FORMS)}
    read = sum(map(len, held.values()))
    keys = sum(finding.current["keys"] for finding in compared.findings)
    assert summary.startswith(
        f"progress: done: 3 changelogs with {read:,} committed records read: {keys:,} values decreased;"
    )
    assert "topic app-none-changelog does not exist" in summary
    for topic, form in zip(("app-s0-changelog", "app-s1-changelog", "app-s2-changelog"), FORMS, strict=True):
        left_out = len(held[form]) - len(readable(held[form], form))
        assert left_out > 30
        assert f"{left_out} records of {topic} skipped: not {form}" in summary


def test_plot_has_the_size_of_slack(compared: Run) -> None:
    assert compared.plot is not None
    assert compared.plot.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", compared.plot[16:24]) == (1200, 675)


@pytest.mark.acceptance
def test_window_excludes_earlier_writes(kafka: Cluster, journal: Path, tmp_path: Path) -> None:
    asked = ["--store=app/s0=long", "--journal", str(journal), "--from", rfc3339(BEGIN + 2 * MINUTE)]
    done = run(tmp_path / "report", "--bootstrap-servers", kafka.bootstrap_servers, *asked)
    assert done.status == 1, done.log
    assert {(finding.since, finding.at) for finding in done.findings} == {(BEGIN + 3 * MINUTE, BEGIN + 4 * MINUTE)}


def test_empty_and_unreadable_changelogs_are_reported(kafka: Cluster, tmp_path: Path) -> None:
    kafka.create_topic("app-empty-changelog", PARTITIONS)
    kafka.create_topic("app-other-changelog", PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for number in range(3):
        producer.produce("app-other-changelog", key=f"key-{number}", value=f'{{"value": {number}}}')
    assert producer.flush(60) == 0
    asked = ["--store=app/empty=long", "--store=app/other=long"]
    done = run(tmp_path, "--bootstrap-servers", kafka.bootstrap_servers, *asked)
    assert done.status == 0, done.log
    assert done.log.splitlines()[-1] == (
        "progress: done: 2 changelogs with 3 committed records read: no value decreased; "
        "3 records of app-other-changelog skipped: not long."
    )


def test_only_missing_stores_fail_the_check(kafka: Cluster, tmp_path: Path) -> None:
    done = run(tmp_path, "--bootstrap-servers", kafka.bootstrap_servers, "--store=app/nome=long")
    assert done.status == 3
    assert done.log.splitlines()[-1] == "The check changelog_restore failed: topic app-nome-changelog does not exist"


def test_unreachable_broker_fails_with_a_sentence(tmp_path: Path) -> None:
    asked = ["--store", "app/s0=long", "--kafka", "default.api.timeout.ms=3000", "--kafka", "request.timeout.ms=2000"]
    done = run(tmp_path, "--bootstrap-servers", "127.0.0.1:1", *asked)
    assert done.status == 3
    last = done.log.splitlines()[-1]
    assert last.startswith("The check changelog_restore failed: cannot read app-s0-changelog: "), done.log


@pytest.mark.acceptance
@pytest.mark.skipif(bool(places.REMOTE), reason="a Spark Connect server has its own packages")
def test_packages_not_downloadable_fail_with_a_sentence(tmp_path: Path) -> None:
    nowhere = tmp_path / "settings.xml"
    nowhere.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    conf = ["--conf", f"spark.jars.ivySettings={nowhere}", "--conf", f"spark.jars.ivy={tmp_path / 'ivy'}"]
    done = run(tmp_path, "--bootstrap-servers", "127.0.0.1:1", "--store", "app/s0=long", *conf)
    assert done.status == 3
    last = done.log.splitlines()[-1]
    assert last.startswith("The check changelog_restore failed: org.apache.commons:commons-pool2:"), done.log
    assert " could not be fetched " in last


@pytest.mark.acceptance
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("variant", VARIANTS)
def test_real_bug_is_reported_key_by_key(kafka: Cluster, tmp_path: Path, variant: str) -> None:
    name = f"shop-{variant}"
    kafka.create_topic(f"{name}-orders", 4)
    servers = kafka.bootstrap_servers
    first, second = instances(variant, "2.1.0", servers, name, tmp_path, input_topic=f"{name}-orders")
    try:
        outcome = lose_state(first, second, variant)
    finally:
        first.kill()
        second.kill()
    done = run(tmp_path / "report", "--bootstrap-servers", servers, "--store", f"{name}/counts")
    fell = find_decreases(records(servers, outcome.changelog), NUMBERS["long"])
    assert fell
    columns = ("partition", "key", "before", "before_offset", "after", "after_offset")
    assert [tuple(row[name] for name in columns) for row in done.keys] == [
        fall[:-1] for fall in sorted(fell, key=lambda fall: (fall.partition, fall.after_offset))
    ]
    assert {fall.key for fall in outcome.decreases} == {row["key"] for row in done.keys}
    keys = {finding.subject["partition"]: finding.current["keys"] for finding in done.findings}
    assert keys == Counter(fall.partition for fall in outcome.decreases)
    whole = variant != "partial"
    assert all(("restarted" in finding.labels) == whole for finding in done.findings)
