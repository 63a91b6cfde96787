"""What REST answered on real clusters, as observations; the answers are in samples/, of 1.4.2, 1.20.1 and 2.3.0."""

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from agent.model.observations import Checkpoints, FlinkJob
from agent.sources.flink.metrics import Offset, Place, offsets
from agent.sources.flink.responses import (
    CheckpointCounts,
    Details,
    Listing,
    Metric,
    OldListing,
    Subtask,
    Subtasks,
    checkpoints,
    flink_job,
)

T = TypeVar("T")

_VERSIONS = ("1.4.2", "1.20.1")
_VERTEX = "e5a72f353fc1e6bbf3bd96a41384998c"


class _Answers:
    """One version's answers, taken after a failover: the first job was restored and runs, the second was cancelled."""

    def __init__(self, version: str) -> None:
        text = (Path(__file__).parents[1] / "samples" / f"flink-{version}.json").read_text()
        self._answers: dict[str, Any] = json.loads(text)
        shape: type[Listing | OldListing] = OldListing if "/joboverview" in self._answers else Listing
        self.jobs = {job.name: job for job in self.take("overview", shape).jobs}

    def take(self, end: str, shape: type[T]) -> T:
        """The answer whose path ends so."""
        (answer,) = (answer for path, answer in self._answers.items() if path.endswith(end))
        return msgspec.convert(answer, shape)


@pytest.fixture(params=_VERSIONS)
def answers(request: pytest.FixtureRequest) -> _Answers:
    """The answers of each version."""
    return _Answers(request.param)


def test_jobs_are_read_alike_in_every_version(answers: _Answers) -> None:
    """States as Flink names them; an end of -1 is none."""
    reader, second = (flink_job("f", answers.jobs[name], None, 7) for name in ("reader", "second"))
    assert isinstance(reader, FlinkJob)
    assert (reader.state, reader.ended_at, reader.ended, reader.tasks, reader.tasks_running) == (
        "RUNNING",
        None,
        False,
        2,
        2,
    )
    assert (second.state, second.ended, second.tasks, second.tasks_running) == ("CANCELED", True, 1, 0)
    assert second.started_at < (second.ended_at or 0)
    assert (reader.at, reader.cluster, len(reader.job)) == (7, "f", 32)


def test_checkpoints_tell_what_was_restored(answers: _Answers) -> None:
    """1.4 leaves out what it does not know: where from; a checkpoint that nothing refers to has no path there."""
    job = answers.jobs["reader"].jid
    told = checkpoints("f", job, answers.take("/checkpoints", CheckpointCounts), 7)
    assert isinstance(told, Checkpoints)
    assert (told.restored, told.restored_savepoint, told.failed) == (1, False, 0)
    assert (told.restored_id or 0) + told.completed == told.last
    assert (told.restored_at or 0) > answers.jobs["reader"].start_time
    assert (told.restored_path is None) == ("/joboverview" in answers._answers)


def test_subtasks_have_their_host_and_attempt(answers: _Answers) -> None:
    """1.4 has the port behind the host, later versions in `endpoint`."""
    subtasks = answers.take(f"/vertices/{_VERTEX}", Subtasks).subtasks
    assert [(one.subtask, one.attempt, one.where) for one in subtasks] == [(0, 0, "localhost"), (1, 0, "localhost")]


def test_positions_come_out_of_a_vertex_metrics(answers: _Answers) -> None:
    """Three partitions of one topic, read by two subtasks; a committed offset is at most one above the current."""
    found = offsets(_VERTEX, answers.take("/metrics", tuple[Metric, ...]))
    topics = {(place.operator, place.topic) for place in found}
    assert topics <= {("Source__kafka-source", "in_put"), ("Source__kafka-source", "in.put")}
    assert {place.partition: place.subtask for place in found} == {0: 0, 1: 1, 2: 0}
    assert all((offset.committed or 0) <= offset.current + 1 for offset in found.values())


def test_details_tell_of_vertices_and_when_states_were_entered(answers: _Answers) -> None:
    """0 where a state never was."""
    details = answers.take(answers.jobs["reader"].jid, Details)
    assert [one.id for one in details.vertices] == [_VERTEX]
    assert details.vertices[0].name.startswith("Source: kafka-source -> work")
    assert details.timestamps["RESTARTING"] == 0
    assert details.timestamps["RUNNING"] >= answers.jobs["reader"].start_time


def test_2_3_answers_as_1_20_does() -> None:
    """Its subtasks have no `host` any more; metric ids of vertices begin with the subtask as ever."""
    answers = _Answers("2.3.0")
    running, cancelled = answers.jobs["counter"], flink_job("f", answers.jobs["other"], None, 7)
    told = checkpoints("f", running.jid, answers.take("/checkpoints", CheckpointCounts), 7)
    assert cancelled.ended
    assert (running.state, running.tasks.running) == ("RUNNING", 1)
    assert told is not None
    assert (told.restored, told.completed, told.last) == (1, 96, 103)
    assert answers.take(running.jid, Details).timestamps["RESTARTING"] == 0
    assert [one.where for one in answers.take(f"/vertices/{_VERTEX}", Subtasks).subtasks] == ["localhost"]
    assert all(one.id.startswith("0.") for one in answers.take("/metrics", tuple[Metric, ...]))


def test_a_job_without_checkpoints_tells_of_none() -> None:
    """1.4 answers with an empty object; later versions with 404."""
    assert checkpoints("f", "j", msgspec.convert({}, CheckpointCounts), 7) is None


@pytest.mark.parametrize(
    ("told", "host"),
    [
        ({"host": "tm-1:6122"}, "tm-1"),
        ({"host": "tm-1", "endpoint": "tm-1:6122"}, "tm-1"),
        ({"endpoint": "[fd00::1]:6122"}, "[fd00::1]"),
        ({"endpoint": "fd00::1"}, "fd00::1"),
        ({"host": "(unassigned)"}, None),
        ({}, None),
    ],
)
def test_a_subtasks_host_is_told_without_its_port(told: dict[str, str], host: str | None) -> None:
    """IPv6 too; a subtask that waits for a slot has none."""
    assert msgspec.convert({"subtask": 0, **told}, Subtask).where == host


def test_a_place_names_its_subtask() -> None:
    """The number before the operator is the subtask's."""
    metric = Metric("7.S.KafkaSourceReader.topic.t.partition.2.currentOffset", "41")
    assert offsets("v", [metric]) == {Place("v", "S", 7, "t", 2): Offset(41, None)}
