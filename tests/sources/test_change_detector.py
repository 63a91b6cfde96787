"""What the change detector emits of polled facts, and how it dates it."""

from collections.abc import Callable

from msgspec import structs

from agent.model.observations.base import Subject
from agent.model.observations.kafka import Commit
from agent.sources.base import GONE, HEARTBEAT_MS, ChangeDetector


def _commit(at: int, offset: int | None, partition: int = 0) -> Commit:
    return Commit(at=at, cluster="main", group="g", topic="t", partition=partition, offset=offset)


def test_changes_are_dated_since_the_old_fact_was_last_seen() -> None:
    detector = ChangeDetector()
    assert detector.changes([_commit(1, 5)]) == [_commit(1, 5)]
    assert detector.changes([_commit(2, 5)]) == []
    (change,) = detector.changes([_commit(3, 6)])
    assert (change.since, change.at) == (2, 3)


def test_a_confirmed_scope_is_a_sighting_of_all_its_facts() -> None:
    """One that is older than the last sighting changes nothing."""
    detector = ChangeDetector([_commit(1, 5), _commit(1, 7, 1)])
    detector.confirm(("commit", "main", "g"), 4)
    changes = detector.changes([_commit(5, 6), _commit(5, 7, 1)])
    assert [(change.since, change.at) for change in changes] == [(4, 5)]
    (change,) = detector.changes([_commit(6, 8)])
    assert change.since == 5
    detector.end(("commit", "main", "g"))
    (change,) = detector.changes([_commit(9, 8, 1)])
    assert change.since == 5


def test_only_the_last_scopes_that_ended_are_remembered() -> None:
    """One that returned has not ended."""
    detector = ChangeDetector()
    groups = [f"g{number}" for number in range(2 * GONE + 3)]
    for group in groups:
        detector.changes([structs.replace(_commit(1, 5), group=group)])
    for group in groups[:-1]:
        detector.changes([structs.replace(_commit(2, None), group=group)])
        detector.end(("commit", "main", group))
        if group == groups[0]:
            detector.changes([structs.replace(_commit(3, 6), group=group)])
    remembered = {subject[2] for subject in detector.subjects()}
    assert remembered == {groups[0], *groups[-GONE - 1 :]}
    (change,) = detector.changes([structs.replace(_commit(4, 5), group=groups[-2])])
    assert change.since == 2


def test_a_fact_that_has_not_changed_for_long_is_emitted_again() -> None:
    detector = ChangeDetector()
    detector.changes([_commit(0, 5)])
    assert detector.changes([_commit(HEARTBEAT_MS - 1, 5)]) == []
    assert detector.changes([_commit(HEARTBEAT_MS, 5)]) == [_commit(HEARTBEAT_MS, 5)]


def test_what_was_forgotten_is_new_when_it_is_polled_again_and_the_rest_is_not() -> None:
    detector = ChangeDetector([_commit(1, 5), _commit(1, 7, 1)])
    detector.forget_all([_commit(1, 5).subject])
    assert detector.changes([_commit(2, 5), _commit(2, 7, 1)]) == [_commit(2, 5)]
    (change,) = detector.changes([_commit(3, 8, 1)])
    assert change.since == 2


def _subjects(group: str) -> Callable[[], list[Subject]]:
    return lambda: [("commit", "main", group, "t", 0)]


def test_heartbeats_of_many_scopes_do_not_come_at_once() -> None:
    groups = [f"g{number}" for number in range(300)]
    commits = [structs.replace(_commit(0, 5), group=group) for group in groups]
    detector, beats = ChangeDetector(commits), list[int]()
    for at in range(0, HEARTBEAT_MS + 40_000, 1_000):
        found = [
            fact
            for group in groups
            for fact in detector.heartbeats(("commit", "main", group), _subjects(group), at)
        ]  # fmt: skip
        assert detector.changes(found) == found
        beats.append(len(found))
    assert sum(beats) == 300
    assert max(beats) <= 60
    assert beats.index(next(filter(None, beats))) >= HEARTBEAT_MS // 1_000


def test_of_scopes_that_are_no_longer_confirmed_nothing_is_remembered() -> None:
    detector = ChangeDetector([_commit(0, 5)])
    for at in range(0, 9 * HEARTBEAT_MS, 30_000):
        for group in ("g", f"g{at}"):
            detector.heartbeats(("commit", "main", group), _subjects(group), at)
    assert len(detector._due_at) <= 4 * HEARTBEAT_MS // 30_000
