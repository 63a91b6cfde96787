"""The checks on a real Spark standalone cluster: a master and two workers that share the path of the logs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.model.observations.kafka import Commit
from agent.model.times import rfc3339
from agent.storage.journal.writer import Journal
from testbed.spark import SparkCluster
from tests.spark_checks import disks

pytestmark = [pytest.mark.integration, pytest.mark.acceptance]  # takes minutes on a busy machine

SMALL = ("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for two brokers' log directories: one of twelve partitions differs, and its offsets decrease."""
    directory = tmp_path_factory.mktemp("brokers")
    for number in range(12):
        same = disks.log(1, "snappy", 500, size=50)
        disks.write(directory / "2005", "t", number, {0: b"".join(same)}, high_watermark=500)
        torn = [*same[:6], *disks.log(1, "snappy", 350, start=250, size=50, text="other"), *same[7:]]
        disks.write(directory / "2011", "t", number, {0: b"".join(torn if number == 7 else same)}, high_watermark=500)
    return [part for broker in (2005, 2011) for part in ("--path", f"{broker}={directory / str(broker)}")]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for a journal: commits of twelve partitions a second; one is rewound after five minutes."""
    directory = tmp_path_factory.mktemp("agent") / "journal"
    with closing(Journal(directory)) as written:
        for second in range(600):
            written.append(
                [
                    Commit(
                        at=disks.STARTED + second * 1000,
                        cluster="main",
                        group="g",
                        topic="t",
                        partition=number,
                        offset=(second - 300 if number == 7 and second >= 300 else second) * 100,
                    )
                    for number in range(12)
                ]
            )
    return ["--journal", str(directory), *("--from", rfc3339(disks.STARTED), "--to", rfc3339(disks.STARTED + 600_000))]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
ORIGIN = """
import sys
from spark_checks.session import session

def origin(_number):
    import os, agent
    return agent.__file__, os.getcwd()

with session("origin", sys.argv[1], {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}) as spark:
    for place in set(spark.sparkContext.parallelize(range(8), 8).map(origin).collect()):
        print(*place)
"""


def run_check(check: str, *arguments: str, cwd: Path) -> str:
    """Return what a check prints; it runs in a directory without our packages and must find something."""
    done = subprocess.run(
        [sys.executable, "-m", "spark_checks", check, *arguments, *SMALL],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=cwd,
        env=ENVIRONMENT,
    )
    assert done.returncode == 1, done.stderr
    return done.stdout


@pytest.mark.parametrize("check", ["log_segments", "replica_divergence", "offset_history"])
def test_cluster_finds_what_one_machine_finds(
    check: str, cluster: SparkCluster, brokers: list[str], journal: list[str], tmp_path: Path
) -> None:
    paths = journal if check == "offset_history" else brokers
    local = run_check(check, *paths, "--master", "local[2]", cwd=tmp_path)
    assert '"partition":7' in local
    assert run_check(check, *paths, "--master", cluster.master, cwd=tmp_path) == local


def test_workers_get_the_packages_from_the_driver(cluster: SparkCluster, tmp_path: Path) -> None:
    """Executors import them from the archive that the driver sends."""
    done = subprocess.run(
        [sys.executable, "-c", ORIGIN, cluster.master],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    places = [line.split() for line in done.stdout.splitlines()]
    assert places
    assert all(file.endswith("backflow.zip/agent/__init__.py") for file, _ in places)
    assert {Path(folder).parents[1].name for _, folder in places} <= {"executors-1", "executors-2"}
