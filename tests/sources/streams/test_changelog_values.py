"""What keys and values of a changelog say."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.streams.changelog_values import KEY_CHARACTERS, decoder, key_text, window_hours
from agent.sources.streams.key_table import NOTHING

_START = 1_795_243_500_000  # 2026-11-21T06:45:00Z


def _read(value: str, *values: bytes | None) -> list[int | str | None]:
    """The numbers; None for a tombstone, "?" for what cannot be read."""
    numbers, readable = decoder(value)(values)
    told = zip(numbers.tolist(), readable.tolist(), strict=True)
    return [(None if number == NOTHING else number) if known else "?" for number, known in told]


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63) + 1, 2**63 - 1), st.binary(max_size=20))))
def test_longs_are_read_as_java_writes_them(values: list[int | bytes | None]) -> None:
    """8 bytes, big-endian; anything of another length cannot be read, and hides nothing beside it."""
    written = [one.to_bytes(8, "big", signed=True) if isinstance(one, int) else one for one in values]
    expected = [
        "?" if one is not None and len(one) != 8 else None if one is None else struct.unpack(">q", one)[0]
        for one in written
    ]
    assert _read("long", *written) == [None if one == NOTHING else one for one in expected]


def test_ints_are_read_as_java_writes_them() -> None:
    """4 bytes, big-endian."""
    assert _read("int", b"\0\0\0\5", None, b"\xff\xff\xff\xfe", b"", bytes(8)) == [5, None, -2, "?", "?"]


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_a_json_field_is_read_whatever_stands_beside_it(number: int, beside: dict[str, object]) -> None:
    """Also one further in, and one whose name is a word of Python's."""
    value = json.dumps({**beside, "total": number, "class": {"of": number}}).encode()
    assert _read("json:total", value, None) == [number, None]
    assert _read("json:class.of", value) == [number]


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"{}", b"7", b"null", b"\xff", b'{"total":"7"}', b'{"total":null}', b'{"total":true}', b'{"total":7.5}'),
        *(b'{"total":9223372036854775808}', b'{"total":1e400}', b'{"total":{"a":1}}', b"[" * 100_000),
    ],
)
def test_json_without_a_whole_number_cannot_be_read(value: bytes) -> None:
    """And nothing else fails for it."""
    assert _read("json:total", b'{"total":3}', value, b'{"total":4.0}') == [3, "?", 4]


def test_windows_are_known_by_the_end_of_their_keys() -> None:
    """Key, start (8 bytes), sequence number (4 bytes): WindowKeySchema. Other keys are of no hour."""
    window = b"key-01" + struct.pack(">qi", _START, 0)
    keys = [window, b"key-01", b"", b"x" * 40, b"key" + struct.pack(">qi", 5, 0), struct.pack(">q", _START)]
    assert window_hours(keys).tolist() == [_START // 3_600_000, 0, 0, 0, 0, 0]
    assert window_hours([]).dtype == np.int64


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"customer-7", "customer-7"),
        ("Zoë ☃".encode(), "Zoë ☃"),
        (b"", ""),
        (b"a\nb", "610a62"),
        (b"\0\0\0\0\0\0\0\7", "0000000000000007"),
        (b"key-01" + struct.pack(">qi", _START, 0), "key-01@2026-11-21T06:45:00.000Z"),
        (b"\0\7" + struct.pack(">qi", _START, 3), "0007@2026-11-21T06:45:00.000Z"),
        (b"x" * 80, "x" * 80),
        (b"x" * 81, "x" * 79 + "…"),
        (b"x" * 81 + struct.pack(">qi", _START, 0), "x" * 54 + "…@2026-11-21T06:45:00.000Z"),
    ],
)
def test_keys_are_shown_as_people_read_them(key: bytes, text: str) -> None:
    """Text where it can be printed, else hex; windows with their start; cut."""
    assert key_text(key) == text


@given(st.binary(max_size=200))
def test_no_key_is_too_long_to_show(key: bytes) -> None:
    """Nor is any refused."""
    assert len(key_text(key)) <= KEY_CHARACTERS
    assert key_text(key).isprintable()
