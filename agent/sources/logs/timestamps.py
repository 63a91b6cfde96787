"""Timestamps of log lines, and the check that they are in the configured time zone. No I/O.

A line that was just written is dated now. If such lines are repeatedly off by the same whole number of quarter hours,
which is how time zones differ, they are in another zone.
"""

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

_TIMESTAMP = re.compile(
    r"\[?(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z\b|[+-]\d\d:?\d\d\b))?"
    r"|%\d\|(\d{9,10})\.(\d{3})\|",  # librdkafka's to standard error: %LEVEL|seconds.ms|FACILITY|client| text
)
"""The timestamp at the start of a line: log4j's layouts (in brackets or not), ISO 8601, and librdkafka's."""

_HOUR_MS, _QUARTER_MS = 3_600_000, 900_000
_QUARTER = timedelta(milliseconds=_QUARTER_MS)
_MAX_QUARTERS = 26 * 4
"""Zones reach from 12 hours behind UTC to 14 ahead of it."""

_LATE_MS, _EARLY_MS = 60_000, 30_000
"""How long after its timestamp a line may be read, since writers buffer, and how far clocks may differ."""

CONFIRMATION_MS = 60_000
CONFIRMATION_POLLS = 3
"""For how long, and in how many polls at least, lines must be off by the same amount."""

_COMPARED_CHARACTERS = 80
_MAX_ZONES_SHOWN = 3
_WELL_KNOWN = (
    "UTC", "Europe/London", "Europe/Berlin", "Europe/Athens", "Europe/Moscow", "America/New_York", "America/Chicago",
    "America/Denver", "America/Los_Angeles", "America/Sao_Paulo", "Asia/Dubai", "Asia/Kolkata", "Asia/Shanghai",
    "Asia/Tokyo", "Australia/Sydney", "Pacific/Auckland",
)  # fmt: skip


def _match(line: str) -> re.Match[str] | None:
    return _TIMESTAMP.match(line.lstrip("\ufeff\0"))


def begins_entry(line: str) -> bool:
    """Return whether the line begins with a timestamp; one that does not continues an entry (a stack trace)."""
    return _match(line) is not None


def parse_timestamp(line: str, zone: ZoneInfo, seen_at: int) -> int | None:
    """Return the time at the start of a line, ms, or None if there is none or it is invalid.

    zone: of timestamps that name none. When clocks are set back, an hour occurs twice: the later occurrence is taken,
    unless it is after `seen_at` (ms), when the line was read, by more than clocks differ. When they are set forward,
    the missing hour is taken as the one after it (PEP 495).
    """
    match = _match(line)
    if match is None:
        return None
    *fields, fraction, offset, seconds, ms = match.groups()
    if seconds is not None:
        return int(seconds) * 1000 + int(ms)
    year, month, day, hour, minute, second = map(int, fields)
    micros = int((fraction or "0").ljust(6, "0")[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second, micros, _parse_offset(offset) or zone)
    except ValueError:
        return None
    earlier, later = ((folded - _EPOCH) // _MS for folded in (moment, moment.replace(fold=1)))
    return later if earlier < later <= seen_at + _EARLY_MS else earlier


def has_zone(line: str) -> bool:
    """Return whether the line's timestamp names its time zone."""
    match = _match(line)
    return match is not None and (match[8] is not None or match[9] is not None)


def _parse_offset(offset: str | None) -> timezone | None:
    if offset is None:
        return None
    if offset == "Z":
        return UTC
    hours, minutes = int(offset[1:3]), int(offset[-2:])
    return timezone((-1 if offset[0] == "-" else 1) * timedelta(hours=hours, minutes=minutes))


class _Deviation(NamedTuple):
    """How many quarter hours a log's lines are ahead of the clock; since when, ms; in how many polls."""

    quarters: int
    since: int
    polls: int


class TimeZoneCheck:
    """Checks whether new lines of the logs of a [logs.NAME] table are in its time zone."""

    def __init__(self, name: str, zone: ZoneInfo) -> None:
        """Create a check of [logs.`name`], whose configured zone is `zone`."""
        self._name, self._zone = name, zone
        self._deviations: dict[str, _Deviation] = {}
        self._last_lines: dict[str, str] = {}

    def add_line(self, path: str, line: str, now: int) -> None:
        """Check the first line of the newest entry, written to the log since the last poll. now: ms.

        A line without a timestamp, or whose timestamp names its zone, is ignored, and so is an entry seen before.
        """
        at = None if has_zone(line) else parse_timestamp(line, self._zone, now)
        line = line[:_COMPARED_CHARACTERS]
        if at is None or self._last_lines.get(path) == line:
            return
        self._last_lines[path] = line
        quarters = round((at - now) / _QUARTER_MS)
        before = self._deviations.pop(path, None)
        is_whole = -_LATE_MS <= at - now - quarters * _QUARTER_MS <= _EARLY_MS
        if not quarters or not is_whole or abs(quarters) > _MAX_QUARTERS:
            return
        if before is not None and before.quarters == quarters:
            self._deviations[path] = before._replace(polls=before.polls + 1)
        else:
            self._deviations[path] = _Deviation(quarters, now, 1)

    def retain(self, paths: Collection[str]) -> None:
        """Forget the logs that are no longer followed."""
        for by_path in (self._deviations, self._last_lines):
            for path in by_path.keys() - paths:
                del by_path[path]

    def describe_mismatch(self, now: int) -> str | None:
        """Return why the logs' lines cannot be dated, or None if nothing contradicts the configured zone."""
        wrong = {
            path: deviation.quarters
            for path, deviation in sorted(self._deviations.items())
            if deviation.polls >= CONFIRMATION_POLLS and now - deviation.since >= CONFIRMATION_MS
        }
        if not wrong:
            return None
        path, quarters = next(iter(wrong.items()))
        others = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return (
            f"new lines in {path}{others} are dated {_describe_offset(quarters)} the clock: [logs.{self._name}] has "
            f'time_zone = "{self._zone.key}"; set it to {_suggest_zones(self._zone, quarters, now // _HOUR_MS)}. '
            "Until then these lines are correlated with the wrong events"
        )


def _describe_offset(quarters: int) -> str:
    hours, rest = divmod(abs(quarters), 4)
    parts = [*([f"{hours} h"] if hours else []), *([f"{rest * 15} min"] if rest else [])]
    return f"{' '.join(parts)} {'ahead of' if quarters > 0 else 'behind'}"


@lru_cache(maxsize=16)
def _suggest_zones(zone: ZoneInfo, quarters: int, hour: int) -> str:
    """Return the zones that the lines can be in: well known ones, else others, else the offset from UTC.

    hour: since the epoch. Cached for that hour, because every poll asks and all zones may have to be loaded.
    """
    moment = datetime.fromtimestamp(hour * _HOUR_MS / 1000, UTC)
    wanted = (moment.astimezone(zone).utcoffset() or timedelta()) + quarters * _QUARTER

    def fits(name: str) -> bool:
        return moment.astimezone(ZoneInfo(name)).utcoffset() == wanted

    zones = [name for name in _WELL_KNOWN if fits(name)]
    zones = zones or [name for name in sorted(available_timezones()) if "/" in name and fits(name)]
    if not zones:
        return f"a zone {_describe_offset(wanted // _QUARTER)} UTC"
    return " or ".join(f'"{name}"' for name in zones[:_MAX_ZONES_SHOWN])
