"""What Backflow makes of real Kafka Streams: lost state (KAFKA-7672) is one critical incident, no rebalance is one."""

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
PATIENCE_MS = 15_000
"""What a fact has to wait for another source, it has waited by then."""

_long = NUMBERS["long"]


class Scene(NamedTuple):
    """Two instances of an application, neither started, and the agent that watches, with all that it posts."""

    agent: Agent
    slack: Slack
    first: StreamsApp
    second: StreamsApp


Stage: TypeAlias = Callable[..., Scene]


@pytest.fixture
def stage(broker: Cluster, tmp_path: Path) -> Iterator[Stage]:
    """Makes the scene: (variant, version, declared, properties) -> an agent with the shipped rules, in which the store
    is declared never to decrease, watches an application that is still to come.
    """
    with ExitStack() as closing:

        def make(variant: str, version: str, *, declared: bool = True, **properties: str) -> Scene:
            application, topic = named("shop"), named("orders")
            broker.create_topic(topic, 4)
            first, second = instances(
                variant, version, broker.bootstrap_servers, application, tmp_path, input_topic=topic, **properties
            )
            slack = closing.enter_context(Slack())
            stores = f'stores = [{{ application = "{application}", store = "{first.store}" }}]'
            edits = {"stores = []": stores} if declared else {}
            agent = Agent(tmp_path / "agent", {"main": addresses(broker)}, slack, edits=edits)
            closing.enter_context(agent)
            for one in (first, second):
                closing.callback(one.kill)
            agent.wait_until_watching()
            return Scene(agent, slack, first, second)

        yield make


# --- what was told


def loud(agent: Agent) -> list[dict[str, Any]]:
    """The incidents for which somebody is woken, whatever they are about."""
    return [one for one in agent.unmerged() if one["severity"] != "info"]


def fell(agent: Agent) -> dict[int, dict[str, Any]]:
    """By partition, what was told of values that fell."""
    told = [one for one in findings(agent.unmerged(), "state_not_restored") if one["current"].get("keys")]
    assert len({one["subject"]["partition"] for one in told}) == len(told)
    return {one["subject"]["partition"]: one for one in told}


def by_partition(fallen: Sequence[Decrease]) -> Mapping[int, list[Decrease]]:
    """The falls of each partition."""
    return {number: [one for one in fallen if one.partition == number] for number in {one.partition for one in fallen}}


def is_told(scene: Scene, lost: Outcome) -> None:
    """One critical incident, one message: every partition that fell, which keys, how deep, from whom to whom, and why;
    and nothing else is told.
    """
    assert lost.decreases
    truth = by_partition(lost.decreases)
    keys = {number: len(fallen) for number, fallen in truth.items()}
    wait_until(
        lambda: {number: one["current"]["keys"] for number, one in fell(scene.agent).items()} == keys,
        f"{keys} keys to be told by partition",
    )
    scene.agent.wait_until_evaluated(now() + PATIENCE_MS, 120)
    for number, finding in fell(scene.agent).items():
        names_what_fell(finding, truth[number])
        names_the_move(finding, lost, scene.first)
    (incident,) = loud(scene.agent)
    assert (incident["severity"], incident["correlation"]) == ("critical", "state-lost-in-a-rebalance")
    assert len(findings([incident], "state_not_restored")) == len(truth)
    assert any(one["kind"] == "rebalancing" for one in incident["causes"])
    assert {one["subject"]["group"] for one in incident["causes"] + incident["findings"]} == {lost.application_id}
    (message,) = scene.slack.messages()
    assert incident["id"] in message.words
    assert all(what in message.words for what in ("CRITICAL", lost.application_id, lost.store, lost.changelog))


def names_what_fell(finding: Mapping[str, Any], fallen: Sequence[Decrease]) -> None:
    """How many keys, by how much in all, from which offset on, and the five that fell deepest."""
    current = finding["current"]
    depths = sorted((one.before - one.after for one in fallen), reverse=True)
    assert (current["keys"], current["total"]) == (len(fallen), sum(depths))
    assert current["first_offset"] == min(one.after_offset for one in fallen)
    worst = [(one["key"], one["before"], one["after"], one["offset"]) for one in current["worst"]]
    assert set(worst) <= {(one.key.decode(), one.before, one.after, one.after_offset) for one in fallen}
    assert [before - after for _, before, after, _ in worst] == depths[:5]
    assert len(set(worst)) == len(worst)


def names_the_move(finding: Mapping[str, Any], lost: Outcome, app: StreamsApp) -> None:
    """Which store of whom, the task, and the threads that had it before and after.

    Behind a repartition topic that is not named after the store, it may be any task of that number.
    """
    subject, previous, current = finding["subject"], finding["previous"], finding["current"]
    store = (subject["application"], subject["store"], subject["topic"])
    assert store == (lost.application_id, lost.store, lost.changelog)
    assert (finding["severity"], finding["labels"]) == ("critical", ["values_fell"])
    assert previous["until"] <= current["since"]
    move = [one for one in lost.moves if one.partition == subject["partition"]][-1]
    if len(app.source_topics) == 1:
        assert (subject["task"], previous["owner"], current["owner"]) == (move.task, move.old, move.new)
    else:
        tasks = {subject["task"]} if "task" in subject else set(current["tasks"])
        assert move.task in tasks
        assert tasks & set(app.tasks()[current["owner"]])


def is_quiet(scene: Scene) -> None:
    """Nobody was woken, though the agent had all in sight: once a value of each partition is made to fall by hand, that
    record is the first that it tells of, and all that it tells.
    """
    forged = forge(scene.first)
    offsets = {one.partition: one.offset for one in forged}
    wait_until(lambda: fell(scene.agent).keys() == offsets.keys(), "the forged falls to be told")
    scene.agent.wait_until_evaluated(now() + PATIENCE_MS, 120)
    told = {number: one["current"] for number, one in fell(scene.agent).items()}
    assert {number: one["first_offset"] for number, one in told.items()} == offsets
    assert {(one["keys"], one["total"]) for one in told.values()} == {(1, 1)}
    sees_rebalances(scene)
    (incident,) = loud(scene.agent)
    assert len(findings([incident], "state_not_restored")) == len(incident["findings"]) == len(offsets)
    assert [incident["id"] in one.words for one in scene.slack.messages()] == [True]


def forge(app: StreamsApp) -> list[Record]:
    """Write to each partition of the changelog a value that is lower by one than its key's last. Returns what fell."""
    last = {
        (one.partition, one.key): one for one in records(app.bootstrap_servers, app.changelog) if one.value is not None
    }
    chosen = {one.partition: one for one in last.values()}
    producer = Producer({"bootstrap.servers": app.bootstrap_servers, "log_level": 0})
    for one in chosen.values():
        value = (_long(one.value or b"") - 1).to_bytes(8, "big", signed=True)
        producer.produce(app.changelog, key=one.key, value=value, partition=one.partition)
    assert producer.flush(60) == 0
    offsets = {(one.partition, one.key): one for one in records(app.bootstrap_servers, app.changelog)}
    return [offsets[one.partition, one.key] for one in chosen.values()]


def is_silent(scene: Scene) -> None:
    """Nobody was woken, though the agent has seen the rebalances and the last of what was committed."""
    agent, app = scene.agent, scene.first
    wait_until_processed(app)
    ends = {one.partition: one.offset + 1 for one in records(app.bootstrap_servers, app.input_topic)}
    for partition, end in ends.items():
        last = (app.application_id, app.input_topic, partition, end)
        agent.wait_for(commits(last), f"the commit {last}")
    agent.wait_until_evaluated(now() + PATIENCE_MS, 120)
    sees_rebalances(scene)
    assert loud(agent) == []
    assert scene.slack.messages() == []


def commits(what: tuple[str, str, int, int]) -> Callable[[Observation], bool]:
    """Describes the commit of a group, topic and partition at an offset."""
    return lambda one: isinstance(one, Commit) and (one.group, one.topic, one.partition, one.offset) == what


def sees_rebalances(scene: Scene) -> None:
    """What tasks moved is known, and that nothing is wrong with it."""
    told = findings(scene.agent.unmerged(), "rebalancing", group=scene.first.application_id)
    assert {(one["severity"], *one["labels"]) for one in told} == {("info", "moved")}


# --- state that was lost


@pytest.mark.parametrize("variant", VARIANTS)
def test_lost_state_is_one_critical_incident(variant: str, stage: Stage) -> None:
    """The real KAFKA-7672, between two instances and between two threads of one: what fell, exactly, and its cause."""
    scene = stage(variant, "2.1.0")
    is_told(scene, lose_state(scene.first, scene.second, variant))


def test_state_lost_on_a_current_version_is_one_critical_incident(stage: Stage) -> None:
    """The stand-in on 3.9.1, with its cooperative rebalances: a checkpoint that lies."""
    scene = stage("empty", "3.9.1")
    is_told(scene, forge_state(scene.first, scene.second))


# --- what is no alarm


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", HEALTHY)
def test_a_rebalance_is_no_alarm(version: str, variant: str, stage: Stage) -> None:
    """An instance joins, works and is stopped, as when it is deployed anew."""
    scene = stage(variant, version)
    done = lose_state(scene.first, scene.second, variant)
    assert (bool(done.moves), done.decreases) == (True, ())
    is_quiet(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_a_rolling_restart_is_no_alarm(version: str, stage: Stage) -> None:
    """Each instance is stopped and started again at once: its old member goes when its session is over."""
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
        wait_until(lambda: sum(len(held) for one in both for held in one.tasks().values()) == 4, "4 tasks", 60)
        feed(scene.first.bootstrap_servers, scene.first.input_topic, 20)
        wait_until_processed(scene.first)
    is_quiet(scene)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("version", HEALTHY)
def test_an_instance_killed_at_work_is_no_alarm(version: str, guarantee: str, stage: Stage) -> None:
    """What was never committed has not fallen, and what is counted twice does not fall."""
    scene = stage("empty", version, guarantee=guarantee)
    with Trickle(scene.first.bootstrap_servers, scene.first.input_topic):
        done = lose_state(scene.first, scene.second, "empty", leave=StreamsApp.kill)
    assert (bool(done.moves), done.decreases) == (True, ())
    is_quiet(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_windows_that_begin_are_no_alarm(version: str, stage: Stage) -> None:
    """Each window begins at 1 under a key of its own, also after a rebalance."""
    scene = stage("empty", version, topology="windowed-count")
    with Trickle(scene.first.bootstrap_servers, scene.first.input_topic, every=0.2):
        done = lose_state(scene.first, scene.second, "empty")
    assert (bool(done.moves), done.decreases) == (True, ())
    is_quiet(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_keys_that_were_deleted_are_no_alarm(version: str, stage: Stage) -> None:
    """After a tombstone a count begins again at 1, right after a rebalance."""
    scene = stage("empty", version, topology="deletable-count")
    done = lose_state(scene.first, scene.second, "empty")
    assert done.moves
    for value in ("delete", "1"):
        feed(scene.first.bootstrap_servers, scene.first.input_topic, 1, value=value)
    wait_until_processed(scene.first)
    is_quiet(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_a_sum_that_nobody_declared_may_fall(version: str, stage: Stage) -> None:
    """Right after a rebalance each key's sum falls by a negative number."""
    scene = stage("empty", version, declared=False, topology="sum")
    done = lose_state(scene.first, scene.second, "empty")
    assert done.moves
    feed(scene.first.bootstrap_servers, scene.first.input_topic, 1, value="-3")
    wait_until_processed(scene.first)
    assert find_decreases(records(scene.first.bootstrap_servers, scene.first.changelog), _long)
    is_silent(scene)


@pytest.mark.parametrize("version", HEALTHY)
def test_an_application_that_was_reset_is_no_alarm(version: str, stage: Stage) -> None:
    """StreamsResetter deletes the changelog and lets the input be read again: an operator did that, and it is said so.

    He does not wait until the group is empty, nor before he starts the application again.
    """
    scene = stage("empty", version, topology="repartitioned-count")
    agent, app = scene.agent, scene.first
    app.start()
    app.wait_until_running(8)
    feed(app.bootstrap_servers, app.input_topic, 400)
    wait_until_processed(app)
    agent.wait_for(committed(app.application_id, 2400), "the agent to see it at work")
    app.stop()
    stopped = now()
    reset_application(app)
    app.start()
    app.wait_until_running(8)
    wait_until_processed(app)
    agent.wait_for(lambda one: one.at > stopped and committed(app.application_id, 2400)(one), "it to be where it was")
    agent.wait_until_evaluated(now() + PATIENCE_MS, 120)  # what falls right after might still be of the old changelog
    is_quiet(scene)
    assert findings(agent.unmerged(), "topic_recreated", topic=app.changelog)
    rewinds = findings(agent.unmerged(), "offset_rewind", topic=app.input_topic)
    assert {one["subject"]["partition"] for one in rewinds} == {0, 1, 2, 3}
    assert {(one["severity"], "operator_reset" in one["labels"]) for one in rewinds} == {("info", True)}
