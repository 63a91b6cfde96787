"""Draws a scenario of about two hours from a seed: a cluster, what reads it, its ordinary life and its incidents."""

import random
from typing import NamedTuple

from agent.model.observations.base import Observation
from testbed.model.clients import draw_mirror, draw_purging_application
from testbed.model.clock import HOUR, MINUTE, SECOND, Clock
from testbed.model.cluster_faults import FAULTS
from testbed.model.faults import Fault
from testbed.model.flink import Flink
from testbed.model.groups import Group
from testbed.model.kafka import Cluster, Topic
from testbed.model.life import live
from testbed.model.streams import Application, StreamsGroup
from testbed.model.truth import Truth
from testbed.model.views import KafkaView
from testbed.model.world import World
from testbed.model.zookeeper_view import ZooKeeperView

BEGAN_AT = 1_795_248_000_000
"""2026-11-21T08:00:00Z."""

CHANGES = 10_000
"""About how many changes of log ends and commits the busy topics of a scenario have. Its time depends on them most."""

_ZOOKEEPER_VERSIONS = ((0, 11), (1, 1), (2, 0), (2, 4), (2, 8), (3, 9))
_KRAFT_VERSIONS = ((3, 3), (3, 9), (4, 1))


class Scenario(NamedTuple):
    """What happened, and the batches that the sources emitted, in the order of arrival."""

    truth: Truth
    batches: list[list[Observation]]


def draw(
    seed: int,
    *,
    faults: list[Fault] | None = None,
    changes: int = CHANGES,
    tails: bool = False,
    hours: float | None = None,
) -> Scenario:
    """Return the scenario of a seed.

    faults: which to try instead of drawing them. changes: its size in two hours, about. tails: whether commits are read
    from `__consumer_offsets` instead of being polled. hours: how long it lasts instead of about two.
    """
    rng = random.Random(seed)
    began_at = BEGAN_AT + rng.randrange(7 * 24) * HOUR + rng.randrange(HOUR)
    drawn_hours = rng.uniform(1.7, 2.3)
    ended_at = began_at + int((drawn_hours if hours is None else hours) * HOUR)
    clock = Clock(began_at)
    truth = Truth(seed=seed, began_at=began_at, ended_at=ended_at)
    batches: list[list[Observation]] = []
    world = _draw_world(rng, clock, truth, batches, changes)
    if tails:
        world.kafka_view.tail_commits()
    live(world, ended_at - 10 * MINUTE)
    _plan_faults(world, ended_at, faults)
    clock.run(ended_at)
    return Scenario(truth, batches)


def _draw_world(
    rng: random.Random, clock: Clock, truth: Truth, batches: list[list[Observation]], changes: int
) -> World:
    has_zookeeper = rng.random() < 0.55
    version = rng.choice(_ZOOKEEPER_VERSIONS if has_zookeeper else _KRAFT_VERSIONS)
    cluster = Cluster(
        "main", clock, rng, truth, brokers=rng.choice((3, 3, 4, 5, 6)), has_zookeeper=has_zookeeper, version=version
    )
    interval = rng.choice((1, 2, 5, 5, 5, 10, 10, 10, 10, 15, 15, 30, 30)) * SECOND
    newer = rng.random() < 0.5
    skew = int(rng.gauss(0, 40) if rng.random() < 0.75 else rng.choice((-1, 1)) * rng.uniform(1_000, 22_000))
    zookeeper = ZooKeeperView(cluster, batches.append, skew=skew, newer=newer) if has_zookeeper else None
    kafka = KafkaView(cluster, clock, batches.append, rng, interval=interval, newer=newer)
    world = World(clock, rng, truth, cluster, kafka, zookeeper)
    _draw_topics_and_groups(world, changes)
    if rng.random() < 0.3:
        _draw_flink(world, batches)
    if rng.random() < 0.25:
        _draw_streams(world, batches)
    if rng.random() < 0.2:
        _draw_compacted(world)
    if rng.random() < 0.25:
        draw_mirror(world)
    if rng.random() < 0.25:
        draw_purging_application(world)
    return world


def _draw_topics_and_groups(world: World, changes: int) -> None:
    rng, cluster = world.rng, world.cluster
    wanted = rng.randrange(20, 101 if world.kafka_view.interval > 2 * SECOND else 31)
    budget = changes * world.kafka_view.interval / (2 * HOUR)
    replication = min(3, len(cluster.brokers))
    offsets = cluster.create_topic("__consumer_offsets", 4, replication, end=lambda: rng.randrange(10_000, 9_000_000))
    for log in offsets.logs:
        log.rate = 0.03
    number = 0
    while len(cluster.groups) < wanted:
        number += 1
        is_busy = budget > 0
        topic = _draw_topic(world, f"topic-{number}", replication, is_busy=is_busy)
        for reading in range(rng.choice((1, 1, 1, 2, 3))):
            group = _draw_group(world, f"{rng.choice(_NAMES)}-{number}{'abc'[reading]}", topic)
            group.coordinator = offsets.logs[sum(map(ord, group.name)) % 4]
            if is_busy:
                budget -= len(topic.logs) * min(1.0, world.kafka_view.interval / group.interval)
        if is_busy:
            budget -= len(topic.logs)


_NAMES = ("billing", "search", "audit", "shipping", "mail", "fraud", "reports", "index", "cache", "ledger")


def _draw_topic(world: World, name: str, replication: int, *, is_busy: bool) -> Topic:
    rng = world.rng
    rate = 10 ** rng.uniform(0.7, 3.3) if is_busy else rng.choice((0.0, 10 ** rng.uniform(-2.7, -1.2)))
    history = int(rate * rng.uniform(600, 200_000)) + rng.randrange(200, 3_000)
    base = rng.choice((0, 0, rng.randrange(10_000_000)))
    topic = world.cluster.create_topic(
        name, rng.choice((1, 2, 3, 4, 6)), rng.choice((replication, replication, replication, 2, 1)),
        end=lambda: base + int(history * rng.uniform(0.7, 1.3)),
    )  # fmt: skip
    for log in topic.logs:
        log.rate = rate * rng.uniform(0.6, 1.4)
        log.start = base
    topic.is_transactional = rng.random() < 0.12
    if is_busy and rng.random() < 0.3:
        topic.retention_ms = int(rng.uniform(1_200, 9_000)) * SECOND
        _expire_regularly(world, topic)
    return topic


def _expire_regularly(world: World, topic: Topic) -> None:
    """Delete whole segments older than the retention time, every five minutes (log.retention.check.interval.ms)."""

    def expire() -> None:
        for log in topic.logs:
            if topic.exists and log.open:
                expired = log.end(world.now) - int(log.rate * topic.retention_ms / SECOND)
                segment = max(int(log.rate * 300), 1_000)
                world.cluster.delete_records(log, expired // segment * segment)

    expire()
    world.clock.every(5 * MINUTE, expire, first=world.rng.randrange(5 * MINUTE))


def _draw_group(world: World, name: str, topic: Topic) -> Group:
    rng = world.rng
    interval = int(rng.choice((1, 5, 5, 5, 10, 30, 60)) * SECOND)
    assigns = rng.random() < 0.1
    group = Group(
        world.cluster, name, policy=rng.choice(("earliest", "earliest", "latest")), interval=interval,
        members=rng.randrange(1, max(2, len(topic.logs) + 1)), assigns=assigns,
    )  # fmt: skip
    if assigns and rng.random() < 0.4:
        group.simple = False  # its id once had members
    group.hides_resets = rng.random() < 0.15
    group.reads_committed = topic.is_transactional and rng.random() < 0.8
    if world.cluster.version >= (4, 0) and rng.random() < 0.4 and not assigns:
        group.type, group.assignor = "consumer", "uniform"
    elif world.cluster.version >= (2, 6):
        group.type = "classic"
    if group.type != "consumer" and world.cluster.version >= (2, 4) and not assigns and rng.random() < 0.3:
        group.assignor = "cooperative-sticky"
    for log in topic.logs:
        pace = max(log.rate * rng.uniform(1.5, 12), rng.uniform(20, 3_000))
        group.read(log, log.end(world.now), pace)
    if rng.random() < 0.1 and not assigns:
        _run_in_batches(world, group)
    else:
        world.plain.append(group)
    return group


def _run_in_batches(world: World, group: Group) -> None:
    """Run a group for some seconds every few minutes."""
    every, lasts = world.seconds(150, 700), world.seconds(10, 60)
    for reader in group.readers:  # fast enough to keep up in the time that it runs
        reader.pace = reader.best_pace = max(reader.pace, reader.log.rate * every / lasts * world.rng.uniform(2, 6))
    subject = {"group": group.name}
    event = world.begin(f"{group.name} is a batch job", 3 * HOUR)
    event.permit(("consumer_stopped", "lag", "retention_margin"), subject, world.now)
    group.running = group.reading = False
    group.members, group.state = [], "Empty"

    def run() -> None:
        group.start(quick=True)
        world.clock.after(lasts + 2_000, group.stop)

    world.clock.every(every, run, first=world.seconds(5, 300))


def _draw_flink(world: World, batches: list[list[Observation]]) -> None:
    rng = world.rng
    world.flink = Flink(
        world.clock, rng, world.truth, batches.append, world.cluster.name, interval=rng.choice((5, 10)) * SECOND
    )
    for number in range(rng.randrange(1, 4)):
        topic = world.cluster.create_topic(
            f"clicks-{number}", rng.choice((1, 2, 4)), min(3, len(world.cluster.brokers)),
            end=lambda: rng.randrange(50_000, 3_000_000),
        )  # fmt: skip
        rate = 10 ** rng.uniform(1, 3)
        for log in topic.logs:
            log.rate = rate
        group = Group(world.cluster, f"flink-{number}", policy="earliest", interval=10 * HOUR, assigns=True)
        group.detects_truncation = False
        for log in topic.logs:
            group.read(log, log.end(world.now), rate * rng.uniform(2, 12))
        world.jobs.append(world.flink.submit(f"job-{number}", group, interval=rng.choice((10, 30, 60)) * SECOND))


def _draw_streams(world: World, batches: list[list[Observation]]) -> None:
    rng = world.rng
    partitions = rng.choice((2, 4, 6))
    replication = min(3, len(world.cluster.brokers))
    topic = world.cluster.create_topic("orders", partitions, replication, end=lambda: rng.randrange(50_000, 900_000))
    changelog = world.cluster.create_topic(
        "shop-counts-changelog", partitions, replication, end=lambda: rng.randrange(20_000, 500_000)
    )
    changelog.policy = "compact"
    rate = 10 ** rng.uniform(0.5, 2)
    for log in (*topic.logs, *changelog.logs):
        log.rate = rate
    group = StreamsGroup(
        world.cluster, "shop", policy="earliest", interval=30 * SECOND, members=min(partitions, rng.randrange(2, 5))
    )
    group.assignor = "stream"
    for log in topic.logs:
        group.read(log, log.end(world.now), rate * rng.uniform(2, 12))
    world.application = Application(world.cluster, batches.append, group, changelog)
    world.plain.append(group)


def _draw_compacted(world: World) -> None:
    """Let a new group read a compacted topic from its start: offsets advance faster than records."""
    rng = world.rng
    topic = world.cluster.create_topic(
        "customers", rng.choice((1, 2)), min(3, len(world.cluster.brokers)),
        end=lambda: rng.randrange(5_000_000, 60_000_000),
    )  # fmt: skip
    topic.policy = "compact"
    group = Group(world.cluster, "bootstrap", policy="earliest", interval=5 * SECOND)
    for log in topic.logs:
        log.rate = 10 ** rng.uniform(0, 2)
        log.density, log.clean_until = 10 ** rng.uniform(-2.5, -0.7), log.end(world.now) * 9 // 10
        group.read(log, 0, rng.uniform(1_000, 30_000))
    event = world.begin("bootstrap reads a compacted topic", 3 * HOUR)
    world.standstill(event, group, 3 * HOUR)
    world.claim(group, 3 * HOUR)


def _plan_faults(world: World, ended_at: int, faults: list[Fault] | None) -> None:
    """Let 0 to 3 things go wrong; what finds no target now is tried again, or replaced by another."""
    rng = world.rng
    earliest, latest = world.now + 8 * MINUTE, ended_at - 45 * MINUTE

    def try_fault(fault: Fault, left: int) -> None:
        if world.now < latest and not fault(world) and left:
            again = fault if faults is not None or rng.random() < 0.7 else _draw_faults(rng, 1)[0]
            world.clock.after(world.seconds(20, 200), lambda: try_fault(again, left - 1))

    drawn = faults if faults is not None else _draw_faults(rng, rng.choice((0, 1, 1, 2, 2, 3)))
    for fault in drawn:
        world.clock.at(rng.uniform(earliest, latest), lambda fault=fault: try_fault(fault, 12))  # type: ignore[misc]


def _draw_faults(rng: random.Random, number: int) -> list[Fault]:
    return rng.choices(list(FAULTS), list(FAULTS.values()), k=number)
