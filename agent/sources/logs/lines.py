"""How lines of a log are told apart: encodings, line ends, and the times that lines begin with. No I/O lives here."""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple
from zoneinfo import ZoneInfo

MAX_LINE = 65_536
"""How many characters of a line are looked at."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

_TIME = re.compile(
    r"\[?(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z\b|[+-]\d\d:?\d\d\b))?"
    r"|%\d\|(\d{9,10})\.(\d{3})\|",  # librdkafka's to standard error: %LEVEL|seconds.ms|FACILITY|client| text
)
"""The time that a line begins with, of log4j's layouts (in brackets or not), ISO 8601, and librdkafka."""

_BOMS = {"utf-16": (b"\xfe\xff", "utf-16-be", "utf-16-le"), "utf-32": (b"\x00\x00\xfe\xff", "utf-32-be", "utf-32-le")}
_WRITERS = {
    "org.apache.kafka.streams": "streams",
    "stream-thread [": "streams",
    "org.apache.kafka.clients.consumer": "consumer",
    "[Consumer client": "consumer",
    "org.apache.flink": "flink",
    "org.apache.zookeeper.server": "zookeeper",
    "|rdkafka#": "librdkafka",
    "kafka.": "kafka",
}
"""What a line holds, and what wrote it then; the first that fits."""


class Codec(NamedTuple):
    """An encoding as a file has it. newline: a line's end. plain: ASCII is one byte a character, and itself."""

    name: str
    newline: bytes
    plain: bool


def codec_of(encoding: str, beginning: bytes) -> Codec:
    """The encoding of a file that begins so: for UTF-16 and UTF-32 its byte order mark tells, else little-endian."""
    name = encoding
    if encoding in _BOMS:
        mark, big, little = _BOMS[encoding]
        name = big if beginning.startswith(mark) else little
    newline = "\n".encode(name)
    return Codec(name, newline, newline == b"\n" and "[A]".encode(name) == b"[A]")


def lines_end(raw: bytes, codec: Codec) -> int:
    """Where the last complete line ends, its newline included; 0 where there is none. raw begins with a character."""
    width = len(codec.newline)
    end = raw.rfind(codec.newline)
    while end >= 0 and end % width:
        end = raw.rfind(codec.newline, 0, end + width - 1)
    return end + width if end >= 0 else 0


def line_end(raw: bytes, codec: Codec) -> int:
    """Where the first line ends, its newline included; 0 where it does not."""
    width = len(codec.newline)
    end = raw.find(codec.newline)
    while end >= 0 and end % width:
        end = raw.find(codec.newline, end + 1)
    return end + width if end >= 0 else 0


def begins_entry(line: str) -> bool:
    """Whether the line begins with a time. One that does not goes on with the entry before it: a stack trace."""
    return _TIME.match(line.lstrip("\ufeff\0")) is not None


def time_of(line: str, zone: ZoneInfo, seen: int) -> int | None:
    """The time that the line begins with, ms; None where it begins with none, or with one that cannot be.

    zone: of times that name none. Where clocks are put back an hour comes twice: the later of the two counts that is
    not after `seen` (ms), when the line was read. Where they are put forward the hour that there is not counts as the
    one after it (PEP 495).
    """
    match = _TIME.match(line.lstrip("\ufeff\0"))
    if match is None:
        return None
    *fields, fraction, offset, seconds, ms = match.groups()
    if seconds is not None:
        return int(seconds) * 1000 + int(ms)
    year, month, day, hour, minute, second = map(int, fields)
    micros = int((fraction or "0").ljust(6, "0")[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second, micros, _zone(offset) or zone)
    except ValueError:
        return None
    earlier, later = ((one - _EPOCH) // _MS for one in (moment, moment.replace(fold=1)))
    return later if earlier < later <= seen else earlier


def names_zone(line: str) -> bool:
    """Whether the time that the line begins with is of a zone that it names."""
    match = _TIME.match(line.lstrip("\ufeff\0"))
    return match is not None and (match[8] is not None or match[9] is not None)


def _zone(offset: str | None) -> timezone | None:
    if offset is None:
        return None
    if offset == "Z":
        return UTC
    hours, minutes = int(offset[1:3]), int(offset[-2:])
    return timezone((-1 if offset[0] == "-" else 1) * timedelta(hours=hours, minutes=minutes))


def component_of(line: str) -> str:
    """What wrote the line, as far as it tells; "" where it does not."""
    return next((writer for mark, writer in _WRITERS.items() if mark in line), "")
