"""Whom a Flink source asks: the leader by its address, in queries that Flink's server takes."""

import time

import pytest

from agent.sources.flink.jobmanagers import JobManagers
from agent.sources.flink.positions import _queries
from agent.sources.http import RequestError
from tests.sources.endpoints import FaultyServer, json_responses

_AKKA = "akka.tcp://flink@JM-1:6123/user/jobmanager"
_OLD = {"/jobs/overview": "500 Internal Server Error", "/joboverview": {"running": [], "finished": []}}


@pytest.mark.parametrize(
    ("leader", "asked"),
    [
        ("http://jm-1:8081", [["http://jm-1:8081"]]),
        ("https://jm-3:8081", [["http://jm-3:80/flink"]]),
        ("http://jm-2:9999", [["http://jm-1:8081", "http://jm-2:8081", "http://jm-2:8082", "http://jm-3:80/flink"]]),
        (_AKKA, [["http://jm-1:8081", "http://jm-2:8081", "http://jm-2:8082", "http://jm-3:80/flink"]]),
        (None, [["http://jm-1:8081", "http://jm-2:8081", "http://jm-2:8082", "http://jm-3:80/flink"]]),
    ],
)
def test_the_leader_alone_is_asked_where_its_address_is_known(leader: str | None, asked: list[list[str]]) -> None:
    """By host and port, or by a host that has one address only, as behind a proxy; else all are."""
    job_managers = JobManagers(["http://jm-1:8081", "http://jm-2:8081", "http://jm-2:8082", "http://jm-3:80/flink"])
    assert [[one.url for one in these] for these in job_managers._whom(leader)] == asked


@pytest.mark.parametrize(("host", "leads"), [("jm-1", True), ("jm-2", False)])
def test_a_1_4_that_zookeeper_does_not_name_is_not_the_leader(host: str, leads: bool) -> None:  # noqa: FBT001
    """A former leader goes on answering for a while: its actors' address is not that of the leader's znode."""
    config = [{"key": "jobmanager.rpc.address", "value": host}, {"key": "jobmanager.rpc.port", "value": "6123"}]
    with FaultyServer(json_responses({**_OLD, "/jobmanager/config": config})) as server:
        job_managers = JobManagers([server.url])
        if leads:
            assert job_managers.listing(_AKKA, time.monotonic() + 30).old
        else:
            with pytest.raises(RequestError, match=r"answers as if it led, but ZooKeeper names .*JM-1:6123"):
                job_managers.listing(_AKKA, time.monotonic() + 30)


def test_metrics_are_asked_for_in_lines_that_flink_takes() -> None:
    """Netty refuses a request line above 4096 characters; no name is left out, none is asked for twice."""
    names = [
        f"{number}.Source__kafka-source.KafkaSourceReader.topic.orders.partition.{number}.x" for number in range(500)
    ]
    queries = _queries(names)
    assert [name for query in queries for name in query] == names
    assert all(len(",".join(query)) <= 3000 for query in queries)
    assert len(queries) < 20
    assert _queries([]) == []
