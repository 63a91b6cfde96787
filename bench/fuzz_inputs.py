"""Inputs for `bench.fuzz`: samples of what a parser reads, damaged at random. The same seed gives the same inputs."""

import random
import re
from collections.abc import Callable, Sequence

MAX_BYTES = 200_000
"""The largest input; what is larger is cut."""

_NUMBERS = (
    *(b"0", b"-1", b"1", b"2147483648", b"-2147483649", b"9223372036854775808", b"-9223372036854775809", b"1e999"),
    *(b"9" * 5_000, b"NaN", b"-Infinity", b"0.5", b"1_0", b"0x7f", b"null", b"true", "\u00b2".encode(), b"\xd9\xa3"),
)
_TEXTS = (
    *(b"", b"\0", b"\n", b"\r\n", b"\\", b'"', b"'", b"{}", b"[]", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800"),
    *(b"\x1b[31m", "\u2028".encode(), "\u202e".encode(), "\U0010ffff".encode(), b"%s", b"../..", b" ", b"a" * 3_000),
)
_BYTES = (0, 1, 0x7F, 0x80, 0xFF)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_STRING = re.compile(rb'"[^"\n]{0,200}"')


def damaged(sample: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Return the sample after one to eight accidents; others: samples from which parts are spliced in."""
    content = sample
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        content = draw.choice(_ACCIDENTS)(content, others, draw)[:MAX_BYTES]
    return content


def _flip(content: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    if not content:
        return content
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]


def _overwrite(content: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    begin = draw.randrange(len(content) + 1)
    size = draw.choice((1, 2, 4, 8))
    value = bytes(draw.choices(_BYTES, k=size)) if draw.random() < 0.5 else draw.randbytes(size)
    return content[:begin] + value + content[begin + size :]


def _cut(content: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _drop(content: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    begin, end = _slice(content, draw)
    return content[:begin] + content[end:]


def _repeat(content: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    begin, end = _slice(content, draw)
    return content[:begin] + content[begin:end] * draw.choice((2, 3, 50)) + content[end:]


def _splice(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    other = draw.choice(others)
    begin, end = _slice(other, draw)
    at = draw.randrange(len(content) + 1)
    return content[:at] + other[begin:end] + content[at:]


def _nest(content: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"a.", b""), (b"{a=", b"}"), (b"(", b")")))
    at, depth = draw.randrange(len(content) + 1), draw.choice((3, 100, 2_000, 20_000))
    return content[:at] + opening * depth + closing * draw.choice((0, depth)) + content[at:]


def _number(content: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    return _replaced(content, _NUMBER, draw.choice(_NUMBERS), draw)


def _text(content: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    value = draw.choice((*_TEXTS, *_NUMBERS))
    return _replaced(content, _STRING, b'"' + value + b'"' if draw.random() < 0.5 else value, draw)


def _insert(content: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.choice((*_TEXTS, *_NUMBERS)) + content[at:]


def _replaced(content: bytes, what: re.Pattern[bytes], value: bytes, draw: random.Random) -> bytes:
    places = [match.span() for match in what.finditer(content)]
    if not places:
        return content + value
    begin, end = draw.choice(places)
    return content[:begin] + value + content[end:]


def _slice(content: bytes, draw: random.Random) -> tuple[int, int]:
    begin = draw.randrange(len(content) + 1)
    return begin, min(len(content), begin + draw.choice((1, 4, 30, 500)))


_ACCIDENTS: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (
    *(_flip, _flip, _overwrite, _overwrite, _cut, _drop, _repeat, _splice, _nest),
    *(_number, _number, _text, _text, _insert),
)
