"""Decodes values and keys of a changelog: numbers, windows, a key as text. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from agent.model.times import rfc3339
from agent.sources.streams.key_table import NO_NUMBER, Flags, Numbers

Decode: TypeAlias = Callable[[Sequence[bytes | None]], tuple[Numbers, Flags]]
"""Converts values to their numbers (NO_NUMBER for tombstones) and which of them are readable."""

KEY_CHARACTERS = 80

_WINDOW_BYTES = 12  # WindowKeySchema: after the key its window's start (8 bytes, ms) and a sequence number (4 bytes)
_EARLIEST, _LATEST = 946_684_800_000, 4_102_444_800_000  # 2000 to 2100
_HIGH_BYTES = b"\0\0"  # of each start in these years
_HOUR_MS = 3_600_000
_WINDOW = np.dtype([("start", ">i8"), ("sequence", ">i4")])
_SEQUENCES = 1 << 24


def make_decoder(value: str) -> Decode:
    """Return the decoder of a declared value type (DeclaredStore.value): "long", "int" or "json:FIELD"."""
    if value.startswith("json:"):
        return _make_json_decoder(value.removeprefix("json:").split("."))
    return _make_integer_decoder(">i8" if value == "long" else ">i4")


def _make_integer_decoder(kind: str) -> Decode:
    dtype = np.dtype(kind)
    filler = bytes(dtype.itemsize)

    def decode(values: Sequence[bytes | None]) -> tuple[Numbers, Flags]:
        lengths = np.fromiter((-1 if value is None else len(value) for value in values), np.int64, len(values))
        fits = lengths == dtype.itemsize
        if not fits.all():
            values = [value if fitting else filler for value, fitting in zip(values, fits, strict=True)]
        numbers = np.frombuffer(b"".join(values), dtype).astype(np.int64)  # type: ignore[arg-type] # none is None
        numbers[~fits] = NO_NUMBER
        return numbers, fits | (lengths == -1)

    return decode


def _make_json_decoder(path: Sequence[str]) -> Decode:
    """Return a decoder of only this field; msgspec skips the rest."""
    inner: Any = int | float
    for name in reversed(path):
        inner = msgspec.defstruct("Value", [("field", inner)], rename={"field": name})
    parser = msgspec.json.Decoder(inner)

    def decode_number(value: bytes) -> int | None:
        try:
            field = parser.decode(value)
            for _ in path:
                field = field.field
            number = int(field)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            return None
        return number if number == field and NO_NUMBER < number < -NO_NUMBER else None

    def decode(values: Sequence[bytes | None]) -> tuple[Numbers, Flags]:
        count = len(values)
        numbers = [NO_NUMBER if value is None else decode_number(value) for value in values]
        readable = np.fromiter((number is not None for number in numbers), np.bool_, count)
        return np.fromiter((NO_NUMBER if number is None else number for number in numbers), np.int64, count), readable

    return decode


def window_hours(keys: Sequence[bytes]) -> NDArray[np.int64]:
    """Return the hour (since the epoch) in which each key's window begins, 0 if the key has none."""
    joined = b"".join(keys)
    if len(joined) < _WINDOW_BYTES or _HIGH_BYTES not in joined:  # as in most plain keys; takes half of the time
        return np.zeros(len(keys), np.int64)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    ends = np.cumsum(lengths)
    views = np.ndarray(len(joined) - _WINDOW_BYTES + 1, _WINDOW, joined, strides=(1,))  # at each byte
    windows = views[np.maximum(ends - _WINDOW_BYTES, 0)]
    start, sequence = windows["start"], windows["sequence"]
    is_window = (start >= _EARLIEST) & (start < _LATEST) & (sequence >= 0) & (sequence < _SEQUENCES)
    return np.where(is_window & (lengths >= _WINDOW_BYTES), start // _HOUR_MS, 0).astype(np.int64)


def key_text(key: bytes) -> str:
    """Return a key for people: text if it is printable UTF-8, otherwise hex; at most 80 characters.

    The key of a windowed store ends with its window's start.
    """
    text = _decode_printable(key)
    if text is not None or not window_hours([key])[0]:
        return _shorten(key.hex() if text is None else text, KEY_CHARACTERS)
    start = f"@{rfc3339(int.from_bytes(key[-_WINDOW_BYTES:-4], 'big'))}"
    plain_key = key[:-_WINDOW_BYTES]
    text = _decode_printable(plain_key)
    return _shorten(plain_key.hex() if text is None else text, KEY_CHARACTERS - len(start)) + start


def _decode_printable(key: bytes) -> str | None:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
