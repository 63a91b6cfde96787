"""Requests to an admin process of a test's own, and their results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter

import msgspec
import structlog

from agent.model.observations.kafka import GroupState, LastStableOffset
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
        case protocol.Commits(cluster, group, _, offsets, failures):
            ordered = {topic: _by_partition(numbers) for topic, numbers in sorted(offsets.items())}
            return protocol.Commits(cluster, group, 0, ordered, failures)
        case protocol.Offsets(logs, failures):
            return protocol.Offsets([msgspec.structs.replace(log, at=0) for log in logs], failures)
        case protocol.StableOffsets(offsets, at_end):
            return protocol.StableOffsets(_at_zero(offsets), at_end=at_end)
    return result


def _by_partition(numbers: list[int]) -> list[int]:
    """Return partitions, offsets and leader epochs in the order of the partitions."""
    return [number for row in sorted(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)) for number in row]


def _at_zero(facts: Sequence[LastStableOffset]) -> list[LastStableOffset]:
    """Return facts about partitions at the time 0, by partition: clients list them in different orders."""
    return sorted((msgspec.structs.replace(fact, at=0) for fact in facts), key=attrgetter("topic", "partition"))
