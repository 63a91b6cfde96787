"""Record batches of format 2 (Kafka 0.11 and later): their header, and the offsets of the records inside.

Layouts: org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord (KIP-98).
"""

import struct

from agent.kafka_log import MAX_OFFSET, Batch
from agent.kafka_log.codecs import CODEC_NAMES, CODECS, UndecodableError, decompress
from agent.kafka_log.faults import Fault, inner_offsets_decrease, undecodable

HEADER_BYTES = 61
"""DefaultRecordBatch.RECORD_BATCH_OVERHEAD: the bytes before the records."""

# The header from its CRC on: CRC, attributes, last offset delta, base timestamp, largest timestamp, producer id,
# producer epoch, base sequence, number of records.
_from_crc = struct.Struct(">Ihiqqqhii").unpack_from
_offset_length_epoch = struct.Struct(">qii").unpack_from


def decode_header(raw: bytes, at: int, position: int, size: int, faults: list[Fault]) -> Batch:
    """Decode the batch header at `at` of `raw`; add a fault if its fields contradict each other.

    position, size: of the batch in its file, bytes.
    """
    offset, _, epoch = _offset_length_epoch(raw, at)
    crc, flags, last_delta, _, timestamp, _, _, _, count = _from_crc(raw, at + 17)
    codec = flags & 7
    is_sane = codec < len(CODECS) and 0 <= count <= last_delta + 1 and last_delta >= 0
    batch = Batch(
        position,
        size,
        2,
        CODEC_NAMES[codec],
        offset,
        min(offset + last_delta, MAX_OFFSET) if is_sane else offset,
        count if is_sane else 0,
        epoch,
        crc,
        timestamp,
        flags & 0x10 != 0,
        flags & 0x20 != 0,
    )
    if not is_sane:
        detail = f"the header has codec {codec}, {count} records and a last offset delta of {last_delta}"
        faults.append(undecodable(batch, detail))
    return batch


def check_records(batch: Batch, compressed: bytes, faults: list[Fault]) -> None:
    """Decode a batch's records and add a fault if their offsets decrease or they cannot be decoded."""
    try:
        decreases = find_decreases(
            decompress(batch.codec, compressed, magic=2),
            count=batch.records,
            last_delta=batch.last_offset - batch.first_offset,
        )
    except UndecodableError as error:
        faults.append(undecodable(batch, str(error)))
        return
    if decreases:
        base = batch.first_offset
        faults.append(inner_offsets_decrease(batch, [(base + before, base + after) for before, after in decreases]))


def find_decreases(records: bytes, *, count: int, last_delta: int) -> list[tuple[int, int]]:
    """Return the offset deltas of a decompressed batch's records that do not increase, as (previous, next) pairs.

    A record (DefaultRecord) is its length, attributes (a byte), timestamp delta and offset delta, then key, value and
    headers; lengths and deltas are zig-zag varints. Raises UndecodableError if there are not `count` records, one is
    incomplete, or a delta is above `last_delta`.
    """
    position, number, previous = 0, 0, -1
    decreases: list[tuple[int, int]] = []
    end = len(records)
    try:
        while position < end:
            length, position = _read_varint(records, position)
            next_position = position + length
            if length < 6 or next_position > end:
                msg = f"record {number} has a length of {length} bytes, but {end - position} are left"
                raise UndecodableError(msg)
            _, position = _read_varint(records, position + 1)
            delta, _ = _read_varint(records, position)
            if delta <= previous:
                decreases.append((previous, delta))
            previous = delta
            if not 0 <= delta <= last_delta:
                msg = f"record {number} has the offset delta {delta}, the batch's last is {last_delta}"
                raise UndecodableError(msg)
            number += 1
            position = next_position
    except IndexError as error:
        msg = f"record {number} is incomplete"
        raise UndecodableError(msg) from error
    if number != count:
        msg = f"the batch holds {number} records, its header says {count}"
        raise UndecodableError(msg)
    return decreases


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    """Return a zig-zag varint of at most ten bytes and the position after it. Raises IndexError at the end."""
    byte = raw[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), position + 1
        shift += 7
        if shift > 63:
            msg = "a varint of more than ten bytes"
            raise UndecodableError(msg)
