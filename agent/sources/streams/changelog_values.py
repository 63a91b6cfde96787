"""What keys and values of a changelog say: the numbers, the windows, a key as text. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from agent.model.observations import rfc3339
from agent.sources.streams.key_table import NOTHING, Flags, Numbers

Decode: TypeAlias = Callable[[Sequence[bytes | None]], tuple[Numbers, Flags]]
"""Values to their numbers (NOTHING for tombstones) and which of them can be read."""

KEY_CHARACTERS = 80

_WINDOW_BYTES = 12  # WindowKeySchema: after the key its window's start (8 bytes, ms) and a sequence number (4 bytes)
_EARLIEST, _LATEST = 946_684_800_000, 4_102_444_800_000  # 2000 to 2100
_HOUR_MS = 3_600_000
_WINDOW = np.dtype([("start", ">i8"), ("sequence", ">i4")])
_SEQUENCES = 1 << 24


def decoder(value: str) -> Decode:
    """How values are read that are declared so (DeclaredStore.value): "long", "int" or "json:FIELD"."""
    if value.startswith("json:"):
        return _json(value.removeprefix("json:").split("."))
    return _fixed(">i8" if value == "long" else ">i4")


def _fixed(kind: str) -> Decode:
    dtype = np.dtype(kind)
    filler = bytes(dtype.itemsize)

    def decode(values: Sequence[bytes | None]) -> tuple[Numbers, Flags]:
        count = len(values)
        lengths = np.fromiter((-1 if one is None else len(one) for one in values), np.int64, count)
        whole = lengths == dtype.itemsize
        told = values if whole.all() else [one if fits else filler for one, fits in zip(values, whole, strict=True)]
        numbers = np.frombuffer(b"".join(told), dtype).astype(np.int64)  # type: ignore[arg-type] # none is None
        numbers[~whole] = NOTHING
        return numbers, whole | (lengths == -1)

    return decode


def _json(path: Sequence[str]) -> Decode:
    """Only the field is decoded; msgspec skips the rest."""
    inner: Any = int | float
    for name in reversed(path):
        inner = msgspec.defstruct("Value", [("field", inner)], rename={"field": name})
    parser = msgspec.json.Decoder(inner)

    def number(value: bytes) -> int | None:
        try:
            found = parser.decode(value)
            for _ in path:
                found = found.field
            whole = int(found)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            return None
        return whole if whole == found and NOTHING < whole < -NOTHING else None

    def decode(values: Sequence[bytes | None]) -> tuple[Numbers, Flags]:
        count = len(values)
        found = [NOTHING if one is None else number(one) for one in values]
        readable = np.fromiter((one is not None for one in found), np.bool_, count)
        return np.fromiter((NOTHING if one is None else one for one in found), np.int64, count), readable

    return decode


def window_hours(keys: Sequence[bytes]) -> NDArray[np.int64]:
    """The hour (since the epoch) in which each key's window begins; 0 for a key that does not look like a window's."""
    ends = b"".join([key[-_WINDOW_BYTES:].rjust(_WINDOW_BYTES, b"\0") for key in keys])
    windows = np.frombuffer(ends, _WINDOW)
    start, sequence = windows["start"], windows["sequence"]
    likely = (start >= _EARLIEST) & (start < _LATEST) & (sequence >= 0) & (sequence < _SEQUENCES)
    return np.where(likely, start // _HOUR_MS, 0).astype(np.int64)


def key_text(key: bytes) -> str:
    """The key for people: as text where it is printable UTF-8, else in hex; of a windowed store with the window's
    start. At most 80 characters.
    """
    text = _printable(key)
    if text is not None or not window_hours([key])[0]:
        return _cut(key.hex() if text is None else text, KEY_CHARACTERS)
    end = f"@{rfc3339(int.from_bytes(key[-_WINDOW_BYTES:-4], 'big'))}"
    plain = key[:-_WINDOW_BYTES]
    text = _printable(plain)
    return _cut(plain.hex() if text is None else text, KEY_CHARACTERS - len(end)) + end


def _printable(key: bytes) -> str | None:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"
