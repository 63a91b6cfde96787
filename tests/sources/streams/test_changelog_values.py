"""Decoding of a changelog's values and keys."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.streams.changelog_values import KEY_CHARACTERS, key_text, make_decoder, window_hours
from agent.sources.streams.key_table import NO_NUMBER

_START = 1_795_243_500_000  # 2026-11-21T06:45:00Z


def _decode(value: str, *values: bytes | None) -> list[int | str | None]:
    """Return the numbers; None for a tombstone, "?" for an unreadable value."""
    numbers, readable = make_decoder(value)(values)
    decoded = zip(numbers.tolist(), readable.tolist(), strict=True)
    return [(None if number == NO_NUMBER else number) if is_readable else "?" for number, is_readable in decoded]


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63) + 1, 2**63 - 1), st.binary(max_size=20))))
def test_longs_are_read_as_java_writes_them(values: list[int | bytes | None]) -> None:
    """8 bytes, big-endian; a value of another length is unreadable and does not affect others."""
    written = [value.to_bytes(8, "big", signed=True) if isinstance(value, int) else value for value in values]
    expected = [
        "?" if value is not None and len(value) != 8 else None if value is None else struct.unpack(">q", value)[0]
        for value in written
    ]
    assert _decode("long", *written) == [None if value == NO_NUMBER else value for value in expected]


def test_ints_are_read_as_java_writes_them() -> None:
    assert _decode("int", b"\0\0\0\5", None, b"\xff\xff\xff\xfe", b"", bytes(8)) == [5, None, -2, "?", "?"]


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_json_field_is_read_regardless_of_other_fields(number: int, others: dict[str, object]) -> None:
    """Also a nested field, and one whose name is a Python keyword."""
    value = json.dumps({**others, "total": number, "class": {"of": number}}).encode()
    assert _decode("json:total", value, None) == [number, None]
    assert _decode("json:class.of", value) == [number]


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"{}", b"7", b"null", b"\xff", b'{"total":"7"}', b'{"total":null}', b'{"total":true}', b'{"total":7.5}'),
        *(b'{"total":9223372036854775808}', b'{"total":1e400}', b'{"total":{"a":1}}', b"[" * 100_000),
    ],
)
def test_json_without_a_whole_number_is_unreadable(value: bytes) -> None:
    assert _decode("json:total", b'{"total":3}', value, b'{"total":4.0}') == [3, "?", 4]


def test_windows_are_recognized_by_the_end_of_keys() -> None:
    """Key, start (8 bytes), sequence number (4 bytes): WindowKeySchema. Other keys have no hour."""
    window = b"key-01" + struct.pack(">qi", _START, 0)
    keys = [window, b"key-01", b"", b"x" * 40, b"key" + struct.pack(">qi", 5, 0), struct.pack(">q", _START)]
    assert window_hours(keys).tolist() == [_START // 3_600_000, 0, 0, 0, 0, 0]
    assert window_hours([]).dtype == np.int64


@given(st.lists(st.binary(max_size=30) | st.builds(lambda key: key + struct.pack(">qi", _START, 7), st.binary())))
def test_window_of_a_key_does_not_depend_on_other_keys(keys: list[bytes]) -> None:
    assert window_hours(keys).tolist() == [window_hours([key])[0] for key in keys]


def test_short_key_is_no_window_together_with_the_key_before() -> None:
    window = struct.pack(">qi", _START, 0)
    assert window_hours([window[:7], window[7:], window]).tolist() == [0, 0, _START // 3_600_000]


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
def test_keys_are_shown_as_text_or_hex(key: bytes, text: str) -> None:
    assert key_text(key) == text


@given(st.binary(max_size=200))
def test_every_key_has_a_short_printable_text(key: bytes) -> None:
    assert len(key_text(key)) <= KEY_CHARACTERS
    assert key_text(key).isprintable()
