"""Queries: since when a reader had read on normally, and which partition holds a group's offsets."""

from collections.abc import Iterable

import pytest

from agent.engine.facts import Facts
from agent.engine.history import History
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit
from agent.rules.queries.causes import undisturbed_since
from agent.rules.queries.subjects import coordinator_of
from tests.builders import CLUSTER, after, commit, partition_state


def history(commits: Iterable[Commit]) -> History[Commit]:
    facts = Facts()
    for reading in commits:
        facts.absorb(reading)
    return facts.history(Commit, CLUSTER, "g", "t", 0)


def seconds(moment: int | None) -> float | None:
    return None if moment is None else (moment - after(0)) / 1000


@pytest.mark.parametrize(("interval", "expected"), [(1, 540), (7, 532), (20, 540), (45, 450), (150, 150)])
def test_minute_and_three_steps_of_any_rhythm_are_normal(interval: int, expected: int) -> None:
    readings = [commit(second, 10 * second) for second in range(0, 601, interval)]
    assert seconds(undisturbed_since(history(readings), readings[-1].at + 1)) == expected


def test_steps_after_the_moment_do_not_count() -> None:
    readings = history(commit(second, second) for second in range(300))
    assert seconds(undisturbed_since(readings, after(200))) == 139


def test_pause_hides_what_happened_in_it() -> None:
    """The reader stopped at 100 s and read on for half a minute from 400 s: normal is only what was before."""
    before = [commit(second, second) for second in range(0, 102, 3)]
    resumed = [commit(second, second) for second in range(400, 431, 3)]
    assert seconds(undisturbed_since(history([*before, *resumed]), after(431))) == 39
    longer = [commit(second, second) for second in range(400, 471, 3)]
    assert seconds(undisturbed_since(history([*before, *longer]), after(471))) == 409


def test_reader_that_hardly_moved_is_unknown() -> None:
    assert undisturbed_since(history([]), after(0)) is None
    assert undisturbed_since(history([commit(0, 1), commit(90, 2)]), after(91)) is None
    assert undisturbed_since(history(commit(second, 5) for second in range(100)), after(100)) is None


def test_rewind_ends_normal_progress() -> None:
    readings = [*(commit(second, 1_000 + second) for second in range(100)), commit(100, 3), commit(110, 4)]
    assert seconds(undisturbed_since(history(readings), after(111))) == 39


@pytest.mark.parametrize(("group", "partition"), [("abc", 4), ("hello world", 2), ("polygenelubricants", 0), ("", 0)])
def test_coordinator_is_found_as_kafka_does(group: str, partition: int) -> None:
    """String.hashCode: 96354, 1794106052, -2147483648 and 0."""
    facts = Facts()
    for number in range(50):
        facts.absorb(partition_state(10, 1, number, OFFSETS_TOPIC))
    assert coordinator_of(facts, CLUSTER, group, after(9)) is None
    assert coordinator_of(facts, CLUSTER, group, after(10)) == partition
