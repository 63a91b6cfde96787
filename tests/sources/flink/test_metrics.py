"""Flink's offset metrics: every version's names, and which readings are believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.flink.metrics import (
    Offset,
    Place,
    Readings,
    is_offset,
    offsets,
    operator_named,
    topic_named,
)
from agent.sources.flink.responses import Metric

_SOURCE = "Source__kafka-source"
_PLACE = Place("v", _SOURCE, 0, "t", 3)


def _take(readings: Readings, at: int, offset: int, execution: str = "a", place: Place = _PLACE) -> list[int]:
    """The offsets believed of one reading."""
    return [one.offset.current for one in readings.take(execution, at, {place: Offset(offset, None)})]


@pytest.mark.parametrize(
    ("current", "committed", "place"),
    [
        (
            "0.Source__kafka-source.KafkaConsumer.current-offsets.in-put-1-12",
            "0.Source__kafka-source.KafkaConsumer.committed-offsets.in-put-1-12",
            Place("v", _SOURCE, 0, "in-put-1", 12),
        ),
        (
            "3.Source__kafka-source.KafkaConsumer.topic.in_put.partition.0.currentOffsets",
            "3.Source__kafka-source.KafkaConsumer.topic.in_put.partition.0.committedOffsets",
            Place("v", _SOURCE, 3, "in_put", 0),
        ),
        (
            "11.Source__kafka-source.KafkaSourceReader.topic.in_put.partition.1.currentOffset",
            "11.Source__kafka-source.KafkaSourceReader.topic.in_put.partition.1.committedOffset",
            Place("v", _SOURCE, 11, "in_put", 1),
        ),
    ],
)
def test_every_version_names_its_offsets_in_its_own_way(current: str, committed: str, place: Place) -> None:
    """1.4.2, the legacy consumer from 1.5 on, KafkaSource: subtask, operator, topic and partition come out of each."""
    assert is_offset(current)
    assert is_offset(committed)
    assert offsets("v", [Metric(current, "99"), Metric(committed, "100")]) == {place: Offset(99, 100)}


@pytest.mark.parametrize("value", ["-1", "-915623761776", "-915623761773", "NaN", None])
def test_what_stands_for_no_offset_is_none(value: str | None) -> None:
    """A partition of which nothing has been read has no position; one never committed has no committed offset."""
    current = "0.S.KafkaSourceReader.topic.t.partition.0.currentOffset"
    committed = "0.S.KafkaSourceReader.topic.t.partition.0.committedOffset"
    assert offsets("v", [Metric(current, value), Metric(committed, "5")]) == {}
    assert offsets("v", [Metric(current, "5"), Metric(committed, value)]) == {
        Place("v", "S", 0, "t", 0): Offset(5, None)
    }


@pytest.mark.parametrize(
    "name",
    [
        "0.Source__kafka-source.KafkaSourceReader.KafkaConsumer.commit-latency-avg",
        "0.Source__kafka-source.KafkaConsumer.commitsSucceeded",
        "Source__kafka-source.KafkaSourceReader.topic.t.partition.0.currentOffset",
        "0.numRecordsIn",
    ],
)
def test_other_metrics_are_no_offsets(name: str) -> None:
    """Nor is one without its subtask, as the subtasks' own listing has it."""
    assert not is_offset(name)


def test_the_first_reading_is_not_believed_and_a_changed_one_is() -> None:
    """The first may be as old as the last question; what differs from it was made since."""
    readings = Readings(2_000)
    assert _take(readings, 0, 100) == []
    assert _take(readings, 2_000, 100) == []
    assert _take(readings, 4_000, 120) == [120]
    assert _take(readings, 6_000, 120) == [120]


def test_an_unchanged_reading_is_believed_once_flink_must_have_renewed_it() -> None:
    """A partition without new records stands still: after ten seconds, and two questions, that is known."""
    readings = Readings(2_000)
    assert [_take(readings, at, 100) for at in range(0, 16_000, 2_000)] == [[]] * 7 + [[100]]


def test_a_partition_that_the_first_answer_lacked_is_believed_when_it_comes() -> None:
    """The first answer of a JobManager that has not asked its TaskManagers yet is empty."""
    readings = Readings(2_000)
    assert readings.take("a", 0, {}) == ()
    assert _take(readings, 2_000, 7) == [7]


class _JobManager:
    """Keeps metrics as Flink does: a question has them renewed when they are ten seconds old, and gets the old ones."""

    def __init__(self) -> None:
        self._kept, self._renewed_at = 0, -100_000

    def ask(self, now: int) -> int:
        """The offset that it has kept; the true one is the time."""
        kept = self._kept
        if now - self._renewed_at > 10_000:
            self._kept = self._renewed_at = now
        return kept


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(500, 20_000), st.booleans()), max_size=60),
    st.integers(1, 10_000),
)
def test_however_job_managers_alternate_positions_never_go_back(
    asked: list[tuple[str, int, bool]], interval: int
) -> None:
    """Seen on 1.20: 1328 from one JobManager, then 1321 from the other. Others ask them too, and renew metrics."""
    readings, now, told = Readings(interval), 0, [0]
    job_managers = {"a": _JobManager(), "b": _JobManager()}
    for name, later, by_others in asked:
        now += later
        offset = job_managers[name].ask(now)
        told += [] if by_others else _take(readings, now, offset, name)
    assert told == sorted(told)


def test_a_reading_after_a_quiet_time_is_as_old_as_the_question_before_it() -> None:
    """So it is not believed; the next one is."""
    readings = Readings(2_000)
    assert [_take(readings, at, at) for at in (0, 2_000, 62_000, 64_000)] == [[], [2_000], [], [64_000]]


def test_a_change_is_dated_from_before_the_old_value_was_read() -> None:
    """A metric may be as old as the question before: the change fell between that one and now."""
    readings = Readings(2_000)
    _take(readings, 0, 100)
    _take(readings, 2_000, 110)
    (third,) = readings.take("a", 4_000, {_PLACE: Offset(120, None)})
    (fourth,) = readings.take("a", 6_000, {_PLACE: Offset(50, None)})
    assert (third.since, fourth.since) == (0, 2_000)


def test_what_an_earlier_execution_has_left_behind_is_no_position() -> None:
    """Partition 3 moved to subtask 1; subtask 0's metric still stands in the JobManager, frozen."""
    readings = Readings(2_000)
    left, moving = _PLACE, _PLACE._replace(subtask=1)
    told = [
        readings.take("a", at, {left: Offset(900, None), moving: Offset(100 + at, None)})
        for at in range(0, 20_000, 2_000)
    ]
    assert {one.place for batch in told for one in batch} == {moving}


def test_two_operators_that_read_one_partition_make_no_zigzag() -> None:
    """One of them is told of, always the same one."""
    readings = Readings(2_000)
    other = _PLACE._replace(operator="Source__other")
    told = [
        readings.take("a", at, {other: Offset(at, None), _PLACE: Offset(5 + 2 * at, None)})
        for at in range(0, 20_000, 2_000)
    ]
    assert {one.place for batch in told for one in batch} == {_PLACE}


def test_a_topic_is_named_where_exactly_one_fits() -> None:
    """Flink writes a.b, a:b and a_b alike: `a_b`. With none known the metric's name stands."""
    assert topic_named("a_b", ["a.b", "c"]) == "a.b"
    assert topic_named("a_b", ["c"]) == "a_b"
    assert topic_named("a_b", ["a.b", "a_b"]) is None


def test_an_operator_has_its_own_name_where_the_vertex_tells() -> None:
    """Vertices chain names, some versions escape the arrow; a name that cannot be found stays as metrics have it."""
    assert (
        operator_named("Source: kafka-source -> work -> Sink: sink", "Source__kafka-source") == "Source: kafka-source"
    )
    assert operator_named("Source: a.b -&gt; work", "Source__a_b") == "Source: a.b"
    long = "Source: " + "x" * 100
    assert operator_named(f"{long} -> work", f"Source__{'x' * 72}") == long
    assert operator_named("renamed", "Source__kafka-source") == "Source__kafka-source"
