"""Framing of the messages between the Kafka source and its admin process.

A frame is a length (4 bytes, big-endian) and messages as an array in MessagePack.
"""

from typing import BinaryIO, TypeVar

import msgspec

from agent.sources.kafka.admin.protocol import Message

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()
_LENGTH_BYTES = 4


def send(stream: BinaryIO, *messages: Message) -> None:
    """Write messages as a frame. Raises OSError."""
    body = _ENCODER.encode(messages)
    stream.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    stream.flush()


def receive(stream: BinaryIO, decoder: msgspec.msgpack.Decoder[list[T]]) -> list[T] | None:
    """Read a frame; return None at the end of the stream, also within a frame (the writer died)."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    body = stream.read(length)
    return decoder.decode(body) if len(body) == length else None
