"""Kafka Streams applications on real brokers: their stores, and tasks as the applications themselves report them."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from structlog.testing import capture_logs

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Unavailable
from agent.model.observations.kafka import GroupState, LogOffsets, PartitionState
from agent.model.observations.streams import StreamsApplication
from agent.rules.queries.streams import thread
from agent.sources.kafka.admin import protocol
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
    """Make two instances, of two threads each, of a new application with two subtopologies: (version, id)."""
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
            for app in (first, second):
                closing.callback(app.kill)
            return first, second

        yield make


class _Watch:
    """A source that watches groups of a name and no topics; its requests and what it has emitted."""

    def __init__(self, cluster: Cluster, name: str, **settings: Any) -> None:
        self.seen = Seen()
        self.requests: list[protocol.Request] = []
        groups, no_topics = NameFilter(include=[f"{name}*"]), NameFilter(exclude=["*"])
        self.source = KafkaSource(
            "main",
            KafkaSourceSettings(
                bootstrap_servers=cluster.bootstrap_servers,
                groups=groups,
                topics=no_topics,
                watch_partitions=True,
                **settings,
            ),
            self.seen,
        )
        client = self.source._client
        send = client.send

        def record_and_send(key: tuple[Any, ...], request: protocol.Request, *target: tuple[Any, ...]) -> None:
            if key not in {call.key for call in client.in_flight}:
                self.requests.append(request)
            send(key, request, *target)

        client.send = record_and_send  # type: ignore[method-assign, assignment]

    @property
    def task_requests(self) -> int:
        """The number of requests for tasks."""
        return sum(isinstance(request, protocol.ListTasks) for request in self.requests)


@contextmanager
def _watching(cluster: Cluster, name: str, **settings: Any) -> Iterator[_Watch]:
    watch = _Watch(cluster, name, **settings)
    try:
        yield watch
    finally:
        watch.source.close()


def _is_assigned(state: GroupState) -> bool:
    return any(member.partitions for member in state.members)


def _tasks(state: GroupState) -> Mapping[str, tuple[str, ...]]:
    return {thread(member): tuple(sorted(set(member.tasks))) for member in state.members if member.tasks}


def _reported_tasks(*apps: StreamsApp) -> Mapping[str, tuple[str, ...]]:
    return {name: tasks for app in apps for name, tasks in app.tasks().items() if tasks}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.0", pytest.param("2.2.0", marks=pytest.mark.acceptance), "3.9.1"])
def test_tasks_are_those_the_application_reports(version: str, broker: Cluster, pair: Pair) -> None:
    """Before and after a rebalance; never without tasks; and requested only when a rebalance may have moved them."""
    name = named("shop")
    first, second = pair(version, name)
    with _watching(broker, name) as watch:

        def has_same_tasks(*apps: StreamsApp) -> bool:
            watch.source.poll()
            states = watch.seen.all(GroupState, group=name, state="Stable")
            reported = _reported_tasks(*apps)
            is_complete = len({task for tasks in reported.values() for task in tasks}) == 6
            return is_complete and bool(states) and _tasks(last(states)) == reported

        def wait_for_instances(instances: int) -> StreamsApplication:
            return watch.seen.wait_for(watch.source, StreamsApplication, application=name, instances=instances)

        first.start()
        first.wait_until_running(6)
        wait_until(lambda: has_same_tasks(first), "the tasks of the first instance", 120)
        assert wait_for_instances(1).stores == (("counts", 3),)
        second.start()
        second.wait_until_running()
        wait_until(lambda: has_same_tasks(first, second), "the tasks of both instances", 180)
        wait_for_instances(2)
        watch.seen.mark()
        requests = watch.task_requests
        for _ in range(5):
            watch.source.poll()
        assert watch.task_requests == requests
        assert watch.seen.all(GroupState) == []
        second.stop()
        first.wait_until_running(6)
        wait_until(lambda: has_same_tasks(first), "all tasks to be with the first instance again", 180)
        wait_for_instances(1)
        states = [fact for batch in watch.seen.batches for fact in batch if isinstance(fact, GroupState)]
    assert {state.assignor for state in states if state.state == "Stable"} == {"stream"}
    assert [member for state in states for member in state.members if len(member.tasks) != len(member.partitions)] == []


def test_applications_with_a_common_prefix_keep_their_stores(broker: Cluster) -> None:
    """Configured applications need no members. Their changelogs are watched although no topic is selected; each
    application is logged once.
    """
    name = named("shop")
    changelogs = {f"{name}-counts-changelog": 2, f"{name}-eu-counts-changelog": 1, f"{name}-eu-max-by-day-changelog": 1}
    for topic, partitions in changelogs.items():
        broker.create_topic(topic, partitions)
    broker.create_topic(f"{name}-other", 1)
    declared = [f"{name}-eu-counts-changelog"]
    with capture_logs() as logs, _watching(broker, name, streams=[name, f"{name}-eu"], declared=declared) as watch:
        shop = watch.seen.wait_for(
            watch.source, StreamsApplication, lambda application: bool(application.stores), application=name
        )
        europe = watch.seen.wait_for(watch.source, StreamsApplication, application=f"{name}-eu")
        for topic, partitions in changelogs.items():
            watch.seen.wait_for(watch.source, LogOffsets, topic=topic, partition=partitions - 1)
            watch.seen.wait_for(watch.source, PartitionState, topic=topic, partition=partitions - 1)
        assert [watch.source.is_changelog(topic) for topic in (*changelogs, f"{name}-other")] == [True] * 3 + [False]
        assert {offsets.topic for offsets in watch.seen.all(LogOffsets)} == set(changelogs)
    assert shop.stores == (("counts", 2),)
    assert europe.stores == (("counts", 1), ("max-by-day", 1))
    logged = [(line["application"], line["stores"], line["declared"]) for line in logs if "application" in line]
    assert logged == [(name, ["counts"], []), (f"{name}-eu", ["counts", "max-by-day"], ["counts"])]


def test_tasks_of_a_plain_consumer_group_are_not_requested(broker: Cluster) -> None:
    """Its assignor is known, it is no application, and the call to all brokers is not made."""
    name = named("plain")
    broker.create_topic(name, 1)
    with SubscribedConsumer(broker.bootstrap_servers, name, [name]), _watching(broker, name) as watch:
        state = watch.seen.wait_for(watch.source, GroupState, _is_assigned, state="Stable")
        watch.source.poll()
    assert state.assignor == "range"
    assert watch.task_requests == 0
    assert watch.seen.all(StreamsApplication) == []


@pytest.mark.timeout(300)
def test_a_broker_that_hangs_delays_tasks_but_no_poll(kafka_3_9: Cluster) -> None:
    """The group has no tasks until the cluster has dropped that broker, and nothing is unavailable. Here nothing can
    be decoded even then, which is logged once.
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
        state = watch.seen.wait_for(watch.source, GroupState, _is_assigned, state="Stable")
        polls = []

        def undecodable() -> list[Any]:
            begin = time.monotonic()
            watch.source.poll()
            polls.append(time.monotonic() - begin)
            return [line["reason"] for line in logs if line["event"] == "streams_tasks_undecodable"]

        reasons = wait_until(undecodable, "the tasks to be asked for again, without that broker", 120)
        kafka_3_9.thaw(2011)
        for _ in range(3):
            watch.source.poll()
        assert undecodable() == reasons == ["the assignment has no user data of Kafka Streams"]
        assert watch.task_requests > 1
    assert state.members[0].tasks == ()
    assert sorted(polls)[len(polls) // 2] < 1, f"polls of {polls} s beside a frozen broker"
    assert watch.seen.all(Unavailable, group=name) == []
