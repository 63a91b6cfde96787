"""Schedules: intervals, cron expressions, and windows of time that recur, in a time zone."""

import re
from collections.abc import Iterator
from copy import copy
from datetime import UTC, datetime, timedelta, tzinfo
from heapq import merge
from itertools import islice, pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from agent.model.config_types import duration
from agent.model.times import EPOCH

_MILLISECOND = timedelta(milliseconds=1)
_LARGEST_CHANGE = timedelta(hours=1)
"""By how much clocks are set forward or back at most."""

_REFERENCE = datetime(2024, 1, 1, tzinfo=UTC)
"""Where schedules are examined: a fixed date, so that a file does not become invalid as time passes."""

_EXAMINED = 400
"""How many windows are examined: a leap year and more if there is one a day."""

_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")
"""The shape of a time zone's name; ZoneInfo takes others for paths and packages."""


class Window(NamedTuple):
    """A window of time that recurs. lasts: ms. `problem` must be empty."""

    trigger: CronTrigger
    lasts: int

    def around(self, now: int) -> tuple[int, int] | None:
        """Return begin and end (ms) of the window that contains `now`, or None."""
        first = next(self._begins(EPOCH + (now - self.lasts + 1) * _MILLISECOND), None)
        begin = None if first is None else (first - EPOCH) // _MILLISECOND
        return None if begin is None or begin > now else (begin, begin + self.lasts)

    @property
    def problem(self) -> str:
        """Why it cannot be used; empty if it can."""
        begins = [
            begin.astimezone(self.trigger.timezone).replace(tzinfo=None)
            for begin in islice(self._begins(_REFERENCE), _EXAMINED)
        ]
        if not begins:
            return "this day never comes"
        # By local time: where an hour comes twice in autumn, a window that begins in it lasts through both.
        shortest = min((after - before for before, after in pairwise(begins) if after > before), default=timedelta.max)
        return "each window must end before the next begins" if shortest <= self.lasts * _MILLISECOND else ""

    def _begins(self, since: datetime) -> Iterator[datetime]:
        """Yield when windows begin, from `since` on: at each local time of the schedule, also if an hour comes twice.

        A local time that the clock skips counts as the moment at which it skips it.
        """
        last = since - _MILLISECOND
        for moment in merge(self._local(since, 0), self._local(since, 1)):
            if moment > last:
                yield moment
                last = moment

    def _local(self, since: datetime, fold: int) -> Iterator[datetime]:
        """Yield the same for one of the hours that comes twice: the first (fold 0) or the second (1)."""
        zone, clock = self.trigger.timezone, copy(self.trigger)
        clock.timezone = UTC  # APScheduler loses local times that are skipped, and repeats no hour
        wall = clock.get_next_fire_time(None, since.astimezone(zone).replace(tzinfo=UTC) - _LARGEST_CHANGE)
        while wall is not None:
            local = wall.replace(tzinfo=zone, fold=fold)
            yield _skip(local) if _is_skipped(local) else local.astimezone(UTC)
            wall = clock.get_next_fire_time(wall, wall + timedelta(seconds=1))


def _is_skipped(local: datetime) -> bool:
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) != local.replace(tzinfo=None)


def _skip(local: datetime) -> datetime:
    """Return the moment at which the clock skips a local time."""
    moment, zone = local.replace(fold=0).astimezone(UTC), local.tzinfo
    after = moment.astimezone(zone).utcoffset()
    while (before := moment - timedelta(minutes=1)).astimezone(zone).utcoffset() == after:
        moment = before
    return moment


def trigger(schedule: str) -> CronTrigger | IntervalTrigger:
    """Return the trigger of a schedule: a duration is an interval, five fields are a cron expression in UTC.

    Intervals are counted from 1970-01-01T00:00Z: from the agent's start, one that starts more often would never end.
    Raises ValueError.
    """
    try:
        if len(schedule.split()) > 1:
            return cron(schedule)
        return IntervalTrigger(seconds=max(duration(schedule), 1_000) / 1000, start_date=EPOCH, timezone=UTC)
    except ValueError as error:
        msg = f'expected a duration such as "24h" or a cron expression such as "0 3 * * *", got "{schedule}": {error}'
        raise ValueError(msg) from error


def cron(expression: str, zone: tzinfo = UTC) -> CronTrigger:
    """Return the trigger of a cron expression with five fields. Raises ValueError."""
    day, weekday = (" ".join(expression.split()[index : index + 1]) for index in (2, 4))
    # APScheduler 3 counts days of the week from Monday, cron from Sunday (APScheduler issue 286).
    if re.search(r"(?<!/)\d", weekday):
        msg = "write the days of the week as names, such as mon-fri"
        raise ValueError(msg)
    if day and weekday and not day.startswith("*") and not weekday.startswith("*"):
        msg = "give days of the month or days of the week: cron means either, others both"
        raise ValueError(msg)
    return CronTrigger.from_crontab(expression, timezone=zone)


def zone_name(value: str) -> str:
    """Return the name of a time zone. Raises ValueError if there is none of that name."""
    try:
        ZoneInfo(value if _ZONE.fullmatch(value) else "")
    except (KeyError, OSError, ValueError) as error:  # unknown, a directory of zones, or no name
        msg = f'unknown time zone "{value}"; expected an IANA name such as "UTC" or "Europe/Berlin"'
        raise ValueError(msg) from error
    return value
