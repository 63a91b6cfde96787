"""AvailabilityTracker: one outage is one fact, and an unavailable source keeps the state of its parts."""

from agent.model.observations.base import Available, Observation, Unavailable
from agent.sources.availability import SOURCE, AvailabilityTracker, Unit
from agent.sources.base import ChangeDetector

_PARTITION, _GROUP = Unit(topic="t", partition=0), Unit(group="g")


def _reported(observations: list[Observation]) -> list[tuple[str, Unit]]:
    return [
        (type(observation).__name__, Unit(observation.group, observation.topic, observation.partition))
        for observation in observations
        if isinstance(observation, Unavailable | Available)
    ]


def _reasons(observations: list[Observation]) -> list[str]:
    return [outage.reason for outage in observations if isinstance(outage, Unavailable)]


def test_a_reason_that_lasts_replaces_the_first_one() -> None:
    tracker, detector = AvailabilityTracker("kafka", "main"), ChangeDetector()
    assert _reasons(detector.changes(tracker.update(1, {_GROUP: "timed out"}))) == ["timed out"]
    assert detector.changes(tracker.update(2, {_GROUP: "password refused"})) == []
    assert detector.changes(tracker.update(3, {_GROUP: "password refused"})) == []
    assert _reasons(detector.changes(tracker.update(4, {_GROUP: "password refused"}))) == ["password refused"]
    assert _reported(detector.changes(tracker.update(5, {}))) == [("Available", _GROUP)]
    assert detector.changes(tracker.update(6, {})) == []


def test_alternating_reasons_are_one_outage() -> None:
    tracker, detector = AvailabilityTracker("kafka", "main"), ChangeDetector()
    detector.changes(tracker.update(1, {_GROUP: "timed out"}))
    for at in range(2, 12):
        assert detector.changes(tracker.update(at, {_GROUP: ("refused", "", "timed out", "refused")[at % 4]})) == []


def test_parts_keep_their_state_while_the_source_is_unavailable() -> None:
    tracker, detector = AvailabilityTracker("kafka", "main"), ChangeDetector()
    detector.changes(tracker.update(1, {_PARTITION: "no leader"}))
    down = detector.changes(tracker.update(2, {SOURCE: "down", _GROUP: "down"}))
    assert _reported(down) == [("Unavailable", SOURCE)]
    assert _reported(detector.changes(tracker.update(3, {_PARTITION: "no leader"}))) == [("Available", SOURCE)]
    assert _reported(detector.changes(tracker.update(4, {}))) == [("Available", _PARTITION)]


def test_an_outage_begins_after_the_last_update_without_it() -> None:
    tracker, detector = AvailabilityTracker("kafka", "main"), ChangeDetector()
    for at, unavailable in ((1_000, {}), (2_000, {_GROUP: "refused"}), (3_000, {}), (90_000, {})):
        detector.changes(tracker.update(at, unavailable))
    (outage,) = detector.changes(tracker.update(91_000, {_GROUP: "refused"}))
    assert (outage.since, outage.at) == (90_000, 91_000)


def test_an_outage_that_began_before_this_run_ends_in_it() -> None:
    known = [
        Unavailable(at=1, source="kafka", cluster="main", group="g", reason="timed out"),
        Unavailable(at=1, source="zookeeper", cluster="main", reason="timed out"),
        Unavailable(at=1, source="kafka", cluster="other", group="g", reason="timed out"),
    ]
    assert _reported(AvailabilityTracker("kafka", "main", known).update(2, {})) == [("Available", _GROUP)]
