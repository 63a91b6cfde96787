"""What a format 2 batch holds, looked into on demand only: its CRC covers the records, so a fast scan trusts them."""

from agent.kafka_log.codecs import UndecodableError


def walk(unpacked: bytes, *, count: int, last_delta: int) -> tuple[tuple[int, int], ...]:
    """Where the offset deltas of a decompressed batch's records do not rise, as pairs.

    A record (org.apache.kafka.common.record.DefaultRecord) is its length, attributes (a byte), timestamp delta and
    offset delta, then key, value and headers; lengths and deltas are zig-zag varints. Raises UndecodableError where
    their number is not `count`, one of them is cut short, or a delta is above `last_delta`.
    """
    position, seen, before = 0, 0, -1
    falls: list[tuple[int, int]] = []
    end = len(unpacked)
    try:
        while position < end:
            length, position = _varint(unpacked, position)
            following = position + length
            if length < 6 or following > end:
                msg = f"record {seen} claims {length} bytes, {end - position} are there"
                raise UndecodableError(msg)
            _, position = _varint(unpacked, position + 1)
            delta, _ = _varint(unpacked, position)
            if delta <= before:
                falls.append((before, delta))
            before = delta
            if not 0 <= delta <= last_delta:
                msg = f"record {seen} has the offset delta {delta}, the batch's last is {last_delta}"
                raise UndecodableError(msg)
            seen += 1
            position = following
    except IndexError as error:
        msg = f"record {seen} is cut short"
        raise UndecodableError(msg) from error
    if seen != count:
        msg = f"{seen} records where the header says {count}"
        raise UndecodableError(msg)
    return tuple(falls)


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    """A zig-zag varint of at most ten bytes, and the position behind it. Raises IndexError at the end."""
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
