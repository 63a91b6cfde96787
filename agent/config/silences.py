"""[[silences]]: incidents that are not posted until a date, or during windows that recur."""

from typing import Annotated, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from agent.config.schedules import Window, cron, zone_name
from agent.model.config_types import ConfigModel, PositiveDuration
from agent.model.matchers import Matchers, Silence
from agent.model.times import millis

FILE_AUTHOR = "rules.toml"
"""The author of silences in the configuration."""


def _moment(value: str) -> str:
    try:
        millis(value)
    except ValueError as error:
        msg = f'expected a time such as "2026-12-01T06:00:00Z", got "{value}"'
        raise ValueError(msg) from error
    return value


def cron_text(value: str, context: ValidationInfo) -> str:
    """Return a cron expression for the zone in `time_zone`. Raises ValueError."""
    try:
        cron(value, ZoneInfo(context.data.get("time_zone", "UTC")))  # missing if it is invalid itself
    except ValueError as error:
        msg = f'expected a cron expression such as "0 2 * * sun", got "{value}": {error}'
        raise ValueError(msg) from error
    return value


Moment = Annotated[str, AfterValidator(_moment)]
"""A time, RFC 3339 with a time zone."""


class RecurringWindow(ConfigModel):
    """A window of time that recurs."""

    time_zone: Annotated[str, AfterValidator(zone_name)] = "UTC"
    """Time zone of `schedule`, an IANA name."""
    schedule: Annotated[str, AfterValidator(cron_text)] | None = None
    """When each window begins: a cron expression with days of the week by name (`"0 2 * * sun"`)."""
    lasts: PositiveDuration | None = None
    """How long each window lasts."""

    @model_validator(mode="after")
    def _require_usable_window(self) -> Self:
        if (self.schedule is None) != (self.lasts is None):
            msg = "`schedule` and `lasts` belong together"
            raise ValueError(msg)
        window = self.window
        if window is not None and window.problem:
            msg = f'schedule "{self.schedule}": {window.problem}'
            raise ValueError(msg)
        return self

    @property
    def window(self) -> Window | None:
        """The windows, or None if there is no schedule."""
        if self.schedule is None or self.lasts is None:
            return None
        return Window(cron(self.schedule, ZoneInfo(self.time_zone)), self.lasts)


class ConfiguredSilence(Matchers, RecurringWindow):
    """Incidents that are listed but not posted: until a date, or during maintenance windows that recur.

        [[silences]]
        comment = "restarts on Sunday"
        clusters = { include = ["staging"] }
        schedule = "0 2 * * sun"
        lasts = "2h"
        time_zone = "Europe/Berlin"

    All matchers that are given must match, and at least one is required. An incident is posted if it has a finding
    outside of them, and when the silence ends, if it is still open then. Either `until`, or `schedule` and `lasts` are
    required. `backflow silence add` adds a silence without a change of the file.
    """

    comment: Annotated[str, Field(min_length=1)]
    """Why. `backflow silence list` and `backflow incidents show` print it."""
    begins: Moment | None = None
    """When a silence with `until` begins, in RFC 3339. Default: it has begun."""
    until: Moment | None = None
    """When it ends, in RFC 3339: `"2026-12-01T06:00:00Z"`."""

    @model_validator(mode="after")
    def _require_matchers_and_end(self) -> Self:
        if not self.given:
            msg = f"give at least one of {', '.join(f'`{name}`' for name in Matchers.model_fields)}"
            raise ValueError(msg)
        if (self.until is None) == (self.schedule is None):
            msg = "a silence must end: give either `until`, or `schedule` and `lasts`"
            raise ValueError(msg)
        if self.begins is not None and (self.until is None or millis(self.begins) >= millis(self.until)):
            msg = "`begins` must be before `until`" if self.until else "`begins` has no effect without `until`"
            raise ValueError(msg)
        return self

    def around(self, now: int) -> tuple[int, int] | None:
        """Return begin and end (ms) of the silence at `now`, or None if there is none."""
        if (window := self.window) is not None:
            return window.around(now)
        begin = 0 if self.begins is None else millis(self.begins)
        end = begin if self.until is None else millis(self.until)
        return (begin, end) if begin <= now < end else None

    def silence(self, number: int, now: int) -> Silence | None:
        """Return the silence as of `now` (ms), or None if none lasts. number: of its table, from 1."""
        around = self.around(now)
        return around and Silence(f"silences[{number}]", self, *around, FILE_AUTHOR, self.comment)
