"""Hidden resets that are known only after ten minutes, on histories too long for a rule test."""

from collections.abc import Iterator
from operator import attrgetter

from agent.engine.evaluator import Evaluator
from agent.model.findings import Finding, FindingKey
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Member
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
