"""Incidents of readers: resets, seeks, forgotten and wrong offsets. Each acts on the model and notes its truth."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from testbed.model.clock import HOUR, MINUTE, SECOND
from testbed.model.groups import Group, Reader
from testbed.model.truth import Effect
from testbed.model.world import World

Fault: TypeAlias = Callable[[World], bool]
"""Lets something go wrong; returns False if the world has no fitting target now."""

DISTURBANCES = ("broker_session_lost", "leader_moved", "unclean_election", "log_truncated", "brokers_down_together")
SESSION_CAUSES = ("broker_session_lost", "leader_moved", "unclean_election", "log_truncated", "offset_reset")


def has_history(group: Group, records: int = 5_000) -> bool:
    """Return whether a reader of the group has read at least so many records of its log."""
    return any(reader.position - reader.log.start > records and reader.log.open for reader in group.readers)


def pick_readers(world: World, group: Group, records: int = 5_000) -> list[Reader]:
    """Return one reader of a group that has read so many records, or all such of its member."""
    fitting = [r for r in group.readers if r.position - r.log.start > records and r.log.open]
    first = world.rng.choice(fitting)
    if world.rng.random() < 0.5:
        return [first]
    number = group.readers.index(first)
    return [reader for reader in group.of_member(number) if reader in fitting] or [first]


def reset_after_session_loss(world: World) -> bool:
    """Let a broker's session expire; what reads from it finds itself out of range on the new leader and is reset."""
    return _reset_after_session_loss(world, [group for group in world.plain if not group.hides_resets])


def hidden_reset(world: World) -> bool:
    """Let the same befall a consumer whose auto-commit hides it."""
    return _reset_after_session_loss(world, [group for group in world.plain if group.hides_resets])


def flink_subtask_reset(world: World) -> bool:
    """Let the same befall a Flink job's subtask."""
    return _reset_after_session_loss(
        world, [job.group for job in world.jobs if job.group is not None and job.is_active]
    )


def _reset_after_session_loss(world: World, groups: Sequence[Group]) -> bool:
    broker = world.alive_broker()
    groups = [g for g in groups if g.running and g.reading and g.disturbed_until < world.now]
    if broker is None or not groups:
        return False
    group = world.rng.choice(groups)
    fitting = [
        reader
        for reader in group.readers
        if reader.log.leader == broker.number and len(reader.log.isr) > 1 and reader.position - reader.log.start > 3_000
    ]
    if not fitting or not world.claim_brokers(15 * MINUTE):
        return False
    readers = fitting if world.rng.random() < 0.4 else [world.rng.choice(fitting)]
    world.claim(group, 15 * MINUTE)
    event = world.begin(
        f"{group.name} was reset after broker {broker.number} lost its session", 300_000, wanted="loud",
        causes=SESSION_CAUSES,
    )  # fmt: skip
    world.permit_broker(event, broker, 600_000)
    world.standstill(event, group, 120_000)
    away = world.seconds(1, 30)
    world.cluster.lose_session(broker, away_ms=max(away, 1_000))
    delay = world.seconds(1, 15)

    def lose_range() -> None:
        for reader in readers:
            reader.catch_up(world.now)
            reader.is_stuck = True

    def reset() -> None:
        for reader in readers:
            reader.is_stuck = False
            reader.at = world.now
            to = reader.log.start if group.policy == "earliest" else reader.log.end(world.now)
            effect = reader.move(to, "range", event)
            if effect is not None and group.hides_resets and to < (effect.before or 0):
                _judge_hidden(world, reader, effect)

    world.clock.after(800, lose_range)
    world.clock.after(800 + delay, reset)
    world.clock.after(away + world.seconds(60, 300), world.cluster.prefer_leaders)
    return True


def _judge_hidden(world: World, reader: Reader, effect: Effect) -> None:
    """Want a report of a hidden reset only if it lasts: it shows in no other way than by a standstill.

    If all that its reader reads stands still, it cannot be distinguished from a sink that is down.
    """
    gain = max(reader.pace - reader.log.rate, 1.0)
    lasts = effect.records / max(reader.pace, 1.0) * SECOND
    group = reader.group
    member = next(readers for number in range(group.size) if reader in (readers := group.of_member(number)))
    is_alone = all(other.is_stuck or other.position < (other.committed or 0) for other in member)
    if is_alone:
        effect.kinds += ("consumer_stalled", "consumer_stopped")
    standstill = 1_200_000 if is_alone else 90_000
    effect.must = lasts > standstill + 4 * world.kafka_view.interval + 10 * group.interval and gain > 1
    effect.measure = ""


def seek_back(world: World) -> bool:
    """Let a running application seek back, on purpose or by mistake."""
    group = world.calm_group(has_history)
    if group is None:
        return False
    world.claim(group, 20 * MINUTE)
    event = world.begin(f"{group.name} sought back", 60_000, wanted="loud", causes_forbidden=DISTURBANCES)
    world.standstill(event, group, 60_000)
    share = world.rng.uniform(0.0, 0.9)
    for reader in pick_readers(world, group):
        far = max(int((reader.position - reader.log.start) * share), 3_000)
        reader.move(max(int(reader.position) - far, reader.log.start), "seek", event)
    return True


def reset_again_and_again(world: World) -> bool:
    """Let a reader be reset to the start every few minutes, as when each of its commits is out of range."""
    group = world.calm_group(lambda group: has_history(group, 30_000))
    if group is None:
        return False
    times, pause = world.rng.randrange(2, 5), world.seconds(120, 400)
    world.claim(group, times * pause + 20 * MINUTE)
    event = world.begin(f"{group.name} was reset {times} times", 60_000, wanted="loud", causes_forbidden=DISTURBANCES)
    world.standstill(event, group, times * pause)
    readers = pick_readers(world, group, 30_000)

    def reset() -> None:
        for reader in readers:
            if group.running:
                reader.move(reader.log.start, "seek", event)

    for number in range(times):
        world.clock.after(number * pause, reset)
    return True


def offset_forgotten(world: World) -> bool:
    """Stop a group; Kafka forgets its offsets (expired, or deleted by hand); it returns at auto.offset.reset."""
    group = world.calm_group(lambda group: has_history(group, 3_000) and group.interval <= 60_000)
    if group is None:
        return False
    before, after = world.seconds(20, 300), world.seconds(30, 600) + world.polls(2)
    world.claim(group, before + after + 20 * MINUTE)
    event = world.begin(
        f"{group.name} was forgotten", before + after + 60_000, wanted="loud", causes_forbidden=DISTURBANCES
    )
    world.standstill(event, group, before + after)
    event.permit(("offset_expiring",), {"group": group.name}, world.now)
    group.stop()
    topics = sorted({reader.log.topic.name for reader in group.readers})
    only = world.rng.choice(topics) if world.rng.random() < 0.3 else None
    forgotten = [reader for reader in group.readers if only in (None, reader.log.topic.name)]
    world.clock.after(before, lambda: group.forget(forgotten))
    world.clock.after(before + after, lambda: group.start(event))
    return True


def wrong_partition(world: World) -> bool:
    """Let an application commit another partition's offset, far beyond the end of the log, and then go on rightly."""
    group = world.calm_group(lambda group: len(group.readers) > 1 and group.interval >= world.kafka_view.interval)
    if group is None:
        return False
    reader = world.rng.choice(group.readers)
    wrong = reader.log.end(world.now) + world.rng.randrange(20_000, 5_000_000)
    world.claim(group, 10 * MINUTE)
    event = world.begin(f"{group.name} committed an offset of another partition", 120_000, wanted="loud")

    def mix_up() -> None:
        group.sync(world.now)
        kept, reader.committed = reader.committed, wrong
        event.effects.append(
            Effect(
                kinds=("beyond_end", "foreign_offset"), subject=reader.subject, at=world.now, until=world.now + 60_000,
                before=kept, after=wrong, kept=kept,
            )
        )  # fmt: skip

    world.clock.at(group.next_commit + 10, mix_up)
    return True


def small_topic_reset(world: World) -> bool:
    """Let all records of a small topic be reprocessed."""
    group = world.calm_group(
        lambda group: any(200 <= r.position - r.log.start < 1_000 and r.log.rate < 1 for r in group.readers)
    )
    if group is None:
        return False
    world.claim(group, 20 * MINUTE)
    event = world.begin(f"{group.name} read a small topic again", 60_000, wanted="loud", causes_forbidden=DISTURBANCES)
    reader = next(r for r in group.readers if 200 <= r.position - r.log.start < 1_000 and r.log.rate < 1)
    reader.best_pace = reader.pace = world.rng.uniform(1, 8)
    reader.move(reader.log.start, "seek", event)
    return True


def retention_overrun(world: World) -> bool:
    """Let retention, or an operator's DeleteRecords, delete records that a slow or stopped group has not read."""
    group = world.calm_group(lambda group: any(r.log.rate > 5 and r.log.open for r in group.readers))
    if group is None:
        return False
    stops = world.rng.random() < 0.4
    lag = world.seconds(60, 900)
    back = lag + world.seconds(60, 1_200)
    world.claim(group, back + 30 * MINUTE)
    event = world.begin(f"{group.name} was overrun by retention", back, wanted="loud", causes_forbidden=DISTURBANCES)
    world.standstill(event, group, back)
    group.overrun = event
    if stops:
        group.stop()
    else:
        group.set_pace(0)
    readers = [reader for reader in group.readers if reader.log.rate > 5][: world.rng.randrange(1, 5)]
    steps = world.rng.randrange(1, 4)

    def expire(step: int) -> None:
        for reader in readers:
            log, end = reader.log, reader.log.end(world.now)
            unread = end - int(reader.position)
            log_cut = int(reader.position) + int(unread * step / (steps + 0.5))
            world.cluster.delete_records(log, log_cut)

    for step in range(1, steps + 1):
        world.clock.after(lag + (step - 1) * (back - lag) / (steps + 1), lambda step=step: expire(step))  # type: ignore[misc]

    def recover() -> None:
        if stops:
            group.start(event)
        else:
            group.set_pace(1)

    if world.rng.random() < 0.85:
        world.clock.after(back, recover)
    else:
        world.standstill(event, group, 3 * HOUR)
    return True


def new_partitions_skipped(world: World) -> bool:
    """Add a partition to a topic whose group starts at the latest offset: what came before it looked is skipped."""
    group = world.calm_group(
        lambda group: group.policy == "latest" and not group.assigns and group.readers[0].log.rate > 20
    )
    if group is None:
        return False
    topic = group.readers[0].log.topic
    if len(topic.logs) > 12 or not topic.exists:
        return False
    wait = world.seconds(60, 300)
    world.claim(group, wait + 10 * MINUTE)
    event = world.begin(f"{group.name} skipped the start of a new partition", wait + 60_000, wanted="loud")
    log = world.cluster.add_partition(topic, len(topic.logs[0].replicas))
    log.rate = topic.logs[0].rate
    world.cluster.notify(topic)
    pace = group.readers[0].best_pace

    def begin() -> None:
        skipped = log.end(world.now)
        reader = group.read(log, skipped, pace)
        reader.committed = None
        event.effects.append(
            Effect(
                kinds=("offset_jump", "new_partition_skipped"), subject=reader.subject, at=world.now,
                measure="skipped", records=skipped,
                before=0, after=skipped, kept=0, must=skipped >= 1_000, labels_forbidden=("operator_reset",),
            )
        )  # fmt: skip
        if skipped < 1_000:
            event.wanted = "either"

    world.clock.after(wait, lambda: group.rebalance(world.seconds(1, 4), found=begin))
    return True


def crash_loop(world: World) -> bool:
    """Let a member die and come back again and again."""
    group = world.calm_group(lambda group: len(group.members) > 1)
    if group is None:
        return False
    times, step = world.rng.randrange(7, 14), world.seconds(30, 75)
    world.claim(group, times * step + 5 * MINUTE)
    event = world.begin(f"a member of {group.name} kept crashing", times * step, wanted="either")
    event.permit(("rebalancing",), {"group": group.name}, world.now, world.now + int(times * step) + 600_000)
    for number in range(times):
        world.clock.after(number * step, lambda: group.rebalance(world.seconds(2, 10), replaces=0))
    return True
