"""Kafka's message formats 0, 1 and 2 written byte by byte from their specification, for tests of the decoder."""

import gzip
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import cramjam
from crc32c import crc32c

CODECS = ("none", "gzip", "snappy", "xerial", "lz4", "zstd")
IDS = {"none": 0, "gzip": 1, "snappy": 2, "xerial": 2, "lz4": 3, "lz4-old": 3, "zstd": 4}
LEGACY = ("gzip", "snappy", "xerial", "lz4")


def xerial(plain: bytes, block: int = 1024) -> bytes:
    """Compress with the framing of xerial's SnappyOutputStream."""
    parts = [b"\x82SNAPPY\x00", struct.pack(">ii", 1, 1)]
    for at in range(0, len(plain), block):
        packed = bytes(cramjam.snappy.compress_raw(plain[at : at + block]))
        parts.append(struct.pack(">i", len(packed)) + packed)
    return b"".join(parts)


def lz4(plain: bytes, *, old: bool = False, block: int = 1 << 16) -> bytes:
    """Compress to an LZ4 frame of independent blocks.

    old: with the header checksum that Kafka's clients wrote before KAFKA-3160.

    The two checksums are those of the flags 0x60 and the block size 0x40 (64 KiB): over these two bytes, and over the
    frame's magic too.
    """
    head = b"\x04\x22\x4d\x18\x60\x40" + (b"\x1a" if old else b"\x82")
    parts = [head]
    for at in range(0, len(plain), block):
        piece = plain[at : at + block]
        packed = bytes(cramjam.lz4.compress_block(piece, store_size=False))
        if len(packed) >= len(piece):
            parts.append(struct.pack("<I", len(piece) | 0x80000000) + piece)
        else:
            parts.append(struct.pack("<I", len(packed)) + packed)
    return b"".join([*parts, b"\x00\x00\x00\x00"])


@cache
def compress(codec: str, plain: bytes) -> bytes:
    """Compress with a codec of IDS; the same bytes always in the same way."""
    match codec:
        case "none":
            return plain
        case "gzip":
            return gzip.compress(plain, mtime=0)
        case "snappy":
            return bytes(cramjam.snappy.compress_raw(plain))
        case "xerial":
            return xerial(plain)
        case "lz4":
            return lz4(plain)
        case "lz4-old":
            return lz4(plain, old=True)
        case _:
            return bytes(cramjam.zstd.compress(plain))


def message(
    offset: int,
    value: bytes | None,
    *,
    magic: int,
    timestamp: int = 1_000,
    key: bytes | None = None,
    attributes: int = 0,
) -> bytes:
    """Encode a message of format 0 or 1."""

    def field(content: bytes | None) -> bytes:
        return struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content

    stamp = struct.pack(">q", timestamp) if magic else b""
    body = struct.pack(">bb", magic, attributes) + stamp + field(key) + field(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(
    offsets: Sequence[int],
    *,
    magic: int,
    codec: str,
    timestamp: int = 1_000,
    value: bytes = b"v" * 40,
    wrapper_offset: int | None = None,
    inner: bytes | None = None,
) -> bytes:
    """Encode a compressed wrapper message of format 0 or 1 around messages with these absolute offsets.

    wrapper_offset: another than the last; inner: other inner messages than these.
    """
    base = offsets[0] if magic else 0
    plain = inner or b"".join(message(offset - base, value, magic=magic, timestamp=timestamp) for offset in offsets)
    offset = offsets[-1] if wrapper_offset is None else wrapper_offset
    return message(offset, compress(codec, plain), magic=magic, timestamp=timestamp, attributes=IDS[codec])


def varint(number: int) -> bytes:
    """Encode a zig-zag varint."""
    value = (number << 1) ^ (number >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(delta: int, value: bytes, timestamp_delta: int = 0) -> bytes:
    """Encode a record of format 2, without key and headers."""
    body = b"\x00" + varint(timestamp_delta) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(
    offset: int,
    deltas: Sequence[int],
    *,
    codec: str = "none",
    epoch: int = 0,
    timestamp: int = 1_000,
    value: bytes = b"v" * 40,
    last_delta: int | None = None,
    count: int | None = None,
    attributes: int = 0,
) -> bytes:
    """Encode a batch of format 2 with records at these deltas from its base offset."""
    plain = b"".join(record(delta, value) for delta in deltas)
    last = (deltas[-1] if deltas else 0) if last_delta is None else last_delta
    body = struct.pack(
        ">hiqqqhii",
        attributes | IDS[codec],
        last,
        timestamp,
        timestamp,
        -1,
        -1,
        -1,
        len(deltas) if count is None else count,
    ) + compress(codec, plain)
    return struct.pack(">qiibI", offset, len(body) + 9, epoch, 2, crc32c(body)) + body


def entry(magic: int, codec: str, first: int, count: int, *, timestamp: int = 1_000, value: bytes = b"v" * 40) -> bytes:
    """Encode a batch of any format and codec with consecutive offsets; plain formats 0 and 1: several messages."""
    offsets = range(first, first + count)
    if magic == 2:
        return batch(first, range(count), codec=codec, timestamp=timestamp, value=value)
    if codec == "none":
        return b"".join(message(offset, value, magic=magic, timestamp=timestamp) for offset in offsets)
    return wrapper(offsets, magic=magic, codec=codec, timestamp=timestamp, value=value)


def write_log(root: Path, *entries: bytes, base: int = 0, topic: str = "t") -> Path:
    """Write a segment's log with these entries to a log directory."""
    path = root / f"{topic}-0" / f"{base:020d}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(entries))
    return path
