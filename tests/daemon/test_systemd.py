"""Notifications to systemd, and the unit file."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.daemon.systemd import Systemd

UNIT = Path(__file__).parents[2] / "systemd" / "backflow.service"


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(5)
        listening.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing; `make test` installs it as root on Debian"
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_systemd_is_notified_of_start_watchdog_and_stop(manager: socket.socket) -> None:
    with Systemd() as systemd:
        systemd.ready()
        systemd.watchdog()
        systemd.status("2 incidents open;\nmain: 40 → 39 partitions seen")
        systemd.reloading()
        systemd.stopping()
    received = [manager.recv(4096).decode() for _ in range(5)]
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", received.pop(3))
    assert received == [
        "READY=1",
        "WATCHDOG=1",
        "STATUS=2 incidents open; main: 40 → 39 partitions seen",
        "STOPPING=1",
    ]


def test_a_long_start_is_given_more_time(manager: socket.socket) -> None:
    with Systemd() as systemd:
        systemd.starting()
    assert manager.recv(4096) == b"EXTEND_TIMEOUT_USEC=60000000\nWATCHDOG=1"


def test_abstract_socket_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@backflow-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(5)
        listening.bind("\0" + name[1:])
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        with Systemd() as systemd:
            systemd.ready()
        assert listening.recv(4096) == b"READY=1"


def test_notifications_are_ignored_without_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    systemd = Systemd()
    systemd.ready()
    assert systemd.watchdog_interval is None


@pytest.mark.parametrize(("watched", "interval"), [(None, 30_000), ("own", 30_000), ("1", None)])
def test_watchdog_interval_is_half_of_the_limit(
    watched: str | None, interval: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if watched is not None:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if watched == "own" else watched)
    assert Systemd().watchdog_interval == interval


def test_unit_passes_verification(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    verified = analyze("verify", "--man=no", str(unit))
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_unit_is_hardened() -> None:
    analysis = analyze("security", "--offline=yes", "--threshold=20", str(UNIT))
    assert analysis.returncode == 0, analysis.stdout + analysis.stderr


def test_unit_has_the_settings_the_daemon_relies_on() -> None:
    settings = {line for line in UNIT.read_text().splitlines() if re.match(r"[A-Z]", line)}
    assert settings >= {
        "Type=notify",
        "WatchdogSec=60s",
        "Restart=on-failure",
        "RestartPreventExitStatus=2",
        "TimeoutStopSec=10s",
        "DynamicUser=yes",
        "StateDirectory=backflow",
        "RuntimeDirectory=backflow",
        "RuntimeDirectoryPreserve=yes",
        "LoadCredential=slack-token",
        "LoadCredential=kafka-password",
    }
