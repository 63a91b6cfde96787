"""Incidents of real Kafka Streams: lost state (KAFKA-7672) is one critical incident, a rebalance is none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
from confluent_kafka import Producer

from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit
from testbed.agent import Agent
from testbed.kafka import Cluster
from testbed.slack import Slack
from testbed.streams.app import StreamsApp, reset_application
from testbed.streams.faults import VARIANTS, Outcome, forge_state, instances, lose_state
from testbed.streams.topics import (
    NUMBERS,
    Decrease,
    Record,
    Trickle,
    feed,
    find_decreases,
    records,
    wait_until_processed,
)
from testbed.waiting import wait_until
from tests.integration.scenes import addresses, committed, findings, named, now

pytestmark = [pytest.mark.integration, pytest.mark.acceptance, pytest.mark.timeout(900)]

HEALTHY = ["2.2.0", "3.9.1"]
LATE_FACTS_MS = 15_000
"""Facts of all sources have arrived after this time."""

_long = NUMBERS["long"]


class Scene(NamedTuple):
    """Two instances of an application, neither started, the agent that observes them, and its Slack."""

    agent: Agent
    slack: Slack
    first: StreamsApp
    second: StreamsApp


Stage: TypeAlias = Callable[..., Scene]


@pytest.fixture
def stage(broker: Cluster, tmp_path: Path) -> Iterator[Stage]:
    """A function (variant, version, declared, properties) -> Scene.

    The agent has the shipped rules; `declared`: its configuration says that the store never decreases.
    """
    with ExitStack() as closing:

        def make(variant: str, version: str, *, declared: bool = True, **properties: str) -> Scene:
            application, topic = named("shop"), named("orders")
            broker.create_topic(topic, 4)
            first, second = instances(
                variant, version, broker.bootstrap_servers, application, tmp_path, input_topic=topic, **properties
            )
            slack = closing.enter_context(Slack())
            stores = f'[{{ application = "{application}", store = "{first.store}" }}]'
            options = {"rules.state_not_restored.stores": stores} if declared else {}
            agent = Agent(tmp_path / "agent", {"main": addresses(broker)}, slack, options=options)
            closing.enter_context(agent)
            for app in (first, second):
                closing.callback(app.kill)
            agent.wait_until_watching()
            return Scene(agent, slack, first, second)

        yield make


# --- what is reported


def alarms(agent: Agent) -> list[dict[str, Any]]:
    """Return the incidents above info."""
    return [incident for incident in agent.unmerged() if incident["severity"] != "info"]


def decreases(agent: Agent) -> dict[int, dict[str, Any]]:
    """Return the findings about decreased values by partition."""
    found = [finding for finding in findings(agent.unmerged(), "state_not_restored") if finding["current"].get("keys")]
    by_number = {finding["subject"]["partition"]: finding for finding in found}
    assert len(by_number) == len(found)
    return by_number


def by_partition(decreased: Sequence[Decrease]) -> Mapping[int, list[Decrease]]:
    numbers = {decrease.partition for decrease in decreased}
    return {number: [decrease for decrease in decreased if decrease.partition == number] for number in numbers}


def assert_reported(scene: Scene, lost: Outcome) -> None:
    """Assert one critical incident and one message, with every partition, key, owner and cause, and nothing else."""
    assert lost.decreases
    truth = by_partition(lost.decreases)
    keys = {number: len(decreased) for number, decreased in truth.items()}
    wait_until(
        lambda: {number: finding["current"]["keys"] for number, finding in decreases(scene.agent).items()} == keys,
        f"{keys} decreased keys by partition",
    )
    scene.agent.wait_until_evaluated(now() + LATE_FACTS_MS, 120)
    for number, finding in decreases(scene.agent).items():
        assert_keys(finding, truth[number])
        assert_reassignment(finding, lost, scene.first)
    (incident,) = alarms(scene.agent)
    assert (incident["severity"], incident["correlation"]) == ("critical", "state-lost-in-a-rebalance")
    assert len(findings([incident], "state_not_restored")) == len(truth)
    assert any(cause["kind"] == "rebalancing" for cause in incident["causes"])
    groups = {finding["subject"]["group"] for finding in incident["causes"] + incident["findings"]}
    assert groups == {lost.application_id}
    (message,) = scene.slack.messages()
    assert incident["id"] in message.words
    assert all(word in message.words for word in ("CRITICAL", lost.application_id, lost.store, lost.changelog))


def assert_keys(finding: Mapping[str, Any], decreased: Sequence[Decrease]) -> None:
    """Assert the number of keys, the total, the first offset and the five largest decreases."""
    current = finding["current"]
    depths = sorted((decrease.before - decrease.after for decrease in decreased), reverse=True)
    assert (current["keys"], current["total"]) == (len(decreased), sum(depths))
    assert current["first_offset"] == min(decrease.after_offset for decrease in decreased)
    worst = [(key["key"], key["before"], key["after"], key["offset"]) for key in current["worst"]]
    assert set(worst) <= {
        (decrease.key.decode(), decrease.before, decrease.after, decrease.after_offset) for decrease in decreased
    }
    assert [before - after for _, before, after, _ in worst] == depths[:5]
    assert len(set(worst)) == len(worst)


def assert_reassignment(finding: Mapping[str, Any], lost: Outcome, app: StreamsApp) -> None:
    """Assert the store, the task and the threads that owned it before and after.

    Behind a repartition topic that is not named after the store, it may be any task of that number.
    """
    subject, previous, current = finding["subject"], finding["previous"], finding["current"]
    store = (subject["application"], subject["store"], subject["topic"])
    assert store == (lost.application_id, lost.store, lost.changelog)
    assert (finding["severity"], finding["labels"]) == ("critical", ["values_fell"])
    assert previous["until"] <= current["since"]
    move = [move for move in lost.moves if move.partition == subject["partition"]][-1]
    if len(app.source_topics) == 1:
        assert (subject["task"], previous["owner"], current["owner"]) == (move.task, move.old, move.new)
    else:
        tasks = {subject["task"]} if "task" in subject else set(current["tasks"])
        assert move.task in tasks
        assert tasks & set(app.tasks()[current["owner"]])


def assert_no_alarm(scene: Scene) -> None:
    """Assert that there was no alarm, although the agent observed everything.

    A forged decrease in each partition is the first that it reports, and the only one.
    """
    offsets = {record.partition: record.offset for record in forge_decreases(scene.first)}
    wait_until(lambda: decreases(scene.agent).keys() == offsets.keys(), "the forged decreases")
    scene.agent.wait_until_evaluated(now() + LATE_FACTS_MS, 120)
    reported = {number: finding["current"] for number, finding in decreases(scene.agent).items()}
    assert {number: current["first_offset"] for number, current in reported.items()} == offsets
    assert {(current["keys"], current["total"]) for current in reported.values()} == {(1, 1)}
    assert_rebalances_observed(scene)
    (incident,) = alarms(scene.agent)
    assert len(findings([incident], "state_not_restored")) == len(incident["findings"]) == len(offsets)
    assert [incident["id"] in message.words for message in scene.slack.messages()] == [True]


def forge_decreases(app: StreamsApp) -> list[Record]:
    """Write a value one below its key's last to each partition of the changelog, and return these records."""
    last = {
        (record.partition, record.key): record
        for record in records(app.bootstrap_servers, app.changelog)
        if record.value is not None
    }
    chosen = {record.partition: record for record in last.values()}
    producer = Producer({"bootstrap.servers": app.bootstrap_servers, "log_level": 0})
    for record in chosen.values():
        value = (_long(record.value or b"") - 1).to_bytes(8, "big", signed=True)
        producer.produce(app.changelog, key=record.key, value=value, partition=record.partition)
    assert producer.flush(60) == 0
    newest = {(record.partition, record.key): record for record in records(app.bootstrap_servers, app.changelog)}
    return [newest[record.partition, record.key] for record in chosen.values()]


def assert_no_incident(scene: Scene) -> None:
    """Assert that there is no alarm, although the agent observed the rebalances and the last commits."""
    agent, app = scene.agent, scene.first
    wait_until_processed(app)
    ends = {record.partition: record.offset + 1 for record in records(app.bootstrap_servers, app.input_topic)}
    for partition, end in ends.items():
        last = (app.application_id, app.input_topic, partition, end)
        agent.wait_for(is_commit(last), f"the commit {last}")
    agent.wait_until_evaluated(now() + LATE_FACTS_MS, 120)
    assert_rebalances_observed(scene)
    assert alarms(agent) == []
    assert scene.slack.messages() == []


def is_commit(expected: tuple[str, str, int, int]) -> Callable[[Observation], bool]:
    """Return a predicate for the commit of a group, topic and partition at an offset."""

    def matches(observation: Observation) -> bool:
        if not isinstance(observation, Commit):
            return False
        return (observation.group, observation.topic, observation.partition, observation.offset) == expected

    return matches


def assert_rebalances_observed(scene: Scene) -> None:
    """Assert that the rebalances are reported as info."""
    rebalances = findings(scene.agent.unmerged(), "rebalancing", group=scene.first.application_id)
    assert {(finding["severity"], *finding["labels"]) for finding in rebalances} == {("info", "moved")}


# --- lost state


@pytest.mark.parametrize("variant", VARIANTS)
def test_lost_state_is_one_critical_incident(variant: str, stage: Stage) -> None:
    """The real KAFKA-7672, between two instances and between two threads of one."""
    scene = stage(variant, "2.1.0")
    assert_reported(scene, lose_state(scene.first, scene.second, variant))


def test_lost_state_on_3_9_is_one_critical_incident(stage: Stage) -> None:
    """A forged checkpoint file replaces KAFKA-7672, which 3.9.1 does not have."""
    scene = stage("empty", "3.9.1")
    assert_reported(scene, forge_state(scene.first, scene.second))


# --- healthy applications


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", HEALTHY)
def test_rebalance_raises_no_alarm(version: str, variant: str, stage: Stage) -> None:
    scene = stage(variant, version)
    done = lose_state(scene.first, scene.second, variant)
    assert (bool(done.moves), done.decreases) == (True, ())
    assert_no_alarm(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_rolling_restart_raises_no_alarm(version: str, stage: Stage) -> None:
    """An instance restarts at once; its old member leaves when its session expires."""
    scene = stage("partial", version)
    both = (scene.first, scene.second)
    for app in both:
        app.start()
        app.wait_until_running()
    feed(scene.first.bootstrap_servers, scene.first.input_topic, 20)
    wait_until_processed(scene.first)
    for app in both:
        app.stop()
        app.start()
        app.wait_until_running()
        wait_until(lambda: sum(len(tasks) for app in both for tasks in app.tasks().values()) == 4, "4 tasks", 60)
        feed(scene.first.bootstrap_servers, scene.first.input_topic, 20)
        wait_until_processed(scene.first)
    assert_no_alarm(scene)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("version", HEALTHY)
def test_killed_instance_raises_no_alarm(version: str, guarantee: str, stage: Stage) -> None:
    """Uncommitted values do not decrease, and values counted twice do not either."""
    scene = stage("empty", version, guarantee=guarantee)
    with Trickle(scene.first.bootstrap_servers, scene.first.input_topic):
        done = lose_state(scene.first, scene.second, "empty", leave=StreamsApp.kill)
    assert (bool(done.moves), done.decreases) == (True, ())
    assert_no_alarm(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_new_windows_raise_no_alarm(version: str, stage: Stage) -> None:
    """Each window begins at 1 under its own key, also after a rebalance."""
    scene = stage("empty", version, topology="windowed-count")
    with Trickle(scene.first.bootstrap_servers, scene.first.input_topic, every=0.2):
        done = lose_state(scene.first, scene.second, "empty")
    assert (bool(done.moves), done.decreases) == (True, ())
    assert_no_alarm(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_deleted_keys_raise_no_alarm(version: str, stage: Stage) -> None:
    """After a tombstone a count begins at 1 again."""
    scene = stage("empty", version, topology="deletable-count")
    done = lose_state(scene.first, scene.second, "empty")
    assert done.moves
    for value in ("delete", "1"):
        feed(scene.first.bootstrap_servers, scene.first.input_topic, 1, value=value)
    wait_until_processed(scene.first)
    assert_no_alarm(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_undeclared_store_may_decrease(version: str, stage: Stage) -> None:
    """Right after a rebalance each key's sum decreases by a negative number."""
    scene = stage("empty", version, declared=False, topology="sum")
    done = lose_state(scene.first, scene.second, "empty")
    assert done.moves
    feed(scene.first.bootstrap_servers, scene.first.input_topic, 1, value="-3")
    wait_until_processed(scene.first)
    assert find_decreases(records(scene.first.bootstrap_servers, scene.first.changelog), _long)
    assert_no_incident(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_application_reset_raises_no_alarm(version: str, stage: Stage) -> None:
    """StreamsResetter deletes the changelog and rewinds the input: an operator reset.

    The operator does not wait until the group is empty, nor before the application starts again.
    """
    scene = stage("empty", version, topology="repartitioned-count")
    agent, app = scene.agent, scene.first
    app.start()
    app.wait_until_running(8)
    feed(app.bootstrap_servers, app.input_topic, 400)
    wait_until_processed(app)
    agent.wait_for(committed(app.application_id, 2400), "its commits")
    app.stop()
    stopped = now()
    reset_application(app)
    app.start()
    app.wait_until_running(8)
    wait_until_processed(app)
    agent.wait_for(lambda commit: commit.at > stopped and committed(app.application_id, 2400)(commit), "it to catch up")
    agent.wait_until_evaluated(now() + LATE_FACTS_MS, 120)  # later decreases belong to the new changelog
    assert_no_alarm(scene)
    assert findings(agent.unmerged(), "topic_recreated", topic=app.changelog)
    rewinds = findings(agent.unmerged(), "offset_rewind", topic=app.input_topic)
    assert {rewind["subject"]["partition"] for rewind in rewinds} == {0, 1, 2, 3}
    assert {(rewind["severity"], "operator_reset" in rewind["labels"]) for rewind in rewinds} == {("info", True)}
