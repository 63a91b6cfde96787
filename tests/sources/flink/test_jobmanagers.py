"""Choice of the JobManager to ask."""

import time

import pytest

from agent.sources.flink.jobmanagers import JobManagers
from agent.sources.http import RequestError
from tests.sources.endpoints import FaultyServer, json_responses

_AKKA = "akka.tcp://flink@JM-1:6123/user/jobmanager"
_OLD = {"/jobs/overview": "500 Internal Server Error", "/joboverview": {"running": [], "finished": []}}
_URLS = ["http://jm-1:8081", "http://jm-2:8081", "http://jm-2:8082", "http://jm-3:80/flink"]


@pytest.mark.parametrize(
    ("leader", "groups"),
    [
        ("http://jm-1:8081", [["http://jm-1:8081"]]),
        ("https://jm-3:8081", [["http://jm-3:80/flink"]]),
        ("http://jm-2:9999", [_URLS]),
        (_AKKA, [_URLS]),
        (None, [_URLS]),
    ],
)
def test_only_a_leader_with_a_known_address_is_asked(leader: str | None, groups: list[list[str]]) -> None:
    """By host and port, or by a host that has one address only, as behind a proxy; otherwise all are asked."""
    job_managers = JobManagers(_URLS)
    assert [[endpoint.url for endpoint in group] for group in job_managers._request_order(leader)] == groups


@pytest.mark.parametrize(("host", "is_leader"), [("jm-1", True), ("jm-2", False)])
def test_flink_1_4_not_named_by_zookeeper_is_not_the_leader(host: str, is_leader: bool) -> None:  # noqa: FBT001
    """A former leader goes on responding for a while: its actor system's address is not that of the leader's znode."""
    config = [{"key": "jobmanager.rpc.address", "value": host}, {"key": "jobmanager.rpc.port", "value": "6123"}]
    with FaultyServer(json_responses({**_OLD, "/jobmanager/config": config})) as server:
        job_managers = JobManagers([server.url])
        if is_leader:
            assert job_managers.fetch_listing(_AKKA, time.monotonic() + 30).is_1_4
        else:
            with pytest.raises(RequestError, match=r"responds as the leader, but ZooKeeper names .*JM-1:6123"):
                job_managers.fetch_listing(_AKKA, time.monotonic() + 30)
