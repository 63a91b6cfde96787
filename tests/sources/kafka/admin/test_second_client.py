"""The admin process's second client without brokers."""

import queue
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.future import Future

from agent.sources.kafka.admin import protocol, second_client
from agent.sources.kafka.admin.second_client import SecondClient
from testbed.processes import free_port


class _LosesRequests(SecondClient):
    """Its requests get no response, not even that they failed.

    ended: the numbers of requests with their results, or why they were handed back.
    """

    def __init__(self) -> None:
        self.ended: queue.Queue[tuple[int, protocol.Result | str]] = queue.Queue()
        super().__init__(
            {"bootstrap_servers": f"127.0.0.1:{free_port()}"},
            "main",
            50,
            lambda number, result: self.ended.put((number, result)),
            lambda message, reason: self.ended.put((message.number, reason)),
        )

    async def _is_connected(self) -> bool:
        return True

    async def _send(self, request: Any, broker: int | None = None, timeout_ms: int | None = None) -> Any:  # noqa: ARG002
        return await Future()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[_LosesRequests]:
    monkeypatch.setattr(second_client, "_CALL_TIMEOUTS", 2)
    monkeypatch.setattr(second_client, "_ANY_BROKER_MS", 20)
    client = _LosesRequests()
    yield client
    _close(client)


def _close(client: SecondClient) -> None:
    client._manager.close()
    client._net.stop(timeout_ms=10_000)  # its thread would draw random delays under the tests that follow
    client._net.close()


def test_call_whose_request_got_lost_fails(client: _LosesRequests) -> None:
    """After several timeouts, with new connections for the calls that follow."""
    connections = client._manager
    client.handle([protocol.NumberedRequest(7, 0, protocol.DescribeTopics(["orders"]))])
    number, result = client.ended.get(timeout=30)
    assert number == 7
    assert isinstance(result, protocol.Failure)
    assert not result.is_from_broker
    assert "Timed out after 100 ms" in result.text
    assert client._manager is not connections


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (protocol.ListOffsets(1, [("orders", 0)]), "Timed out after 100 ms"),
        (protocol.FetchMetadata([]), "Timed out after 20 ms"),
    ],
)
def test_what_librdkafka_can_ask_as_well_is_handed_back(
    client: _LosesRequests, request_: protocol.Request, reason: str
) -> None:
    client.handle([protocol.NumberedRequest(7, 0, request_)])
    number, result = client.ended.get(timeout=30)
    assert number == 7
    assert isinstance(result, str)
    assert reason in result


class _Unconnected(_LosesRequests):
    """No broker can be connected to."""

    async def _is_connected(self) -> bool:
        return False


@pytest.mark.parametrize(
    "request_",
    [
        protocol.ListTypedGroups(),
        protocol.ListShareOffsets("g"),
        protocol.DescribeTypedGroup("g", "share"),
        protocol.DescribeOpenTransaction("orders", 0, 1, 5),
    ],
)
def test_what_fails_without_a_connection_is_not_refused(request_: protocol.Request) -> None:
    client = _Unconnected()
    try:
        client.handle([protocol.NumberedRequest(7, 0, request_)])
        number, result = client.ended.get(timeout=30)
    finally:
        _close(client)
    assert number == 7
    assert isinstance(result, protocol.Failure)
    assert (result.is_final, result.text) == (False, "kafka-python cannot connect")


def test_librdkafka_describes_topics_without_a_connection_of_the_second_client() -> None:
    client = _Unconnected()
    try:
        client.handle([protocol.NumberedRequest(7, 0, protocol.DescribeTopics(["orders"]))])
        assert client.ended.get(timeout=30) == (7, "kafka-python cannot connect")
    finally:
        _close(client)
