"""The journal archived on an S3-compatible server: the same observations, whatever fails meanwhile."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.model.observations.base import Observation
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
from agent.storage.journal.places import JournalFiles, open_journals
from agent.storage.journal.reader import entries
from agent.storage.journal.writer import Journal
from testbed.agent import Agent
from testbed.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore
from testbed.processes import Process, free_port
from testbed.proxy import Proxy
from testbed.waiting import wait_until
from tests.storage.archives import fail, observation, write

pytestmark = pytest.mark.integration

SHIP = """\
import sys
from pathlib import Path
from agent.storage.journal.archive import Archive
from agent.storage.journal.archiver import Archiver
shipper = Archiver(Path(sys.argv[1]), Archive(sys.argv[2]), "a", 1 << 40)
shipper.ship()
print("shipped", flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path / "server") as store:
        yield store


@pytest.fixture
def link(server: ObjectStore) -> Iterator[Proxy]:
    """The link to the server."""
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


def archive(server: ObjectStore, port: int | None = None) -> Archive:
    return Archive(f"s3://{server.bucket}/fleet", server.variables(port))


def in_archive(server: ObjectStore, agent: str = "a") -> list[tuple[int, Observation]]:
    return list(entries(JournalFiles(agent, None, archive(server)), unreadable=fail))


@pytest.mark.acceptance
def test_a_failing_and_slow_server_loses_and_doubles_nothing(server: ObjectStore, link: Proxy, tmp_path: Path) -> None:
    local = tmp_path / "journal"
    shipper = Archiver(local, archive(server, link.port), "a", 0, unreadable=fail)
    with closing(Journal(local, segment_bytes=2_000, sealed=shipper.wake)) as journal:
        shipper.start()
        for number in range(40):
            journal.append([observation(number * 200 + own) for own in range(200)])
            journal.flush()
            journal.seal(observation(number * 200).at)
            if number % 8 == 2:
                link.cut()
                wait_for_failure(shipper)
                link.heal()
            if number % 8 == 6:
                server.freeze()
                journal.append([observation(number * 200)])  # the writer never waits for the archive
                journal.flush()
                server.thaw()
    wait_until(lambda: shipper.progress.archived and not shipper.progress.pending, "everything to be archived", 120)
    shipper.wake()
    expected = list(entries(local, unreadable=fail))
    wait_until(lambda: len(in_archive(server)) == len(expected), "the last segments", 60, every=1)
    assert shipper.close(30)
    assert in_archive(server) == expected
    assert shipper.progress.failures >= 5
    (both,) = open_journals(str(local), f"s3://{server.bucket}/fleet", variables=server.variables())
    assert list(entries(both, unreadable=fail)) == expected


def test_kills_in_the_middle_of_shipping_lose_and_double_nothing(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, url = tmp_path / "journal", f"s3://{server.bucket}/fleet"
    write(local, rounds=30)
    for name, value in server.variables().items():
        monkeypatch.setenv(name, value)
    shipping = Process("the archiver", [sys.executable, "-c", SHIP, str(local), url], tmp_path / "shipping.log")
    in_flight, kills = local / "archive-in-flight", 0

    def wait_for_file_in_flight(before: int) -> None:
        def is_in_flight() -> bool:
            return not shipping.running or (in_flight.exists() and len(list_files(server)) > before)

        wait_until(is_in_flight, "a file in flight", every=0.001)

    for before in range(0, 100, 20):
        shipping.start()
        wait_for_file_in_flight(before)
        shipping.kill()
        kills += shipping.find_line("shipped") is None
    shipping.start()
    shipping.wait_for_line("shipped")
    wait_until(lambda: not shipping.running, "the archiver to end")
    assert kills >= 4
    assert in_archive(server) == list(entries(local, unreadable=fail))
    assert len(list_files(server)) == len(list(local.rglob("*.parquet")))


def wait_for_failure(shipper: Archiver) -> None:
    failures = shipper.progress.failures
    wait_until(lambda: shipper.progress.failures > failures, "a failure")


def list_files(server: ObjectStore) -> list[str]:
    store = archive(server)
    return [found.path for found in store._list(store.root, recursive=True) if found.path.endswith(".parquet")]


def test_the_agent_archives_its_journal_and_is_killed(server: ObjectStore, link: Proxy, tmp_path: Path) -> None:
    for name, secret in (("access", ACCESS_KEY), ("secret", SECRET_KEY)):
        (tmp_path / name).write_text(secret)
    url = f"s3://{server.bucket}/fleet"
    tables = (
        f'name = "agent-1"\n[journal]\narchive = "{url}"\narchive_retention = "90d"\n'
        f'[journal.s3]\nendpoint = "http://127.0.0.1:{link.port}"\nregion = "{REGION}"\n'
        f'access_key = {{ file = "{tmp_path}/access" }}\nsecret_key = {{ file = "{tmp_path}/secret" }}\n'
    )
    down = {"bootstrap_servers": f"127.0.0.1:{free_port()}", "poll_interval": "1s"}
    agent = Agent(tmp_path / "agent", {"main": down}, tables=tables)
    local = agent.state / "journal"
    with agent:
        agent.wait_for(lambda _: True, "the first observation")
        agent.kill()
        agent.start()  # seals what the kill left
        agent.wait_until_watching()
        link.cut()
        agent.stop(seconds=15)
        assert agent.exit_status == 0
        link.heal()
        agent.start()
        agent.wait_until_watching()
        sealed = {(path.parent.parent.name, path.name) for path in local.rglob("*.parquet")}
        assert sealed
        wait_until(lambda: sealed <= {_kind_and_name(path) for path in list_files(server)}, "the archive", 60)
        status = subprocess.run(
            [sys.executable, "-m", "agent", "status", "--json", "--config", str(agent.config)],
            capture_output=True, check=False, text=True,
        )  # fmt: skip
        assert json.loads(status.stdout)["archive"]["archived"] > 0
        agent.kill()
    expected = list(entries(local, unreadable=fail))
    (both,) = open_journals(str(local), url, variables=server.variables())
    assert both.agent == "agent-1"
    assert list(entries(both, unreadable=fail)) == expected
    until = max(int(name.partition("-")[0]) for _, name in sealed)
    assert [entry for entry in in_archive(server, "agent-1") if entry[0] < until] == [
        entry for entry in expected if entry[0] < until
    ]
    replayed = [
        subprocess.run(
            [sys.executable, "-m", "agent", "replay", *places, "--json", "--config", str(agent.config)],
            capture_output=True,
            check=False,
            text=True,
        )
        for places in ([str(local)], [str(local), "--archive", url])
    ]
    assert replayed[0].stdout == replayed[1].stdout
    assert {run.returncode for run in replayed} <= {0, 1}
    assert os.environ.get("AWS_ACCESS_KEY_ID") is None


def test_doctor_says_whether_the_server_takes_files(server: ObjectStore, link: Proxy, tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"

    def doctor(bucket: str) -> str:
        config.write_text(
            f'[spark]\nenabled = false\n[journal]\narchive = "s3://{bucket}/fleet"\n'
            f'[journal.s3]\nendpoint = "http://127.0.0.1:{link.port}"\nregion = "{REGION}"\n'
        )
        command = [sys.executable, "-m", "agent", "doctor", "--config", str(config)]
        environment = {**os.environ, **server.variables(), "STATE_DIRECTORY": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, check=False, text=True, env=environment)
        return done.stdout.partition("journal archive")[2]

    assert doctor(server.bucket).strip() == f"s3://{server.bucket}/fleet: a file was written, read and removed"
    assert list_files(server) == []
    assert "NO_SUCH_BUCKET" in doctor("another")
    link.cut()
    assert "AWS Error NETWORK_CONNECTION" in doctor(server.bucket)


def _kind_and_name(path: str) -> tuple[str, str]:
    parts = Path(path).parts
    return parts[-5], parts[-1]
