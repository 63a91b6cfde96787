"""Jobs and checkpoints as observations, from responses of real clusters."""

import msgspec

from agent.sources.flink.jobs import make_checkpoints, make_flink_job
from agent.sources.flink.rest import CheckpointStatistics, Job, JobDetails, Metric, VertexDetails
from tests.sources.flink.recorded import VERTEX, RecordedResponses


def test_job_states_are_read_from_every_version(recorded: RecordedResponses) -> None:
    reader, second = (make_flink_job("f", recorded.jobs[name], None, 7) for name in ("reader", "second"))
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


def test_finished_tasks_of_a_running_job_are_counted() -> None:
    tasks = {"total": 4, "running": 3, "finished": 1}
    listed = {"jid": "d" * 32, "name": "n", "state": "RUNNING", "start-time": 1, "tasks": tasks}
    job = make_flink_job("f", msgspec.convert(listed, Job), None, 7)
    assert (job.tasks, job.tasks_running, job.tasks_finished) == (4, 3, 1)


def test_tasks_that_restore_their_state_are_counted() -> None:
    tasks = {"total": 9, "created": 0, "initializing": 5, "running": 3, "finished": 1}
    listed = {"jid": "d" * 32, "name": "n", "state": "RUNNING", "start-time": 1, "tasks": tasks}
    job = make_flink_job("f", msgspec.convert(listed, Job), None, 7)
    assert (job.tasks, job.tasks_running, job.tasks_finished, job.tasks_initializing) == (9, 3, 1, 5)


def test_checkpoints_show_what_was_restored(recorded: RecordedResponses) -> None:
    """1.4 omits what it does not know, such as the path of the restored checkpoint."""
    job = recorded.jobs["reader"].jid
    checkpoints = make_checkpoints("f", job, recorded.decode("/checkpoints", CheckpointStatistics), 7)
    assert checkpoints is not None
    assert (checkpoints.restored, checkpoints.restored_savepoint, checkpoints.failed) == (1, False, 0)
    assert (checkpoints.restored_id or 0) + checkpoints.completed == checkpoints.last
    assert (checkpoints.restored_at or 0) > recorded.jobs["reader"].start_time
    assert (checkpoints.restored_path is None) == recorded.is_1_4
    assert (checkpoints.last_path or "").endswith(f"chk-{checkpoints.last}") != recorded.is_1_4
    assert (checkpoints.restored_at or 0) < (checkpoints.last_triggered_at or 0)
    assert checkpoints.savepoint is None


def test_responses_of_2_3_are_read_like_those_of_1_20() -> None:
    """Subtasks no longer have a `host`; metric ids of vertices still begin with the subtask."""
    recorded = RecordedResponses("2.3.0")
    running, cancelled = recorded.jobs["counter"], make_flink_job("f", recorded.jobs["other"], None, 7)
    checkpoints = make_checkpoints("f", running.jid, recorded.decode("/checkpoints", CheckpointStatistics), 7)
    assert cancelled.ended
    assert (running.state, running.tasks.running) == ("RUNNING", 1)
    assert checkpoints is not None
    assert (checkpoints.restored, checkpoints.completed, checkpoints.last) == (1, 96, 103)
    assert recorded.decode(running.jid, JobDetails).timestamps["RESTARTING"] == 0
    subtasks = recorded.decode(f"/vertices/{VERTEX}", VertexDetails).subtasks
    assert [subtask.task_manager_host for subtask in subtasks] == ["localhost"]
    assert all(metric.id.startswith("0.") for metric in recorded.decode("/metrics", tuple[Metric, ...]))


def test_job_without_checkpoints_has_no_observation() -> None:
    """1.4 responds with an empty object; later versions with 404."""
    assert make_checkpoints("f", "j", msgspec.convert({}, CheckpointStatistics), 7) is None


def test_savepoint_is_read_beside_the_last_checkpoint() -> None:
    statistics = {
        "counts": {"completed": 9, "failed": 0},
        "latest": {
            "completed": {"id": 8, "trigger_timestamp": 80, "external_path": "<checkpoint-not-externally-addressable>"},
            "savepoint": {"id": 9, "trigger_timestamp": 90, "external_path": "file:/s/savepoint-ab"},
        },
    }
    checkpoints = make_checkpoints("f", "j", msgspec.convert(statistics, CheckpointStatistics), 100)
    assert checkpoints is not None
    assert (checkpoints.last, checkpoints.last_triggered_at, checkpoints.last_path) == (8, 80, None)
    assert (checkpoints.savepoint, checkpoints.savepoint_triggered_at) == (9, 90)
