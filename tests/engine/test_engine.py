"""The core in one piece: what happens at once is one incident, and how time is cut into batches does not matter."""

from collections.abc import Iterator
from pathlib import Path

from agent.config.settings import load
from agent.engine.engine import Engine
from agent.engine.facts import LONG_AFTER
from agent.model.findings import Incident, Severity
from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import BrokerRegistration, Commit, LogOffsets, PartitionState
from tests.strategies import BEGINNING

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False)


def watch() -> Engine:
    """A watch with the rules shipped."""
    return Engine(SHIPPED.rules, SHIPPED.correlations)


def commit(second: int, offset: int, partition: int = 0, group: str = "g", topic: str = "t") -> Commit:
    """A commit, so many seconds after the beginning."""
    at = BEGINNING + second * 1_000
    return Commit(at=at, cluster="main", group=group, topic=topic, partition=partition, offset=offset)


def state(second: int, partition: int, leader: int, topic: str = "t") -> PartitionState:
    """Who leads a partition of brokers 1 and 2, or of 3 and 4."""
    replicas = (1, 2) if topic == "t" else (3, 4)
    at = BEGINNING + second * 1_000
    return PartitionState(
        at=at, cluster="main", topic=topic, partition=partition, leader=leader, replicas=replicas, isr=(leader,)
    )


def broker(second: int, session: str | None) -> BrokerRegistration:
    """A registration of broker 1."""
    epoch = None if session is None else 1
    return BrokerRegistration(at=BEGINNING + second * 1_000, cluster="main", broker=1, session=session, epoch=epoch)


def burst(partitions: int) -> Iterator[list[Observation]]:
    """Broker 1 is lost at second 60; each partition it led is rewound. An unrelated group is rewound as well."""
    yield [broker(0, "0x1"), *(state(0, number, 1) for number in range(partitions)), state(0, 0, 3, "other")]
    for second in range(1, 120):
        batch: list[Observation] = [broker(second, None)] if second == 60 else []
        batch += [state(second, number, 2) for number in range(partitions) if second == 61]
        for number in range(partitions):
            begin = 62 + number % 9
            batch.append(commit(second, 50_000 + second if second < begin else 100 * (second - begin), number))
        batch.append(commit(second, 90_000 + second if second < 64 else second, 0, "unrelated", "other"))
        if second % 10 == 0:
            batch.append(
                LogOffsets(
                    at=BEGINNING + second * 1_000, cluster="main", topic="t", partition=0, log_start=0, log_end=60_000
                )
            )
        yield batch


def test_a_burst_is_one_incident_and_an_unrelated_groups_rewind_in_the_same_window_is_its_own() -> None:
    """Each is told once, under one name, and then edited: nothing else is ever told."""
    core = watch()
    told: dict[str, Incident] = {}
    for batch in burst(60):
        told |= {one.id: one for one in core.take(batch) if one.severity is not Severity.INFO}
    sizes = {(one.correlation, len(one.findings)) for one in told.values()}
    assert sizes == {("reset-after-session-loss", 60), (None, 1)}
    assert len(told) == 2


def test_one_batch_of_hours_makes_the_incidents_that_its_pieces_make() -> None:
    """Time does not leap over a moment that is waited for: recovered, closed and forgotten in one go."""
    hours: list[Observation] = [
        observation
        for hour in range(4)
        for observation in (
            commit(7_200 * hour, 9_000),
            broker(7_200 * hour, "0x1"),
            commit(7_200 * hour + 1, 0),
            broker(7_200 * hour + 2, None),
            commit(7_200 * hour + 500, 9_000),
        )
    ]
    at_once = {one.id: one for one in watch().take(hours)}
    core = watch()
    in_pieces = {one.id: one for observation in hours for one in core.take([observation])}
    assert at_once == in_pieces
    assert {finding.kind for one in at_once.values() for finding in one.findings} == {
        "offset_rewind", "broker_session_lost", "broker_down",
    }  # fmt: skip


def test_nothing_is_waited_for_at_first() -> None:
    """No facts, no incidents: time alone changes nothing."""
    core = watch()
    assert core.take([]) == []
    assert core.next_due == LONG_AFTER


def test_an_incident_is_closed_by_ticks_alone() -> None:
    """next_due says when to look, until there is nothing more to look for."""
    core = watch()
    (told,) = core.take([commit(0, 9_000), commit(1, 0), commit(2, 9_000)])
    latest = told
    while core.next_due != LONG_AFTER:
        latest = next(iter(core.take([Tick(at=core.next_due)])), latest)
    assert (latest.id, latest.status) == (told.id, "closed")


def test_what_is_last_known_of_each_subject_is_where_sources_start_from_after_a_restart() -> None:
    """ChangeDetector facts are compared with it."""
    core = watch()
    facts = [commit(0, 5), commit(0, 7, 1), broker(0, "0x1")]
    core.take([*facts, Tick(at=BEGINNING + 1_000)])
    assert list(core.latest()) == facts
