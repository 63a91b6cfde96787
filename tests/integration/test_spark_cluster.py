"""The checks on a real Spark standalone cluster of two workers, a Spark Connect server and YARN; all share our paths.

The tests of the checks with their oracles run there unchanged, in a pytest of its own. spark-submit runs them where
Backflow is not installed.
"""

import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from agent.checks.kept_process import KeptProcess
from agent.checks.process import Limits
from agent.config.checks import Spark
from agent.model.observations.kafka import Commit
from agent.model.times import rfc3339
from agent.storage.journal.writer import Journal
from spark_checks.jars import verified_jars
from testbed.spark import SparkCluster, SparkConnectServer, spark_home, submit
from testbed.yarn import YarnCluster
from tests.spark_checks import disks

pytestmark = [pytest.mark.integration, pytest.mark.acceptance]  # takes minutes on a busy machine

SMALL_CONF = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
SMALL = tuple(part for key, value in SMALL_CONF.items() for part in ("--conf", f"{key}={value}"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    # Two sessions at once (tests/spark_checks/places.py) of two cores each.
    with SparkCluster(tmp_path_factory.mktemp("spark"), cores=2) as running:
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


@pytest.fixture(scope="module")
def inputs(brokers: list[str], journal: list[str]) -> dict[str, list[str]]:
    """Options for the input of each check."""
    return {"log_segments": brokers, "replica_divergence": brokers, "offset_history": journal}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkConnectServer]:
    with SparkConnectServer(tmp_path_factory.mktemp("connect"), jars=verified_jars({})) as running:
        yield running


ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
ORACLES = (
    *(
        "test_changelog_restore",
        "test_cluster_failover",
        "test_divergence_oracle",
        "test_job_history",
        "test_journal_files",
        "test_log_segments",
        "test_offset_history",
    ),
    *("test_offset_history_window", "test_replica_divergence", "test_review", "test_shares"),
)
ORIGIN = """
import sys
from spark_checks.session import session
from spark_checks.shares import run_shares

def origin(_number):
    import os, agent
    return agent.__file__, os.getcwd()

place = sys.argv[1]
conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
with session("origin", place, conf, remote=place if place.startswith("sc://") else None) as spark:
    for place in set(run_shares(spark, list(range(8)), origin)):
        print(*place)
"""


def run_check(check: str, *arguments: str, cwd: Path) -> str:
    """Return what a check prints; it runs in a directory without our packages and must find something."""
    done = subprocess.run(
        [sys.executable, "-m", "spark_checks", check, *arguments],
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
def test_cluster_and_server_find_what_one_machine_finds(
    check: str, cluster: SparkCluster, server: SparkConnectServer, inputs: dict[str, list[str]], tmp_path: Path
) -> None:
    paths = inputs[check]
    local = run_check(check, *paths, "--master", "local[2]", *SMALL, cwd=tmp_path)
    assert '"partition":7' in local
    assert run_check(check, *paths, "--master", cluster.master, *SMALL, cwd=tmp_path) == local
    assert run_check(check, *paths, "--remote", server.remote, cwd=tmp_path) == local


@pytest.mark.parametrize("place", ["cluster", "server"])
def test_kept_process_runs_checks_on_cluster_and_server(
    place: str, cluster: SparkCluster, server: SparkConnectServer, inputs: dict[str, list[str]]
) -> None:
    conf = {"spark.executor.memory": "512m"}
    on_cluster = Spark(master=cluster.master, driver_memory="512m", conf=conf)
    with KeptProcess(on_cluster if place == "cluster" else Spark(remote=server.remote)) as process:
        process.prepare("log_segments")
        checks = ("log_segments", "offset_history", "log_segments")
        outcomes = [process.run([check, *inputs[check]], Limits(), threading.Event()) for check in checks]
    assert [(outcome.outcome, outcome.reason) for outcome in outcomes] == [("found", "")] * 3
    assert outcomes[0].findings == outcomes[2].findings


@pytest.mark.timeout(3000)
def test_oracles_agree_on_the_cluster(cluster: SparkCluster) -> None:
    assert " passed" in run_oracles(cluster.master)


@pytest.mark.timeout(3000)
def test_oracles_agree_through_spark_connect(server: SparkConnectServer) -> None:
    assert " passed" in run_oracles(server.remote)


def run_oracles(place: str) -> str:
    """Return the last line of the oracle tests, run at a master or a Spark Connect server; all of them must pass."""
    files = [str(ROOT / "tests" / "spark_checks" / f"{name}.py") for name in ORACLES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore::ResourceWarning", *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**ENVIRONMENT, "BACKFLOW_TEST_SPARK": place},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()[-1]


def test_workers_get_the_packages_from_the_driver(cluster: SparkCluster, tmp_path: Path) -> None:
    """Executors import them from the archive that the driver sends."""
    places = origins(cluster.master, tmp_path)
    assert all(file.endswith("backflow.zip/agent/__init__.py") for file, _ in places)
    assert {Path(folder).parents[1].name for _, folder in places} <= {"executors-1", "executors-2"}


def test_connect_server_gets_the_packages_from_the_client(server: SparkConnectServer, tmp_path: Path) -> None:
    assert all(file.endswith("backflow.zip/agent/__init__.py") for file, _ in origins(server.remote, tmp_path))


def origins(place: str, cwd: Path) -> list[list[str]]:
    """Return from where each worker imports our packages, and where it runs."""
    done = subprocess.run(
        [sys.executable, "-c", ORIGIN, place],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        cwd=cwd,
        env=ENVIRONMENT,
    )
    places = [line.split() for line in done.stdout.splitlines()]
    assert places
    return places


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that `backflow spark-package` writes."""
    directory = tmp_path_factory.mktemp("package")
    subprocess.run([sys.executable, "-m", "agent", "spark-package", "--out", str(directory)], check=True, cwd=ROOT)
    return directory


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment, unpacked on the host of a driver."""
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(package / "backflow-env.tar.gz") as archive:
        archive.extractall(directory, filter="tar")  # the link to Python is absolute
    return directory


@pytest.fixture(scope="module")
def expected(journal: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What offset_history finds on one machine."""
    folder = tmp_path_factory.mktemp("local")
    return run_check("offset_history", *journal, "--master", "local[2]", *SMALL, cwd=folder).splitlines()


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with YarnCluster(tmp_path_factory.mktemp("yarn")) as running:
        yield running


def submission(package: Path, *place: str, conf: Mapping[str, str]) -> list[str]:
    """Return the arguments of spark-submit up to the application. place: its options for the cluster."""
    own = {**SMALL_CONF, "spark.pyspark.python": "./env/bin/python", **conf}
    settings = (part for key, value in own.items() for part in ("--conf", f"{key}={value}"))
    archive = ("--archives", f"{package / 'backflow-env.tar.gz'}#env")
    return [*place, *archive, *settings, str(package / "backflow-check.py")]


def findings_in(output: str) -> list[str]:
    """Return the findings among what a driver has printed: Spark merges its standard output and error."""
    return [line for line in output.splitlines() if line.startswith("{")]


def assert_backflow_is_not_installed(python: Path) -> None:
    """Check that the interpreter, without the archive, has neither Backflow nor what its checks import."""
    for package in ("agent", "msgspec", "pyarrow"):
        assert subprocess.run([python, "-I", "-c", f"import {package}"], capture_output=True, check=False).returncode


@pytest.mark.timeout(900)
def test_spark_submit_brings_all_to_the_workers(
    cluster: SparkCluster, package: Path, unpacked: Path, journal: list[str], expected: list[str]
) -> None:
    """In client mode, the only one that a standalone cluster has for Python."""
    assert_backflow_is_not_installed((unpacked / "bin/python").resolve())
    driver = {"spark.pyspark.driver.python": str(unpacked / "bin/python")}
    arguments = submission(package, "--master", cluster.master, conf=driver)
    done = submit([*arguments, "offset_history", *journal], unpacked, {})
    assert done.returncode == 0, done.stderr
    assert findings_in(done.stdout) == expected


@pytest.mark.timeout(900)
def test_spark_submit_has_the_exit_status_of_the_check(package: Path, unpacked: Path, tmp_path: Path) -> None:
    driver = {"spark.pyspark.driver.python": str(unpacked / "bin/python")}
    arguments = submission(package, "--master", "local[1]", conf=driver)
    done = submit([*arguments, "offset_history", "--journal", str(tmp_path), "--master", "local"], tmp_path, {})
    assert done.returncode == 2, done.stderr
    assert "--master: this belongs to spark-submit" in done.stdout


@pytest.mark.timeout(900)
def test_a_check_brings_the_archive_to_the_workers(
    cluster: SparkCluster, package: Path, journal: list[str], expected: list[str], tmp_path: Path
) -> None:
    archive = {
        "spark.archives": f"{package / 'backflow-env.tar.gz'}#env",
        "spark.pyspark.python": "./env/bin/python",
        **SMALL_CONF,
    }
    settings = [part for key, value in archive.items() for part in ("--conf", f"{key}={value}")]
    found = run_check("offset_history", *journal, "--master", cluster.master, *settings, cwd=tmp_path)
    assert found.splitlines() == expected


@pytest.mark.timeout(900)
def test_yarn_runs_the_driver_in_cluster_mode(
    yarn: YarnCluster, package: Path, journal: list[str], expected: list[str], tmp_path: Path
) -> None:
    conf = {
        "spark.yarn.jars": f"local:{spark_home()}/jars/*",  # 400 MB that this host has already
        "spark.yarn.stagingDir": tmp_path.as_uri(),
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.am.waitTime": "600s",
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    }
    place = ("--master", "yarn", "--deploy-mode", "cluster", "--num-executors", "2")
    arguments = submission(package, *place, conf=conf)
    done = submit([*arguments, "offset_history", *journal], tmp_path, {"HADOOP_CONF_DIR": str(yarn.configuration)})
    assert done.returncode == 0, done.stderr
    driver, *executors = yarn.outputs()
    assert findings_in(driver) == expected
    assert len(executors) == 2
