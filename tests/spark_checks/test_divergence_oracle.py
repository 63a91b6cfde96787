"""replica_divergence against plain Python that compares every single offset of every partition."""

import random
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from agent.kafka_log.digest import write_digest
from agent.kafka_log.log_directory import Partition, Segment
from spark_checks import replica_divergence
from spark_checks.logs.divergence import ReplicaPair
from spark_checks.logs.replicas import check_paths
from spark_checks.options import Options
from spark_checks.replica_divergence import find_pairs
from tests.spark_checks import disks

A, B, C = 2005, 2011, 2024
SEED, PARTITIONS = 20261121, 40

# PySpark leaves the socket of a result to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Replica:
    """A generated log: batches (first, last, text), the bounds noted by its broker, and where segments roll."""

    def __init__(self, chance: random.Random, shared: list[tuple[int, int, str]]) -> None:
        self.batches = list(shared)
        for _ in range(chance.choice([0, 0, 1, 2])):
            at = chance.randrange(len(self.batches))
            first, last, _ = self.batches[at]
            match chance.choice(["other", "missing", "shadowed"]):
                case "other":
                    self.batches[at] = (first, last, f"other-{chance.randrange(2)}")
                case "missing":
                    del self.batches[at]
                case _:
                    self.batches.insert(at, (first, first + chance.randrange(5), "shadow"))
        self.end = max(last for _, last, _ in self.batches) + 1
        self.high_watermark = chance.randrange(self.end // 2, self.end + 1)
        self.log_start = chance.choice([0, 0, chance.randrange(20)])
        self.cleaned = chance.choice([None, None, chance.randrange(30)])
        self.rolls = sorted(chance.sample(range(1, len(self.batches)), 2))

    def write(self, directory: Path, number: int) -> None:
        """Put it on a broker's disk."""
        magic = 1 + number % 2
        parts = [self.batches[a:b] for a, b in zip([0, *self.rolls], [*self.rolls, None], strict=True)]
        raw = [
            b"".join(disks.entry(magic, "gzip", entry, last - entry + 1, text) for entry, last, text in p)
            for p in parts
        ]
        segments = {0 if not at else parts[at][0][0]: raw[at] for at in range(len(parts))}
        bounds = {"high_watermark": self.high_watermark, "log_start": self.log_start, "cleaned": self.cleaned}
        disks.write(directory, "t", number, segments, **bounds)

    def at(self, offset: int) -> set[tuple[int, int, str]]:
        """The batches that hold an offset."""
        return {batch for batch in self.batches if batch[0] <= offset <= batch[1]}


def test_findings_match_a_scan_of_every_offset(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(SEED)  # noqa: S311  # a seed, so that a failure can be repeated
    expected = {}
    for number in range(PARTITIONS):
        firsts = [0]
        while len(firsts) < 12:
            firsts.append(firsts[-1] + chance.randrange(1, 9))
        shared = [(first, after - 1, "same") for first, after in pairwise(firsts)]
        replicas = {broker: Replica(chance, shared) for broker in (A, B, C)}
        for broker, replica in replicas.items():
            replica.write(tmp_path / str(broker), number)
        for entry, other in combinations(replicas, 2):
            wrong = _compared(replicas[entry], replicas[other])
            if wrong is not None:
                expected[number, entry, other] = wrong
    options = Options(own={"paths": tuple(f"{broker}={tmp_path / str(broker)}" for broker in (A, B, C))})
    found = {
        (finding.subject["partition"], *finding.subject["brokers"]): (
            finding.previous["records"],
            finding.current["records"],
            {
                offset
                for side in (finding.previous, finding.current)
                for first, last in side["ranges"]
                for offset in range(first, last + 1)
            },
        )
        for finding in replica_divergence.run(spark, options, lambda _: None).findings
    }
    assert len(expected) > PARTITIONS / 2
    assert found == expected


def _compared(a: Replica, b: Replica) -> tuple[int, int, set[int]] | None:
    """Return how many offsets only one of the logs has, by log, and the offsets that differ."""
    start = max(a.log_start, b.log_start, a.cleaned or 0, b.cleaned or 0)
    offsets = range(start, min(a.high_watermark, b.high_watermark))
    differ = {offset for offset in offsets if a.at(offset) != b.at(offset)}
    if not differ:
        return None
    lost = [sum(len(left.at(at) - right.at(at)) for at in offsets) for left, right in ((a, b), (b, a))]
    return lost[0], lost[1], differ


def partition(broker: int, **more: object) -> Partition:
    """A replica with two sealed segments and an active one."""
    bases = (0, 100, 200, None)
    segments = tuple(
        Segment(broker, "d", "t", 0, f"t-0/{base:020d}.log", base, following, 1000, 0)
        for base, following in pairwise(bases)
        if base is not None
    )
    made = Partition(broker, "d", "t", 0, 300, 0, None, (), segments)
    return made._replace(**more)  # type: ignore[arg-type]  # any of its fields


def test_offsets_removed_during_the_run_are_not_compared() -> None:
    before = [partition(A), partition(B, high_watermark=250)]
    assert find_pairs(before) == [ReplicaPair("t", 0, A, B, 0, 250)]
    sealed = before[0].segments
    for now, lower in (
        (partition(A), 0),
        (partition(A, log_start=30, high_watermark=400), 30),
        (partition(A, cleaned_up_to=60), 60),
        (partition(A, segments=sealed[1:]), 100),
        (partition(A, segments=(sealed[0], sealed[1]._replace(size=10), sealed[2])), 200),
        (partition(A, segments=(*sealed[:2], sealed[2]._replace(size=5000))), 0),
    ):
        assert find_pairs(before, [now, partition(B)]) == [ReplicaPair("t", 0, A, B, lower, 250)]
    assert find_pairs(before, [partition(A, log_start=250), partition(B)]) == []


def test_replica_without_high_watermark_or_peer_is_skipped() -> None:
    assert find_pairs([partition(A, high_watermark=None), partition(B)]) == []
    assert find_pairs([partition(A), partition(A)._replace(directory="e"), partition(B)._replace(partition=1)]) == []


@pytest.mark.parametrize("again", ["broker/", "digest.parquet"])
def test_replica_that_is_given_twice_is_refused(tmp_path: Path, again: str) -> None:
    """What it loses would be counted twice."""
    first = tmp_path / "broker"
    disks.write(first, "t", 3, {0: b"".join(disks.log(2, "none", 100))}, high_watermark=100)
    write_digest(A, str(first), tmp_path / "digest.parquet")
    paths = (f"{A}={first}", f"{A}={tmp_path}/{again}")
    assert check_paths(Options(own={"paths": paths})) == [
        f"--path {paths[1]}: holds the same t[3] as --path {paths[0]}; give it once."
    ]
    assert check_paths(Options(own={"paths": paths[:1]})) == []
