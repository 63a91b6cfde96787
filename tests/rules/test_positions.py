"""What the log can have had, and what a group had read before, on histories too long for a rule test."""

from collections.abc import Iterable, Iterator

import pytest
from msgspec.structs import replace

from agent.engine.engine import Engine
from agent.engine.evaluator import Evaluator
from agent.engine.facts import Facts
from agent.model.findings import Finding, Incident
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, TopicSettings
from agent.rules.foreign_offset import ForeignOffset
from agent.rules.offset_jump import OffsetJump
from agent.rules.offset_rewind import OffsetRewind
from agent.rules.queries.positions import is_foreign_offset, read_before
from tests.builders import after, commit, log_offsets, partition_state, tick

DAY = 86_400


def polled(seconds: float, offset: int | None, since: float) -> Commit:
    return replace(commit(seconds, offset), since=after(since))


def jumps(observations: Iterable[Observation]) -> list[Finding]:
    found: dict[int, Finding] = {}
    detection = Evaluator({"jump": OffsetJump()})
    for observation in observations:
        detection.absorb(observation)
        found.update((finding.at, finding) for finding in detection.evaluate(observation.seen).found)
    return list(found.values())


def growing_log(begin: int, end: int) -> Iterator[Observation]:
    """Yield a reading every 2 s of a log that grows by 100 records a second."""
    return (replace(log_offsets(second, 100 * second), since=after(second - 2)) for second in range(begin, end, 2))


def test_return_at_latest_after_days_is_found_in_a_busy_log() -> None:
    """The readings of the time when the offset was forgotten are gone, and `since` is days early."""
    begin, end = 3 * DAY, 3 * DAY + 900
    (jump,) = jumps([
        log_offsets(0, 0), commit(2, 100), polled(4, None, since=2), *growing_log(begin, end),
        polled(end, 100 * end - 300, since=4), tick(end + 60),
    ])  # fmt: skip
    assert jump.labels == ("to_latest", "after_expiry")
    assert jump.records.skipped == 100 * end - 400
    assert jump.since == after(end - 4)


def test_return_to_the_middle_after_days_is_no_jump() -> None:
    end = 3 * DAY + 900
    assert not jumps([
        log_offsets(0, 0), commit(2, 100), polled(4, None, since=2), *growing_log(3 * DAY, end),
        polled(end, 50 * end, since=4), tick(end + 60),
    ])  # fmt: skip


def test_seek_to_the_end_after_an_hour_behind_skips_only_new_records() -> None:
    """The old position is long out of the history of changes."""
    settings = TopicSettings(at=after(0), cluster="main", topic="t", cleanup_policy="delete", retention_ms=-1)
    begin = [settings, log_offsets(0, 9_000_000), commit(0, 8_990_000), commit(5, 9_000_000), commit(10, 1_000_000)]
    behind = [commit(second, 1_000_000 + 10 * second) for second in range(15, 3_600, 5)]
    assert not jumps([*begin, *behind, commit(3_600, 9_000_000)])
    (jump,) = jumps([*begin, *behind, log_offsets(3_590, 20_000_000), commit(3_600, 20_000_000)])
    assert jump.records.skipped == 11_000_000


def test_records_of_another_incarnation_were_not_read_before() -> None:
    facts = Facts()
    for fact in (partition_state(0, 1), commit(1, 9_000), partition_state(10, 1, topic_id="second"), commit(20, 50)):
        facts.absorb(fact)
    assert read_before(facts, commit(60, 8_000)) == 0


def test_records_written_after_a_truncation_were_not_read_before() -> None:
    facts = Facts()
    truncated = [log_offsets(0, 9_000), commit(1, 9_000), log_offsets(10, 7_000), tick(15), commit(20, 50)]
    for fact in (*truncated, log_offsets(50, 8_600)):
        facts.absorb(fact)
    assert read_before(facts, commit(60, 8_500)) == 7_000


def test_foreign_offset_was_not_read_before() -> None:
    facts = Facts()
    for fact in (log_offsets(0, 9_000), commit(1, 900_000), commit(20, 50)):
        facts.absorb(fact)
    assert read_before(facts, commit(60, 8_500)) == 0


@pytest.mark.parametrize(("offset", "is_foreign"), [(20_000, False), (100_000, False), (500_000, True)])
def test_offset_beyond_ten_times_the_fastest_growth_is_foreign(offset: int, *, is_foreign: bool) -> None:
    facts = Facts()
    for fact in (log_offsets(0, 0), log_offsets(10, 15_000), log_offsets(20, 15_001), log_offsets(30, 15_002)):
        facts.absorb(fact)
    assert is_foreign_offset(facts, commit(21, offset)) is is_foreign


def test_order_of_arrival_does_not_decide_about_a_foreign_offset() -> None:
    logs: list[Observation] = [log_offsets(second, 70_000 + second) for second in range(5, 60, 5)]
    moves: list[Observation] = [commit(1, 70_000), commit(11, 900_000), commit(31, 70_030)]
    orders = [[*logs, *moves], [*moves, *logs], sorted([*logs, *moves], key=lambda fact: fact.at)]
    begin, end = log_offsets(0, 70_000), tick(400)
    results = [
        [(incident.findings[0].kind, incident.recovered_at) for incident in incidents_of([begin, *order, end])]
        for order in orders
    ]
    assert results == [[("foreign_offset", after(31))]] * 3


def incidents_of(observations: Iterable[Observation]) -> list[Incident]:
    """Return the incidents that remain when the observations arrive one by one."""
    engine = Engine({"jump": OffsetJump(), "foreign": ForeignOffset(), "rewind": OffsetRewind()}, {})
    incidents: dict[str, Incident] = {}
    for observation in observations:
        incidents.update((incident.id, incident) for incident in engine.take([observation]))
    return [incident for incident in incidents.values() if incident.findings]
