"""Codecs as Kafka's clients write them, and the limit on decompressed bytes."""

import gzip

import cramjam
import pytest

from agent.kafka_log import codecs
from agent.kafka_log.codecs import UndecodableError, decompress, xxh32
from tests.kafka_log import writer

PLAIN = b"".join(bytes([n % 7, n % 11]) * 9 for n in range(4_000))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "xerial", "lz4", "zstd"])
def test_compressed_bytes_are_read_or_refused_if_cut_short(codec: str) -> None:
    name = {"xerial": "snappy"}.get(codec, codec)
    packed = writer.compress(codec, PLAIN)
    assert decompress(name, packed, magic=2) == PLAIN
    for end in (0, 3, 17, len(packed) // 2, len(packed) - 5):
        with pytest.raises(UndecodableError, match=name):
            decompress(name, packed[:end], magic=2)


def test_concatenated_xerial_streams_are_one_stream() -> None:
    """As SnappyInputStream reads them: a header may take the place of a block's length."""
    assert decompress("snappy", writer.xerial(b"first") + writer.xerial(b"second"), magic=1) == b"firstsecond"


def test_lz4_frame_with_content_size_and_block_checksums_is_read() -> None:
    descriptor = b"\x78\x40" + len(b"abcdef").to_bytes(8, "little")
    head = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    block = (6 | 0x80000000).to_bytes(4, "little") + b"abcdef" + b"\0\0\0\0"
    assert decompress("lz4", head + block + b"\0\0\0\0", magic=1) == b"abcdef"


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("flags", [0x60, 0x68])
def test_lz4_frame_cut_in_its_header_is_refused(flags: int, magic: int) -> None:
    """With and without the content's size: 15 and 7 bytes."""
    descriptor = bytes([flags, 0x40]) + (b"" if flags == 0x60 else (12).to_bytes(8, "little"))
    frame = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF]) + b"\0\0\0\0"
    assert decompress("lz4", frame, magic=magic) == b""
    for end in range(4, len(frame) - 4):
        with pytest.raises(UndecodableError, match=f"lz4: the frame ends in its header, after {end} bytes"):
            decompress("lz4", frame[:end], magic=magic)


def test_xxh32_matches_the_reference_implementation() -> None:
    assert (xxh32(b""), xxh32(b"a"), xxh32(b"abc")) == (0x02CC5D05, 0x550D7456, 0x32D153FF)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "xerial", "lz4"])
def test_output_above_the_limit_is_refused(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "MAX_DECOMPRESSED_BYTES", 1 << 20)
    packed = writer.compress(codec, bytes(2 << 20))
    with pytest.raises(UndecodableError, match="more than 1 MiB"):
        decompress({"xerial": "snappy"}.get(codec, codec), packed, magic=1)


def test_gzip_with_a_high_compression_ratio_is_read() -> None:
    """Above the ratio up to which the trailer's size is trusted."""
    assert decompress("gzip", gzip.compress(bytes(1 << 20)), magic=1) == bytes(1 << 20)


def test_unknown_codec_is_named_in_the_error() -> None:
    with pytest.raises(UndecodableError, match="unknown"):
        decompress("unknown", b"", magic=2)


def test_a_zstd_bomb_is_refused_without_being_unpacked() -> None:
    """64 KB that would be 2 GiB."""
    bomb = bytes(cramjam.zstd.compress(bytes(codecs.MAX_DECOMPRESSED_BYTES + 1)))
    assert len(bomb) < 65_536
    with pytest.raises(UndecodableError, match="more than 256 MiB"):
        decompress("zstd", bomb, magic=2)


@pytest.mark.parametrize("size", [0, 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 5 << 20])
def test_zstd_batches_of_all_sizes_are_decompressed(size: int) -> None:
    plain = b"record" * (size // 6) + b"x" * (size % 6)
    assert decompress("zstd", bytes(cramjam.zstd.compress(plain)), magic=2) == plain
