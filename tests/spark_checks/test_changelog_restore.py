"""changelog_restore against plain Python over the same records: a real broker, transactions, aborts, tombstones."""

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
from agent.model.observations import GroupState, LogLine, LogOffsets, Member, rfc3339
from agent.sources.streams.changelog_values import key_text
from agent.storage.journal import Journal
from testbed.kafka import Cluster
from testbed.streams.broker import streams_broker
from testbed.streams.changelog import NUMBERS, Record, falls, last_values, records
from testbed.streams.faults import VARIANTS, instances, lose_state
from tests.spark_checks.changelogs import FORMS, began, by_partition, expected, readable, write

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PARTITIONS = 3
MINUTE = 60_000
BEGIN = 1_790_000_000_000  # when the journal begins; the records' timestamps say something else


class Run(NamedTuple):
    """A run of the command with what it found, by changelog and partition, in order."""

    status: int
    log: str
    findings: list[Finding]
    keys: list[dict[str, object]]
    plot: bytes | None

    def of(self, topic: str, partition: int) -> list[Finding]:
        """What it found of a changelog partition."""
        return [one for one in self.findings if (one.subject["topic"], one.subject["partition"]) == (topic, partition)]


def run(report: Path, *options: str) -> Run:
    """The check by its own command, which fetches Spark's Kafka connector."""
    command = [sys.executable, "-m", "spark_checks", "changelog_restore", "--master", "local[2]", *options]
    done = subprocess.run([*command, "--report", str(report)], capture_output=True, text=True, check=False, timeout=400)
    found = [finding_from_json(line) for line in done.stdout.splitlines()]
    keys, plot = report / "keys.parquet", report / "plot.png"
    listed = pq.read_table(keys).to_pylist() if keys.exists() else []
    return Run(done.returncode, done.stderr, found, listed, plot.read_bytes() if plot.exists() else None)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker."""
    with streams_broker(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def written(kafka: Cluster) -> dict[str, dict[int, list[Record]]]:
    """A changelog of each form, of one of which the beginning is deleted: the committed records that can be read, by
    topic and partition.
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
    """Where the owner of each partition changed: in the middle."""
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
    """Thread a had all partitions until a minute after BEGIN, b has them from two minutes after it on."""
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
            topic="app-s0-changelog", partition=one, values={"store": "s0", "records": "12"}, text="Finished restoring",
        )
        for one in range(PARTITIONS)
    ])  # fmt: skip
    opened.flush()
    opened.close()
    return directory


@pytest.fixture(scope="module")
def compared(
    kafka: Cluster, written: dict[str, dict[int, list[Record]]], journal: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """The check over all of them, and one that is not there."""
    stores = [f"--store=app/s{seed}={form}" for seed, form in enumerate(FORMS)]
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    report = tmp_path_factory.mktemp("report")
    done = run(report, *servers, *stores, "--store", "app/none=long", "--journal", str(journal))
    assert done.status == 1, done.log
    assert len(written) == len(FORMS)
    return done


def test_keys_values_and_offsets_are_those_of_plain_python(
    compared: Run, written: dict[str, dict[int, list[Record]]]
) -> None:
    """Every fall and no other, in order; an aborted record is none, a deleted key begins anew."""
    for (topic, parted), form in zip(written.items(), FORMS, strict=True):
        fell = [one for read in parted.values() for one in falls(read, FORMS[form][1])]
        assert len(fell) > 60
        listed = [one for one in compared.keys if one["topic"] == topic]
        last = last_values((one for read in parted.values() for one in read), FORMS[form][1])
        assert any((one.partition, one.key) not in last for one in fell)
        columns = ("partition", "key", "before", "before_offset", "after", "after_offset", "last", "restarted")
        assert [tuple(one[name] for name in columns) for one in listed] == [
            (
                *one[:-1],
                last.get((one.partition, one.key)),
                one.after <= began(parted[one.partition], one, FORMS[form][1]),
            )
            for one in sorted(fell, key=lambda one: (one.partition, one.after_offset))
        ]
        assert [one["key_text"] for one in listed] == [key_text(one["key"]) for one in listed]  # type: ignore[arg-type]


def test_a_stretch_is_what_fell_under_one_owner(
    compared: Run, written: dict[str, dict[int, list[Record]]], bounds: dict[tuple[str, int], int]
) -> None:
    """Its sums, its worst key and its times are those of plain Python."""
    for (topic, parted), form in zip(written.items(), FORMS, strict=True):
        for partition, read in parted.items():
            bound, end = bounds[topic, partition], read[-1].offset + 1
            sides = [expected(read, form, low, high) for low, high in ((0, bound), (bound, end))]
            found = compared.of(topic, partition)
            assert len(found) == sum(one is not None for one in sides)
            for side, one in zip([one for one in sides if one], found, strict=True):
                names = ("keys", "restarted", "total", "first_offset", "last_offset")
                assert {name: one.current[name] for name in names} == {name: getattr(side, name) for name in names}
                assert one.labels == (("values_fell", "restarted") if side.restarted else ("values_fell",))
                assert f"{side.keys:,} of its {side.standing:,} keys went back" in one.detail
                assert (f"{side.unwritten:,} more key" in one.detail) == (side.unwritten > 0)
                late = side.first_offset >= bound
                since, at = (BEGIN + 3 * MINUTE, BEGIN + 4 * MINUTE) if late else (BEGIN, BEGIN + MINUTE)
                assert (one.since, one.at) == (since, at)
                moved = "orders[{}] had moved from a-StreamThread-1 to b-StreamThread-1"
                assert (moved.format(partition) in one.detail) == late


def test_what_a_log_says_of_restoring_is_told(compared: Run) -> None:
    """Of the store and partition that it names, after the task had moved."""
    said = [one for one in compared.findings if "b.log says at 14:15:20.5: 12 records restored" in one.detail]
    late = [one for one in compared.findings if one.subject["topic"] == "app-s0-changelog" and one.since != BEGIN]
    assert said == late
    assert said


def test_the_summary_counts_what_was_read_and_names_what_is_not_there(compared: Run, kafka: Cluster) -> None:
    """All committed records, how many of them could not be read, how many values went back."""
    summary = compared.log.splitlines()[-1]
    held = {form: records(kafka.bootstrap_servers, f"app-s{seed}-changelog") for seed, form in enumerate(FORMS)}
    read = sum(map(len, held.values()))
    keys = sum(one.current["keys"] for one in compared.findings)
    assert summary.startswith(
        f"progress: done: 3 changelogs with {read:,} committed records: {keys:,} values went back;"
    )
    assert "there is no topic app-none-changelog" in summary
    for topic, form in zip(("app-s0-changelog", "app-s1-changelog", "app-s2-changelog"), FORMS, strict=True):
        left_out = len(held[form]) - len(readable(held[form], form))
        assert left_out > 30
        assert f"{left_out} records of {topic} left out: no {form}" in summary


def test_what_fell_is_drawn(compared: Run) -> None:
    """As large as Slack shows it."""
    assert compared.plot is not None
    assert compared.plot.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", compared.plot[16:24]) == (1200, 675)


@pytest.mark.acceptance
def test_a_window_leaves_out_what_was_written_before_it(kafka: Cluster, journal: Path, tmp_path: Path) -> None:
    """By the journal's times, not by those of the records."""
    asked = ["--store=app/s0=long", "--journal", str(journal), "--from", rfc3339(BEGIN + 2 * MINUTE)]
    done = run(tmp_path / "report", "--bootstrap-servers", kafka.bootstrap_servers, *asked)
    assert done.status == 1, done.log
    assert {(one.since, one.at) for one in done.findings} == {(BEGIN + 3 * MINUTE, BEGIN + 4 * MINUTE)}


def test_a_changelog_of_which_nothing_can_be_read_is_told_as_such(kafka: Cluster, tmp_path: Path) -> None:
    """Whether it is empty or its values are of another form."""
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
        "progress: done: 2 changelogs with 3 committed records: no value went back; "
        "3 records of app-other-changelog left out: no long."
    )


def test_stores_that_are_not_there_at_all_are_a_failure(kafka: Cluster, tmp_path: Path) -> None:
    """A misspelled name is not told as if nothing were wrong."""
    done = run(tmp_path, "--bootstrap-servers", kafka.bootstrap_servers, "--store=app/nome=long")
    assert done.status == 3
    assert done.log.splitlines()[-1] == "The check changelog_restore failed: there is no topic app-nome-changelog"


def test_a_broker_that_is_away_is_a_sentence(tmp_path: Path) -> None:
    """And status 3."""
    asked = ["--store", "app/s0=long", "--kafka", "default.api.timeout.ms=3000", "--kafka", "request.timeout.ms=2000"]
    done = run(tmp_path, "--bootstrap-servers", "127.0.0.1:1", *asked)
    assert done.status == 3
    last = done.log.splitlines()[-1]
    assert last.startswith("The check changelog_restore failed: app-s0-changelog cannot be read: "), done.log


@pytest.mark.acceptance
def test_packages_that_cannot_be_fetched_are_a_sentence(tmp_path: Path) -> None:
    """Of a repository that is not there, into a cache that is empty."""
    nowhere = tmp_path / "settings.xml"
    nowhere.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    conf = ["--conf", f"spark.jars.ivySettings={nowhere}", "--conf", f"spark.jars.ivy={tmp_path / 'ivy'}"]
    done = run(tmp_path, "--bootstrap-servers", "127.0.0.1:1", "--store", "app/s0=long", *conf)
    assert done.status == 3
    told = "The check changelog_restore failed: Spark did not start; most likely org.apache.spark:spark-sql-kafka"
    assert done.log.splitlines()[-1].startswith(told), done.log


@pytest.mark.acceptance
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_real_bug_is_told_key_by_key(kafka: Cluster, tmp_path: Path, variant: str) -> None:
    """KAFKA-7672 on Streams 2.1.0: the keys that fell are those of plain Python, on the partitions that had moved."""
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
    fell = falls(records(servers, outcome.changelog), NUMBERS["long"])
    assert fell
    columns = ("partition", "key", "before", "before_offset", "after", "after_offset")
    assert [tuple(one[name] for name in columns) for one in done.keys] == [
        one[:-1] for one in sorted(fell, key=lambda one: (one.partition, one.after_offset))
    ]
    assert {one.key for one in outcome.falls} == {one["key"] for one in done.keys}
    told = {one.subject["partition"]: one.current["keys"] for one in done.findings}
    assert told == Counter(one.partition for one in outcome.falls)
    whole = variant != "partial"
    assert all(("restarted" in one.labels) == whole for one in done.findings)
