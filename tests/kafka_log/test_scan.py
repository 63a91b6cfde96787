"""A segment's batches in every format and codec; every fault is reported once, at its byte, with its offsets."""

import io
import os
import struct

import pytest

from agent.kafka_log import Batch
from agent.kafka_log.faults import Fault
from agent.kafka_log.scan import scan
from tests.kafka_log import writer
from tests.kafka_log.writer import batch, entry, message, wrapper

FORMATS = [
    (magic, codec) for magic in (0, 1, 2) for codec in writer.CODECS if magic == 2 or codec in ("none", *writer.LEGACY)
]
COMPRESSED = [(magic, codec) for magic, codec in FORMATS if codec != "none" and magic < 2]


def read(
    raw: bytes, *, base_offset: int = 0, next_base: int | None = None, deep: bool = False
) -> tuple[list[Batch], list[Fault]]:
    """Return the batches and the faults of a segment, which is the active one if there is no next base."""
    found = list(
        scan(
            io.BytesIO(raw),
            len(raw),
            base_offset=base_offset,
            next_base=next_base,
            active=next_base is None,
            deep=deep,
        )
    )
    return [item for item in found if isinstance(item, Batch)], [item for item in found if isinstance(item, Fault)]


def read_fault(raw: bytes, *, base_offset: int = 0, next_base: int | None = None, deep: bool = False) -> Fault:
    """Return the only fault of a segment."""
    (fault,) = read(raw, base_offset=base_offset, next_base=next_base, deep=deep)[1]
    return fault


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_every_format_and_codec_is_read(magic: int, codec: str) -> None:
    raw = entry(2, "none", 90, 1) + entry(magic, codec, 100, 5, timestamp=5_000) + entry(1, "none", 110, 1)
    batches, faults = read(raw, deep=True)
    assert not faults
    assert sum(batch.records for batch in batches) == 7
    inside = batches[1:-1]
    assert (inside[0].first_offset, inside[-1].last_offset) == (100, 104)
    assert {batch.codec for batch in inside} == {{"xerial": "snappy"}.get(codec, codec)}
    assert {batch.timestamp for batch in inside} == {5_000 if magic else -1}
    assert [batch.position for batch in batches] == [0, *(batch.position + batch.size for batch in batches[:-1])]
    assert batches[-1].position + batches[-1].size == len(raw)


def test_format_2_header_is_read() -> None:
    raw = batch(500, [0, 3], epoch=17, timestamp=9_000, attributes=0x30)
    (header,), faults = read(raw)
    assert not faults
    (crc,) = struct.unpack_from(">I", raw, 17)
    assert header == Batch(0, len(raw), 2, "none", 500, 503, 2, 17, crc, 9_000, transactional=True, control=True)


def test_gaps_left_by_compaction_and_transactions_are_no_fault() -> None:
    raw = b"".join(
        [
            batch(10, [2, 7], last_delta=9),
            batch(40, [], last_delta=4),
            batch(60, [0], attributes=0x30),
            wrapper([100, 103, 109], magic=1, codec="gzip"),
            wrapper([120, 121, 140], magic=0, codec="snappy"),
        ]
    )
    batches, faults = read(raw, deep=True)
    assert not faults
    assert [(batch.first_offset, batch.last_offset) for batch in batches] == [
        (10, 19), (40, 44), (60, 60), (100, 109), (120, 140),
    ]  # fmt: skip


@pytest.mark.parametrize(("magic", "codec"), COMPRESSED)
def test_decrease_visible_only_inside_a_wrapper_is_found(magic: int, codec: str) -> None:
    """KAFKA-3919: a batch that straddles the log end offset is appended from its first record."""
    before = entry(magic, codec, 7_900, 100)
    straddling = entry(magic, codec, 7_852, 200, timestamp=3_000)
    behind = entry(magic, codec, 8_052, 10)
    fault = read_fault(before + straddling + behind, base_offset=7_000)
    assert (fault.label, fault.position, fault.size) == ("offsets_went_back", len(before), len(straddling))
    assert (fault.previous, fault.current) == ({"offset": 7_999}, {"offset": 7_852})
    assert fault.timestamp == (3_000 if magic else -1)
    assert "KAFKA-3919" in fault.kafka


@pytest.mark.parametrize(("magic", "codec"), COMPRESSED)
def test_decrease_within_a_batch_is_found(magic: int, codec: str) -> None:
    raw = wrapper([100, 101, 107, 104, 110], magic=magic, codec=codec)
    fault = read_fault(raw)
    assert (fault.label, fault.previous, fault.current) == ("offsets_went_back", {"offset": 107}, {"offset": 104})


def test_decrease_between_batches_is_reported_once() -> None:
    """The next batch is compared with the one that decreased, not with the highest offset so far."""
    raw = entry(2, "none", 0, 100) + entry(2, "none", 50, 10) + entry(2, "none", 60, 10) + entry(2, "none", 70, 60)
    fault = read_fault(raw, next_base=1_000)
    assert (fault.label, fault.previous, fault.current) == ("offsets_went_back", {"offset": 99}, {"offset": 50})


def test_old_lz4_header_checksum_is_legal_in_format_0_only() -> None:
    """KAFKA-3160: brokers ignore it in format 0; in format 1 and 2 it must be right."""
    assert not read(wrapper([4, 5], magic=0, codec="lz4-old"))[1]
    fault = read_fault(wrapper([4, 5], magic=1, codec="lz4-old"))
    assert fault.label == "undecodable"
    assert "KAFKA-3160" in fault.detail
    assert read_fault(batch(4, [0, 1], codec="lz4-old"), deep=True).label == "undecodable"


@pytest.mark.parametrize(("magic", "wrapper_offset"), [(0, 109), (0, 90), (1, 3)])
def test_wrapper_offset_that_contradicts_messages_is_undecodable(magic: int, wrapper_offset: int) -> None:
    """Format 0: the last inner message has the same offset; format 1: the last relative offset is not above it."""
    raw = wrapper(range(100, 106), magic=magic, codec="gzip", wrapper_offset=wrapper_offset)
    assert read_fault(raw).label == "undecodable"


def test_format_1_wrapper_at_offset_0_holds_absolute_offsets() -> None:
    """As some versions of librdkafka wrote it, and as DeepRecordsIterator reads it."""
    (batch,), faults = read(wrapper([0, 1, 2], magic=1, codec="snappy", wrapper_offset=0))
    assert not faults
    assert (batch.first_offset, batch.last_offset) == (0, 2)


def test_wrong_checksum_inside_a_good_wrapper_is_found() -> None:
    """The outer checksum covers the compressed bytes, which may have been wrong before."""
    inner = bytearray(b"".join(message(offset, b"value", magic=1) for offset in range(3)))
    inner[-1] ^= 1
    fault = read_fault(wrapper([10, 11, 12], magic=1, codec="gzip", inner=bytes(inner)))
    assert (fault.label, fault.current["offset"]) == ("crc_mismatch", 12)
    assert fault.current["crc"] != fault.previous["crc"]


@pytest.mark.parametrize(
    "raw",
    [
        wrapper([3], magic=1, codec="gzip", inner=message(0, b"v", magic=1)[:-1]),
        wrapper([3], magic=1, codec="gzip", inner=message(0, b"v", magic=1) + b"\0" * 5),
        wrapper([3], magic=1, codec="gzip", inner=wrapper([0], magic=1, codec="gzip")),
        message(3, b"not gzip", magic=1, attributes=1),
        message(3, b"not snappy", magic=0, attributes=2),
        message(3, b"not lz4", magic=0, attributes=3),
        message(3, b"", magic=0, attributes=3),
        message(3, writer.compress("zstd", b"x"), magic=1, attributes=4),
        message(3, b"no such codec", magic=1, attributes=7),
        message(3, None, magic=1, attributes=1),
        message(3, writer.compress("gzip", b""), magic=1, attributes=1),
        batch(3, [0], attributes=6),
        batch(3, [0, 1], count=7),
        batch(3, [], count=-1),
        batch(3, [0], last_delta=-2),
    ],
)
def test_unreadable_content_with_a_good_checksum_is_undecodable(raw: bytes) -> None:
    batches, (fault,) = read(raw + entry(2, "none", 20, 1))
    assert (fault.label, fault.position, fault.size) == ("undecodable", 0, len(raw))
    assert [batch.last_offset for batch in batches] == [3, 20]


@pytest.mark.parametrize(
    ("raw", "label"),
    [
        (batch(3, [0, 2, 1, 3], last_delta=3), "offsets_went_back"),
        (batch(3, [0, 1], count=1), "undecodable"),
        (batch(3, [0, 1], count=3, last_delta=5), "undecodable"),
        (batch(3, [0, 9], last_delta=4), "undecodable"),
    ],
)
def test_format_2_records_are_checked_on_demand(raw: bytes, label: str) -> None:
    assert not read(raw)[1]
    assert read_fault(raw, deep=True).label == label


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_flipped_bit_costs_one_batch(magic: int) -> None:
    parts = [entry(magic, "gzip", first, 10, value=os.urandom(50)) for first in (0, 10, 20)]
    for number, position in ((1, len(parts[0])), (2, len(parts[0]) + len(parts[1]))):
        raw = bytearray(b"".join(parts))
        raw[position + 70] ^= 4
        batches, (fault,) = read(bytes(raw), next_base=100)
        assert (fault.label, fault.position, fault.size) == ("crc_mismatch", position, len(parts[number]))
        assert [batch.first_offset for batch in batches] == [first for first in (0, 10, 20) if first != number * 10]
    assert read_fault(bytes(raw)).label == "torn_tail"


def test_zeros_are_legal_only_at_the_end_of_an_active_segment() -> None:
    """log.preallocate fills an active segment with zeros; a broker truncates them when it rolls."""
    first, second = entry(2, "none", 0, 10), entry(2, "none", 10, 10)
    zeros = bytes(5_000)
    assert not read(first + zeros)[1]
    assert not read(zeros)[1]
    sealed = read_fault(first + zeros, next_base=10)
    assert (sealed.label, sealed.position, sealed.size) == ("zeros", len(first), 5_000)
    between = read_fault(first + zeros + second)
    assert (between.label, between.position, between.size) == ("zeros", len(first), 5_000)
    assert (between.previous, between.current) == ({"offset": 9}, {"next_offset": 10})


def test_torn_batch_before_preallocated_zeros_is_a_torn_tail() -> None:
    first, second = entry(1, "gzip", 0, 10), entry(1, "gzip", 10, 10)
    fault = read_fault(first + second[:-20] + bytes(2_000))
    assert (fault.label, fault.position) == ("torn_tail", len(first))


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_inside_a_torn_wrapper_are_no_batches(magic: int) -> None:
    """Snappy stores what it cannot compress: whole messages with correct checksums."""
    inner = b"".join(message(10 + n if not magic else n, os.urandom(100), magic=magic) for n in range(20))
    torn = wrapper(range(10, 30), magic=magic, codec="snappy", inner=inner)[:-50]
    fault = read_fault(torn, base_offset=0)
    assert (fault.label, fault.position, fault.size) == ("torn_tail", 0, len(torn))


def test_offsets_outside_the_segment_are_reported_once_per_range() -> None:
    """Below the base, in the range of the next segment, or too far above the base for an index."""
    inside = [entry(2, "none", 100, 10), entry(2, "none", 110, 10)]
    for first in (50, 500):
        strays = entry(2, "none", first, 10) + entry(2, "none", first + 10, 10)
        batches, (fault,) = read(inside[0] + strays + inside[1], base_offset=100, next_base=200)
        assert len(batches) == 4
        assert (fault.label, fault.position, fault.size) == ("outside_segment", len(inside[0]), len(strays))
        assert fault.current == {"offset": first, "last_offset": first + 19}
    assert read_fault(entry(2, "none", 100 + 2**31, 1), base_offset=100).label == "outside_segment"
    assert not read(entry(2, "none", 99 + 2**31, 1), base_offset=100)[1]


class Counting(io.BytesIO):
    """A file that records the largest read."""

    largest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        taken = super().read(size)
        self.largest = max(self.largest, len(taken))
        return taken


def test_huge_batch_or_corrupt_length_is_not_loaded_whole() -> None:
    """Memory stays bounded by the largest batch that is loaded, 64 MiB, whatever a header says."""
    good = entry(2, "none", 0, 1)
    huge = batch(1, [0], value=bytes(70 << 20))
    claims = bytearray(entry(2, "none", 2, 1))
    claims[8:12] = struct.pack(">i", 60 << 20)
    file = Counting(good + huge + bytes(claims) + entry(2, "none", 3, 1))
    found = list(scan(file, len(file.getvalue()), base_offset=0, next_base=4, active=False))
    assert [item.first_offset if isinstance(item, Batch) else item.label for item in found] == [0, 1, "garbage", 3]
    assert file.largest <= 8 << 20


def test_file_shorter_than_its_listed_size_ends_early() -> None:
    raw = entry(2, "none", 0, 10) + entry(2, "none", 10, 10)
    found = list(scan(io.BytesIO(raw), 10 * len(raw), base_offset=0, next_base=None, active=True))
    assert [item.first_offset for item in found if isinstance(item, Batch)] == [0, 10]
    assert not [item for item in found if isinstance(item, Fault)]


def test_scan_can_begin_at_any_batch() -> None:
    first = entry(2, "none", 0, 10)
    raw = first + entry(2, "none", 10, 10)
    (batch_,) = scan(io.BytesIO(raw), len(raw), base_offset=0, next_base=None, active=True, start=len(first))
    assert isinstance(batch_, Batch)
    assert (batch_.position, batch_.first_offset) == (len(first), 10)
