"""Incidents of brokers, logs, Flink and Streams. Each acts on the model and notes its truth."""

from testbed.model.clock import MINUTE
from testbed.model.faults import (
    Fault,
    crash_loop,
    flink_subtask_reset,
    hidden_reset,
    new_partitions_skipped,
    offset_forgotten,
    reset_after_session_loss,
    reset_again_and_again,
    retention_overrun,
    seek_back,
    small_topic_reset,
    wrong_partition,
)
from testbed.model.kafka import Log
from testbed.model.truth import Effect, Event
from testbed.model.world import World, permit_offline

TRUNCATION = ("log_truncated", "unclean_election", "beyond_end")


def _where(world: World, log: Log) -> dict[str, str | int]:
    topic, partition = log.place
    return {"cluster": world.cluster.name, "topic": topic, "partition": partition}


def unclean_election(world: World) -> bool:
    """Let followers fall behind, kill their leader, and elect one of them: logs are truncated."""
    broker = world.alive_broker()
    if broker is None:
        return False
    logs = [log for log in world.cluster.logs() if log.leader == broker.number and len(log.isr) > 1 and log.rate > 2]
    if not logs or not world.claim_brokers(25 * MINUTE):
        return False
    logs = world.rng.sample(logs, min(len(logs), world.rng.choice((1, 1, 2, 4, 8))))
    behind = world.seconds(20, 240)
    down = world.seconds(30, 280)
    event = world.begin(
        f"unclean election after broker {broker.number} died", behind + 300_000, wanted="loud",
        causes=(*TRUNCATION, "broker_session_lost"),
    )  # fmt: skip
    for log in logs:
        event.permit(("under_replicated",), _where(world, log), world.now, world.now + int(behind + down) + 120_000)
        for follower in log.isr:
            if follower != broker.number:
                world.cluster.remove_from_isr(log, follower)
        for reader in log.readers:
            world.claim(reader.group, behind + 20 * MINUTE)
            world.standstill(event, reader.group, behind + down)

    def die() -> None:
        world.permit_broker(event, broker, 900_000)
        permit_offline(world, event, broker, down + 60_000)
        for log in world.cluster.logs():
            if broker.number in log.replicas:
                event.permit(("under_replicated",), _where(world, log), world.now, world.now + int(down) + 60_000)
        world.cluster.kill(broker, down_ms=world.cluster.session_ms + 5_000 + down)
        world.clock.after(world.cluster.session_ms + 2_500, elect)

    def elect() -> None:
        for log in logs:
            if log.leader is not None or not log.topic.exists:
                continue
            follower = next(number for number in log.replicas if number != broker.number)
            _truncate(world, event, log, follower, int(log.rate * behind / 1_000))
            for other in log.replicas:

                def return_to_isr(log: Log = log, other: int = other) -> None:
                    world.cluster.add_to_isr(log, other)

                world.clock.after(world.seconds(5, 50), return_to_isr)

    world.clock.after(behind, die)
    world.clock.after(behind + down + world.seconds(60, 300), world.cluster.prefer_leaders)
    return True


def _truncate(world: World, event: Event, log: Log, leader: int, lost: int) -> None:
    before = log.end(world.now)
    lost = min(lost, before - log.start)
    log.cause = event
    where = _where(world, log)
    world.cluster.elect_uncleanly(log, leader, lost)
    event.effects.append(
        Effect(
            kinds=TRUNCATION, subject=where, at=world.now, measure="lost", records=lost, before=before,
            after=before - lost, kept=before, must=True,
        )
    )  # fmt: skip
    event.extend(world.now)
    world.clock.after(20 * MINUTE, lambda: setattr(log, "cause", None))


def empty_disk(world: World) -> bool:
    """Let a broker come back with an empty disk: its partitions of replication factor 1 are lost."""
    broker = world.alive_broker()
    if broker is None:
        return False
    logs = [log for log in world.cluster.logs() if log.replicas == (broker.number,) and log.end(world.now) > 1_000]
    if not logs or not world.claim_brokers(50 * MINUTE):
        return False
    down = world.seconds(60, 1_500)
    event = world.begin(
        f"broker {broker.number} came back with an empty disk", down + 120_000, wanted="loud", causes=TRUNCATION
    )
    world.permit_broker(event, broker, down + 120_000)
    event.permit(
        ("partition_offline", "source_unavailable", "under_replicated"), {"cluster": world.cluster.name}, world.now
    )
    for log in logs:
        for reader in log.readers:
            world.claim(reader.group, down + 20 * MINUTE)
            world.standstill(event, reader.group, down)
    world.cluster.kill(broker, down_ms=down)

    def wipe() -> None:
        for log in logs:
            before = log.end(world.now)
            log.cause = event
            log.start = 0
            log.truncate(world.now, 0)
            world.clock.after(20 * MINUTE, lambda log=log: setattr(log, "cause", None))  # type: ignore[misc]
            event.effects.append(
                Effect(
                    kinds=TRUNCATION, subject=_where(world, log), at=world.now, measure="lost", records=before,
                    before=before, after=0, kept=before,
                )
            )  # fmt: skip

    world.clock.after(down - 10, wipe)
    return True


def broker_down(world: World) -> bool:
    """Let a broker die for more than five minutes, perhaps for good."""
    broker = world.alive_broker()
    if broker is None or not world.claim_brokers(60 * MINUTE):
        return False
    down = world.seconds(450, 1_500)
    event = world.begin(f"broker {broker.number} down", down + 300_000, wanted="loud")
    event.effects.append(
        Effect(
            kinds=("broker_down", "partition_offline"),
            subject={"cluster": world.cluster.name, "broker": broker.number}, at=world.now,
        )
    )  # fmt: skip
    world.want_if_watched(event.effects[0], down)
    where = {"cluster": world.cluster.name}
    event.permit(("broker_session_lost", "under_replicated", "partition_offline", "source_unavailable", "leader_moved"),
                 where, world.now, world.now + int(down) + 600_000)  # fmt: skip
    for log in world.cluster.logs():
        if log.replicas == (broker.number,):
            for reader in log.readers:
                world.claim(reader.group, down + 10 * MINUTE)
                world.standstill(event, reader.group, down)
    world.cluster.kill(broker, down_ms=down)
    world.clock.after(down + world.seconds(60, 300), world.cluster.prefer_leaders)
    return True


def cluster_down(world: World) -> bool:
    """Let the whole cluster lose its power for some minutes; nothing is lost."""
    if world.alive_broker() is None or not world.claim_brokers(60 * MINUTE):
        return False
    down = world.seconds(420, 1_000)
    event = world.begin("cluster down", down + 600_000, wanted="loud")
    kinds = ("broker_down", "brokers_down_together", "partition_offline", "source_unavailable", "under_replicated",
             "broker_session_lost", "leader_moved", "rebalancing")  # fmt: skip
    event.effects.append(Effect(kinds=kinds, subject={"cluster": world.cluster.name}, at=world.now,
                                until=world.now + int(down) + 600_000))  # fmt: skip
    world.want_if_watched(event.effects[0], down)
    for group in world.plain:
        world.claim(group, down + 10 * MINUTE)
        world.standstill(event, group, down)
    for broker in world.cluster.brokers.values():
        if not broker.is_decommissioned:
            world.cluster.kill(broker, down_ms=down + world.rng.uniform(0, 20_000))
    world.clock.after(down + world.seconds(60, 300), world.cluster.prefer_leaders)
    return True


def flapping_broker(world: World) -> bool:
    """Let a broker lose its session again and again for an hour."""
    broker = world.alive_broker()
    if broker is None or not world.claim_brokers(65 * MINUTE):
        return False
    times = world.rng.randrange(7, 12)
    event = world.begin(f"broker {broker.number} flapped", 60 * MINUTE, wanted="loud")
    event.effects.append(
        Effect(
            kinds=("broker_flapping", "broker_session_lost", "broker_down"),
            subject={"cluster": world.cluster.name, "broker": broker.number}, at=world.now,
            until=world.now + 70 * MINUTE,
            must=world.cluster.has_zookeeper,
        )
    )  # fmt: skip
    if not world.cluster.has_zookeeper:
        event.wanted = "either"

    def flap() -> None:
        if broker.session is not None:
            world.cluster.lose_session(broker, away_ms=world.seconds(1, 8))
            world.clock.after(60_000, world.cluster.prefer_leaders)

    for number in range(times):
        world.clock.after(number * world.seconds(240, 330), flap)
    return True


def topic_recreated(world: World) -> bool:
    """Delete a topic whose groups have unread records, and create it again."""
    topics = [
        topic
        for topic in world.cluster.topics.values()
        if not topic.name.startswith("_") and topic.logs[0].readers and sum(log.rate for log in topic.logs) > 1
        and all(reader.group in world.plain and reader.group.running and reader.group.disturbed_until < world.now
                for log in topic.logs for reader in log.readers)
    ]  # fmt: skip
    if not topics:
        return False
    old = world.rng.choice(topics)
    readers = [reader for log in old.logs for reader in log.readers]
    lags = world.seconds(60, 400)
    event = world.begin(f"{old.name} was created again", lags + 300_000, wanted="loud")
    slow = world.begin(f"the sinks of all that read {old.name} were slow", lags)
    for group in dict.fromkeys(reader.group for reader in readers):
        world.claim(group, lags + 20 * MINUTE)
        group.set_pace(0)
        world.standstill(slow, group, lags)

    def recreate() -> None:
        world.cluster.delete_topic(old)
        for reader in readers:
            unread = reader.log.end(world.now) - (reader.committed or 0)
            event.effects.append(
                Effect(
                    kinds=("topic_recreated", "retention_overrun", "log_truncated"),
                    subject={**_where(world, reader.log), "group": reader.group.name}, at=world.now,
                    before=reader.committed, after=0, kept=reader.committed, must=unread > 0,
                )
            )  # fmt: skip
            reader.committed = None
        world.clock.after(world.seconds(0.5, 60), create)

    def create() -> None:
        new = world.cluster.create_topic(old.name, len(old.logs), len(old.logs[0].replicas))
        new.policy, new.retention_ms, new.segment = old.policy, old.retention_ms, old.segment
        for log, before in zip(new.logs, old.logs, strict=True):
            log.set_rate(world.now, before.rate)
        for reader in readers:
            reader.known, reader.position, reader.at = None, 0.0, world.now
            world.replace_reader_log(reader, new.logs[reader.log.place[1]])
        for group in dict.fromkeys(reader.group for reader in readers):
            group.set_pace(1)

    world.clock.after(lags, recreate)
    return True


def state_lost(world: World) -> bool:
    """Let a Streams task move without its state being restored (KAFKA-7672)."""
    application = world.application
    if application is None or not application.group.reading or application.group.disturbed_until > world.now:
        return False
    group = application.group
    world.claim(group, 10 * MINUTE)
    number = world.rng.randrange(len(group.readers))
    event = world.begin(f"{group.name} lost the state of a task", 180_000, wanted="loud", causes=("rebalancing",))
    log = application.changelog.logs[number]
    event.effects.append(
        Effect(kinds=("state_not_restored",), subject=_where(world, log), at=world.now, until=world.now + 600_000)
    )
    order = list(group.members)

    def away() -> None:
        world.rng.shuffle(group.members)
        while group.members == order and len(order) > 1:
            world.rng.shuffle(group.members)
        group.rebalance(world.seconds(2, 8))

    def back() -> None:
        group.members[:] = order
        group.rebalance(world.seconds(2, 8))

    away()
    pause = world.seconds(30, 90) + world.polls(2)
    world.clock.after(pause, back)
    world.clock.after(pause + world.seconds(12, 60), lambda: application.lose_state(event, number))
    return True


def job_resurrected(world: World) -> bool:
    """Cancel a job whose graph remains, run its successor, and lose the JobManager: the dead job comes back."""
    flink = world.flink
    if flink is None or flink.leader is None:
        return False
    wait = world.seconds(60, 400)
    event = world.begin("a cancelled Flink job came back", wait + 300_000, wanted="loud")
    dead = flink.submit("payments", None, interval=30_000)

    def cancel() -> None:
        flink.cancel(dead, keeps_graph=True)
        dead.locks = ("0x1dead",)
        flink.read_zookeeper()
        event.effects.append(
            Effect(
                kinds=("job_resurrected", "orphan_job_graph"), subject={"cluster": "jobs", "job": dead.id}, at=world.now
            )
        )
        flink.submit("payments", None, interval=30_000, fresh=True)

    kinds = ("duplicate_job", "restart_without_state", "job_restarting", "checkpoint_failing", "source_unavailable")
    event.permit((*kinds, "orphan_job_graph"), {"cluster": "jobs"}, world.now)
    world.clock.after(90_000, cancel)
    world.clock.after(90_000 + wait, flink.fail_over)
    return True


def restarted_without_state(world: World) -> bool:
    """Let a failover find no checkpoint of a job: it starts from the committed offsets without its state."""
    flink = world.flink
    jobs = [job for job in world.jobs if job.is_active and job.last is not None]
    if flink is None or flink.leader is None or not jobs:
        return False
    job = world.rng.choice(jobs)
    event = world.begin(f"{job.name} restarted without its state", 180_000, wanted="loud")
    event.effects.append(
        Effect(kinds=("restart_without_state",), subject={"cluster": "jobs", "job": job.id}, at=world.now,
               until=world.now + 600_000)
    )  # fmt: skip
    event.permit(("job_restarting", "checkpoint_failing", "source_unavailable"), {"cluster": "jobs"}, world.now)
    flink.fail_over(stateless=job)
    return True


FAULTS: dict[Fault, float] = {
    reset_after_session_loss: 4, hidden_reset: 2, flink_subtask_reset: 1.5, seek_back: 2, reset_again_and_again: 1.5,
    offset_forgotten: 3, wrong_partition: 1, small_topic_reset: 1, retention_overrun: 3, new_partitions_skipped: 1,
    crash_loop: 1, unclean_election: 4, empty_disk: 1, broker_down: 1.5, cluster_down: 1, flapping_broker: 1,
    topic_recreated: 1, state_lost: 1.5, job_resurrected: 1.5, restarted_without_state: 1,
}  # fmt: skip
"""What may go wrong, and how often relative to the others."""
