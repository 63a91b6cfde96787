"""Plot of a rewind or jump: the committed offset within the log over time; below it sessions and leaders."""

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from agent.model.text import count, day_of
from agent.model.times import clock
from agent.rules.queries.partitions import leader_of
from spark_checks.journal.files import JournalWindow
from spark_checks.offsets.arrays import Ints
from spark_checks.offsets.commits import Series, read_log
from spark_checks.offsets.context import SessionLoss
from spark_checks.offsets.diagnosis import BASELINE_MS, BEFORE_MS, Diagnosis
from spark_checks.offsets.keys import Key

_INCHES, _DOTS = (12, 6.75), 100
_LEAST_MS = 60_000
_POINTS = 2_000
_TITLE = 80
"""How many characters fit in a line at full size."""

_BROKERS = 4
_NARROW = 0.04
"""The share of the width below which a bar has no room for text."""

_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300)
_RED, _BLUE, _LOG, _SESSION, _LEADERS = "#c62828", "#1565c0", "#78909c", "#ef6c00", ("#7e57c2", "#26a69a", "#8d6e63")


def plot(window: JournalWindow, diagnosis: Diagnosis, series: Mapping[Key, Series]) -> bytes:
    """Return a PNG of the diagnosis as large as Slack shows it: 1200 x 675."""
    event = diagnosis.event
    commits = series[event.key]
    log_begin, log_end = event.at - BEFORE_MS - BASELINE_MS, event.at + BEFORE_MS
    start, top = read_log(window, event.key, log_begin, log_end)
    begin, end = _extent(diagnosis, commits, top)
    losses = _nearest(diagnosis.session_losses, event.at)
    lanes = len({loss.broker for loss in losses}) + bool(diagnosis.leader_changes)
    figure = Figure(figsize=_INCHES, dpi=_DOTS)
    axes, below = figure.subplots(2, sharex=True, height_ratios=(10, max(lanes, 0.01)))
    _draw_log(axes, _clip(start, begin, end), _clip(top, begin, end))
    _draw_commits(axes, diagnosis, _clip(commits, begin, end))
    _draw_lanes(below, diagnosis, losses, begin, end)
    changes = [(new.at, _LEADERS[0]) for _, new in diagnosis.leader_changes]
    for moment, color in [(loss.at, _SESSION) for loss in losses] + changes:
        axes.axvline(moment / 1000, color=color, linewidth=1.2, linestyle=(0, (5, 3)))
    _draw_time(below, begin, end)
    text = title(diagnosis)
    figure.suptitle(text, x=0.02, ha="left", fontsize=min(18, 18 * _TITLE // len(text)), fontweight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def title(diagnosis: Diagnosis) -> str:
    """Return the plot's title."""
    event = diagnosis.event
    moved = abs(event.move.offset - event.move.before_offset)
    how = "rewound" if event.is_rewind else "skipped"
    where = f"{event.key.topic}[{event.key.partition}]"
    return f"{event.key.group} {how} {count(moved, 'record')} on {where} at {clock(event.at)[:-2]} UTC"


def _extent(diagnosis: Diagnosis, commits: Series, top: Series) -> tuple[int, int]:
    """Return an interval from before the earliest cause to after the old offset is reached again."""
    event = diagnosis.event
    causes = [
        *(loss.at for loss in diagnosis.session_losses),
        *(new.at for _, new in diagnosis.leader_changes),
    ]
    first = min([event.began, *causes])
    regained = commits.time[(commits.time > event.at) & (commits.value >= event.move.before_offset)]
    last = max([event.at, *causes, *regained[:1].tolist()] if event.is_rewind else [event.at, *causes])
    length = max(last - first, _LEAST_MS)
    times = np.concatenate((commits.time, top.time[top.time >= event.at - BEFORE_MS]))
    begin = max(first - length // 3, event.at - BEFORE_MS, int(times.min()))
    return begin, max(min(last + length // 4, event.at + BEFORE_MS, int(times.max()) + length // 20), event.at + 1_000)


def _draw_log(axes: Axes, start: Series, top: Series) -> None:
    if not top.time.size:
        return
    time = top.time / 1000
    axes.fill_between(
        time, start.value, top.value, step="post", color=_LOG, alpha=0.2, linewidth=0, label="records in the log"
    )
    for series in (start, top):
        axes.step(time, series.value, where="post", color=_LOG, linewidth=1.5)


def _draw_commits(axes: Axes, diagnosis: Diagnosis, commits: Series) -> None:
    event = diagnosis.event
    old, new, moment = event.move.before_offset, event.move.offset, event.at / 1000
    axes.step(
        commits.time / 1000,
        commits.value,
        where="post",
        color=_BLUE,
        linewidth=2.5,
        label=f"committed by {event.key.group}",
    )
    arrow = {"arrowstyle": "-|>", "color": _RED, "linewidth": 4, "mutation_scale": 24, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(moment, new), xytext=(moment, old), arrowprops=arrow)
    axes.annotate(
        f"{old:,} → {new:,}",
        xy=(moment, (old + new) / 2),
        xytext=(-12, 0),
        textcoords="offset points",
        color=_RED,
        fontsize=16,
        fontweight="bold",
        ha="right",
        va="center",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 3},
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylabel("offset", fontsize=13)
    axes.tick_params(labelsize=12)
    axes.grid(color="#eceff1")
    axes.set_axisbelow(True)
    # Above the plot: inside, it would hide a group at the log start.
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=12, frameon=False, borderaxespad=0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _nearest(losses: Sequence[SessionLoss], at: int) -> list[SessionLoss]:
    """Return the losses of the _BROKERS brokers whose loss was nearest; there is no room for more."""
    near = sorted(losses, key=lambda loss: abs(loss.at - at))
    brokers = list(dict.fromkeys(loss.broker for loss in near))[:_BROKERS]
    return [loss for loss in losses if loss.broker in brokers]


def _draw_lanes(axes: Axes, diagnosis: Diagnosis, losses: Sequence[SessionLoss], begin: int, end: int) -> None:
    """Draw a lane for each broker whose session expired, and one for the leader."""
    names: list[str] = []
    for broker in sorted({loss.broker for loss in losses}):
        for loss in losses:
            if loss.broker == broker:
                back = end if loss.back is None else min(loss.back, end)
                _draw_bar(axes, len(names), (max(loss.at, begin), back), _SESSION)
                axes.text(back / 1000, len(names), "  session expired", va="center", color=_SESSION, fontsize=12)
        names.append(f"broker {broker}")
    changes = diagnosis.leader_changes
    if changes:
        moments = [begin, *(new.at for _, new in changes), end]
        leaders = [leader_of(changes[0][0]), *(leader_of(new) for _, new in changes)]
        colors = dict(zip(dict.fromkeys(leaders), _LEADERS * len(leaders), strict=False))
        for leader, (first, last) in zip(leaders, pairwise(moments), strict=True):
            _draw_bar(axes, len(names), (first, last), colors[leader])
            if last - first > (end - begin) * _NARROW:
                middle = (first + last) / 2000
                axes.text(middle, len(names), str(leader), ha="center", va="center", color="white", fontsize=12)
        names.append("leader")
    axes.set_yticks(range(len(names)), names, fontsize=12)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_bar(axes: Axes, lane: int, interval: tuple[int, int], color: str) -> None:
    begin, end = interval
    axes.barh(lane, (end - begin) / 1000, left=begin / 1000, height=0.7, color=color, edgecolor="white")


def _draw_time(axes: Axes, begin: int, end: int) -> None:
    """Set ticks at whole seconds or minutes, in UTC."""
    step = next((step for step in _TICKS_S if (end - begin) / 1000 / step <= 8), _TICKS_S[-1])
    ticks = range(-(-begin // 1000 // step) * step, end // 1000 + 1, step)
    axes.set_xlim(begin / 1000, end / 1000)
    axes.set_xticks(list(ticks), [f"{datetime.fromtimestamp(tick, UTC):%H:%M:%S}" for tick in ticks], fontsize=12)
    axes.set_xlabel(f"{day_of(begin)}, UTC", fontsize=12)


def _clip(series: Series, begin: int, end: int) -> Series:
    """Return the values from begin to end with those in force at both, thinned to what can be seen."""
    first, last = np.searchsorted(series.time, [begin, end + 1])
    time, value = series.time[max(first - 1, 0) : last], series.value[max(first - 1, 0) : last]
    if not time.size:
        return Series(time, value)
    if time.size > _POINTS:
        chosen = _thin(value)
        time, value = time[chosen], value[chosen]
    return Series(np.append(np.maximum(time, begin), end), np.append(value, value[-1]))


def _thin(value: Ints) -> Ints:
    """Return the indices of every nth value and of both sides of each decrease."""
    decreases = np.flatnonzero(np.diff(value) < 0)
    every_nth = np.linspace(0, value.size - 1, _POINTS).astype(np.int64)
    return np.unique(np.concatenate((every_nth, decreases, decreases + 1)))
