"""What a kill, an absence and a burst leave in Slack, with real brokers and the agent as its own process."""

from pathlib import Path

import pytest

from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.scenes import committed, findings, has, move_offsets, named, now, watched

pytestmark = pytest.mark.integration


def rewound(cluster: Cluster, agent: Agent, topic: str, group: str) -> None:
    """Have the agent see a group at 5000, then at 0."""
    move_offsets(cluster, group, topic, 5000)
    agent.wait_for(committed(group, 5000), f"{group} to be seen at 5000")
    move_offsets(cluster, group, topic, 0)


@pytest.mark.parametrize("stored", [True, False], ids=["slack-had-it", "slack-had-it-not"])
def test_killed_between_opening_an_incident_and_slacks_answer_the_message_is_there_once(
    kafka_3_9: Cluster, tmp_path: Path, *, stored: bool
) -> None:
    """Whether Slack had taken it or not: after the restart it stands there, once."""
    topic, group = named("topic"), named("group")
    kafka_3_9.create_topic(topic)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5000)
    with Slack() as slack, watched(kafka_3_9, tmp_path, slack) as agent:
        slack.hang(method="chat.postMessage", after=stored)
        rewound(kafka_3_9, agent, topic, group)
        wait_until(lambda: slack.received("chat.postMessage"), "Slack to be told")
        agent.kill()
        assert len(slack.messages()) == stored
        slack.clear()
        agent.start()
        agent.wait_until_watching()
        wait_until(lambda: slack.received("conversations.history"), "the agent to look what is there")
        wait_until(slack.messages, "the message")
        agent.wait_until_judged(now() + 3000)
        (message,) = slack.messages()
        assert group in message.words


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
def test_a_rewind_while_the_agent_was_down_is_told_at_start(
    kafka_3_9: Cluster, tmp_path: Path, *, killed: bool
) -> None:
    """The journal remembers where the group stood."""
    topic, group = named("topic"), named("group")
    kafka_3_9.create_topic(topic)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5000)
    with Slack() as slack, watched(kafka_3_9, tmp_path, slack) as agent:
        move_offsets(kafka_3_9, group, topic, 5000)
        agent.wait_for(committed(group, 5000), f"{group} to be seen at 5000")
        agent.wait_until_judged(now() + 2000)
        agent.kill() if killed else agent.stop()
        move_offsets(kafka_3_9, group, topic, 0)
        agent.start()
        agent.wait_until_watching()
        incident = agent.wait_for_incident(lambda one: has(one, "offset_rewind", group=group), "the rewind")
        (rewind,) = findings([incident], "offset_rewind", group=group)
        assert (rewind["previous"]["offset"], rewind["current"]["offset"]) == (5000, 0)
        wait_until(lambda: any(incident["id"] in one.words for one in slack.messages()), "the message")


def test_two_hundred_partitions_and_one_session_loss_are_one_message(kafka_3_9: Cluster, tmp_path: Path) -> None:
    """A summary and edits of it; an unrelated rewind on other brokers in the same window is an incident of its own."""
    leader, follower, bystander = kafka_3_9.brokers
    wide, other = named("wide"), named("other")
    group, unrelated = named("burst"), named("unrelated")
    kafka_3_9.create_topic(wide, assignment={number: [leader, follower] for number in range(200)})
    kafka_3_9.create_topic(other, assignment={0: [bystander, follower]})
    places = [(other, 0), *((wide, number) for number in range(200))]
    fill(kafka_3_9.bootstrap_servers, places, 2000)
    with Slack() as slack, watched(kafka_3_9, tmp_path, slack) as agent:
        move_offsets(kafka_3_9, group, wide, 2000, *range(200))
        move_offsets(kafka_3_9, unrelated, other, 2000)
        for one in (group, unrelated):
            agent.wait_for(committed(one, 2000), f"{one} to be seen at 2000")
        kafka_3_9.expire_session(leader)
        move_offsets(kafka_3_9, group, wide, 0, *range(200))
        move_offsets(kafka_3_9, unrelated, other, 0)
        incident = agent.wait_for_incident(
            lambda one: len(findings([one], "offset_rewind", group=group)) == 200, "one incident of all 200", 120
        )
        own = agent.wait_for_incident(lambda one: has(one, "offset_rewind", group=unrelated), "the unrelated incident")
        agent.wait_until_judged(now() + 5000)
        standing = agent.standing()
        assert has(incident, "broker_session_lost", broker=leader)
        assert incident["correlation"] == "reset-after-session-loss"
        assert own["id"] != incident["id"]
        assert len([one for one in standing if has(one, "offset_rewind", group=group)]) == 1
        posted = [one for one in slack.messages() if group in one.words]
        assert len(posted) == 1
        kafka_3_9.settle()
