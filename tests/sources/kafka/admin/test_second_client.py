"""The admin process's second client without brokers."""

import queue
from typing import Any

import pytest
from kafka.future import Future

from agent.sources.kafka.admin import protocol, second_client
from agent.sources.kafka.admin.second_client import SecondClient
from testbed.processes import free_port


class _LosesRequests(SecondClient):
    """Its requests get no response, not even that they failed."""

    async def _is_connected(self) -> bool:
        return True

    async def _send(self, request: Any, broker: int | None = None, timeout_ms: int | None = None) -> Any:  # noqa: ARG002
        return await Future()


def test_call_whose_request_got_lost_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """After several timeouts, with new connections for the calls that follow."""
    monkeypatch.setattr(second_client, "_CALL_TIMEOUTS", 2)
    results: queue.Queue[tuple[int, protocol.Result]] = queue.Queue()
    options = {"bootstrap_servers": f"127.0.0.1:{free_port()}"}
    client = _LosesRequests(
        options, "main", 50, lambda number, result: results.put((number, result)), lambda *_: pytest.fail("handed back")
    )
    connections = client._manager
    try:
        client.handle([protocol.NumberedRequest(7, 0, protocol.DescribeTopics(["orders"]))])
        number, result = results.get(timeout=30)
    finally:
        client._manager.close()
        client._net.stop(timeout_ms=10_000)  # its thread would draw random delays under the tests that follow
        client._net.close()
    assert number == 7
    assert isinstance(result, protocol.Failure)
    assert not result.is_from_broker
    assert "Timed out after 100 ms" in result.text
    assert client._manager is not connections
