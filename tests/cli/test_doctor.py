"""`backflow doctor`, as a process of its own: what works, what does not, and what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli.doctor import View
from agent.config.shipped import shipped
from agent.model.observations.kafka import BrokerRegistration
from agent.model.observations.zookeeper import ZooKeeperHealth
from testbed.slack import Slack
from tests.cli.test_cli import OWN_RULES

NO_SPARK = "[spark]\nenabled = false\n"


def run(directory: Path, tables: str, *options: str, rules: str = OWN_RULES) -> tuple[int, list[str]]:
    """Return the exit status and the lines of standard output; nothing may be printed elsewhere."""
    done = start(directory, "doctor", f"{tables}{rules}", *options)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def start(directory: Path, command: str, tables: str, *options: str) -> "subprocess.CompletedProcess[str]":
    config = directory / "rules.toml"
    config.write_text(f'[agent]\nstate_directory = "{directory}/state"\n{tables}', encoding="utf-8")
    line = [sys.executable, "-m", "agent", command, "--config", str(config), *options]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def slack_table(directory: Path, slack: Slack, token: str) -> str:
    (directory / "token").write_text(token, encoding="utf-8")
    return f'[slack]\nchannel = "#alerts"\ntoken_file = "{directory}/token"\nbase_url = "{slack.url}"\n{NO_SPARK}'


def test_a_good_token_and_directory_are_ok(tmp_path: Path, slack: Slack) -> None:
    status, lines = run(tmp_path, slack_table(tmp_path, slack, slack.token))
    assert status == 0, lines
    assert lines[0] == "ok        slack                     posts as U0BACKFLOW in stand-in to #alerts"
    assert lines[1].startswith(f"ok        state directory           {tmp_path}/state: ")
    assert lines[1].endswith(" GiB free, will be created")
    assert slack.messages() == []


def test_missing_rules_are_a_warning(tmp_path: Path, slack: Slack) -> None:
    status, lines = run(tmp_path, slack_table(tmp_path, slack, slack.token), rules="")
    assert (status, lines[2:]) == (
        0,
        ["warning   rules", f"{'':10}no rules, so nothing is detected; add [rules.NAME] as in {shipped()}"],
    )
    _, lines = run(tmp_path, slack_table(tmp_path, slack, slack.token))
    assert len(lines) == 2


def test_the_app_token_is_tried_without_a_connection(tmp_path: Path, slack: Slack) -> None:
    for name, token in (("right", slack.app_token), ("wrong", slack.token)):
        (tmp_path / name).write_text(token, encoding="utf-8")
    table = slack_table(tmp_path, slack, slack.token)
    status, lines = run(tmp_path, table.replace(NO_SPARK, f'app_token = {{ file = "{tmp_path}/right" }}\n{NO_SPARK}'))
    assert (status, lines[1]) == (0, "ok        Slack buttons             Slack opens a socket for the app token")
    assert slack.socket.accepted == 0
    slack.refuse("invalid_auth", method="apps.connections.open")
    status, lines = run(tmp_path, table.replace(NO_SPARK, f'app_token = {{ file = "{tmp_path}/right" }}\n{NO_SPARK}'))
    assert (status, lines[1]) == (1, "PROBLEM   Slack buttons")
    assert lines[3] == "          Until then, no button in Slack has an effect."
    status, lines = run(tmp_path, table.replace(NO_SPARK, f'app_token = {{ file = "{tmp_path}/wrong" }}\n{NO_SPARK}'))
    assert status == 1
    assert "must hold an app-level token (xapp-...) and nothing else, in one line" in lines[1]


def test_a_wrong_token_is_explained(tmp_path: Path, slack: Slack) -> None:
    status, lines = run(tmp_path, slack_table(tmp_path, slack, "xoxb-wrong"))
    assert status == 1
    refusal = "invalid_auth: the token is not valid: replace it with a bot token (xoxb-...), then restart the agent"
    assert lines[:3] == [
        "PROBLEM   slack",
        f"          Slack refused auth.test: {refusal}",
        "          Until then, its notifications wait.",
    ]


def test_a_channel_that_takes_no_messages_is_named(tmp_path: Path, slack: Slack) -> None:
    """By doctor, and by check-config with the line of the table."""
    slack.kick("payments")
    routes = '[[slack.routes]]\ntopics = { include = ["pay-*"] }\nchannel = "#payments"\n'
    routes += '[[slack.routes]]\ntopics = { include = ["*"] }\nchannel = "#typo"\nadditional = true\n'
    table = slack_table(tmp_path, slack, slack.token) + routes
    status, lines = run(tmp_path, table)
    refusals = [
        "channel #payments: not_in_channel: the app is not in the channel: invite it",
        "channel #typo: channel_not_found: no such channel, or the app cannot see it: invite the app to it",
    ]
    assert status == 1
    assert lines[:5] == [
        "PROBLEM   slack",
        f"{'':10}{refusals[0]}",
        "          Until then, its notifications wait.",
        "PROBLEM   slack #typo",
        f"{'':10}{refusals[1]}",
    ]
    done = start(tmp_path, "check-config", f"{table}{OWN_RULES}", "--connect")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{tmp_path}/rules.toml:3: [slack]: slack: {refusals[0]}",
        f"{tmp_path}/rules.toml:3: [slack]: slack #typo: {refusals[1]}",
    ]
    assert start(tmp_path, "check-config", table).returncode == 0
    assert slack.received("chat.postMessage") == []


def test_what_the_host_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "state").touch()
    status, lines = run(tmp_path, f'[logs.brokers]\npaths = ["{tmp_path}/*.log"]\n', "--wait", "5s")
    assert status == 1
    text = "\n".join(lines)
    assert "PROBLEM   console\n          no one is notified: there is neither [slack] nor [receivers.NAME]" in text
    assert f"PROBLEM   state directory           {tmp_path}/state\n          cannot be written: Not a directory" in text
    assert f"Spark checks need Java, but none is in JAVA_HOME, {tmp_path}" in text
    assert f"PROBLEM   brokers/logs\n          no file matches {tmp_path}/*.log" in text


@pytest.mark.slow
def test_a_cluster_that_refuses_is_named(tmp_path: Path) -> None:
    status, lines = run(tmp_path, f'[clusters.far]\nbootstrap_servers = "127.0.0.1:1"\n{NO_SPARK}', "--wait", "20s")
    assert status == 1
    assert lines[0] == "PROBLEM   far/kafka"
    assert "Connection refused" in lines[1]


def test_a_missing_secret_stops_only_what_needs_it(tmp_path: Path, slack: Slack) -> None:
    cluster = 'bootstrap_servers = "127.0.0.1:1"\n'
    tables = f"""[clusters.far]
{cluster}zookeeper = "127.0.0.1:1"
zookeeper_client = {{ auth = [{{ env = "NO_SUCH_AUTH" }}] }}
[clusters.secured]
{cluster}[clusters.secured.kafka]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "PLAIN"
"sasl.username" = "agent"
"sasl.password" = {{ file = "{tmp_path}/none" }}
[streams.shop]
cluster = "secured"
[journal]
archive = "s3://bucket"
s3 = {{ access_key = {{ env = "NO_SUCH_ID" }}, secret_key = {{ env = "NO_SUCH_KEY" }} }}
[receivers.pager]
kind = "pagerduty"
routing_key = {{ env = "NO_SUCH_ROUTING_KEY" }}
{slack_table(tmp_path, slack, slack.token)}"""
    status, lines = run(tmp_path, tables, "--wait", "5s")
    assert status == 1
    assert lines[0] == "PROBLEM   credentials"
    parts = "[clusters.far] zookeeper, [clusters.secured], [journal] archive and [receivers.pager]"
    none = f"file {tmp_path}/none cannot be read: No such file or directory"
    assert [line.strip() for line in lines[1:7]] == [
        "[journal] s3.access_key: environment variable NO_SUCH_ID is not set",
        "[journal] s3.secret_key: environment variable NO_SUCH_KEY is not set",
        "[receivers.pager] routing_key: environment variable NO_SUCH_ROUTING_KEY is not set",
        "[clusters.far] zookeeper_client.auth[0]: environment variable NO_SUCH_AUTH is not set",
        f'[clusters.secured] kafka."sasl.password": {none}',
        f"Not tried for lack of them: {parts}",
    ]
    tried = [line.split()[1] for line in lines if not line.startswith(" ")]
    assert tried == ["credentials", "far/kafka", "slack", "state"]


def test_a_missing_token_is_no_lack_of_receivers(tmp_path: Path) -> None:
    status, lines = run(tmp_path, f'[slack]\nchannel = "C1"\ntoken_env = "NO_SUCH_TOKEN"\n{NO_SPARK}')
    assert status == 1
    assert lines[:3] == [
        "PROBLEM   credentials",
        f"{'':10}[slack] token_env: environment variable NO_SUCH_TOKEN is not set",
        f"{'':10}Not tried for lack of them: [slack]",
    ]
    assert lines[3].startswith("ok        state directory")


def test_a_source_that_has_read_nothing_is_not_ok(tmp_path: Path) -> None:
    """Even if ZooKeeper's servers were asked how they are, which a session has no part in."""
    tables = f'[clusters.far]\nbootstrap_servers = "127.0.0.1:1"\nzookeeper = "127.0.0.1:1"\n{NO_SPARK}'
    _, lines = run(tmp_path, tables, "--wait", "6s")
    place = lines.index("PROBLEM   far/zookeeper")
    assert lines[place + 1] == f"{'':10}it has read nothing yet; give it more time with --wait"


def test_facts_about_access_are_none_that_were_read() -> None:
    view = View("main/zookeeper")
    view.emit([ZooKeeperHealth(at=1, cluster="main", unreachable=("127.0.0.1:1",))])
    assert view.verdict().problem == "it has read nothing yet; give it more time with --wait"
    view.emit([BrokerRegistration(at=1, cluster="main", broker=1, session="0x1", epoch=1)])
    assert view.verdict() == ("main/zookeeper", "1 brokers", None, False)


def test_an_archive_is_tried_with_a_file_that_is_removed(tmp_path: Path, slack: Slack) -> None:
    """The archive's own folder is left to the agent, which may run as another user."""
    table = slack_table(tmp_path, slack, slack.token)
    (tmp_path / "disk").mkdir()
    url = f"file://{tmp_path}/disk/new/archive"
    status, lines = run(tmp_path, f'{table}[journal]\narchive = "{url}"\n')
    assert (status, lines[-1]) == (
        0,
        f"ok        journal archive           {url}: a file was written, read and removed",
    )
    assert not list((tmp_path / "disk").iterdir())


def test_an_archive_that_takes_no_files_is_explained(tmp_path: Path, slack: Slack) -> None:
    """By doctor, and by check-config with the line of the option."""
    (tmp_path / "file").touch()
    url = f"file://{tmp_path}/file/archive"
    tables = f'{slack_table(tmp_path, slack, slack.token)}[journal]\narchive = "{url}"\n'
    status, lines = run(tmp_path, tables)
    assert (status, lines[-3]) == (1, f"PROBLEM   journal archive           {url}")
    assert "non-directory entry exists" in lines[-2]
    assert lines[-1].strip().startswith("Until then, the journal stays on the local disk")
    assert start(tmp_path, "check-config", tables).returncode == 0
    refused = start(tmp_path, "check-config", f"{tables}{OWN_RULES}", "--connect")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"{tmp_path}/rules.toml:10: [journal] archive: {url}: ")
