"""lag: what is asked of many series at once, and of many commits, agrees with what is asked of one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.loading import load
from agent.engine.engine import Engine
from agent.engine.facts import Facts
from agent.engine.ordinary import SeriesAtRest
from agent.engine.rule import Scope
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets, Member
from agent.rules.lag import Lag
from agent.rules.queries.unread import was_written_by
from tests.builders import CLUSTER, after, commit, group_state, log_offsets, tick

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False)
SERIES = (CLUSTER, "g", "t", 0)


class Phase(NamedTuple):
    """So many minutes in which records are written and read at these rates (records/s), and committed every so many s.

    A negative rate of writing: the log was truncated.
    """

    minutes: int
    written: int
    read: int
    every: int


def life(phases: Sequence[Phase], group: str = "g") -> Iterator[Observation]:
    """Yield what a group commits and how long the log is, read every 10 s; the group does not read beyond its end."""
    begin, end, offset = 0, 100_000, 100_000
    for phase in phases:
        for second in range(begin, begin + 60 * phase.minutes, 5):
            end, offset = max(end + 5 * phase.written, 0), min(offset + 5 * phase.read, end + 5 * phase.written)
            if second % 10 == 0:
                yield log_offsets(second, end)
            if second % phase.every == 0:
                yield commit(second, max(offset, 0), group=group)
        begin += 60 * phase.minutes


PHASES = st.lists(
    st.builds(
        Phase,
        st.integers(1, 9),
        st.sampled_from([-900, 0, 90, 100, 110, 300]),
        st.sampled_from([0, 50, 90, 100, 400]),
        st.sampled_from([5, 15, 60, 90]),
    ),
    min_size=2,
    max_size=6,
).map(lambda phases: [Phase(16, 100, 3, 5), *phases])


def verdicts(phases: Sequence[Phase]) -> Iterator[tuple[bool, bool]]:
    """Yield for each minute in which the series is in columns whether it is ignored there, and whether looked into."""
    rule, facts, minute = Lag(), Facts(), 1
    for observation in life(phases):
        if observation.at >= after(60 * minute):
            facts.now, minute = after(60 * minute), minute + 1
            for history in facts.open_commits():
                facts.close(history)
            series = SeriesAtRest(facts.commits, facts.commits.used(), facts.now)
            if len(series):
                history = facts.history(Commit, *SERIES)
                yield bool(rule.ignores_series(series, facts).all()), any(rule.revisit(history, facts))
        facts.absorb(observation)


@given(PHASES)
def test_no_series_is_ignored_that_the_rule_would_look_into(phases: list[Phase]) -> None:
    assert (True, True) not in set(verdicts(phases))


@pytest.mark.parametrize(
    ("then", "last"),
    [
        (Phase(9, 100, 100, 5), (True, False)),
        (Phase(9, 100, 110, 30), (True, False)),
        (Phase(9, 0, 10, 5), (True, False)),
        (Phase(9, 100, 85, 5), (False, True)),
        (Phase(9, 100, 100, 90), (False, False)),
    ],
    ids=["keeps pace", "catches up", "nothing is written", "falls behind", "commits too seldom for columns"],
)
def test_a_group_that_is_behind_is_looked_into_if_it_falls_further_behind(then: Phase, last: tuple[bool, bool]) -> None:
    assert list(verdicts([Phase(20, 100, 3, 5), then]))[-1] == last


@given(PHASES, st.integers(17, 40))
def test_a_group_has_caught_up_with_the_first_commit_that_is_near_enough(phases: list[Phase], minute: int) -> None:
    rule, facts = Lag(), Facts()
    for observation in life(phases):
        facts.absorb(observation)
    found = Finding(
        rule="lag", kind="lag", severity=Severity.WARNING, at=after(60 * minute), subject={}, detail="it is late",
        current={"behind": [["t", 0]]},
    )  # fmt: skip
    log = facts.history(LogOffsets, CLUSTER, "t", 0)
    ends = [
        made.at
        for made in facts.history(Commit, *SERIES).after(found.at)
        if not was_written_by(log, made.offset or 0, made.at - rule.longer_than // 2)
    ]
    assert rule.follow(found, Scope(CLUSTER, "g"), facts).recovered_at == next(iter(ends), None)


def test_many_groups_that_keep_pace_behind_the_log_end_stay_in_columns_and_one_that_does_not_is_found() -> None:
    watching = Engine(SHIPPED.rules, SHIPPED.correlations, SHIPPED.incidents, least_columns=1)
    facts = watching._evaluator.facts
    watching.take([group_state(-1, "Stable", (Member(id="m"),))])
    lives = {group: list(life([Phase(20, 100, 3, 5), Phase(12, 100, 100, 5)], group)) for group in ("a", "b", "c")}
    lives["g"] = list(life([Phase(20, 100, 3, 5), Phase(12, 100, 50, 5)]))
    opened: set[str] = set()
    for number, observation in enumerate(lives["g"]):
        if isinstance(observation, LogOffsets):
            watching.take([observation])
        elif observation.at >= after(1_200):  # the groups begin now, far behind the log end
            watching.take([made[number] for made in lives.values()])
            opened |= {str(history.subject[2]) for history in facts.open_commits() if observation.at >= after(1_260)}
    watching.take([tick(1_921)])
    found = [finding.subject["group"] for incident in watching.incidents for finding in incident.findings]
    assert found == ["g"]
    assert opened == {"g"}
