"""Slack messages after a kill, a downtime and a burst, with real brokers and the agent as a process."""

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
    move_offsets(cluster, group, topic, 5000)
    agent.wait_for(committed(group, 5000), f"{group} to have committed 5000")
    move_offsets(cluster, group, topic, 0)


@pytest.mark.parametrize("stored", [True, False], ids=["slack-had-it", "slack-had-it-not"])
def test_message_is_posted_once_if_killed_before_the_response(
    kafka_3_9: Cluster, tmp_path: Path, *, stored: bool
) -> None:
    topic, group = named("topic"), named("group")
    kafka_3_9.create_topic(topic)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5000)
    only = {"topics": topic, "groups": group}
    with Slack() as slack, watched(kafka_3_9, tmp_path, slack, only=only) as agent:
        slack.hang(method="chat.postMessage", after=stored)
        rewound(kafka_3_9, agent, topic, group)
        wait_until(lambda: slack.received("chat.postMessage"), "Slack to receive it")
        agent.kill()
        assert [group in message.words for message in slack.messages()] == [True] * stored
        slack.clear()
        agent.start()
        agent.wait_until_watching()
        wait_until(lambda: slack.received("conversations.history"), "the agent to look what is there")
        wait_until(slack.messages, "the message")
        agent.wait_until_evaluated(now() + 3000)
        assert [message.words for message in slack.messages() if group not in message.words] == []
        assert len(slack.messages()) == 1


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
def test_rewind_during_downtime_is_reported_at_start(kafka_3_9: Cluster, tmp_path: Path, *, killed: bool) -> None:
    topic, group = named("topic"), named("group")
    kafka_3_9.create_topic(topic)
    fill(kafka_3_9.bootstrap_servers, [(topic, 0)], 5000)
    with Slack() as slack, watched(kafka_3_9, tmp_path, slack) as agent:
        move_offsets(kafka_3_9, group, topic, 5000)
        agent.wait_for(committed(group, 5000), f"{group} to have committed 5000")
        agent.wait_until_evaluated(now() + 2000)
        agent.kill() if killed else agent.stop()
        move_offsets(kafka_3_9, group, topic, 0)
        agent.start()
        agent.wait_until_watching()
        incident = agent.wait_for_incident(lambda candidate: has(candidate, "offset_rewind", group=group), "the rewind")
        (rewind,) = findings([incident], "offset_rewind", group=group)
        assert (rewind["previous"]["offset"], rewind["current"]["offset"]) == (5000, 0)
        wait_until(lambda: any(incident["id"] in post.words for post in slack.messages()), "the message")


@pytest.mark.acceptance
def test_session_loss_of_200_partitions_is_one_message(kafka_3_9: Cluster, tmp_path: Path) -> None:
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
        for name in (group, unrelated):
            agent.wait_for(committed(name, 2000), f"{name} to have committed 2000")
        kafka_3_9.expire_session(leader)
        move_offsets(kafka_3_9, group, wide, 0, *range(200))
        move_offsets(kafka_3_9, unrelated, other, 0)
        incident = agent.wait_for_incident(
            lambda candidate: len(findings([candidate], "offset_rewind", group=group)) == 200,
            "candidate incident of all 200",
            120,
        )
        own = agent.wait_for_incident(
            lambda candidate: has(candidate, "offset_rewind", group=unrelated), "the unrelated incident"
        )
        agent.wait_until_evaluated(now() + 5000)
        standing = agent.unmerged()
        assert has(incident, "broker_session_lost", broker=leader)
        assert incident["correlation"] == "reset-after-session-loss"
        assert own["id"] != incident["id"]
        assert len([candidate for candidate in standing if has(candidate, "offset_rewind", group=group)]) == 1
        posted = [post for post in slack.messages() if group in post.words]
        assert len(posted) == 1
        kafka_3_9.repair()
