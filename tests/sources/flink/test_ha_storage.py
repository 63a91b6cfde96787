"""The HA storage directory: job graphs' files of every layout, and nothing else."""

from pathlib import Path

import pytest

from agent.sources.flink.ha_storage import job_graph_files


def test_job_graphs_are_found_in_the_layout_of_every_version(tmp_path: Path) -> None:
    """1.4 writes into the directory, later versions below the cluster id; 2.x calls them execution plans."""
    below = tmp_path / "testbed"
    (below / "blob").mkdir(parents=True)
    for file in (
        tmp_path / "submittedJobGraph9f0833ace38d",
        tmp_path / "completedCheckpoint0123456789ab",
        below / "submittedJobGraph31c65175df76",
        below / "submittedExecutionPlan31c65175df77",
        below / "submittedJobGraph31c65175df76.tmp",
    ):
        file.write_bytes(b"12345")
    found = job_graph_files(tmp_path, "/testbed", "f", 7)
    assert [one.file for one in found] == [
        "submittedJobGraph9f0833ace38d",
        "submittedExecutionPlan31c65175df77",
        "submittedJobGraph31c65175df76",
    ]
    assert {(one.size, one.at, one.cluster) for one in found} == {(5, 7, "f")}
    assert all((one.modified_at or 0) > 1_600_000_000_000 for one in found)


def test_a_directory_that_is_not_there_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """A path that is not mounted tells of no deleted file; one without the cluster's folder just has none."""
    assert job_graph_files(tmp_path, "/testbed", "f", 7) == []
    with pytest.raises(FileNotFoundError):
        job_graph_files(tmp_path / "gone", "/testbed", "f", 7)
