"""When a group has had consumers, however many changes of its state there were."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from agent.engine.facts import Facts
from agent.engine.presence import Presence
from agent.model.observations.kafka import GroupState
from tests.builders import CLUSTER, after, group_state

STATES = ("Stable", "PreparingRebalance", "Empty", "Dead")
HOUR_S = 3_600


def presence_of(*states: GroupState) -> Presence:
    """Return when the group had consumers by its last state."""
    facts = Facts()
    for state in states:
        facts.absorb(state)
    presence = facts.presence(CLUSTER, "g")
    for state in facts.history(GroupState, CLUSTER, "g"):
        presence = presence.then(state)
    return presence


def walk(states: list[GroupState], least: int) -> tuple[int | None, int]:
    """Return since when the group is up and its longest absence, from all of its states."""
    up_since, empty, longest, is_known = None, None, 0, True
    for state in states:
        if state.state == "Empty":
            empty = state if empty is None and is_known else empty
            continue
        absence = 0 if empty is None else state.at - empty.at
        empty, is_known = None, state.state != "Dead"
        if absence >= least:
            up_since, longest = None, max(longest, absence)
        if not is_known:
            up_since = None
        elif up_since is None:
            up_since = state.at
    return up_since, longest


@given(
    st.lists(st.tuples(st.sampled_from(STATES), st.integers(1, 900)), min_size=100, max_size=150), st.integers(1, 900)
)
def test_presence_is_that_of_all_states(steps: list[tuple[str, int]], least: int) -> None:
    times = accumulate(seconds for _, seconds in steps)
    states = [group_state(at, state) for at, (state, _) in zip(times, steps, strict=True)]
    presence = presence_of(*states)
    up_since, longest = walk(states, least * 1_000)
    if presence.empty_since is None:
        assert presence.up_since(least * 1_000) == up_since
    assert presence.longest_absence(least * 1_000) == longest


def test_absence_that_ended_long_ago_is_forgotten() -> None:
    week_away = [group_state(0, "Stable"), group_state(HOUR_S, "Empty"), group_state(169 * HOUR_S, "Stable")]
    assert presence_of(*week_away).longest_absence(1) == 168 * HOUR_S * 1_000
    later = [group_state(hour * HOUR_S, state) for hour, state in ((370, "Empty"), (371, "Stable"))]
    presence = presence_of(*week_away, *later)
    assert presence.longest_absence(1) == HOUR_S * 1_000
    assert presence.up_since(1) == after(371 * HOUR_S)
    assert presence.up_since(2 * HOUR_S * 1_000) == after(169 * HOUR_S)


def test_deleted_group_begins_again() -> None:
    states = [group_state(10, "Stable"), group_state(20, "Empty"), group_state(50, "Dead")]
    assert presence_of(*states).up_since(1) is None
    again = presence_of(*states, group_state(60, "Empty"), group_state(90, "Stable"))
    assert (again.up_since(1), again.longest_absence(1)) == (after(90), 30_000)
