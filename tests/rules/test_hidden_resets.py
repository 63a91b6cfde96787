"""Hidden resets on histories too long for a rule test; many series are ignored where one is not looked into."""

from collections.abc import Iterator
from operator import attrgetter, itemgetter

from hypothesis import given
from hypothesis import strategies as st

from agent.engine.evaluator import Evaluator
from agent.engine.facts import Facts
from agent.engine.ordinary import SeriesAtRest
from agent.model.findings import Finding, FindingKey
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets, Member
from agent.rules.hidden_reset import HiddenReset
from tests.builders import after, commit, group_state, log_offsets, partition_state

LEADER_CHANGED, ENDED = 300, 1_100
READERS = tuple(Member(id=f"m{number}", host=f"/10.0.0.{number}", partitions=(("t", number),)) for number in range(3))


def observed() -> Iterator[Observation]:
    """Yield what polls every 5 s show of three members, the first of which stands still since the leader change."""
    yield group_state(0, "Stable", READERS)
    yield partition_state(0, 1)
    yield partition_state(LEADER_CHANGED, 2, isr=(2,))
    for second in range(0, ENDED, 5):
        yield log_offsets(second, 50_000 + 40 * second)
        for reader in range(3):
            if reader or second <= LEADER_CHANGED:
                yield commit(second, 49_000 + 40 * second, reader)


def test_reset_of_a_single_partition_stays_found_beside_busy_readers() -> None:
    detection, found = Evaluator({"hidden": HiddenReset()}), dict[FindingKey, Finding]()
    for observation in sorted(observed(), key=attrgetter("at")):
        detection.absorb(observation)
        results = detection.evaluate(observation.seen)
        found.update((finding.key, finding) for finding in results.found)
        assert not results.withdrawn
    (reset,) = found.values()
    assert (reset.at, reset.labels) == (after(LEADER_CHANGED), ("possible",))


def test_a_standstill_that_is_over_is_found_though_the_leader_changed_again_and_the_log_was_read_late() -> None:
    detection, found = Evaluator({"hidden": HiddenReset()}), set[tuple[int, tuple[str, ...]]]()
    known: list[Observation] = [
        group_state(0, "Stable", READERS[:1]),
        partition_state(0, 1, isr=(1,)),
        *(commit(second, 7_000 + 90 * second) for second in (*range(0, 40, 2), *range(62, 120, 2))),
        partition_state(40, 2, isr=(2,)),
        partition_state(52, 1, isr=(1, 2)),
        *(log_offsets(second, 7_100 + 90 * second) for second in range(0, 120, 4)),
    ]
    arriving = ((item.at + 50_000 * (item.at >= after(40) and isinstance(item, LogOffsets)), item) for item in known)
    for arrived_at, item in sorted(arriving, key=itemgetter(0)):
        detection.absorb(item)
        results = detection.evaluate(arrived_at)
        found |= {(finding.at, finding.labels) for finding in results.found}
    assert found == {(after(40), ("probable",))}


@given(
    st.lists(st.sampled_from([1, 2, 5, 12, 20, 40, 90, 700]), min_size=2, max_size=90),
    st.lists(st.integers(0, 1_000), min_size=1, max_size=4),
    st.integers(0, 900),
)
def test_no_series_is_ignored_that_may_stand_still(intervals: list[int], changes: list[int], lasting: int) -> None:
    rule, facts, second = HiddenReset(), Facts(), 0
    for interval in intervals:
        second += interval
        facts.absorb(commit(second, 1_000 + second))
    facts.absorb(partition_state(-1, 1))
    for number, change in enumerate(sorted(changes)):
        facts.absorb(partition_state(max(second - change + 300, 0), 2 - number % 2))
    looked_into: set[tuple[bool, bool]] = set()
    for lasted in range(0, lasting + 1, 10):
        facts.now = after(second + lasted)
        (history,) = facts.open_commits() or [facts.history(Commit, "main", "g", "t", 0)]
        is_looked_into = any(rule.revisit(history, facts))
        for opened in facts.open_commits():
            facts.close(opened)
        series = SeriesAtRest(facts.commits, facts.commits.used(), facts.now)
        if len(series):
            looked_into.add((bool(rule.ignores_series(series, facts).all()), is_looked_into))
    assert not looked_into & {(True, True), (False, False)}
