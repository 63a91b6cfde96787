"""Blindness: one spell is one fact, and a blind source knows nothing of its parts."""

from agent.model.observations import Available, Observation, Unavailable
from agent.sources.availability import SOURCE, AvailabilityTracker, Unit
from agent.sources.base import ChangeDetector

_PARTITION, _GROUP = Unit(topic="t", partition=0), Unit(group="g")


def _told(observations: list[Observation]) -> list[tuple[str, Unit]]:
    return [
        (type(one).__name__, Unit(one.group, one.topic, one.partition))
        for one in observations
        if isinstance(one, Unavailable | Available)
    ]


def test_the_reason_first_given_stands_for_the_whole_spell() -> None:
    """Reasons change from poll to poll; what is told does not."""
    sights, polled = AvailabilityTracker("kafka", "main"), ChangeDetector()
    first = polled.changes(sights.now(1, {_GROUP: "timed out"}))
    assert [one.reason for one in first if isinstance(one, Unavailable)] == ["timed out"]
    assert polled.changes(sights.now(2, {_GROUP: "refused"})) == []
    assert _told(polled.changes(sights.now(3, {}))) == [("Available", _GROUP)]
    assert polled.changes(sights.now(4, {})) == []


def test_parts_keep_their_state_while_the_whole_source_is_blind() -> None:
    """A cluster out of reach is one Unavailable; what was blind before is sighted only when it is seen."""
    sights, polled = AvailabilityTracker("kafka", "main"), ChangeDetector()
    polled.changes(sights.now(1, {_PARTITION: "no leader"}))
    assert _told(polled.changes(sights.now(2, {SOURCE: "down", _GROUP: "down"}))) == [("Unavailable", SOURCE)]
    assert _told(polled.changes(sights.now(3, {_PARTITION: "no leader"}))) == [("Available", SOURCE)]
    assert _told(polled.changes(sights.now(4, {}))) == [("Available", _PARTITION)]


def test_a_spell_that_began_before_this_run_ends_in_it() -> None:
    """What is known to be blind is sighted by the first look; another source's spells are its own."""
    known = [
        Unavailable(at=1, source="kafka", cluster="main", group="g", reason="it was so"),
        Unavailable(at=1, source="zookeeper", cluster="main", reason="it was so"),
        Unavailable(at=1, source="kafka", cluster="other", group="g", reason="it was so"),
    ]
    assert _told(AvailabilityTracker("kafka", "main", known).now(2, {})) == [("Available", _GROUP)]
