"""Whether the lines of logs are dated by the time zone configured: fresh ones tell. No I/O lives here.

A line that was written a moment ago is dated a moment ago. Where such lines are off by a whole number of quarters of an
hour, as zones are apart, again and again, they are of another zone.
"""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from agent.sources.logs.lines import names_zone, time_of

_HOUR_MS, _QUARTER_MS = 3_600_000, 900_000
_QUARTER = timedelta(milliseconds=_QUARTER_MS)
_MOST_QUARTERS = 26 * 4
"""Zones reach from 12 hours behind UTC to 14 ahead of it."""

_LATE_MS, _EARLY_MS = 60_000, 30_000
"""How much later than its time a line may be read, since writers buffer, and how far clocks may stand apart."""

SURE_MS = 60_000
SURE_POLLS = 3
"""For how long, and in how many polls at least, lines must be off by the same."""

_TOLD_APART = 80
_SHOWN = 3
_WELL_KNOWN = (
    "UTC", "Europe/London", "Europe/Berlin", "Europe/Athens", "Europe/Moscow", "America/New_York", "America/Chicago",
    "America/Denver", "America/Los_Angeles", "America/Sao_Paulo", "Asia/Dubai", "Asia/Kolkata", "Asia/Shanghai",
    "Asia/Tokyo", "Australia/Sydney", "Pacific/Auckland",
)  # fmt: skip


class _Off(NamedTuple):
    """By how many quarters of an hour a log's lines are ahead of the clock; since when, ms; in how many polls."""

    quarters: int
    since: int
    polls: int


class LogClock:
    """What the fresh lines of the logs of one [logs.NAME] say of its time zone."""

    def __init__(self, name: str, zone: ZoneInfo) -> None:
        """name: as in [logs.NAME]. zone: as configured."""
        self._name, self._zone = name, zone
        self._off: dict[str, _Off] = {}
        self._last: dict[str, str] = {}

    def take(self, path: str, line: str, now: int) -> None:
        """The first line of the newest entry, which was written to the log since the last poll. now: ms.

        A line without a time, or with one that names its zone, says nothing; nor does an entry that merely goes on.
        """
        at = None if names_zone(line) else time_of(line, self._zone, now)
        line = line[:_TOLD_APART]
        if at is None or self._last.get(path) == line:
            return
        self._last[path] = line
        quarters = round((at - now) / _QUARTER_MS)
        before = self._off.pop(path, None)
        near = -_LATE_MS <= at - now - quarters * _QUARTER_MS <= _EARLY_MS
        if not quarters or not near or abs(quarters) > _MOST_QUARTERS:
            return
        again = before is not None and before.quarters == quarters
        self._off[path] = before._replace(polls=before.polls + 1) if before and again else _Off(quarters, now, 1)

    def keep(self, paths: Collection[str]) -> None:
        """Forget the logs that are not followed any more."""
        for of_path in (self._off, self._last):
            for path in of_path.keys() - paths:
                del of_path[path]

    def reason(self, now: int) -> str | None:
        """Why its lines cannot be dated, a sentence; None where nothing speaks against the zone configured."""
        wrong = {
            path: off.quarters
            for path, off in sorted(self._off.items())
            if off.polls >= SURE_POLLS and now - off.since >= SURE_MS
        }
        if not wrong:
            return None
        path, quarters = next(iter(wrong.items()))
        others = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        fitting = _fitting(self._zone, quarters, now // _HOUR_MS)
        return (
            f"lines just written to {path}{others} are dated {_apart(quarters)} the clock: [logs.{self._name}] has "
            f'time_zone = "{self._zone.key}", and {fitting} would fit; until that is set, '
            "what these logs tell is joined with the wrong events"
        )


def _apart(quarters: int) -> str:
    hours, rest = divmod(abs(quarters), 4)
    amount = [*([f"{hours} h"] if hours else []), *([f"{rest * 15} min"] if rest else [])]
    return f"{' '.join(amount)} {'ahead of' if quarters > 0 else 'behind'}"


@lru_cache(maxsize=16)
def _fitting(zone: ZoneInfo, quarters: int, hour: int) -> str:
    """The zones whose time it is that the lines have: well known ones, else others; the offset where there are none.

    hour: since the epoch. Kept for as long, for it is asked for at each poll and all zones may have to be read.
    """
    moment = datetime.fromtimestamp(hour * _HOUR_MS / 1000, UTC)
    wanted = (moment.astimezone(zone).utcoffset() or timedelta()) + quarters * _QUARTER

    def fits(name: str) -> bool:
        return moment.astimezone(ZoneInfo(name)).utcoffset() == wanted

    found = [name for name in _WELL_KNOWN if fits(name)]
    found = found or [name for name in sorted(available_timezones()) if "/" in name and fits(name)]
    if not found:
        return f"a zone {_apart(wanted // _QUARTER)} UTC"
    return " or ".join(f'"{name}"' for name in found[:_SHOWN])
