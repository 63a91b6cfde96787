"""An operator's decisions with a real cluster, the agent as a process and Slack: silence, acknowledge, close."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent.storage.database import FILE
from agent.storage.incidents import IncidentStore
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.waiting import wait_until
from testbed.workspace import Message
from tests.integration.scenes import committed, has, move_offsets, named, watched

pytestmark = pytest.mark.integration


def run(agent: Agent, *arguments: str) -> str:
    """Run a command of `backflow` with the agent's configuration; return what it prints."""
    command = [sys.executable, "-m", "agent", *arguments, "--config", str(agent.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    print(f"$ backflow {' '.join(arguments)}\n{done.stdout}", end="")  # noqa: T201 - the log shows a session
    return done.stdout


def rewind(cluster: Cluster, agent: Agent, group: str, topic: str) -> str:
    """Rewind a group that has no incident yet, and return the id of its incident."""
    move_offsets(cluster, group, topic, 5000)
    agent.wait_for(committed(group, 5000), f"{group} to have committed 5000")
    move_offsets(cluster, group, topic, 0)
    found = agent.wait_for_incident(lambda candidate: has(candidate, "offset_rewind", group=group), "the rewind")
    return str(found["id"])


def messages(slack: Slack, incident: str) -> list[Message]:
    """Return the messages of an incident; other tests' groups on the cluster may have some too."""
    return [message for message in slack.messages() if incident in message.words]


def test_silence_acknowledge_and_close_beside_a_running_agent(kafka_3_9: Cluster, tmp_path: Path, slack: Slack) -> None:
    topic, silenced, other = named("topic"), named("reports"), named("payments")
    kafka_3_9.create_topic(topic)
    with watched(kafka_3_9, tmp_path, slack) as agent:
        added = run(agent, "silence", "add", "--group", "reports-*", "--for", "1h", "--comment", "planned reset")
        incident = rewind(kafka_3_9, agent, silenced, topic)
        posted = rewind(kafka_3_9, agent, other, topic)
        wait_until(lambda: messages(slack, posted), "the message of what is not silenced", 60)
        lines = {line.split()[0]: line for line in run(agent, "incidents").splitlines()}
        assert "silenced until" in lines[incident]
        assert "silenced until" not in lines[posted]

        agent.kill()
        agent.start()
        agent.wait_until_watching()
        with IncidentStore(agent.state / FILE, ["slack"]) as store:
            wait_until(lambda: [row.waiting for row in store.deliveries(posted)] == [0], "the other to be delivered")
            assert [row.handle for row in store.deliveries(incident)] == [None]
        assert (len(messages(slack, posted)), messages(slack, incident)) == (1, [])

        run(agent, "silence", "list")
        run(agent, "silence", "expire", added.split()[0])
        wait_until(lambda: messages(slack, incident), "the message when it ends", 30)
        run(agent, "ack", incident, "--comment", "on it", "--author", "lena")

        def words() -> str:
            (post,) = messages(slack, incident)
            return post.words

        wait_until(lambda: "acknowledged by lena" in words(), "the acknowledgement in the message", 30)
        agent.kill()
        run(agent, "close", incident, "--reason", "test data", "--author", "omar")
        agent.start()
        wait_until(lambda: "closed by omar" in words(), "the closure in the message", 60)
        run(agent, "incidents", "--all")
        run(agent, "incidents", "show", incident)
    assert len(messages(slack, posted)) == 1
    (post,) = messages(slack, incident)
    entries = [reply.text for reply in slack.threads[post.ts]]
    assert sum("acknowledged by lena: on it" in entry for entry in entries) == 1
    assert sum("closed by omar: test data" in entry for entry in entries) == 1
