"""The Flink source among addresses that misbehave, and its settings. Real clusters: tests/integration."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agent.config.flink_section import Flink
from agent.model.observations import (
    Available,
    Checkpoints,
    FlinkJob,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Observation,
    Unavailable,
)
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
def _watching(seen: Seen, known: tuple[Observation, ...] = (), **fields: Any) -> Iterator[FlinkSource]:
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
def test_one_bad_address_keeps_no_other_from_being_heard(bad: Behaviour) -> None:
    """Asked at once: who answers first is kept to, and the other is left alone."""
    seen = Seen()
    with FaultyServer(bad) as first, FaultyServer(_LISTED) as second:
        good = first if bad is _OLD_LISTED else second
        rest = [first.url] if bad is _OLD_LISTED else [first.url, second.url]
        with _watching(seen, rest=rest) as source:
            for _ in range(4):
                source.poll()
    assert [one.address for one in seen.all(JobListing)] == [good.url]
    assert seen.all(Unavailable) == []


def test_a_cluster_where_nobody_answers_is_blind_once_and_sighted_when_somebody_does() -> None:
    """The reason names each address; no exception, no second Unavailable."""
    seen = Seen()
    with FaultyServer(hanging) as first, FaultyServer(raw_response(b"noise\r\n")) as second:
        nobody = f"http://127.0.0.1:{free_port()}"
        with _watching(seen, rest=[first.url, second.url, nobody]) as source:
            for _ in range(3):
                source.poll()
            (blind,) = seen.all(Unavailable)
            assert all(url in blind.reason for url in (first.url, second.url, nobody))
            assert (blind.source, blind.cluster) == ("flink", "f")
            second.behaviour = _LISTED
            seen.wait_for(source, Available)
    assert [one.address for one in seen.all(JobListing)] == [second.url]


def test_another_address_takes_over_from_one_that_refuses() -> None:
    """And is kept to from then on: the first is left alone."""
    seen = Seen()
    with (
        FaultyServer(_LISTED) as first,
        FaultyServer(_LISTED) as second,
        _watching(seen, rest=[first.url, second.url]) as source,
    ):
        source.poll()
        kept, other = (first, second) if seen.all(JobListing)[-1].address == first.url else (second, first)
        kept.behaviour = status("503 Service Unavailable")
        seen.wait_for(source, JobListing, address=other.url)
        asked = len(kept.requested)
        source.poll()
    assert len(kept.requested) == asked


def test_the_leader_of_a_1_4_is_who_answers_and_sends_nobody_on() -> None:
    """Without ZooKeeper: a standby answers 307. When they change places the leader has moved."""
    seen = Seen()
    with FaultyServer(_OLD_LISTED) as first, FaultyServer(_OLD_LISTED) as second:
        on = [status("307 Temporary Redirect", headers=f"Location: {one.url}/\r\n") for one in (first, second)]
        second.behaviour = on[0]
        with _watching(seen, rest=[second.url, first.url], timeout="10s") as source:
            seen.wait_for(source, JobManagerLeader)
            first.behaviour, second.behaviour = on[1], _OLD_LISTED
            seen.wait_for(source, JobManagerLeader, lambda one: one.address == second.url)
    assert [one.address for one in seen.all(JobManagerLeader)] == [first.url, second.url]
    assert seen.all(Unavailable) == []


def test_a_cluster_that_is_upgraded_is_asked_in_its_new_words() -> None:
    """1.4's /joboverview is gone from 1.5 on."""
    seen = Seen()
    with FaultyServer(_OLD_LISTED) as server, _watching(seen, rest=[server.url]) as source:
        source.poll()
        server.behaviour = json_responses({"/jobs/overview": {"jobs": [_job(_JOB, "orders")]}})
        seen.wait_for(source, JobListing, lambda one: one.jobs == (_JOB,))
    assert server.requested[-1] != "/joboverview"


def test_a_listing_names_every_job_and_only_those_wanted_are_told_of() -> None:
    """Graphs are compared with the listing by id, whatever `jobs` says."""
    seen = Seen()
    jobs = {"jobs": [_job(_JOB, "orders"), _job(_OTHER, "scratch", "CANCELED")]}
    with (
        FaultyServer(json_responses({"/jobs/overview": jobs})) as server,
        _watching(seen, rest=[server.url], jobs={"exclude": ["scratch"]}) as source,
    ):
        source.poll()
    assert [one.jobs for one in seen.all(JobListing)] == [(_JOB, _OTHER)]
    assert [(one.job, one.tasks_running) for one in seen.all(FlinkJob)] == [(_JOB, 2)]


def test_a_listing_that_is_not_whole_is_none() -> None:
    """A job without an id, or half a listing: nobody may conclude that a job is missing."""
    seen = Seen()
    broken = {"jobs": [_job(_JOB, "orders"), {"name": "no id"}]}
    with (
        FaultyServer(json_responses({"/jobs/overview": broken})) as server,
        _watching(seen, rest=[server.url]) as source,
    ):
        source.poll()
    assert seen.all(JobListing) == []
    assert len(seen.all(Unavailable)) == 1


def test_jobs_of_which_nothing_more_is_told_in_time_are_told_by_the_listing() -> None:
    """Their states come all the same; that details hang is said, and each poll begins with those that were left out."""
    listing = json_responses({"/jobs/overview": {"jobs": [_job(_JOB, "orders"), _job(_OTHER, "payments")]}})

    def details_hang(connection: Any, path: str, ended: Any) -> None:
        (listing if path == "/jobs/overview" else hanging)(connection, path, ended)

    seen = Seen()
    with FaultyServer(details_hang) as server, _watching(seen, rest=[server.url]) as source:
        source.poll()
        source.poll()
    assert {one.job for one in seen.all(FlinkJob)} == {_JOB, _OTHER}
    (blind,) = seen.all(Unavailable)
    assert f"does not answer /jobs/{_JOB}" in blind.reason
    assert [path for path in server.requested if path != "/jobs/overview"] == [f"/jobs/{_JOB}", f"/jobs/{_OTHER}"]


def test_what_is_refused_of_one_job_for_a_moment_makes_nobody_blind() -> None:
    """As around a failover, when a job is listed and its JobMaster is not there yet."""
    seen = Seen()
    answers = {
        "/jobs/overview": {"jobs": [_job(_JOB, "orders"), _job(_OTHER, "payments")]},
        f"/jobs/{_JOB}": "500 Internal Server Error",
        f"/jobs/{_OTHER}": {"timestamps": {"RESTARTING": 1500}, "vertices": []},
    }
    with FaultyServer(json_responses(answers)) as server, _watching(seen, rest=[server.url]) as source:
        source.poll()
    assert {one.job: one.restarting_at for one in seen.all(FlinkJob)} == {_JOB: None, _OTHER: 1500}
    assert seen.all(Unavailable) == []
    assert seen.all(Checkpoints) == []


def test_a_storage_directory_that_goes_away_is_blind_and_no_file_is_gone(tmp_path: Path) -> None:
    """A mount that is lost deletes nothing; a file that was there in the last run and is not now is gone."""
    seen = Seen()
    storage, away = tmp_path / "ha", tmp_path / "away"
    storage.mkdir()
    file = storage / "submittedJobGraph9f0833ace38d"
    file.write_bytes(b"graph")
    known = (JobGraphFile(at=1, cluster="f", file="submittedJobGraph000000000000", modified_at=1, size=1),)
    with (
        FaultyServer(_LISTED) as server,
        _watching(seen, known, rest=[server.url], storage_directory=str(storage)) as source,
    ):
        source.poll()
        storage.rename(away)
        source.poll()
        away.rename(storage)
        file.unlink()
        source.poll()
    files = [(one.file[-4:], one.modified_at is not None) for one in seen.all(JobGraphFile)]
    assert files == [("e38d", True), ("0000", False), ("e38d", False)]
    assert [type(one).__name__ for one in (*seen.all(Unavailable), *seen.all(Available))] == [
        "Unavailable",
        "Available",
    ]
    assert seen.all(Unavailable, source="flink_storage")


def test_a_zookeeper_that_does_not_answer_is_blind_of_its_own() -> None:
    """REST is seen all the same, but what it lists is nobody's who is known to lead."""
    seen = Seen()
    fields: dict[str, Any] = {"zookeeper": f"127.0.0.1:{free_port()}", "zookeeper_client": {"session_timeout": "1s"}}
    with (
        FaultyServer(json_responses({"/jobs/overview": {"jobs": [_job(_JOB, "orders")]}})) as server,
        _watching(seen, rest=[server.url], **fields) as source,
    ):
        blind = seen.wait_for(source, Unavailable)
    assert blind.source == "flink_zookeeper"
    assert [one.job for one in seen.all(FlinkJob)] == [_JOB]
    assert seen.all(JobListing) == []
    assert len(seen.all(Unavailable)) == 1


def test_nothing_is_emitted_after_the_end() -> None:
    """Also by a poll that was under way."""
    seen = Seen()
    with FaultyServer(_LISTED) as server, _watching(seen, rest=[server.url]) as source:
        source.close()
        source.poll()
    assert seen.batches == []


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"rest": []}, "name at least one"),
        ({"rest": ["jobmanager-1:8081"]}, "expected the address of a JobManager"),
        ({"rest": ["http://jm:8081/?x=1"]}, "expected the address of a JobManager"),
        ({"rest": ["http://jm:port"]}, "expected the address of a JobManager"),
        ({"rest": ["http://user:secret@jm:8081"]}, "must not stand in this file"),
        ({"rest": ["http://jm:8081"], "zookeeper": "zk:1:2"}, "expected servers such as"),
        ({"rest": ["http://jm:8081"], "zookeeper_root": "/flink"}, "`zookeeper_root` has no effect"),
        ({"rest": ["http://jm:8081"], "cluster_id": "/a"}, "`cluster_id` has no effect"),
        ({"rest": ["http://jm:8081"], "zookeeper_client": {"use_ssl": True}}, "`zookeeper_client` has no effect"),
        ({"rest": ["http://jm:8081"], "timeout": 5}, "expected a duration"),
    ],
)
def test_mistakes_in_the_settings_are_told(fields: dict[str, Any], complaint: str) -> None:
    """Each in a sentence."""
    with pytest.raises(ValidationError, match=complaint):
        Flink.model_validate_json(json.dumps(fields))


def test_settings_have_flinks_own_defaults() -> None:
    """The path in ZooKeeper is root and cluster id, with however many slashes."""
    settings = _settings(rest=["http://jm-1:8081/", "https://jm-2/flink"], zookeeper="zk-1:2181, zk-2:2181/kafka")
    assert settings.rest == ("http://jm-1:8081", "https://jm-2/flink")
    assert settings.zookeeper == "zk-1:2181,zk-2:2181/kafka"
    assert settings.zookeeper_path == "/flink/default"
    assert _settings(rest=["http://a"], zookeeper="z", cluster_id="b").zookeeper_path == "/flink/b"
