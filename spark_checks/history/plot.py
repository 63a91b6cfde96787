"""A picture of one rewind or jump: the committed offset over time within its log; below it sessions and leaders."""

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from agent.model.observations import clock
from agent.model.text import count, day_of
from agent.rules.queries.partitions import leader_of
from spark_checks.history import curves
from spark_checks.history.context import Journal
from spark_checks.history.curves import Series
from spark_checks.history.events import Loss
from spark_checks.history.keys import Key
from spark_checks.history.moves import Ints
from spark_checks.history.verdicts import BASELINE_MS, BEFORE_MS, Verdict

_INCHES, _DOTS = (12, 6.75), 100
_LEAST_MS = 60_000
_POINTS = 2_000
_TITLE = 80
"""How many characters fit in a line at full size."""

_BROKERS = 4
_NARROW = 0.04
"""The share of the width below which a bar has no room for words."""

_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300)
_RED, _BLUE, _LOG, _SESSION, _LEADERS = "#c62828", "#1565c0", "#78909c", "#ef6c00", ("#7e57c2", "#26a69a", "#8d6e63")


def plot(journal: Journal, verdict: Verdict, series: Mapping[Key, Series]) -> bytes:
    """A PNG of the verdict, as large as Slack shows it: 1200 x 675."""
    event = verdict.event
    commits = series[event.key]
    pieces = journal.pieces("log_offsets", event.at - BEFORE_MS - BASELINE_MS, event.at + BEFORE_MS)
    start, top = curves.log(
        pieces, journal.cluster, event.key, event.at - BEFORE_MS - BASELINE_MS, event.at + BEFORE_MS
    )
    begin, end = _extent(verdict, commits, top)
    losses = _worst(verdict.losses, event.at)
    lanes = len({one.broker for one in losses}) + bool(verdict.moves)
    figure = Figure(figsize=_INCHES, dpi=_DOTS)
    axes, below = figure.subplots(2, sharex=True, height_ratios=(10, max(lanes, 0.01)))
    _draw_log(axes, _held(start, begin, end), _held(top, begin, end))
    _draw_commits(axes, verdict, _held(commits, begin, end))
    _draw_lanes(below, verdict, losses, begin, end)
    for moment, color in [(one.at, _SESSION) for one in losses] + [(new.at, _LEADERS[0]) for _, new in verdict.moves]:
        axes.axvline(moment / 1000, color=color, linewidth=1.2, linestyle=(0, (5, 3)))
    _draw_time(below, begin, end)
    words = title(verdict)
    figure.suptitle(words, x=0.02, ha="left", fontsize=min(18, 18 * _TITLE // len(words)), fontweight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    made = io.BytesIO()
    figure.savefig(made, format="png")
    return made.getvalue()


def title(verdict: Verdict) -> str:
    """In plain words."""
    event = verdict.event
    moved = abs(event.hit.offset - event.hit.before_offset)
    how = "went back" if event.back else "leapt ahead"
    where = f"{event.key.topic}[{event.key.partition}]"
    return f"{event.key.group} {how} {count(moved, 'record')} on {where} at {clock(event.at)[:-2]} UTC"


def _extent(verdict: Verdict, commits: Series, top: Series) -> tuple[int, int]:
    """From before the earliest cause to after the old offset is regained, as far as there is something to show."""
    event = verdict.event
    causes = [*(one.at for one in verdict.losses), *(new.at for _, new in verdict.moves)]
    first = min([event.began, *causes])
    regained = commits.time[(commits.time > event.at) & (commits.value >= event.hit.before_offset)]
    last = max([event.at, *causes, *regained[:1].tolist()] if event.back else [event.at, *causes])
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


def _draw_commits(axes: Axes, verdict: Verdict, commits: Series) -> None:
    event = verdict.event
    old, new, moment = event.hit.before_offset, event.hit.offset, event.at / 1000
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
    # Above the picture: within it, it would hide a group that stands at the log's start.
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=12, frameon=False, borderaxespad=0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _worst(losses: Sequence[Loss], at: int) -> list[Loss]:
    """Of so many brokers as there is room for: those whose loss was nearest."""
    near = sorted(losses, key=lambda one: abs(one.at - at))
    brokers = list(dict.fromkeys(one.broker for one in near))[:_BROKERS]
    return [one for one in losses if one.broker in brokers]


def _draw_lanes(axes: Axes, verdict: Verdict, losses: Sequence[Loss], begin: int, end: int) -> None:
    """A lane for each broker that was without its session, and one for who led."""
    names: list[str] = []
    for broker in sorted({one.broker for one in losses}):
        for one in losses:
            if one.broker == broker:
                back = end if one.back is None else min(one.back, end)
                _bar(axes, len(names), (max(one.at, begin), back), _SESSION)
                axes.text(back / 1000, len(names), "  session lost", va="center", color=_SESSION, fontsize=12)
        names.append(f"broker {broker}")
    if verdict.moves:
        moments = [begin, *(new.at for _, new in verdict.moves), end]
        led = [leader_of(verdict.moves[0][0]), *(leader_of(new) for _, new in verdict.moves)]
        colors = dict(zip(dict.fromkeys(led), _LEADERS * len(led), strict=False))
        for leader, (first, last) in zip(led, pairwise(moments), strict=True):
            _bar(axes, len(names), (first, last), colors[leader])
            if last - first > (end - begin) * _NARROW:
                middle = (first + last) / 2000
                axes.text(middle, len(names), str(leader), ha="center", va="center", color="white", fontsize=12)
        names.append("leader")
    axes.set_yticks(range(len(names)), names, fontsize=12)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _bar(axes: Axes, lane: int, stretch: tuple[int, int], color: str) -> None:
    begin, end = stretch
    axes.barh(lane, (end - begin) / 1000, left=begin / 1000, height=0.7, color=color, edgecolor="white")


def _draw_time(axes: Axes, begin: int, end: int) -> None:
    """Ticks at whole seconds or minutes, in UTC."""
    step = next((one for one in _TICKS_S if (end - begin) / 1000 / one <= 8), _TICKS_S[-1])
    ticks = range(-(-begin // 1000 // step) * step, end // 1000 + 1, step)
    axes.set_xlim(begin / 1000, end / 1000)
    axes.set_xticks(list(ticks), [f"{datetime.fromtimestamp(one, UTC):%H:%M:%S}" for one in ticks], fontsize=12)
    axes.set_xlabel(f"{day_of(begin)}, UTC", fontsize=12)


def _held(series: Series, begin: int, end: int) -> Series:
    """The values from begin to end with what held at both, thinned to what can be seen."""
    first, last = np.searchsorted(series.time, [begin, end + 1])
    time, value = series.time[max(first - 1, 0) : last], series.value[max(first - 1, 0) : last]
    if not time.size:
        return Series(time, value)
    if time.size > _POINTS:
        chosen = _thinned(value)
        time, value = time[chosen], value[chosen]
    return Series(np.append(np.maximum(time, begin), end), np.append(value, value[-1]))


def _thinned(value: Ints) -> Ints:
    """Every nth value, and all that fall or that a smaller one follows."""
    falls = np.flatnonzero(np.diff(value) < 0)
    return np.unique(np.concatenate((np.linspace(0, value.size - 1, _POINTS).astype(np.int64), falls, falls + 1)))
