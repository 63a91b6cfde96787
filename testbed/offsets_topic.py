"""Writes records of `__consumer_offsets`, as a coordinator does."""

import struct
from typing import Any

from confluent_kafka import Producer

_BEGIN = struct.Struct(">hqih")
"""Of version 3 of OffsetCommitValue: version, offset, leader epoch, length of the metadata."""
_END = struct.Struct(">q")
"""Its commit timestamp."""


def offsets_producer(bootstrap_servers: str, **properties: Any) -> Producer:
    """Return a producer that may write to internal topics. properties: librdkafka's, with underscores for dots.

    Kafka takes records of internal topics from its own admin tools only, which it knows by their client id.
    """
    given = {name.replace("_", "."): value for name, value in properties.items()}
    fixed = {"bootstrap.servers": bootstrap_servers, "client.id": "__admin_client", "log_level": 0}
    return Producer({**given, **fixed})


def encode_commit(offset: int, at: int, metadata: bytes = b"") -> bytes:
    """Return the value of a commit. at: its timestamp, ms."""
    return _BEGIN.pack(3, offset, -1, len(metadata)) + metadata + _END.pack(at)
