"""check-config, doctor and test-alert cover each receiver of [receivers.NAME]."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.test_cli import OWN_RULES
from tests.notify.receivers.standins import (
    PASSWORD,
    ROUTING_KEY,
    AlertmanagerStandIn,
    PagerDutyStandIn,
    SmtpStandIn,
    WebhookStandIn,
)


class StandIns:
    def __init__(self, directory: Path) -> None:
        self.webhook, self.pagerduty = WebhookStandIn(PASSWORD), PagerDutyStandIn()
        self.alertmanager, self.smtp = AlertmanagerStandIn(datetime.now(UTC)), SmtpStandIn()
        self.all = (self.webhook, self.pagerduty, self.alertmanager, self.smtp)
        (directory / "secret").write_text(PASSWORD)
        (directory / "key").write_text(f"{ROUTING_KEY}\n")
        self.tables = f"""[agent]
state_directory = "{directory}/state"
[spark]
enabled = false
[receivers.own]
kind = "webhook"
url = "{self.webhook.url}/hook"
secret = {{ file = "{directory}/secret" }}
[receivers.on-call]
kind = "pagerduty"
url = "{self.pagerduty.url}/v2/enqueue"
routing_key = {{ file = "{directory}/key" }}
severities = ["critical"]
[receivers.alerts]
kind = "alertmanager"
urls = ["{self.alertmanager.url}/"]
[receivers.mail]
kind = "email"
host = "127.0.0.1"
port = {self.smtp.port}
tls = "none"
sender = "backflow@example.com"
recipients = ["streams@example.com"]
{OWN_RULES}"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> Iterator[StandIns]:
    made = StandIns(tmp_path)
    with made.webhook, made.pagerduty, made.alertmanager, made.smtp:
        yield made


def run(directory: Path, command: str, tables: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "rules.toml").write_text(tables, encoding="utf-8")
    arguments = [sys.executable, "-m", "agent", command, "--config", str(directory / "rules.toml"), *options]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def test_each_receiver_gets_a_test_alert_and_its_end(tmp_path: Path, stand_ins: StandIns) -> None:
    result = run(tmp_path, "test-alert", stand_ins.tables)
    assert result.returncode == 0, result.stderr
    names = ["webhook own", "pagerduty on-call", "alertmanager alerts", "email mail"]
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == names
    assert stand_ins.webhook.events == ["opened", "closed"]
    assert stand_ins.pagerduty.actions == ["trigger", "resolve"]
    assert len(stand_ins.alertmanager.alerts) == 1
    stand_ins.alertmanager.advance(seconds=60)
    assert stand_ins.alertmanager.firing == []
    opened, ended = stand_ins.smtp.mails
    assert ended["References"] == opened["Message-ID"]


def test_a_refused_test_alert_is_said_and_the_others_are_sent(tmp_path: Path, stand_ins: StandIns) -> None:
    (tmp_path / "key").write_text("b2" * 16)
    result = run(tmp_path, "test-alert", stand_ins.tables)
    assert result.returncode == 3
    assert result.stderr.startswith("pagerduty on-call: not delivered: 127.0.0.1:")
    assert "'routing_key' *** is invalid" in result.stderr
    assert len(result.stdout.splitlines()) == 3


def test_doctor_tries_what_it_can_without_notifying(tmp_path: Path, stand_ins: StandIns) -> None:
    result = run(tmp_path, "doctor", stand_ins.tables)
    assert result.returncode == 0, result.stderr
    assert [" ".join(line.split()) for line in result.stdout.splitlines()[:4]] == [
        "ok webhook own can be tried with `backflow test-alert` only",
        "ok pagerduty on-call can be tried with `backflow test-alert` only",
        "ok alertmanager alerts 0.28.1, cluster ready",
        f"ok email mail 127.0.0.1:{stand_ins.smtp.port} accepts connections without login",
    ]
    assert (stand_ins.webhook.events, stand_ins.pagerduty.actions, stand_ins.smtp.mails) == ([], [], [])
    stand_ins.smtp.faults.append(("NOOP", "421 closing"))
    result = run(tmp_path, "doctor", stand_ins.tables)
    assert result.returncode == 1
    assert "PROBLEM   email mail" in result.stdout
    assert "421 closing" in result.stdout


def test_check_config_names_receivers_and_missing_files(tmp_path: Path, stand_ins: StandIns) -> None:
    result = run(tmp_path, "check-config", stand_ins.tables)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("incidents go to own, on-call, alerts and mail\n")
    (tmp_path / "secret").unlink()
    (tmp_path / "key").write_text("")
    result = run(tmp_path, "check-config", stand_ins.tables)
    assert result.returncode == 2
    reasons = [
        f"8: [receivers.own] secret: file {tmp_path}/secret cannot be read: No such file or directory",
        f"12: [receivers.on-call] routing_key: file {tmp_path}/key is empty",
    ]
    assert result.stderr.splitlines() == [f"{tmp_path}/rules.toml:{reason}" for reason in reasons]


def test_check_config_connects_to_receivers_if_asked(tmp_path: Path, stand_ins: StandIns) -> None:
    assert run(tmp_path, "check-config", stand_ins.tables, "--connect").returncode == 0
    stand_ins.smtp.faults.append(("NOOP", "421 closing"))
    line = stand_ins.tables.splitlines().index("[receivers.mail]") + 1
    result = run(tmp_path, "check-config", stand_ins.tables, "--connect")
    assert result.returncode == 2
    assert result.stderr.startswith(f"{tmp_path}/rules.toml:{line}: [receivers.mail]: email mail: ")
    assert "421 closing" in result.stderr
    assert stand_ins.webhook.requests == stand_ins.pagerduty.requests == []
