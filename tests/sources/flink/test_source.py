"""The Flink source with misbehaving endpoints, and its settings. Real clusters: tests/integration."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agent.config.sources import Flink
from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.flink import Checkpoints, FlinkJob, JobGraph, JobGraphFile, JobListing, JobManagerLeader
from agent.sources.base import GONE
from agent.sources.flink.source import FlinkSource
from testbed.processes import free_port
from tests.integration.seen import Seen
from tests.sources.endpoints import Behaviour, FaultyServer, dripping, hanging, json_responses, raw_response, status

_LISTED = json_responses({"/jobs/overview": {"jobs": []}})
_OLD_LISTED = json_responses(
    {"/jobs/overview": "500 Internal Server Error", "/joboverview": {"running": [], "finished": []}}
)
_JOB = "329222333b7b6c65d260591f06ba3d71"
_OTHER = "86e3d064b42ebdc24dbecb1c68817b98"


def _settings(**fields: Any) -> Flink:
    return Flink.model_validate_json(json.dumps({"timeout": "1s", **fields}))


@contextmanager
def _open_source(seen: Seen, known: tuple[Observation, ...] = (), **fields: Any) -> Iterator[FlinkSource]:
    source = FlinkSource("f", _settings(**fields), seen, known)
    try:
        yield source
    finally:
        source.close()


def _job(job: str, name: str, state: str = "RUNNING") -> dict[str, Any]:
    return {
        "jid": job,
        "name": name,
        "state": state,
        "start-time": 1000,
        "end-time": -1,
        "tasks": {"total": 2, "running": 2},
    }


@pytest.mark.parametrize(
    "bad", [hanging, dripping, raw_response(b"noise\r\n"), status("500 Internal Server Error"), _OLD_LISTED]
)
def test_a_failing_address_does_not_block_the_other(bad: Behaviour) -> None:
    """All are asked at once; the first that responds is kept."""
    seen = Seen()
    with FaultyServer(bad) as first, FaultyServer(_LISTED) as second:
        good = first if bad is _OLD_LISTED else second
        rest = [first.url] if bad is _OLD_LISTED else [first.url, second.url]
        with _open_source(seen, rest=rest) as source:
            for _ in range(4):
                source.poll()
    assert [listing.address for listing in seen.all(JobListing)] == [good.url]
    assert seen.all(Unavailable) == []


def test_unreachable_cluster_is_reported_once_and_recovers() -> None:
    seen = Seen()
    with FaultyServer(hanging) as first, FaultyServer(raw_response(b"noise\r\n")) as second:
        unreachable = f"http://127.0.0.1:{free_port()}"
        with _open_source(seen, rest=[first.url, second.url, unreachable]) as source:
            for _ in range(3):
                source.poll()
            (unavailable,) = seen.all(Unavailable)
            assert all(url in unavailable.reason for url in (first.url, second.url, unreachable))
            assert (unavailable.source, unavailable.cluster) == ("flink", "f")
            second.behaviour = _LISTED
            seen.wait_for(source, Available)
    assert [listing.address for listing in seen.all(JobListing)] == [second.url]


def test_another_address_replaces_one_that_refuses() -> None:
    seen = Seen()
    with (
        FaultyServer(_LISTED) as first,
        FaultyServer(_LISTED) as second,
        _open_source(seen, rest=[first.url, second.url]) as source,
    ):
        source.poll()
        kept, other = (first, second) if seen.all(JobListing)[-1].address == first.url else (second, first)
        kept.behaviour = status("503 Service Unavailable")
        seen.wait_for(source, JobListing, address=other.url)
        requests = len(kept.requested)
        source.poll()
    assert len(kept.requested) == requests


def test_leader_of_1_4_is_the_one_that_does_not_redirect() -> None:
    """Without ZooKeeper: a standby responds with 307."""
    seen = Seen()
    with FaultyServer(_OLD_LISTED) as first, FaultyServer(_OLD_LISTED) as second:
        redirects = [
            status("307 Temporary Redirect", headers=f"Location: {leader.url}/\r\n") for leader in (first, second)
        ]
        second.behaviour = redirects[0]
        with _open_source(seen, rest=[second.url, first.url], timeout="10s") as source:
            seen.wait_for(source, JobManagerLeader)
            first.behaviour, second.behaviour = redirects[1], _OLD_LISTED
            seen.wait_for(source, JobManagerLeader, lambda leader: leader.address == second.url)
    assert [leader.address for leader in seen.all(JobManagerLeader)] == [first.url, second.url]
    assert seen.all(Unavailable) == []


def test_upgraded_cluster_is_asked_by_its_new_path() -> None:
    """1.4's /joboverview does not exist from 1.5 on."""
    seen = Seen()
    with FaultyServer(_OLD_LISTED) as server, _open_source(seen, rest=[server.url]) as source:
        source.poll()
        server.behaviour = json_responses({"/jobs/overview": {"jobs": [_job(_JOB, "orders")]}})
        seen.wait_for(source, JobListing, lambda listing: listing.jobs == (_JOB,))
    assert server.requested[-1] != "/joboverview"


def test_listing_has_all_jobs_and_details_only_selected_ones() -> None:
    """Graphs are compared with the listing by id, whatever `jobs` selects."""
    seen = Seen()
    jobs = {"jobs": [_job(_JOB, "orders"), _job(_OTHER, "scratch", "CANCELED")]}
    with (
        FaultyServer(json_responses({"/jobs/overview": jobs})) as server,
        _open_source(seen, rest=[server.url], jobs={"exclude": ["scratch"]}) as source,
    ):
        source.poll()
    assert [listing.jobs for listing in seen.all(JobListing)] == [(_JOB, _OTHER)]
    assert [(job.job, job.tasks_running) for job in seen.all(FlinkJob)] == [(_JOB, 2)]


def test_incomplete_listing_is_unavailable() -> None:
    """Otherwise a job would seem to be missing."""
    seen = Seen()
    broken = {"jobs": [_job(_JOB, "orders"), {"name": "no id"}]}
    with (
        FaultyServer(json_responses({"/jobs/overview": broken})) as server,
        _open_source(seen, rest=[server.url]) as source,
    ):
        source.poll()
    assert seen.all(JobListing) == []
    assert len(seen.all(Unavailable)) == 1


def test_hanging_job_details_still_report_states() -> None:
    """The next poll begins with the jobs that were skipped."""
    listing = json_responses({"/jobs/overview": {"jobs": [_job(_JOB, "orders"), _job(_OTHER, "payments")]}})

    def details_hang(connection: Any, path: str, ended: Any) -> None:
        (listing if path == "/jobs/overview" else hanging)(connection, path, ended)

    seen = Seen()
    with FaultyServer(details_hang) as server, _open_source(seen, rest=[server.url]) as source:
        source.poll()
        source.poll()
    assert {job.job for job in seen.all(FlinkJob)} == {_JOB, _OTHER}
    (unavailable,) = seen.all(Unavailable)
    assert f"does not answer /jobs/{_JOB}" in unavailable.reason
    assert [path for path in server.requested if path != "/jobs/overview"] == [f"/jobs/{_JOB}", f"/jobs/{_OTHER}"]


def test_brief_refusal_of_one_job_is_tolerated() -> None:
    """As around a failover, when a job is listed before it has a JobMaster."""
    seen = Seen()
    answers = {
        "/jobs/overview": {"jobs": [_job(_JOB, "orders"), _job(_OTHER, "payments")]},
        f"/jobs/{_JOB}": "500 Internal Server Error",
        f"/jobs/{_OTHER}": {"timestamps": {"RESTARTING": 1500}, "vertices": []},
    }
    with FaultyServer(json_responses(answers)) as server, _open_source(seen, rest=[server.url]) as source:
        source.poll()
    assert {job.job: job.restarting_at for job in seen.all(FlinkJob)} == {_JOB: None, _OTHER: 1500}
    assert seen.all(Unavailable) == []
    assert seen.all(Checkpoints) == []


def test_lasting_refusal_of_one_job_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as of a job whose details are too large for an answer. If all are refused, the cluster is unavailable."""
    now = [1_790_000_000_000]
    for module in ("source", "jobs"):
        monkeypatch.setattr(f"agent.sources.flink.{module}.now_ms", lambda: now[0])
    seen = Seen()
    answers: dict[str, Any] = {
        "/jobs/overview": {"jobs": [_job(_JOB, "orders"), _job(_OTHER, "payments")]},
        f"/jobs/{_JOB}": "500 Internal Server Error",
        f"/jobs/{_OTHER}": {"timestamps": {}, "vertices": []},
    }

    def unavailable() -> list[str | None]:
        return [fact.group for fact in seen.all(Unavailable)]

    with FaultyServer(json_responses(answers)) as server, _open_source(seen, rest=[server.url]) as source:
        for _ in range(2):
            source.poll()
            assert unavailable() == []
            now[0] += 20_000
        source.poll()
        assert unavailable() == ["orders"]
        answers[f"/jobs/{_OTHER}"] = "500 Internal Server Error"
        server.behaviour = json_responses(answers)
        for _ in range(3):
            source.poll()
            now[0] += 20_000
        assert unavailable() == ["orders", None]


def test_unmounted_storage_is_unavailable_and_deletes_nothing(tmp_path: Path) -> None:
    """A file known from the last run that no longer exists is reported as deleted."""
    seen = Seen()
    storage, unmounted = tmp_path / "ha", tmp_path / "unmounted"
    storage.mkdir()
    file = storage / "submittedJobGraph9f0833ace38d"
    file.write_bytes(b"graph")
    known = (JobGraphFile(at=1, cluster="f", file="submittedJobGraph000000000000", modified_at=1, size=1),)
    with (
        FaultyServer(_LISTED) as server,
        _open_source(seen, known, rest=[server.url], storage_directory=str(storage)) as source,
    ):
        source.poll()
        storage.rename(unmounted)
        source.poll()
        unmounted.rename(storage)
        file.unlink()
        source.poll()
    files = [(file.file[-4:], file.modified_at is not None) for file in seen.all(JobGraphFile)]
    assert files == [("e38d", True), ("0000", False), ("e38d", False)]
    assert [type(observation).__name__ for observation in (*seen.all(Unavailable), *seen.all(Available))] == [
        "Unavailable",
        "Available",
    ]
    assert seen.all(Unavailable, source="flink_storage")


def test_unreachable_zookeeper_does_not_hide_rest() -> None:
    """But without a known leader no listing is the leader's."""
    seen = Seen()
    fields: dict[str, Any] = {"zookeeper": f"127.0.0.1:{free_port()}", "zookeeper_client": {"session_timeout": "1s"}}
    with (
        FaultyServer(json_responses({"/jobs/overview": {"jobs": [_job(_JOB, "orders")]}})) as server,
        _open_source(seen, rest=[server.url], **fields) as source,
    ):
        unavailable = seen.wait_for(source, Unavailable)
    assert unavailable.source == "flink_zookeeper"
    assert [job.job for job in seen.all(FlinkJob)] == [_JOB]
    assert seen.all(JobListing) == []
    assert len(seen.all(Unavailable)) == 1


def test_nothing_is_emitted_after_close() -> None:
    seen = Seen()
    with FaultyServer(_LISTED) as server, _open_source(seen, rest=[server.url]) as source:
        source.close()
        source.poll()
    assert seen.batches == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rest": []}, "name at least one"),
        ({"rest": ["jobmanager-1:8081"]}, "expected the REST address of a JobManager"),
        ({"rest": ["http://jm:8081/?x=1"]}, "expected the REST address of a JobManager"),
        ({"rest": ["http://jm:port"]}, "expected the REST address of a JobManager"),
        ({"rest": ["http://user:secret@jm:8081"]}, "must not be written in this file"),
        ({"rest": ["http://jm:8081"], "zookeeper": "zk:1:2"}, "expected servers such as"),
        ({"rest": ["http://jm:8081"], "zookeeper_root": "/flink"}, "`zookeeper_root` has no effect"),
        ({"rest": ["http://jm:8081"], "cluster_id": "/a"}, "`cluster_id` has no effect"),
        ({"rest": ["http://jm:8081"], "zookeeper_client": {"use_ssl": True}}, "`zookeeper_client` has no effect"),
        ({"rest": ["http://jm:8081"], "timeout": 5}, "expected a duration"),
    ],
)
def test_mistakes_in_settings_are_reported(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Flink.model_validate_json(json.dumps(fields))


def test_settings_have_flinks_defaults() -> None:
    """The path in ZooKeeper is root and cluster id, with however many slashes."""
    settings = _settings(rest=["http://jm-1:8081/", "https://jm-2/flink"], zookeeper="zk-1:2181, zk-2:2181/kafka")
    assert settings.rest == ("http://jm-1:8081", "https://jm-2/flink")
    assert settings.zookeeper == "zk-1:2181,zk-2:2181/kafka"
    assert settings.zookeeper_path == "/flink/default"
    assert _settings(rest=["http://a"], zookeeper="z", cluster_id="b").zookeeper_path == "/flink/b"


def test_removed_job_graphs_are_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session cluster has thousands of short jobs a day."""
    seen, jobs = Seen(), [f"{number:032x}" for number in range(3 * GONE)]
    source = FlinkSource("f", _settings(rest=["http://127.0.0.1:1"]), seen)
    graphs: list[JobGraph] = []
    monkeypatch.setattr(source, "_poll_rest", lambda _: [])
    monkeypatch.setattr(source, "_poll_zookeeper", lambda: (None, source._observe_graphs(graphs, 5)))
    for job in jobs:
        graphs = [JobGraph(at=5, cluster="f", job=job, made_at=1)]
        source.poll()
    source.close()
    assert [graph.job for graph in seen.all(JobGraph) if graph.is_gone] == jobs[:-1]
    assert len(source._changes.subjects()) <= 2 * GONE + 1


def test_jobs_that_take_more_than_one_timeout_together_are_read_in_turn() -> None:
    """Each is answered in time, so nothing is unavailable; what one poll does not reach, the next begins with."""
    jobs = [f"{number:032x}" for number in range(4)]
    answers = {f"/jobs/{job}": {"timestamps": {"RESTARTING": 1500}, "vertices": []} for job in jobs}
    listing = {"jobs": [_job(job, f"job-{job[-1]}") for job in jobs]}
    answer = json_responses({"/jobs/overview": listing, **answers})

    def slowly(connection: Any, path: str, ended: Any) -> None:
        if path != "/jobs/overview":
            ended.wait(0.6)
        answer(connection, path, ended)

    seen = Seen()
    with FaultyServer(slowly) as server, _open_source(seen, rest=[server.url], timeout="1s") as source:
        source.poll()
        source.poll()
    assert seen.all(Unavailable) == []
    read = [path for path in server.requested if path in answers]
    assert set(read) == answers.keys()


def test_parts_that_are_no_longer_configured_are_not_unavailable() -> None:
    """High availability without ZooKeeper, or none: nothing else ends the outage of an earlier run."""
    outages = [Unavailable(at=1, source=part, cluster="f", reason="r") for part in ("flink_zookeeper", "flink_storage")]
    seen = Seen()
    with FaultyServer(_LISTED) as server, _open_source(seen, tuple(outages), rest=[server.url]) as source:
        source.poll()
        source.poll()
    assert [(fact.source, fact.cluster) for fact in seen.all(Available)] == [
        ("flink_zookeeper", "f"),
        ("flink_storage", "f"),
    ]
