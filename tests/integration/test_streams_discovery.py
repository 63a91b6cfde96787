"""Kafka Streams applications are found with their stores, and who has which task is told as they tell it themselves."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from structlog.testing import capture_logs

from agent.model.config_types import NameFilter
from agent.model.observations import GroupState, LogOffsets, PartitionState, StreamsApplication, Unavailable
from agent.rules.queries.streams import thread
from agent.sources.kafka import admin_protocol as wire
from agent.sources.kafka.source import KafkaSource, KafkaSourceSettings
from testbed.consumers import SubscribedConsumer
from testbed.kafka import Cluster
from testbed.streams.app import StreamsApp
from testbed.traffic import fill
from testbed.waiting import wait_until
from tests.integration.scenes import named
from tests.integration.seen import Seen, last

pytestmark = pytest.mark.integration


Pair: TypeAlias = Callable[[str, str], tuple[StreamsApp, StreamsApp]]


@pytest.fixture
def pair(broker: Cluster, tmp_path: Path) -> Iterator[Pair]:
    """Makes the two instances, of two threads each, of a new application with two subtopologies: (version, id)."""
    with ExitStack() as closing:

        def make(version: str, application: str) -> tuple[StreamsApp, StreamsApp]:
            broker.create_topic(f"{application}-in", 3)
            first, second = (
                StreamsApp(
                    version,
                    broker.bootstrap_servers,
                    application,
                    tmp_path,
                    input_topic=f"{application}-in",
                    instance=instance,
                    topology="repartitioned-count",
                    threads=2,
                )
                for instance in ("a", "b")
            )
            for one in (first, second):
                closing.callback(one.kill)
            return first, second

        yield make


class _Watch:
    """A source that watches groups of a name, and no topic by choice; what it has asked, what it has told."""

    def __init__(self, cluster: Cluster, name: str, **settings: Any) -> None:
        self.seen = Seen()
        self.asked: list[wire.Question] = []
        groups, nothing = NameFilter(include=[f"{name}*"]), NameFilter(exclude=["*"])
        self.source = KafkaSource(
            "main",
            KafkaSourceSettings(
                bootstrap_servers=cluster.bootstrap_servers,
                groups=groups,
                topics=nothing,
                watch_partitions=True,
                **settings,
            ),
            self.seen,
        )
        ask = self.source._calls.ask

        def noted(key: tuple[Any, ...], question: wire.Question, *whom: tuple[Any, ...]) -> None:
            if key not in {call.key for call in self.source._calls.flying}:
                self.asked.append(question)
            ask(key, question, *whom)

        self.source._calls.ask = noted  # type: ignore[method-assign, assignment]

    @property
    def for_tasks(self) -> int:
        """How often it has asked for tasks."""
        return sum(isinstance(one, wire.ListTasks) for one in self.asked)


@contextmanager
def _watching(cluster: Cluster, name: str, **settings: Any) -> Iterator[_Watch]:
    watch = _Watch(cluster, name, **settings)
    try:
        yield watch
    finally:
        watch.source.close()


def _reads(state: GroupState) -> bool:
    return any(one.partitions for one in state.members)


def _tasks(state: GroupState) -> Mapping[str, tuple[str, ...]]:
    return {thread(one): tuple(sorted(set(one.tasks))) for one in state.members if one.tasks}


def _held(*apps: StreamsApp) -> Mapping[str, tuple[str, ...]]:
    return {name: tasks for app in apps for name, tasks in app.tasks().items() if tasks}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.0", "2.2.0", "3.9.1"])
def test_tasks_are_told_as_the_application_has_them(version: str, broker: Cluster, pair: Pair) -> None:
    """Before, in and after a move; never without tasks; and asked for only when a rebalance may have moved them."""
    name = named("shop")
    first, second = pair(version, name)
    with _watching(broker, name) as watch:

        def agreed(*apps: StreamsApp) -> bool:
            watch.source.poll()
            states = watch.seen.all(GroupState, group=name, state="Stable")
            held = _held(*apps)
            whole = len({task for tasks in held.values() for task in tasks}) == 6
            return whole and bool(states) and _tasks(last(states)) == held

        def found(instances: int) -> StreamsApplication:
            return watch.seen.wait_for(watch.source, StreamsApplication, application=name, instances=instances)

        first.start()
        first.wait_until_running(6)
        wait_until(lambda: agreed(first), "the tasks of the first instance", 120)
        assert found(1).stores == (("counts", 3),)
        second.start()
        second.wait_until_running()
        wait_until(lambda: agreed(first, second), "the tasks of both instances", 180)
        found(2)
        watch.seen.mark()
        asked = watch.for_tasks
        for _ in range(5):
            watch.source.poll()
        assert watch.for_tasks == asked
        assert watch.seen.all(GroupState) == []
        second.stop()
        first.wait_until_running(6)
        wait_until(lambda: agreed(first), "all tasks to be with the first instance again", 180)
        found(1)
        states = [one for batch in watch.seen.batches for one in batch if isinstance(one, GroupState)]
    assert {one.assignor for one in states if one.state == "Stable"} == {"stream"}
    assert [one for one in states for member in one.members if len(member.tasks) != len(member.partitions)] == []


def test_of_applications_whose_ids_begin_alike_each_has_its_own_stores(broker: Cluster) -> None:
    """Named in the configuration they need no member. Their changelogs are watched, though no topic is chosen; what
    was found is logged once.
    """
    name = named("shop")
    changelogs = {f"{name}-counts-changelog": 2, f"{name}-eu-counts-changelog": 1, f"{name}-eu-max-by-day-changelog": 1}
    for topic, partitions in changelogs.items():
        broker.create_topic(topic, partitions)
    broker.create_topic(f"{name}-other", 1)
    declared = [f"{name}-eu-counts-changelog"]
    with capture_logs() as logs, _watching(broker, name, streams=[name, f"{name}-eu"], declared=declared) as watch:
        shop = watch.seen.wait_for(watch.source, StreamsApplication, lambda one: bool(one.stores), application=name)
        europe = watch.seen.wait_for(watch.source, StreamsApplication, application=f"{name}-eu")
        for topic, partitions in changelogs.items():
            watch.seen.wait_for(watch.source, LogOffsets, topic=topic, partition=partitions - 1)
            watch.seen.wait_for(watch.source, PartitionState, topic=topic, partition=partitions - 1)
        assert [watch.source.is_changelog(topic) for topic in (*changelogs, f"{name}-other")] == [True] * 3 + [False]
        assert {one.topic for one in watch.seen.all(LogOffsets)} == set(changelogs)
    assert shop.stores == (("counts", 2),)
    assert europe.stores == (("counts", 1), ("max-by-day", 1))
    told = [(one["application"], one["stores"], one["declared"]) for one in logs if "application" in one]
    assert told == [(name, ["counts"], []), (f"{name}-eu", ["counts", "max-by-day"], ["counts"])]


def test_a_plain_consumer_group_is_not_asked_for_tasks(broker: Cluster) -> None:
    """Its assignor is told, it is no application, and the call that asks all brokers is not made."""
    name = named("plain")
    broker.create_topic(name, 1)
    with SubscribedConsumer(broker.bootstrap_servers, name, [name]), _watching(broker, name) as watch:
        state = watch.seen.wait_for(watch.source, GroupState, _reads, state="Stable")
        watch.source.poll()
    assert state.assignor == "range"
    assert watch.for_tasks == 0
    assert watch.seen.all(StreamsApplication) == []


@pytest.mark.timeout(300)
def test_a_broker_that_hangs_delays_tasks_and_stretches_no_poll(kafka_3_9: Cluster) -> None:
    """The group is told without tasks until the cluster has dropped that broker, and nobody is blind for it. Here
    nothing can be decoded even then, which is logged once.
    """
    name = named("hangs")
    kafka_3_9.create_topic(name, assignment={0: [2005]})
    fill(kafka_3_9.bootstrap_servers, [(name, 0)], records=10)
    with (
        capture_logs() as logs,
        _watching(kafka_3_9, name, streams=[name], timeout=3_000) as watch,
        SubscribedConsumer(kafka_3_9.bootstrap_servers, name, [name]) as consumer,
    ):
        wait_until(lambda: consumer.committed, "the consumer to read its partition")
        kafka_3_9.freeze(2011)
        state = watch.seen.wait_for(watch.source, GroupState, _reads, state="Stable")
        polls = []

        def undecodable() -> list[Any]:
            begin = time.monotonic()
            watch.source.poll()
            polls.append(time.monotonic() - begin)
            return [one["reason"] for one in logs if one["event"] == "cannot decode tasks"]

        reasons = wait_until(undecodable, "the tasks to be asked for again, without that broker", 120)
        kafka_3_9.thaw(2011)
        for _ in range(3):
            watch.source.poll()
        assert undecodable() == reasons == ["Kafka Streams has written nothing into it"]
        assert watch.for_tasks > 1
    assert state.members[0].tasks == ()
    assert sorted(polls)[len(polls) // 2] < 1, f"polls of {polls} s beside a frozen broker"
    assert watch.seen.all(Unavailable, group=name) == []
