"""Requests to an admin process of a test's own, and their results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import structlog

from agent.model.observations.kafka import GroupState
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import AdminClient
from testbed.kafka import Cluster
from testbed.waiting import wait_until


@contextmanager
def admin_client(cluster: Cluster) -> Iterator[AdminClient]:
    """An admin client that is closed afterwards."""
    properties = {"bootstrap.servers": cluster.bootstrap_servers}
    client = AdminClient(lambda: protocol.Setup("main", properties, 10_000), structlog.get_logger("test"))
    try:
        yield client
    finally:
        client.close()


def ask(client: AdminClient, requests: Sequence[protocol.Request]) -> list[protocol.Result]:
    """Return the results in the order of the requests, those with times at the time 0."""
    for number, request in enumerate(requests):
        client.send((number,), request)
    results: dict[int, protocol.Result] = {}

    def has_all() -> bool:
        for completed in client.collect(500):
            (number,) = completed.call.key
            assert isinstance(number, int)
            results[number] = _undated(completed.result)
        return len(results) == len(requests)

    wait_until(has_all, "all results")
    return [results[number] for number in range(len(requests))]


def _undated(result: protocol.Result) -> protocol.Result:
    match result:
        case GroupState():
            return msgspec.structs.replace(result, at=0)
        case protocol.Commits(commits, failures):
            undated = [msgspec.structs.replace(commit, at=0) for commit in commits]
            return protocol.Commits(sorted(undated, key=lambda commit: (commit.topic, commit.partition)), failures)
        case protocol.Offsets(logs, failures):
            return protocol.Offsets([msgspec.structs.replace(log, at=0) for log in logs], failures)
        case protocol.StableOffsets(offsets):
            undated_offsets = [msgspec.structs.replace(offset, at=0) for offset in offsets]
            return protocol.StableOffsets(sorted(undated_offsets, key=lambda offset: (offset.topic, offset.partition)))
    return result
