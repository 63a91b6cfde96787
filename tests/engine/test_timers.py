"""Timers: each item is due once, at the earliest moment it was set to, in order."""

from hypothesis import given
from hypothesis import strategies as st

from agent.engine.history import LONG_AFTER
from agent.engine.timers import Timers

_SETTINGS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 20)), max_size=60)


@given(_SETTINGS, st.sets(st.sampled_from("abcdef")), st.integers(-1, 20))
def test_items_are_due_at_the_earliest_moment_they_were_set_to(
    wanted: list[tuple[str, int]], cancelled: set[str], now: int
) -> None:
    timers: Timers[str] = Timers()
    earliest: dict[str, int] = {}
    for item, at in wanted:
        timers.set(item, at)
        earliest[item] = min(at, earliest.get(item, at))
    for item in cancelled:
        timers.cancel(item)
        earliest.pop(item, None)
    assert len(timers) == len(earliest)
    assert timers.first == min(earliest.values(), default=LONG_AFTER)
    due = list(timers.take_due(now))
    assert [earliest[item] for item in due] == sorted(at for at in earliest.values() if at <= now)
    assert len(set(due)) == len(due)
    assert timers.first == min((at for at in earliest.values() if at > now), default=LONG_AFTER)
    assert not any(item in timers for item in due)


def test_items_of_the_same_moment_are_due_as_they_were_set() -> None:
    timers: Timers[int] = Timers()
    for item in (3, 1, 2):
        timers.set(item, 5)
    assert list(timers.take_due(5)) == [3, 1, 2]


def test_what_is_not_taken_stays_due() -> None:
    timers: Timers[int] = Timers()
    for item in range(3):
        timers.set(item, 5)
    assert next(timers.take_due(5)) == 0
    assert timers.first == 5
    assert list(timers.take_due(5)) == [1, 2]


def test_superseded_moments_do_not_pile_up() -> None:
    timers: Timers[int] = Timers()
    for at in range(10_000, 0, -1):
        timers.set(at % 3, at)
    assert len(timers._timers) < 200
    assert sorted(timers.take_due(LONG_AFTER)) == [0, 1, 2]
    assert not list(timers.take_due(LONG_AFTER))
