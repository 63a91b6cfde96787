"""Times: milliseconds since the epoch, UTC, and how they are written."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The first and last millisecond of Python's calendar, the years 1 to 9999."""

_REMEMBERED = 4096
"""How many times are remembered as text: findings are described again with each change, with the same times."""


def is_time(field: str) -> bool:
    """Return whether a field of that name holds a time."""
    return field in ("at", "since") or field.endswith(("_at", "_until"))


def _moment(at: int) -> datetime:
    """Return a time as a datetime; the first or last of the calendar for one outside of it, as damaged data has."""
    return EPOCH + timedelta(milliseconds=min(max(at, _FIRST), _LAST))


@lru_cache(_REMEMBERED)
def rfc3339(at: int) -> str:
    """Return a time as RFC 3339 in UTC with milliseconds."""
    return _moment(at).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def millis(text: str) -> int:
    """Return the time that RFC 3339 text names. Raises ValueError if it is no time or names no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        msg = f"{text!r} is not a time such as 2026-12-01T06:00:00Z"
        raise ValueError(msg) from error
    if moment.tzinfo is None:
        msg = f"{text!r} names no time zone; write UTC as a trailing Z"
        raise ValueError(msg)
    return (moment - EPOCH) // timedelta(milliseconds=1)


def minute(at: int) -> str:
    """Return date and time in UTC to the minute: 2026-11-22 23:25."""
    return rfc3339(at)[:16].replace("T", " ")


def second(at: int) -> str:
    """Return date and time in UTC to the second: 2026-11-22 23:25:13."""
    return rfc3339(at)[:19].replace("T", " ")


@lru_cache(_REMEMBERED)
def clock(at: int) -> str:
    """Return the time of day in UTC to a tenth of a second: 23:25:13.9."""
    return _moment(at).strftime("%H:%M:%S.") + str(at % 1000 // 100)
