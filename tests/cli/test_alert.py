"""`backflow test-alert`: every receiver and channel gets a marked incident, or the reason why not is printed."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.cli.main import main
from testbed.slack import Slack


def run(directory: Path, slack_table: str) -> Result:
    config = directory / "rules.toml"
    clusters = "".join(f'[clusters.{name}]\nbootstrap_servers = "127.0.0.1:9092"\n' for name in ("prod", "staging"))
    config.write_text(clusters + slack_table, encoding="utf-8")
    return CliRunner().invoke(main, ["test-alert", "--config", str(config)])


@pytest.fixture
def token(tmp_path: Path, slack: Slack) -> str:
    (tmp_path / "token").write_text(slack.token, encoding="utf-8")
    return f'[slack]\ntoken_file = "{tmp_path}/token"\nbase_url = "{slack.url}"\n'


def test_each_channel_of_a_route_gets_one_and_it_is_cleared(tmp_path: Path, slack: Slack, token: str) -> None:
    routes = 'channel = "#alerts"\n[[slack.routes]]\nchannel = "#payments"\nclusters = { include = ["stag*"] }\n'
    result = run(tmp_path, token + routes)
    assert result.exit_code == 0, result.output
    for channel, line in zip(("alerts", "payments"), result.stdout.splitlines(), strict=True):
        (message,) = slack.messages(channel)
        assert message.words.startswith("🟢 CRITICAL (RECOVERED) · test alert: nothing is wrong")
        assert message.edits[0].text.startswith("CRITICAL · test alert: nothing is wrong")
        assert [reply.text for reply in slack.threads[message.ts]] == ["the thread of the test alert"]
        assert line.startswith(f"slack #{channel}: delivered INC-TEST")
        assert line.endswith(" and cleared it")


def test_what_a_channel_refuses_is_said(tmp_path: Path, slack: Slack, token: str) -> None:
    routes = 'channel = "#alerts"\n[[slack.routes]]\nchannel = "#nowhere"\nseverities = ["warning"]\n'
    result = run(tmp_path, token + routes)
    assert result.exit_code == 3
    assert "slack #alerts: delivered" in result.stdout
    assert result.stderr == (
        "slack #nowhere: not delivered: Slack refused chat.postMessage: channel_not_found: "
        "no such channel, or the app cannot see it: invite the app to it\n"
    )
    assert len(slack.messages()) == 1


def test_an_unreadable_token_is_said(tmp_path: Path) -> None:
    result = run(tmp_path, f'[slack]\ntoken_file = "{tmp_path}/none"\nchannel = "#alerts"\n')
    assert result.exit_code == 2
    assert result.stderr == (
        f"{tmp_path}/rules.toml:6: [slack] token_file: file {tmp_path}/none cannot be read: No such file or directory\n"
    )


def test_without_slack_it_says_that_nobody_is_notified(tmp_path: Path) -> None:
    result = run(tmp_path, "")
    assert result.exit_code == 0
    assert "WARNING" not in result.stdout
    assert result.stdout.splitlines()[-1].startswith("No one is notified: ")
