"""The picture of a review for chat: incidents per day, distances to data loss, and the largest lags over time."""

import io
from datetime import UTC, datetime

from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from agent.model.text import count, visible
from spark_checks.reviews.facts import NEAR_SHARE, Facts, now
from spark_checks.reviews.lags import Margin
from spark_checks.reviews.periods import DAY_MS
from spark_checks.reviews.words import brief, percent, period, short, where

_INCHES, _DOTS = (12, 6.75), 100
_RED, _AMBER, _GREEN, _BLUE, _PALE = "#c62828", "#e69138", "#2e7d32", "#1565c0", "#b8c4d1"
_OLD_RED = "#e3a9a5"
_CURVES = (_BLUE, "#7e57c2", "#26a69a")
_BARS, _NAME = 5, 30


def picture(facts: Facts) -> bytes:
    """Return a PNG as large as Slack shows it: 1200 x 675."""
    figure = Figure(figsize=_INCHES, dpi=_DOTS)
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1))
    _draw_incidents(figure.add_subplot(grid[0, 0]), facts)
    _draw_margins(figure.add_subplot(grid[0, 1]), facts)
    _draw_lags(figure.add_subplot(grid[1, :]), facts)
    title = _plain(f"{brief(facts.label)}, {period(facts.periods)}")
    figure.suptitle(title, x=0.02, ha="left", fontsize=18, fontweight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _draw_incidents(axes: Axes, facts: Facts) -> None:
    days = facts.incidents_by_day()
    if not any(day.critical + day.warning for day in days):
        _title(axes, "Incidents")
        unknown = "Unknown: deleted by the agent" if facts.incidents_since else "Unknown: no state file was read"
        _nothing(axes, "None" if facts.has_incidents and not facts.lacks_incidents() else unknown)
        return
    is_hourly = days[0].length < DAY_MS
    critical, warning = ([day.critical for day in days], [day.warning for day in days])
    numbers = range(len(days))
    axes.bar(numbers, critical, color=[_RED if day.is_now else _OLD_RED for day in days], width=0.85)
    axes.bar(numbers, warning, bottom=critical, color=[_AMBER if day.is_now else _PALE for day in days], width=0.85)
    _title(axes, f"Incidents per {'hour' if is_hourly else 'day'} (red: critical; pale: the time before)")
    labelled = [number for number in numbers if days[number].is_first]
    texts = [f"{_date(days[number].since):{'%H:%M' if is_hourly else '%-d %b'}}" for number in labelled]
    axes.set_xticks(labelled, texts)
    axes.set_ylim(0, max(1.0, max(day.critical + day.warning for day in days) * 1.1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def _draw_margins(axes: Axes, facts: Facts) -> None:
    found = now(facts.margins)[:_BARS][::-1]
    _title(axes, "Closest to data loss: % of the log left")
    if not found:
        alarmed = len(facts.alarmed())
        _nothing(
            axes,
            f"No sample shows it;\nrules reported {count(alarmed, 'group')}"
            if alarmed
            else "Retention deleted nothing\nthat a group still had to read",
        )
        return
    shares = [max(0.0, margin.share) * 100 for margin in found]
    limit = NEAR_SHARE * 100
    colours = [_RED if share < limit / 2 else _AMBER if share < limit else _GREEN for share in shares]
    names = [_name_of(margin) for margin in found]
    axes.barh(range(len(found)), shares, color=colours, height=0.6)
    axes.axvline(limit, color=_RED, linestyle=(0, (5, 3)), linewidth=1)
    axes.set_yticks(range(len(found)), names)
    axes.set_ylim(len(found) - _BARS - 0.5, len(found) - 0.5)  # few bars are no thicker than many
    axes.set_xlim(0, 100)
    for index, margin in enumerate(found):
        label = "records deleted" if margin.margin < 0 else percent(margin.share)
        is_long = shares[index] > 85
        axes.text(shares[index] + (-1 if is_long else 1), index, label, va="center", fontsize=10,
                  ha="right" if is_long else "left", color="white" if is_long else "black")  # fmt: skip


def _draw_lags(axes: Axes, facts: Facts) -> None:
    _title(axes, "Lag of the groups with the largest, records")
    drawn = list(facts.points)[: len(_CURVES)]
    if not drawn:
        _nothing(axes, "No group had unread records")
        return
    for group, colour in zip(drawn, _CURVES, strict=False):
        points = facts.points[group]
        axes.plot([_date(point.at) for point in points], [point.lag for point in points],  # type: ignore[arg-type]
                  color=colour, linewidth=1.5, label=_plain(brief(group, _NAME)))  # fmt: skip
    axes.set_xlim(_date(facts.periods.since), _date(facts.periods.until))  # type: ignore[arg-type]
    axes.set_yscale("symlog", linthresh=10)
    highest = max(point.lag for group in drawn for point in facts.points[group])
    axes.set_ylim(0, max(10, highest * 6, highest**1.2))  # room for the legend, on an axis that is logarithmic
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    is_long = facts.periods.length > 2 * DAY_MS
    axes.xaxis.set_major_formatter(DateFormatter("%a %-d %b" if is_long else "%H:%M"))  # type: ignore[no-untyped-call]
    axes.grid(axis="y", color="#eceff1")
    axes.legend(loc="upper left", frameon=False, ncols=len(_CURVES), fontsize=10)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=12, color="#37474f")
    axes.spines[["top", "right"]].set_visible(False)


def _nothing(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=13, color="#607d8b", transform=axes.transAxes)


def _name_of(margin: Margin) -> str:
    """Return the group with its partition, or the group alone if there is no room for both."""
    both = f"{margin.group}  {where(margin.topic, margin.partition)}"
    return _plain(both if len(both) <= _NAME else brief(margin.group, _NAME))


def _plain(text: str) -> str:
    """Return the text without what matplotlib reads as mathematics."""
    return visible(text).replace("$", r"\$")


def _date(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
