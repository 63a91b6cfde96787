"""Words for numbers and times, as the page, the summary and the picture of a review use them."""

from collections.abc import Sequence
from datetime import UTC, datetime

from agent.model.text import count, span, visible
from agent.model.times import minute
from spark_checks.reviews.lags import Margin
from spark_checks.reviews.periods import DAY_MS, Periods

_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000
_SOON_MS = 30 * DAY_MS
_NAME = 60
"""Characters of a name in a sentence; tables have all of it."""


def moment(at: int) -> str:
    """Return a time for people, UTC: Tue 17 Nov 14:03."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%a %-d %b %H:%M")


def day(at: int) -> str:
    """Return a date for people, UTC: Tue 17 Nov."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%a %-d %b")


def period(periods: Periods) -> str:
    """Return the reviewed time for people: 16 to 22 November 2026, or with times of day if it has others."""
    since, last = (datetime.fromtimestamp(at / 1000, UTC) for at in (periods.since, periods.until))
    if periods.since % DAY_MS == periods.until % DAY_MS == 0:
        last = datetime.fromtimestamp(periods.until / 1000 - 1, UTC)
        if since.date() == last.date():
            return f"{last:%-d %B %Y}"
        if (since.year, since.month) == (last.year, last.month):
            return f"{since.day} to {last:%-d %B %Y}"
        return f"{since:%-d %B} to {last:%-d %B %Y}"
    return f"{since:%-d %B %H:%M} to {last:%-d %B %Y %H:%M} UTC"


def forgotten(incidents_since: int) -> str:
    """Return which incidents the agent has deleted."""
    return f"incidents before {minute(incidents_since)} UTC are no longer known, as the agent has deleted them"


def week_word(periods: Periods) -> str:
    """Return what the reviewed time is called."""
    return "week" if periods.length == 7 * DAY_MS else "period"


def short(number: float) -> str:
    """Return a number for people: 0.5, 940, 12.3 k, 4.6 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            divisor = 1e3 if unit == "k" else size
            return f"{number / divisor:.1f} {unit}".replace(".0 ", " ")
    return f"{number:,.0f}" if abs(number) >= 10 else f"{number:.1f}".removesuffix(".0")


def lasted(ms: int) -> str:
    """Return a length of time in one or two units, no finer than seconds."""
    return span(ms) if ms >= _MINUTE_MS else f"{max(1, round(ms / 1000))} s"


def percent(share: float) -> str:
    """Return a share for people: 12 %, 0.6 %."""
    return f"{share * 100:.1f} %" if abs(share) < 0.1 else f"{share * 100:.0f} %"


def brief(name: str, most: int = _NAME) -> str:
    """Return a name for a sentence: of a long one, its begin and its end."""
    shown = visible(name)
    return shown if len(shown) <= most else f"{shown[: most // 2]}…{shown[1 - most // 2 :]}"


def where(topic: str, partition: int) -> str:
    """Return a partition: orders[3]."""
    return f"{topic}[{partition}]"


def distance(margin: Margin) -> str:
    """Return how far the group was from the log start, in words."""
    if margin.margin < 0:
        return f"{count(-margin.margin, 'unread record')} already deleted"
    if margin.margin == 0:
        return "at the log start"
    left = f"about {_rough(margin.time_left)}" if margin.time_left < _SOON_MS else "more than 30 d"
    return f"{count(margin.margin, 'record')} or {left} from the log start"


def _rough(ms: int) -> str:
    """Return an estimated length of time, without units that are too small to matter."""
    unit = next((unit for unit in (_HOUR_MS, _MINUTE_MS) if ms >= 10 * unit), 1_000)
    return lasted(round(ms / unit) * unit)


def factor(now: float, usual: float) -> str:
    """Return how a number compares with the usual one, in words."""
    if usual == 0:
        return "usually none" if now else "as usual"
    ratio = now / usual
    if ratio >= 1.5:
        return f"{ratio:.1f} times the usual {short(usual)}" if ratio < 100 else f"far above the usual {short(usual)}"
    return f"down from {short(usual)}" if ratio <= 0.67 else f"about as usual ({short(usual)})"


def names(values: Sequence[str], most: int = 3) -> str:
    """Return some names and how many more there are."""
    shown = [brief(value) for value in values[:most]]
    return ", ".join(shown) + (f" and {len(values) - most:,} more" if len(values) > most else "")
