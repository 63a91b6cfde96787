"""Decoding records of `__consumer_offsets`, against a writer of its own and bytes of real brokers."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.batches import CommitKey
from agent.sources.kafka.tail.records import (
    GroupKey,
    UndecodableError,
    decode_key,
    decode_values,
    encode_key,
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
offsets = st.integers(0, 2**63 - 1)
timestamps = st.integers(0, 2**45)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def unsigned_varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def value(version: int, offset: int, metadata: str, at: int, epoch: int = -1) -> bytes:
    """Write a commit's value as Kafka's OffsetCommitValue.json describes it."""
    fields = struct.pack(">hq", version, offset) + (struct.pack(">i", epoch) if version >= 3 else b"")
    text = metadata.encode()
    fields += unsigned_varint(len(text) + 1) + text if version >= 4 else string(metadata)
    fields += struct.pack(">q", at) + (struct.pack(">q", at + 86_400_000) if version == 1 else b"")
    return fields + (
        b"\x01\x00\x10" + bytes(range(16)) if version == 4 and metadata.startswith("t") else b"\0" * (version == 4)
    )


@given(st.sampled_from((0, 1)), names, names, st.integers(0, 2**31 - 1))
def test_commit_keys_are_decoded(version: int, group: str, topic: str, partition: int) -> None:
    key = struct.pack(">h", version) + string(group) + string(topic) + struct.pack(">i", partition)
    assert decode_key(key) == CommitKey(group, topic, partition)
    assert version == 0 or encode_key(CommitKey(group, topic, partition)) == key


def test_keys_of_a_real_broker() -> None:
    assert decode_key(bytes.fromhex("00010002673100017400000000")) == CommitKey("g1", "t", 0)
    assert decode_key(bytes.fromhex("000200026731")) == GroupKey("g1")
    assert decode_key(struct.pack(">h", 5) + string("g1") + string("member")) == GroupKey("g1")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (b"", "key b''"),
        (b"\0", "unpack"),
        (b"\0\1\0\5ab", "a string of 5 bytes at 2"),
        (b"\0\1\xff\xff", "a string of -1 bytes"),
        (b"\0\1\0\1a\0\1t\0\0", "unpack"),
        (b"\0\2\0\1\xff", "utf-8"),
        (b"\1\0", "key of version 256"),
    ],
)
def test_other_keys_are_refused(key: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError, match=reason):
        decode_key(key)


commits = st.tuples(
    st.integers(0, 4),
    offsets,
    st.one_of(st.just(""), names, st.just("t" * 126), st.just("m" * 300), st.just("l" * 16_383)),
    timestamps,
)


@given(st.lists(commits, max_size=30), st.integers(0, 9))
def test_values_of_all_versions_are_decoded_together(written: list[tuple[int, int, str, int]], epoch: int) -> None:
    decoded = decode_values([value(*fields, epoch=epoch) for fields in written])
    assert decoded.undecodable == {}
    assert decoded.offsets.tolist() == [offset for _, offset, _, _ in written]
    assert decoded.timestamps.tolist() == [at for *_, at in written]
    assert decoded.leader_epochs.tolist() == [epoch if version >= 3 else -1 for version, *_ in written]


def test_values_of_real_brokers() -> None:
    written = ("0004000000000021d4a8ffffffff010000019964f2d83600", "00040000000000000005ffffffff01000001a206d6257200")
    decoded = decode_values([bytes.fromhex(text) for text in written])
    assert decoded.offsets.tolist() == [2_217_128, 5]
    assert decoded.timestamps.tolist() == [1_758_335_260_726, 1_795_411_027_314]


def test_undecodable_values_are_named_and_the_rest_is_decoded() -> None:
    good = value(3, 7, "", 1_000)
    bad = [b"", value(5, 7, "", 1_000), good + b"\0", value(1, 7, "", 1_000)[:-1], good[:14] + b"\x7f\xff" + good[16:]]
    decoded = decode_values([good, *bad, good])
    assert decoded.offsets.tolist() == [7, -1, -1, -1, -1, -1, 7]
    assert list(decoded.undecodable)
    assert sorted(decoded.undecodable) == [1, 2, 3, 4, 5]
    assert decoded.undecodable[1] == "value of 0 bytes"
    assert decoded.undecodable[2] == "value of version 5"


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_are_decoded_or_named(values: list[bytes]) -> None:
    decoded = decode_values(values)
    assert len(decoded.offsets) == len(values)
    assert all(decoded.offsets[number] == -1 for number in decoded.undecodable)
