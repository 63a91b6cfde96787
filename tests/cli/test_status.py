"""`backflow status` and `backflow groups`, with and without a running agent."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.cli.main import main
from agent.daemon.health import Health
from agent.daemon.self_report import status_line
from agent.daemon.status import report_buttons
from agent.daemon.web.metrics import exposition
from agent.daemon.web.routes import make_routes
from agent.daemon.web.server import SOCKET, Listener
from agent.model.observations.base import Observation, Tick
from agent.notify.slack import web_client
from agent.notify.slack_presses import SlackPresses
from agent.notify.slack_socket import SlackSocket
from agent.storage.journal.writer import Journal
from testbed.slack import Slack
from testbed.waiting import wait_until
from tests.builders import after, commit, log_offsets
from tests.running import Running, running

HOSTILE = "evil\x1b[31m\ngroup"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Running]:
    """Return an agent that answers on its socket; it has read its source."""
    commits = [commit(second, 100 + second, group=name) for second in range(3) for name in ("billing", HOSTILE)]
    observations: list[Observation] = [*commits, commit(3, 400, group="audit"), log_offsets(4, 502)]
    with running(tmp_path, observations) as parts:
        parts.source.poll()
        listener = Listener(tmp_path / SOCKET, make_routes(parts.reader), parts.health)
        listener.start()
        wait_until(lambda: invoke(tmp_path, "groups").exit_code == 0, "the agent to answer", 30, 0.02)
        yield parts
        listener.close(10)


def invoke(directory: Path, *arguments: str) -> Result:
    config = directory / "status-rules.toml"
    config.write_text(f'[agent]\nstate_directory = "{directory}"\n', encoding="utf-8")
    return CliRunner().invoke(main, [*arguments, "--config", str(config)])


def test_status_shows_what_the_agent_sees(agent: Running, tmp_path: Path) -> None:
    result = invoke(tmp_path, "status")
    assert result.exit_code == 0, result.output
    assert "app/logs  ok" in result.output
    assert "main: 0 brokers, 1 topic, 1 partition, 3 groups" in result.output
    assert "Incidents: none" in result.output
    assert status_line(agent.reader.status()) == "main: 0 brokers, 1 topic, 1 partition, 3 groups; 0 incidents open"
    agent.health.failed("journal", "The disk is full.")
    result = invoke(tmp_path, "status")
    assert (result.exit_code, "PROBLEM  journal: The disk is full." in result.output) == (1, True)
    fields = json.loads(invoke(tmp_path, "status", "--json").output)
    assert fields["problems"] == ["journal: The disk is full."]


def test_status_shows_whether_presses_in_slack_arrive(agent: Running, tmp_path: Path, slack: Slack) -> None:
    socket = SlackSocket(slack.app_token, base_url=slack.url, timeout=2)
    presses = SlackPresses(socket, web_client(slack.token, slack.url, 2), lambda: tmp_path, lambda: None)
    agent.reader.parts = agent.reader.parts._replace(presses=presses)
    result = invoke(tmp_path, "status")
    assert "Slack buttons: not connected: not connected yet; 0 pressed" in result.output
    assert (result.exit_code, "PROBLEM  Slack buttons: not connected yet" in result.output) == (1, True)
    presses.start()
    slack.wait_for(lambda: socket.is_connected and socket.broken_since is None, 30)
    slack.socket.send_text("no envelope")
    slack.wait_for(lambda: socket.malformed == 1)
    result = invoke(tmp_path, "status")
    assert "Slack buttons: connected; 0 pressed, 1 malformed" in result.output
    assert result.exit_code == 0, result.output
    exposed = exposition(agent.reader).decode()
    assert "backflow_slack_socket_connected 1.0" in exposed
    assert "backflow_slack_malformed_total 1.0" in exposed
    assert 'backflow_slack_presses_total{button="why"} 0.0' in exposed
    presses.close()


def test_a_lasting_loss_of_the_socket_is_reported_as_a_part(slack: Slack, tmp_path: Path) -> None:
    socket = SlackSocket(slack.app_token, base_url=slack.url, timeout=2)
    presses = SlackPresses(socket, web_client(slack.token, slack.url, 2), lambda: tmp_path, lambda: None)
    health = Health()
    report_buttons(presses, health)
    assert health.problems == {}
    assert socket.broken_since is not None
    socket.broken_since -= 61
    report_buttons(presses, health)
    assert health.problems == {"Slack buttons": "Presses do not arrive: not connected yet. All else works."}


@pytest.mark.usefixtures("agent")
def test_groups_are_listed_by_name_or_by_lag(tmp_path: Path) -> None:
    lines = invoke(tmp_path, "groups").output.splitlines()
    assert [line.split()[0] for line in lines] == ["GROUP", "audit", "billing", "evil\\x1b[31m\\ngroup"]
    lines = invoke(tmp_path, "groups", "--lag").output.splitlines()
    assert [line.split()[-3] for line in lines[1:]] == ["400", "400", "102"]
    assert "\x1b" not in "".join(lines)


@pytest.mark.usefixtures("agent")
def test_a_named_group_is_shown_with_its_partitions(tmp_path: Path) -> None:
    lines = invoke(tmp_path, "groups", "aud*").output.splitlines()
    assert lines[0] == "audit of main: state unknown, members 0, partitions 1, lag 102, read/s 0, written/s 0"
    assert [line.split() for line in lines[1:]] == [
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "READ/S", "WRITTEN/S"],
        ["t", "0", "400", "502", "102", "0", "0"],
    ]
    (group,) = map(json.loads, invoke(tmp_path, "groups", "audit", "--json").output.splitlines())
    assert group["partitions"][0]["lag"] == 102


@pytest.mark.usefixtures("agent")
def test_an_unknown_group_is_an_error(tmp_path: Path) -> None:
    result = invoke(tmp_path, "groups", "nothing")
    assert (result.exit_code, result.output) == (2, "no group nothing is observed; `backflow groups` lists all\n")


@pytest.mark.parametrize("command", ["status", "groups"])
def test_without_an_agent_a_sentence_says_so(tmp_path: Path, command: str) -> None:
    result = invoke(tmp_path, command)
    assert result.exit_code == 3
    assert f"no agent runs with the state directory {tmp_path}. None has run with it yet" in result.output


def test_the_end_of_the_last_agent_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", 0)
    journal.append([Tick(at=after(0))])
    journal.close()
    result = invoke(tmp_path, "status")
    assert result.exit_code == 3
    assert "The last one ran until 2026-11-20 23:00:00 UTC. Start it with `backflow run`." in result.output


def test_an_agent_whose_pipeline_hangs_says_so(agent: Running, tmp_path: Path) -> None:
    agent.reader.patience = 0.1
    assert agent.pipeline.close(30)
    result = invoke(tmp_path, "groups")
    assert (result.exit_code, result.output) == (3, "the agent answers: the pipeline does not answer; see /health\n")
    result = invoke(tmp_path, "status")
    assert result.exit_code == 1
    assert "PROBLEM  The pipeline has not answered" in result.output
