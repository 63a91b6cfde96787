"""Compression codecs of Kafka's batches and wrapper messages, as clients and brokers write them.

Bytes in, bytes out; the decompressed content is decoded by `agent.kafka_log.format01` and `format2`.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache

import cramjam

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the lowest three bits of the attributes (org.apache.kafka.common.record.CompressionType); zstd since format 2."""

CODEC_NAMES = (*CODECS, *["unknown"] * (8 - len(CODECS)))
"""The name of every value of those three bits."""

MAX_DECOMPRESSED_BYTES = 256 << 20
"""A batch that decompresses to more is a fault of its writer and is not loaded."""

_ZSTD_BUFFER_BYTES = 256 << 10
_BUFFER_TOO_SMALL = "failed to write whole buffer"
"""What cramjam 2 says if a buffer is too small, as opposed to what is wrong with the bytes."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_XERIAL_NEXT_STREAM = -0x7DACB1BF  # b"\x82SNA" in place of a block's length: another stream was appended
_LZ4_MAGIC = 0x184D2204
_LZ4_HEADER_BYTES, _LZ4_SIZED_BYTES = 7, 15
_LZ4_HAS_SIZE = 0x08  # of the content, which the header then has
_LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_UNCOMPRESSED_BLOCK = 0x80000000
_be_int = struct.Struct(">i").unpack_from
_le_uint = struct.Struct("<I").unpack_from
_WORD = 0xFFFFFFFF


class UndecodableError(ValueError):
    """Compressed bytes, or the records in them, cannot be decoded; the message says why."""


def decompress(codec: str, compressed: bytes, *, magic: int) -> bytes:
    """Decompress the content of a batch of format `magic` with one of CODECS. Raises UndecodableError."""
    try:
        return _DECOMPRESSORS[codec](compressed, magic)
    except KeyError as error:
        msg = f"codec {codec} is not supported"
        raise UndecodableError(msg) from error
    except (cramjam.DecompressionError, zlib.error, struct.error, ValueError, OverflowError) as error:
        msg = f"{codec}: {error}"
        raise UndecodableError(msg) from error


def _too_large(size: int) -> ValueError:
    return ValueError(f"decompresses to more than {MAX_DECOMPRESSED_BYTES >> 20} MiB ({size} bytes)")


def _gzip(compressed: bytes, _magic: int) -> bytes:
    # The trailer's length (RFC 1952, ISIZE) is used only to refuse what is too large to be loaded: cramjam's
    # decompressor is twice as fast as zlib's but has no limit.
    trusted = min(MAX_DECOMPRESSED_BYTES, 64 * len(compressed))
    if len(compressed) >= 18 and _le_uint(compressed, len(compressed) - 4)[0] <= trusted:
        return bytes(cramjam.gzip.decompress(compressed))
    stream = zlib.decompressobj(31)
    plain = stream.decompress(compressed, MAX_DECOMPRESSED_BYTES + 1)
    if len(plain) > MAX_DECOMPRESSED_BYTES:
        raise _too_large(len(plain))
    if not stream.eof:
        msg = "the stream ends too early"
        raise ValueError(msg)
    return plain


def _snappy_raw(compressed: bytes) -> bytes:
    size = cramjam.snappy.decompress_raw_len(compressed)
    if size > MAX_DECOMPRESSED_BYTES:
        raise _too_large(size)
    return bytes(cramjam.snappy.decompress_raw(compressed))


def _snappy(compressed: bytes, _magic: int) -> bytes:
    # org.xerial.snappy.SnappyInputStream: a header of magic, version and least compatible version, then blocks with
    # their length. Without the header it is one raw block, as librdkafka and others write it.
    if compressed[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_raw(compressed)
    position, total = _XERIAL_HEADER_BYTES, 0
    blocks: list[bytes] = []
    while position < len(compressed):
        (length,) = _be_int(compressed, position)
        if length == _XERIAL_NEXT_STREAM:
            position += _XERIAL_HEADER_BYTES
            continue
        position += 4
        if length < 0 or position + length > len(compressed):
            msg = f"a block of {length} bytes has only {len(compressed) - position} left"
            raise ValueError(msg)
        blocks.append(_snappy_raw(compressed[position : position + length]))
        total += len(blocks[-1])
        if total > MAX_DECOMPRESSED_BYTES:
            raise _too_large(total)
        position += length
    return b"".join(blocks)


def _lz4(compressed: bytes, magic: int) -> bytes:
    """Decompress an LZ4 frame of independent blocks, as org.apache.kafka.common.record.KafkaLZ4BlockInputStream does.

    Until 0.10 Kafka's clients computed the header's checksum over the frame's magic too (KAFKA-3160): in format 0
    brokers and clients ignore it, from format 1 on it must be right.
    """
    if _le_uint(compressed, 0)[0] != _LZ4_MAGIC:
        msg = "not an LZ4 frame"
        raise ValueError(msg)
    if len(compressed) < _LZ4_HEADER_BYTES or (compressed[4] & _LZ4_HAS_SIZE and len(compressed) < _LZ4_SIZED_BYTES):
        msg = f"the frame ends in its header, after {len(compressed)} bytes"
        raise ValueError(msg)
    flags, block_descriptor = compressed[4], compressed[5]
    if flags >> 6 != 1 or not flags & 0x20 or flags & 0x03:
        msg = f"Kafka does not support the frame flags {flags:#04x}"
        raise ValueError(msg)
    max_block_bytes = _LZ4_BLOCK_BYTES.get(block_descriptor >> 4)
    if max_block_bytes is None:
        msg = f"the block descriptor {block_descriptor:#04x} has no valid size"
        raise ValueError(msg)
    position = (_LZ4_SIZED_BYTES if flags & _LZ4_HAS_SIZE else _LZ4_HEADER_BYTES) - 1
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
        uncompressed, length = length & _UNCOMPRESSED_BLOCK, length & ~_UNCOMPRESSED_BLOCK
        if length > max_block_bytes or position + length > len(compressed):
            msg = f"a block of {length} bytes has only {len(compressed) - position} left"
            raise ValueError(msg)
        block = compressed[position : position + length]
        blocks.append(block if uncompressed else _lz4_block(block, max_block_bytes))
        total += len(blocks[-1])
        if total > MAX_DECOMPRESSED_BYTES:
            raise _too_large(total)
        position += length + (4 if flags & 0x10 else 0)


def _lz4_block(block: bytes, max_bytes: int) -> bytes:
    # Into a buffer, because decompress_block() pads its result to the length given to it.
    plain = bytearray(max_bytes)
    size: int = cramjam.lz4.decompress_block_into(block, plain)
    return bytes(memoryview(plain)[:size])


def _zstd(compressed: bytes, magic: int) -> bytes:
    if magic < 2:
        msg = "not allowed below message format 2 (KIP-110)"
        raise ValueError(msg)
    # Into a buffer, because decompress() has no limit, and Kafka's clients leave the size out of the frame's header.
    size = min(max(_ZSTD_BUFFER_BYTES, 16 * len(compressed)), MAX_DECOMPRESSED_BYTES)
    while True:
        plain = bytearray(size)
        try:
            written: int = cramjam.zstd.decompress_into(compressed, plain)
        except cramjam.DecompressionError as error:
            if _BUFFER_TOO_SMALL not in str(error):
                raise
            if size == MAX_DECOMPRESSED_BYTES:
                raise _too_large(size + 1) from error
            size = min(16 * size, MAX_DECOMPRESSED_BYTES)
        else:
            return bytes(memoryview(plain)[:written])


_DECOMPRESSORS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "none": lambda plain, _magic: plain,
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": _zstd,
}


@lru_cache(maxsize=256)
def xxh32(descriptor: bytes) -> int:
    """Return XXH32 with seed 0 of fewer than 16 bytes: an LZ4 frame descriptor has 2 or 10."""
    digest = (374761393 + len(descriptor)) & _WORD
    aligned = len(descriptor) // 4 * 4
    for (lane,) in struct.iter_unpack("<I", descriptor[:aligned]):
        digest = (digest + lane * 3266489917) & _WORD
        digest = ((digest << 17 | digest >> 15) * 668265263) & _WORD
    for byte in descriptor[aligned:]:
        digest = (digest + byte * 374761393) & _WORD
        digest = ((digest << 11 | digest >> 21) * 2654435761) & _WORD
    digest = ((digest ^ digest >> 15) * 2246822519) & _WORD
    digest = ((digest ^ digest >> 13) * 3266489917) & _WORD
    return digest ^ digest >> 16
