"""Inner messages of wrappers: reading equal-sized ones at once gives what reading them one by one gives."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.kafka_log import format01
from agent.kafka_log.codecs import UndecodableError
from agent.kafka_log.format01 import InnerMessages
from tests.kafka_log import writer


def read(raw: bytes) -> InnerMessages | str:
    """Return a wrapper's messages, or why they cannot be decoded."""
    try:
        return format01.read_messages(raw)
    except UndecodableError as error:
        return str(error)


@settings(max_examples=500, deadline=None)
@given(
    magic=st.sampled_from([0, 1]),
    value=st.binary(max_size=40),
    offsets=st.lists(st.integers(0, 200), min_size=14, max_size=40, unique=True).map(sorted),
    accidents=st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 255)), max_size=2),
    cut=st.integers(0, 3),
)
@example(magic=0, value=bytes(9), offsets=list(range(20)), accidents=[], cut=0)
def test_messages_read_at_once_are_those_read_one_by_one(
    magic: int, value: bytes, offsets: list[int], accidents: list[tuple[int, int]], cut: int
) -> None:
    """All of one size, as machines write them; healthy, or with some bytes changed or cut off."""
    raw = bytearray(b"".join(writer.message(offset, value, magic=magic) for offset in offsets))
    for position, byte in accidents:
        raw[position % len(raw)] = byte
    raw = raw[: len(raw) - cut]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format01, "_read_equal_sized", lambda _: None)
        one_by_one = read(bytes(raw))
    assert read(bytes(raw)) == one_by_one


def test_equal_sized_messages_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Including values that end with zero bytes."""
    monkeypatch.setattr(format01, "_read_one_by_one", lambda _: pytest.fail("read one by one"))
    raw = b"".join(writer.message(offset, b"v\0\0", magic=1) for offset in range(3, 203, 2))
    assert read(raw) == InnerMessages(3, 201, 100, (), None)
