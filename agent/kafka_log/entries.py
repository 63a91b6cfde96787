"""One entry of a log decoded and checked for itself: checksum, header, and what a compressed wrapper holds.

Layouts: org.apache.kafka.common.record.LegacyRecord (formats 0 and 1) and DefaultRecordBatch (format 2). How entries
follow each other is the matter of `agent.kafka_log.scan`.
"""

import struct
from zlib import crc32

from crc32c import crc32c

from agent.kafka_log import Batch, Fault, consequences, messages, records
from agent.kafka_log.codecs import CODECS, UndecodableError, decompress
from agent.kafka_log.window import HEAD, LEAST_LENGTHS, MOST_HELD, Window, head

# A format 2 batch from its CRC on: CRC, attributes, last offset delta, base timestamp, largest timestamp, producer id,
# producer epoch, base sequence, number of records.
_batch_head = struct.Struct(">Ihiqqqhii").unpack_from
_epoch = struct.Struct(">i").unpack_from
_long = struct.Struct(">q").unpack_from
_int = struct.Struct(">i").unpack_from
_MOST_OFFSET = (1 << 63) - 1  # what is larger, by garbage that a checksum does not cover, is as good as this


def entry(window: Window, position: int, faults: list[Fault], *, deep: bool = False) -> Batch | None:
    """The entry at a position; None where none stands there whose checksum is right.

    faults: where to add what is wrong inside it. deep: look into the records of a format 2 batch too.
    """
    left = window.size - position
    if left < HEAD:
        return None
    at = position - window.start
    if at + 61 > len(window.bytes):
        at = window.cover(position, 61)
    offset, length, stored, magic, attributes = head(window.bytes, at)
    if not 0 <= magic <= 2 or length < LEAST_LENGTHS[magic] or length + 12 > left:
        return None
    size = length + 12
    if size > MOST_HELD:
        return _large(window, position, size, faults)
    if at + size > len(window.bytes):
        at = window.cover(position, size)
    if position + size > window.size:
        return None  # cut while it was read: what is held of it is filled up with zeros
    if magic == 2:
        if crc32c(window.view[at + 21 : at + size]) != _int(window.bytes, at + 17)[0] & 0xFFFFFFFF:
            return None
        batch = _batch(window.bytes, at, position, size, faults)
        if deep and batch.records and not faults:
            _look_into(batch, window.bytes[at + 61 : at + size], faults)
        return batch
    if crc32(window.view[at + 16 : at + size]) != stored:
        return None
    timestamp = _long(window.bytes, at + 18)[0] if magic else -1
    codec = attributes & 7
    if not codec:
        return Batch(position, size, magic, "none", offset, offset, 1, -1, stored, timestamp)
    name = CODECS[codec] if codec < len(CODECS) else "unknown"
    wrapper = Batch(position, size, magic, name, offset, offset, 0, -1, stored, timestamp)
    return _unwrap(wrapper, window.bytes[at : at + size], faults)


def _batch(raw: bytes, at: int, position: int, size: int, faults: list[Fault]) -> Batch:
    """A format 2 batch by its header."""
    offset, (epoch,) = _long(raw, at)[0], _epoch(raw, at + 12)
    crc, flags, last_delta, _, timestamp, _, _, _, count = _batch_head(raw, at + 17)
    codec = flags & 7
    sane = codec < len(CODECS) and 0 <= count <= last_delta + 1 and last_delta >= 0
    batch = Batch(
        position,
        size,
        2,
        CODECS[codec] if codec < len(CODECS) else "unknown",
        offset,
        min(offset + last_delta, _MOST_OFFSET) if sane else offset,
        count if sane else 0,
        epoch,
        crc & 0xFFFFFFFF,
        timestamp,
        flags & 0x10 != 0,
        flags & 0x20 != 0,
    )
    if not sane:
        detail = f"the header says codec {codec}, {count} records and a last offset delta of {last_delta}"
        _undecodable(batch, detail, faults)
    return batch


def _large(window: Window, position: int, size: int, faults: list[Fault]) -> Batch | None:
    """An entry that is too large to be held: its checksum is taken piece by piece, its inside is not looked into."""
    if not window.holds_entry(position):
        return None
    at = window.cover(position, 61)
    offset, _, stored, magic, attributes = head(window.bytes, at)
    if magic == 2:
        return _batch(window.bytes, at, position, size, faults)
    timestamp = _long(window.bytes, at + 18)[0] if magic else -1
    codec = CODECS[attributes & 7] if attributes & 7 < len(CODECS) else "unknown"
    batch = Batch(position, size, magic, codec, offset, offset, 1, -1, stored, timestamp)
    if attributes & 7:
        _undecodable(batch, f"{size} bytes, more than the {MOST_HELD} that are looked into", faults)
    return batch


def _unwrap(wrapper: Batch, raw: bytes, faults: list[Fault]) -> Batch:
    """A wrapper of format 0 or 1 with what its inner messages tell: its first offset and how many they are."""
    offset = wrapper.last_offset
    try:
        inner = messages.walk(decompress(wrapper.codec, _value(raw, wrapper.magic), magic=wrapper.magic))
    except UndecodableError as error:
        _undecodable(wrapper, str(error), faults)
        return wrapper
    # In format 1 inner offsets count from the batch's own base; where the wrapper says 0 they are absolute, as some
    # versions of librdkafka wrote it (AbstractLegacyRecordBatch.DeepRecordsIterator).
    base = offset - inner.last if wrapper.magic and offset else 0
    if base < 0 or (not wrapper.magic and inner.last != offset):
        detail = f"the wrapper's offset is {offset}, that of its last inner message {inner.last}"
        _undecodable(wrapper, detail, faults)
        return wrapper
    first = min(base + inner.first, _MOST_OFFSET)
    batch = wrapper._replace(first_offset=first, last_offset=base + inner.last, records=inner.records)
    if inner.falls:
        falls = tuple((base + before, base + after) for before, after in inner.falls)
        faults.append(_fell(batch, falls))
    if inner.bad:
        relative, stored, computed = inner.bad
        faults.append(
            Fault(
                "crc_mismatch",
                batch.position,
                batch.size,
                {"offset": base + relative, "crc": stored},
                {"offset": base + relative, "crc": computed},
                batch.timestamp,
                f"inside the {batch.codec} batch the message at offset {base + relative} has a wrong checksum",
                consequences.INNER_CORRUPT,
            )
        )
    return batch


def _value(raw: bytes, magic: int) -> bytes:
    """The value of a message of format 0 or 1. Raises UndecodableError where it is null or its length is wrong."""
    at = 18 + 8 * magic
    try:
        at += 4 + max(_int(raw, at)[0], 0)
        (length,) = _int(raw, at)
    except struct.error as error:
        msg = "the key's length is larger than the message"
        raise UndecodableError(msg) from error
    if length < 0 or at + 4 + length != len(raw):
        msg = f"the value's length is {length}, {len(raw) - at - 4} bytes are there"
        raise UndecodableError(msg)
    return raw[at + 4 :]


def _look_into(batch: Batch, packed: bytes, faults: list[Fault]) -> None:
    """Check the records of a format 2 batch."""
    try:
        unpacked = decompress(batch.codec, packed, magic=2)
        falls = records.walk(unpacked, count=batch.records, last_delta=batch.last_offset - batch.first_offset)
    except UndecodableError as error:
        _undecodable(batch, str(error), faults)
        return
    if falls:
        base = batch.first_offset
        faults.append(_fell(batch, tuple((base + before, base + after) for before, after in falls)))


def _fell(batch: Batch, falls: tuple[tuple[int, int], ...]) -> Fault:
    before, after = falls[0]
    more = f", and at {len(falls) - 1} more places" if len(falls) > 1 else ""
    return Fault(
        "offsets_went_back",
        batch.position,
        batch.size,
        {"offset": before},
        {"offset": after},
        batch.timestamp,
        f"inside the {batch.codec} batch offset {after:,} comes after {before:,}{more}",
        consequences.INNER_WENT_BACK,
    )


def _undecodable(batch: Batch, detail: str, faults: list[Fault]) -> None:
    faults.append(
        Fault(
            "undecodable",
            batch.position,
            batch.size,
            {},
            {"offset": batch.last_offset, "codec": batch.codec},
            batch.timestamp,
            detail,
            consequences.UNDECODABLE,
        )
    )
