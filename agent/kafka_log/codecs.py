"""The codecs of Kafka's compressed batches and wrapper messages, as its clients and brokers write them.

Only bytes in, bytes out: what stands in those bytes is the matter of `agent.kafka_log.messages` and `.records`.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache

import cramjam

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the lowest three bits of the attributes (org.apache.kafka.common.record.CompressionType); zstd since format 2."""

MOST = 256 << 20
"""Bytes that one batch may become when it is decompressed; more is a fault of its writer, not loaded."""

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_XERIAL_AGAIN = -0x7DACB1BF  # b"\x82SNA" where a block's length would stand: a stream glued to the one before it
_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_PLAIN_BLOCK = 0x80000000
_be_int = struct.Struct(">i").unpack_from
_le_uint = struct.Struct("<I").unpack_from
_WORD = 0xFFFFFFFF


class UndecodableError(ValueError):
    """Compressed bytes, or the records in them, cannot be read; a sentence saying what is wrong with them."""


def decompress(codec: str, compressed: bytes, *, magic: int) -> bytes:
    """What was compressed by one of CODECS, in a batch of the format `magic`. Raises UndecodableError."""
    try:
        return _CODECS[codec](compressed, magic)
    except KeyError as error:
        msg = f"the codec {codec} is not known"
        raise UndecodableError(msg) from error
    except (cramjam.DecompressionError, zlib.error, struct.error, ValueError, OverflowError) as error:
        msg = f"{codec}: {error}"
        raise UndecodableError(msg) from error


def _too_much(size: int) -> ValueError:
    return ValueError(f"becomes more than {MOST >> 20} MiB when decompressed ({size} bytes)")


def _gzip(compressed: bytes, _magic: int) -> bytes:
    # The trailer's length (RFC 1952, ISIZE) is only looked at to refuse what is too large to be loaded: cramjam's
    # decompressor is twice as fast as zlib's but cannot be given a limit.
    if len(compressed) >= 18 and _le_uint(compressed, len(compressed) - 4)[0] <= min(MOST, 64 * len(compressed)):
        return bytes(cramjam.gzip.decompress(compressed))
    stream = zlib.decompressobj(31)
    whole = stream.decompress(compressed, MOST + 1)
    if len(whole) > MOST:
        raise _too_much(len(whole))
    if not stream.eof:
        msg = "the stream ends too early"
        raise ValueError(msg)
    return whole


def _snappy_raw(compressed: bytes) -> bytes:
    size = cramjam.snappy.decompress_raw_len(compressed)
    if size > MOST:
        raise _too_much(size)
    return bytes(cramjam.snappy.decompress_raw(compressed))


def _snappy(compressed: bytes, _magic: int) -> bytes:
    # org.xerial.snappy.SnappyInputStream: a header of magic, version and least compatible version, then blocks with
    # their length; without the header it is one raw block, as librdkafka and others write it.
    if compressed[: len(_XERIAL)] != _XERIAL:
        return _snappy_raw(compressed)
    position, total = _XERIAL_HEADER, 0
    blocks: list[bytes] = []
    while position < len(compressed):
        (length,) = _be_int(compressed, position)
        if length == _XERIAL_AGAIN:
            position += _XERIAL_HEADER
            continue
        position += 4
        if length < 0 or position + length > len(compressed):
            msg = f"a block of {length} bytes, of which {len(compressed) - position} are there"
            raise ValueError(msg)
        blocks.append(_snappy_raw(compressed[position : position + length]))
        total += len(blocks[-1])
        if total > MOST:
            raise _too_much(total)
        position += length
    return b"".join(blocks)


def _lz4(compressed: bytes, magic: int) -> bytes:
    """An LZ4 frame as org.apache.kafka.common.record.KafkaLZ4BlockInputStream reads it: independent blocks only.

    Until 0.10 Kafka's clients computed the header's checksum over the frame's magic too (KAFKA-3160): in format 0
    brokers and clients ignore it, from format 1 on it must be right.
    """
    if _le_uint(compressed, 0)[0] != _LZ4_MAGIC:
        msg = "no frame begins here"
        raise ValueError(msg)
    flags, block_descriptor = compressed[4], compressed[5]
    if flags >> 6 != 1 or not flags & 0x20 or flags & 0x03:
        msg = f"frame flags {flags:#04x} that Kafka does not support"
        raise ValueError(msg)
    most = _LZ4_BLOCK_BYTES.get(block_descriptor >> 4)
    if most is None:
        msg = f"block descriptor {block_descriptor:#04x} names no size"
        raise ValueError(msg)
    position = 14 if flags & 0x08 else 6
    if magic and compressed[position] != xxh32(compressed[4:position]) >> 8 & 0xFF:
        msg = "the frame header's checksum is wrong (as written before KAFKA-3160; legal in message format 0 only)"
        raise ValueError(msg)
    position += 1
    total = 0
    blocks: list[bytes] = []
    while True:
        (length,) = _le_uint(compressed, position)
        position += 4
        if not length:
            return b"".join(blocks)
        plain, length = length & _PLAIN_BLOCK, length & ~_PLAIN_BLOCK
        if length > most or position + length > len(compressed):
            msg = f"a block of {length} bytes, of which {len(compressed) - position} are there"
            raise ValueError(msg)
        block = compressed[position : position + length]
        blocks.append(block if plain else _lz4_block(block, most))
        total += len(blocks[-1])
        if total > MOST:
            raise _too_much(total)
        position += length + (4 if flags & 0x10 else 0)


def _lz4_block(block: bytes, most: int) -> bytes:
    # Into a buffer, because decompress_block() fills what it returns up to the length given to it.
    plain = bytearray(most)
    size: int = cramjam.lz4.decompress_block_into(block, plain)
    return bytes(memoryview(plain)[:size])


def _zstd(compressed: bytes, magic: int) -> bytes:
    if magic < 2:
        msg = "not allowed below message format 2 (KIP-110)"
        raise ValueError(msg)
    return bytes(cramjam.zstd.decompress(compressed))


_CODECS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "none": lambda plain, _magic: plain,
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": _zstd,
}


@lru_cache(maxsize=256)
def xxh32(head: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes: an LZ4 frame's descriptor has 2 or 10, of a handful of values."""
    digest = (374761393 + len(head)) & _WORD
    whole = len(head) // 4 * 4
    for (lane,) in struct.iter_unpack("<I", head[:whole]):
        digest = (digest + lane * 3266489917) & _WORD
        digest = ((digest << 17 | digest >> 15) * 668265263) & _WORD
    for byte in head[whole:]:
        digest = (digest + byte * 374761393) & _WORD
        digest = ((digest << 11 | digest >> 21) * 2654435761) & _WORD
    digest = ((digest ^ digest >> 15) * 2246822519) & _WORD
    digest = ((digest ^ digest >> 13) * 3266489917) & _WORD
    return digest ^ digest >> 16
