"""Clients with habits of their own that look like trouble and are none: mirrors, purging applications."""

from testbed.model.clock import HOUR, SECOND
from testbed.model.groups import Group
from testbed.model.world import World

_SYNC_MS = 60 * SECOND
"""sync.group.offsets.interval.seconds of MirrorMaker 2."""

_PURGE_MS = 30 * SECOND
"""repartition.purge.interval.ms of Kafka Streams."""


def draw_mirror(world: World) -> None:
    """Let MirrorMaker translate the offsets of another cluster's group: they advance in uneven steps.

    It never lowers an offset: a translation below what is committed is skipped (MirrorCheckpointTask of KIP-545).
    """
    rng = world.rng
    busy = [log for log in world.cluster.logs() if log.rate > 5 and not log.topic.name.startswith("_")]
    if not busy:
        return
    topic = rng.choice(busy).topic
    group = Group(world.cluster, "mirrored", policy="latest", interval=10 * HOUR, assigns=True)
    group.simple, group.hides_resets = False, True
    for log in topic.logs:
        group.read(log, log.end(world.now), max(log.rate, 1.0) * 3)

    earlier = {reader: (reader.position, reader.position) for reader in group.readers}

    def sync() -> None:
        for reader in group.readers:
            reader.catch_up(world.now)
            before, last = earlier[reader]
            earlier[reader] = last, reader.position
            steps = rng.uniform(0, 1.5) if rng.random() < 0.3 else 0.0  # how old its newest known pair of offsets is
            behind = min(steps, 1.0) * (reader.position - last) + max(steps - 1.0, 0.0) * (last - before)
            translated = max(int(reader.position - behind), reader.log.start)
            reader.committed = reader.known = max(translated, reader.committed or 0)

    event = world.begin("mirrored is the group of another cluster", 3 * HOUR)
    world.standstill(event, group, 3 * HOUR)
    world.clock.every(_SYNC_MS, sync, first=rng.randrange(_SYNC_MS))


def draw_purging_application(world: World) -> None:
    """Let a Kafka Streams application delete from its repartition topic what it has committed."""
    rng = world.rng
    base = rng.randrange(1_000_000)
    topic = world.cluster.create_topic(
        "enrich-repartition", rng.choice((1, 2, 4)), min(3, len(world.cluster.brokers)), end=lambda: base
    )
    topic.retention_ms = -1
    rate = 10 ** rng.uniform(0.5, 2.5)
    group = Group(world.cluster, "enrich", policy="earliest", interval=int(rng.choice((5, 30)) * SECOND), members=2)
    group.assignor = "stream"
    for log in topic.logs:
        log.rate, log.start = rate, base
        group.read(log, base, rate * rng.uniform(2, 12))
    world.plain.append(group)

    def purge() -> None:
        for reader in group.readers:
            if group.reading and reader.committed is not None and reader.log.open and reader.log.topic.exists:
                world.cluster.delete_records(reader.log, min(reader.committed, int(reader.position)))

    world.clock.every(_PURGE_MS, purge, first=rng.randrange(_PURGE_MS))
