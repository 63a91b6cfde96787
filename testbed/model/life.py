"""Ordinary life: what happens every day and is no incident, however much it looks like one."""

from collections.abc import Callable
from typing import TypeAlias

from testbed.model.clock import MINUTE, SECOND
from testbed.model.groups import Group
from testbed.model.kafka import Broker, Log
from testbed.model.truth import Effect, Subject
from testbed.model.world import STANDSTILL, World, permit_offline

Happening: TypeAlias = Callable[[World], None]


def deploy(world: World) -> None:
    """Replace the members of a group one by one, as Kubernetes does."""
    group = world.calm_group(lambda group: not group.assigns)
    if group is None:
        return
    step = world.seconds(8, 60)
    world.claim(group, step * len(group.members) + 60_000)
    world.begin(f"deploy of {group.name}", step * len(group.members))
    for number in range(len(group.members)):
        world.clock.after(
            number * step, lambda number=number: group.rebalance(world.seconds(1, 6), replaces=number)  # type: ignore[misc]
        )  # fmt: skip


def restart_group(world: World) -> None:
    """Stop a group, or let it crash, and start it again after a while; it catches up."""
    group = world.calm_group()
    if group is None:
        return
    crashes = world.rng.random() < 0.4
    away = world.seconds(5, 90) if world.rng.random() < 0.7 else world.seconds(120, 1_500)
    world.claim(group, away + 300_000)
    event = world.begin(f"{group.name} {'crashed' if crashes else 'was stopped'}", away)
    world.standstill(event, group, away)
    group.stop(crashes=crashes)
    world.clock.after(away, group.start)


def rebalance(world: World) -> None:
    """Replace a member of a group."""
    group = world.calm_group(lambda group: not group.assigns)
    if group is not None:
        world.claim(group, 60_000)
        group.rebalance(world.seconds(0.5, 8), replaces=world.rng.randrange(8))
        world.begin(f"rebalance of {group.name}", 8_000)


def rolling_restart(world: World) -> None:
    """Restart the brokers one after the other with controlled shutdowns."""
    brokers = [broker for broker in world.cluster.brokers.values() if not broker.is_decommissioned]
    step = world.seconds(50, 150)
    if world.alive_broker() is None or not world.claim_brokers(step * len(brokers) + 400_000):
        return
    event = world.begin("rolling restart", step * len(brokers) + 300_000)

    def restart(broker: Broker) -> None:
        permit_offline(world, event, broker, 120_000)  # the one before may not be in sync yet
        world.cluster.stop(broker, down_ms=world.seconds(8, 45))

    for number, broker in enumerate(brokers):
        world.clock.after(number * step, lambda broker=broker: restart(broker))  # type: ignore[misc]
    world.clock.after(len(brokers) * step + world.seconds(30, 240), world.cluster.prefer_leaders)


def restart_broker(world: World) -> None:
    """Restart one broker in order."""
    broker = world.alive_broker()
    if broker is None or not world.claim_brokers(420_000):
        return
    event = world.begin(f"restart of broker {broker.number}", 300_000)
    permit_offline(world, event, broker, 120_000)
    world.cluster.stop(broker, down_ms=world.seconds(8, 60))
    world.clock.after(world.seconds(90, 360), world.cluster.prefer_leaders)


def session_blip(world: World) -> None:
    """Let a broker lose its session once, without harm to any reader."""
    broker = world.alive_broker()
    if broker is None or not world.claim_brokers(420_000):
        return
    event = world.begin(f"broker {broker.number} lost its session", 300_000)
    permit_offline(world, event, broker, 60_000)
    world.cluster.lose_session(broker, away_ms=world.seconds(0.3, 12), moves=world.rng.random() < 0.7)
    world.clock.after(world.seconds(60, 300), world.cluster.prefer_leaders)


def move_controller(world: World) -> None:
    """Let another broker become the controller."""
    cluster = world.cluster
    cluster.controller = world.rng.choice(sorted(cluster.brokers))
    cluster.controller_epoch += 1
    cluster.controller_at = world.now
    world.begin("controller moved", 0)
    cluster.notify(None)


def slow_sink(world: World) -> None:
    """Let a group stand still, or crawl, because what it writes to is slow."""
    group = world.calm_group()
    if group is None:
        return
    lasts = world.seconds(30, 900)
    world.claim(group, lasts + 300_000)
    event = world.begin(f"sink of {group.name} is slow", lasts)
    world.standstill(event, group, lasts)
    group.set_pace(0 if world.rng.random() < 0.6 else world.rng.uniform(0.02, 0.3))
    world.clock.after(lasts, lambda: group.set_pace(1))


def pause_partition(world: World) -> None:
    """Let a consumer pause one of its partitions (KafkaConsumer.pause) while it reads the others."""
    group = world.calm_group(lambda group: len(group.readers) > 1)
    if group is None:
        return
    lasts = world.seconds(20, 900)
    world.claim(group, lasts + 300_000)
    reader = world.rng.choice(group.readers)
    event = world.begin(f"{group.name} paused {reader.log.place}", lasts)
    world.standstill(event, group, lasts)
    group.sync(world.now)
    reader.catch_up(world.now)
    reader.pace = 0.0
    world.clock.after(lasts, lambda: group.set_pace(1))


def open_transaction(world: World) -> None:
    """Let a producer die with an open transaction; readers of committed records wait until it is aborted."""
    logs = [log for log in world.cluster.logs() if log.topic.is_transactional and log.lso is None and log.open]
    if not logs:
        return
    log = world.rng.choice(logs)
    lasts = world.seconds(15, 70) if world.rng.random() < 0.7 else world.seconds(100, 900)
    event = world.begin(f"open transaction on {log.place}", lasts)
    log.settle(world.now)
    log.lso = log.end(world.now)
    topic, partition = log.place
    where: Subject = {"topic": topic, "partition": partition}
    event.permit((*STANDSTILL, "transaction_hanging"), where, world.now, world.now + int(lasts) + 1_800_000)
    for reader in log.readers:
        world.standstill(event, reader.group, lasts)

    def abort() -> None:
        log.settle(world.now)
        log.lso = None

    world.clock.after(lasts, abort)


def operator_reset(world: World) -> None:
    """Let an operator reset a stopped group: back, forward, to a time, all topics or one."""
    group = world.calm_group(lambda group: not group.assigns)
    if group is None:
        return
    rng = world.rng
    before, after = world.polls(rng.uniform(3, 8)) + 20_000, world.polls(rng.uniform(3, 8)) + 20_000
    world.claim(group, before + after + 600_000)
    event = world.begin(f"operator reset {group.name}", before + after + 60_000)
    world.standstill(event, group, before + after)
    group.stop()
    how = rng.choice(("earliest", "latest", "shift", "time"))
    topics = sorted({reader.log.topic.name for reader in group.readers})
    only = rng.choice(topics) if rng.random() < 0.4 else None
    shift = rng.choice((-1, 1)) * rng.randrange(200, 80_000)
    share = rng.random()

    def reset() -> None:
        for reader in group.readers:
            log, old = reader.log, reader.committed
            if old is None or only not in (None, log.topic.name):
                continue
            end = log.end(world.now)
            to = {"earliest": log.start, "latest": end, "shift": old + shift,
                  "time": int(log.start + share * (end - log.start))}[how]  # fmt: skip
            to = min(max(to, log.start), end)
            reader.committed = reader.known = to
            reader.position = float(to)
            event.effects.append(
                Effect(
                    kinds=("offset_rewind",) if to < old else ("offset_jump",), subject=reader.subject, at=world.now,
                    measure="reread" if to < old else "skipped", records=abs(to - old), before=old, after=to, kept=old,
                    must=False, labels=("operator_reset",) if abs(to - old) >= 1_000 else (),
                )
            )  # fmt: skip

    world.clock.after(before, reset)
    world.clock.after(before + after, group.start)


def add_partitions(world: World) -> None:
    """Add partitions to a topic; a group finds all by one refresh of its metadata, and reads them from the start."""
    topics = [
        topic
        for topic in world.cluster.topics.values()
        if 1 < len(topic.logs) < 9 and topic.logs[0].readers and world.finds_partitions(topic)
    ]
    if not topics:
        return
    topic = world.rng.choice(topics)
    groups: list[Group] = list(dict.fromkeys(reader.group for reader in topic.logs[0].readers))
    world.begin(f"partitions added to {topic.name}", 300_000)
    pace, rate = topic.logs[0].readers[0].best_pace, topic.logs[0].rate
    replication = len(topic.logs[0].replicas)
    added = [world.cluster.add_partition(topic, replication) for _ in range(world.rng.randrange(1, 4))]
    for log in added:
        log.rate = rate

    def begin(group: Group) -> None:
        for log in added:
            reader = group.read(log, 0, pace)
            reader.committed = reader.known = None

    def find(group: Group) -> None:
        if added[0] in topic.logs and group.running:
            group.rebalance(world.seconds(1, 4), found=lambda: begin(group))

    for group in groups:
        world.clock.after(world.seconds(5, 300), lambda group=group: find(group))  # type: ignore[misc]
    world.cluster.notify(topic)


def reassign(world: World) -> None:
    """Move a replica of some partitions to another broker under load (KIP-455)."""
    alive = [n for n, broker in world.cluster.brokers.items() if broker.is_up and not broker.is_decommissioned]
    logs = [log for log in world.cluster.logs() if len(log.replicas) < len(alive) and not log.adding and log.open]
    if not logs or world.alive_broker() is None or not world.claim_brokers(900_000):
        return
    world.begin("reassignment", 900_000)
    for log in world.rng.sample(logs, min(len(logs), 5)):
        new = world.rng.choice([number for number in alive if number not in log.replicas])
        old = world.rng.choice(log.replicas)
        move_replica(world, log, old, new, world.seconds(20, 700))


def move_replica(world: World, log: Log, old: int, new: int, ms: float) -> None:
    """Move one replica: it is added, gets in sync, and the old one is removed."""
    target = tuple(new if number == old else number for number in log.replicas)
    world.cluster.write_state(log, replicas=(*log.replicas, new), adding=(new,), removing=(old,))

    def finish() -> None:
        world.cluster.write_state(log, isr=tuple(dict.fromkeys((*log.isr, new))))
        isr = tuple(number for number in log.isr if number != old)
        leader = log.leader if log.leader != old else isr[0]
        moved = {"leader": leader, "epoch": log.epoch + 1} if leader != log.leader else {}
        world.cluster.write_state(log, replicas=target, adding=(), removing=(), isr=isr, **moved)

    world.clock.after(ms, finish)


def decommission(world: World) -> None:
    """Move all replicas off a broker and take it out for good."""
    brokers = [broker for broker in world.cluster.brokers.values() if not broker.is_decommissioned]
    broker = world.alive_broker()
    replication = max(len(log.replicas) for log in world.cluster.logs())
    if broker is None or len(brokers) <= max(replication, 3) or not world.claim_brokers(1_500_000):
        return
    event = world.begin(f"broker {broker.number} decommissioned", 1_500_000)

    def drain() -> bool:
        held = [log for log in world.cluster.logs() if broker.number in log.replicas]
        for log in held:
            if broker.number not in log.removing:
                free = [other.number for other in brokers if other.number not in log.replicas]
                move_replica(world, log, broker.number, world.rng.choice(free), world.seconds(20, 400))
        return not held

    def leave() -> None:
        if not drain():  # a topic was created meanwhile
            event.extend(world.now + 500_000)
            world.clock.after(450_000, leave)
            return
        broker.is_decommissioned = True
        broker.is_up = False
        world.cluster.unregister(broker)

    drain()
    world.clock.after(world.seconds(500, 1_000), leave)


def shrink_isr(world: World) -> None:
    """Let a follower be slow for less than a minute."""
    logs = [log for log in world.cluster.logs() if len(log.isr) > 1 and log.open]
    if logs and world.alive_broker() is not None:
        log = world.rng.choice(logs)
        follower = next(number for number in log.isr if number != log.leader)
        world.begin(f"follower of {log.place} was slow", 60_000)
        world.cluster.remove_from_isr(log, follower)
        world.clock.after(world.seconds(3, 50), lambda: world.cluster.add_to_isr(log, follower))


def disorder(world: World) -> None:
    """Let an asynchronous commit arrive after a later one: the offset is lower until the next commit."""
    group = world.calm_group()
    if group is None:
        return
    world.claim(group, 60_000)
    world.begin(f"commits of {group.name} arrived out of order", 2 * group.interval + 10_000)
    group.sync(world.now)
    for reader in group.of_member(world.rng.randrange(8)):
        if reader.committed is not None and reader.committed <= reader.position:
            late = int(min(reader.pace, reader.log.rate or 1.0) * group.interval / SECOND)
            reader.committed = max(reader.committed - late, reader.log.start)


def rename_group(world: World) -> None:
    """Stop a group for good and start one of another name at the end, or at the start, of the same topics."""
    group = world.calm_group(lambda group: not group.assigns)
    if group is None:
        return
    event = world.begin(f"{group.name} was renamed", 60_000)
    world.standstill(event, group, 7_200_000)
    group.stop()
    group.is_abandoned = True
    event.permit(("retention_overrun", "retention_margin", "offset_expiring"), {"group": group.name}, world.now)
    fresh = Group(world.cluster, f"{group.name}-v2", policy=group.policy, interval=group.interval, members=group.size)
    fresh.coordinator = group.coordinator
    for reader in group.readers:
        log = reader.log
        at = (
            log.start if fresh.policy == "earliest" and log.end(world.now) - log.start < 200_000 else log.end(world.now)
        )
        fresh.read(log, at, reader.best_pace).committed = None
    world.standstill(event, fresh, 1_800_000)
    world.plain.append(fresh)
    if world.rng.random() < 0.5:
        world.clock.after(world.seconds(60, 900), group.delete)


def vary_traffic(world: World) -> None:
    """Let a topic's traffic rise or fall, or a burst arrive."""
    logs = [log for log in world.cluster.logs() if log.rate > 0 and log.open]
    if logs:
        log = world.rng.choice(logs)
        if world.rng.random() < 0.3:
            log.append(world.now, int(log.rate * world.rng.uniform(1, 40)))
        else:
            log.set_rate(world.now, log.rate * world.rng.uniform(0.5, 1.6))


def zookeeper_away(world: World) -> None:
    """Let ZooKeeper restart while all sessions survive."""
    if world.zookeeper_view is not None:
        lasts = world.seconds(2, 55)
        world.begin("ZooKeeper restarted", lasts)
        world.zookeeper_view.disconnect(int(lasts))


def agent_asleep(world: World) -> None:
    """Suspend Backflow for some minutes."""
    lasts = int(world.seconds(40, 1_200))
    event = world.begin("Backflow was suspended", lasts)
    event.permit(("source_unavailable",), {"cluster": world.cluster.name}, world.now, world.now + lasts + 120_000)
    world.kafka_view.asleep_until = world.now + lasts
    world.asleep.append((world.now, world.now + lasts))
    if world.zookeeper_view is not None:
        world.zookeeper_view.disconnect(lasts)


def flink_failure(world: World) -> None:
    """Let a task of a Flink job fail once; it is restored from its last checkpoint."""
    if world.flink is not None and world.jobs:
        job = world.rng.choice(world.jobs)
        event = world.begin(f"a task of {job.name} failed", 60_000)
        event.permit(("checkpoint_failing", "job_restarting"), {"job": job.id}, world.now, world.now + 120_000)
        world.flink.fail(job)


def flink_failover(world: World) -> None:
    """Let the JobManager fail over; all jobs are restored from their last checkpoints."""
    if world.flink is not None and world.flink.leader is not None:
        event = world.begin("JobManager failover", 120_000)
        event.permit(("source_unavailable", "job_restarting"), {"cluster": "jobs"}, world.now, world.now + 180_000)
        world.flink.fail_over()


HAPPENINGS: dict[Happening, float] = {
    deploy: 4, pause_partition: 2, restart_group: 6, rebalance: 6, rolling_restart: 1, restart_broker: 1,
    session_blip: 1, move_controller: 0.5, slow_sink: 4, open_transaction: 2, operator_reset: 2, add_partitions: 0.7,
    reassign: 0.7, decommission: 0.3, shrink_isr: 2, disorder: 2, rename_group: 1, vary_traffic: 8, zookeeper_away: 0.7,
    agent_asleep: 0.3, flink_failure: 0.7, flink_failover: 0.4,
}  # fmt: skip
"""What happens, and how often relative to the others."""

EVERY_MS = 4 * MINUTE


def live(world: World, until: int) -> None:
    """Let ordinary things happen at random moments until then."""
    happenings, weights = list(HAPPENINGS), list(HAPPENINGS.values())

    def happen() -> None:
        world.rng.choices(happenings, weights)[0](world)
        again = world.rng.expovariate(1 / EVERY_MS)
        if world.now + again < until:
            world.clock.after(again, happen)

    world.clock.after(MINUTE + world.rng.expovariate(1 / EVERY_MS), happen)
