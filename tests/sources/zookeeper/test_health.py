"""What the answers to `srvr` mean. Texts: ZooKeeper 3.8.4, and the same in 3.4.10."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent.sources.zookeeper.health import Answer, Server, ask_servers

_FOLLOWER = b"""Zookeeper version: 3.8.4-9316c2a7a97e1666d8f4593f34dd6fc36ecc436c, built on 2024-02-12 22:16 UTC
Latency min/avg/max: 0/1.3/12
Received: 53
Sent: 52
Connections: 1
Outstanding: 0
Zxid: 0x100000021
Mode: follower
Node count: 137
"""


@contextmanager
def _server(answer: bytes) -> Iterator[Server]:
    """Answer one command, then close the connection, as ZooKeeper does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4) == b"srvr"
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Server(*listener.getsockname())
        finally:
            thread.join(10)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (_FOLLOWER, Answer.SERVING),
        (_FOLLOWER.replace(b"follower", b"read-only"), Answer.NOT_SERVING),
        (b"This ZooKeeper instance is not currently serving requests\n", Answer.NOT_SERVING),
        (b"srvr is not executed because it is not in the whitelist.\n", Answer.UNKNOWN),
        (b"", Answer.UNKNOWN),
    ],
    ids=["follower", "read-only", "no quorum", "refused", "closed"],
)
def test_answer_of_a_server(text: bytes, answer: Answer) -> None:
    with _server(text) as server:
        answers = ask_servers([server])
    assert answers == {other: (str(server),) if other is answer else () for other in Answer}


def test_closed_port_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(*listener.getsockname())
    assert ask_servers([server])[Answer.UNREACHABLE] == (str(server),)
