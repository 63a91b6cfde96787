"""Codecs as Kafka's clients write them, and the limits of what is decompressed."""

import gzip

import pytest

from agent.kafka_log import codecs
from agent.kafka_log.codecs import UndecodableError, decompress, xxh32
from tests.kafka_log import writer

PLAIN = b"".join(bytes([n % 7, n % 11]) * 9 for n in range(4_000))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "xerial", "lz4", "zstd"])
def test_what_was_compressed_comes_back(codec: str) -> None:
    """Whole, and refused where its end is missing."""
    name = {"xerial": "snappy"}.get(codec, codec)
    packed = writer.packed(codec, PLAIN)
    assert decompress(name, packed, magic=2) == PLAIN
    for end in (0, 3, 17, len(packed) // 2, len(packed) - 5):
        with pytest.raises(UndecodableError, match=name):
            decompress(name, packed[:end], magic=2)


def test_xerial_streams_glued_together_are_one() -> None:
    """As SnappyInputStream reads them: a header may stand where a block's length would."""
    assert decompress("snappy", writer.xerial(b"one") + writer.xerial(b"two"), magic=1) == b"onetwo"


def test_an_lz4_frame_may_name_its_size_and_hold_checksums() -> None:
    """Flags for a content size and for block checksums move what follows."""
    descriptor = b"\x78\x40" + len(b"abcdef").to_bytes(8, "little")
    head = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    block = (6 | 0x80000000).to_bytes(4, "little") + b"abcdef" + b"\0\0\0\0"
    assert decompress("lz4", head + block + b"\0\0\0\0", magic=1) == b"abcdef"


def test_xxh32_is_that_of_its_description() -> None:
    """Vectors of the reference implementation."""
    assert (xxh32(b""), xxh32(b"a"), xxh32(b"abc")) == (0x02CC5D05, 0x550D7456, 0x32D153FF)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "xerial", "lz4"])
def test_what_becomes_too_large_is_refused(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few KiB can become gigabytes."""
    monkeypatch.setattr(codecs, "MOST", 1 << 20)
    packed = writer.packed(codec, bytes(2 << 20))
    with pytest.raises(UndecodableError, match="more than 1 MiB"):
        decompress({"xerial": "snappy"}.get(codec, codec), packed, magic=1)


def test_gzip_of_high_ratio_is_read() -> None:
    """Beyond the ratio at which the trailer's size is trusted."""
    assert decompress("gzip", gzip.compress(bytes(1 << 20)), magic=1) == bytes(1 << 20)


def test_an_unknown_codec_is_named() -> None:
    """The attributes have room for seven."""
    with pytest.raises(UndecodableError, match="unknown"):
        decompress("unknown", b"", magic=2)
