"""A picture of what fell: by offset, the value of each key before and after; where its task left its old owner."""

import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from agent.model.text import count
from spark_checks.changelogs.falls import KeyFall, Stretch

MOST = 2
"""How many stretches there is room for."""

_INCHES, _DOTS = (12, 6.75), 100
_CHARACTERS, _TITLE = 100, 74
"""How many fit in a line across the picture, and of its title at full size."""
_BLUE, _RED, _MOVE = "#1565c0", "#c62828", "#ef6c00"


class Panel(NamedTuple):
    """A stretch as it is drawn. falls: some of it, each with its key's values and offsets before and after; none where
    there is no room for it.

    bound: the log's end when the old owner was last seen, None where no move is known. owners: the old and the new one.
    """

    changelog: str
    stretch: Stretch
    falls: Sequence[KeyFall]
    bound: int | None = None
    owners: tuple[str, str] | None = None


def plot(panels: Sequence[Panel]) -> bytes | None:
    """A PNG of the stretches with most keys, as large as Slack shows it (1200 x 675); None where nothing fell."""
    if not panels:
        return None
    drawn = sorted(panels, key=lambda one: -one.stretch.keys)[:MOST]
    drawn.sort(key=lambda one: (one.changelog, one.stretch.partition, one.stretch.number))
    figure = Figure(figsize=_INCHES, dpi=_DOTS)
    for axes, panel in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        _draw(axes, panel)
        lines = (_clipped(line, _CHARACTERS // len(drawn)) for line in _words(panel))
        axes.set_title("\n".join(lines), loc="left", fontsize=12)
    figure.axes[0].set_ylabel("value", fontsize=13)
    words = title(panels)
    figure.suptitle(words, x=0.02, ha="left", fontsize=min(18, 18 * _TITLE // len(words)), fontweight="bold")
    figure.legend(handles=_legend(drawn), loc="lower left", ncols=3, fontsize=12, frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 0.99))
    made = io.BytesIO()
    figure.savefig(made, format="png")
    return made.getvalue()


def title(panels: Sequence[Panel]) -> str:
    """In plain words."""
    keys = count(sum(one.stretch.keys for one in panels), "key")
    changelogs = sorted({one.changelog for one in panels})
    places = {(one.changelog, one.stretch.partition) for one in panels}
    where = changelogs[0] if len(changelogs) == 1 else count(len(changelogs), "changelog")
    return f"{keys} of {where} went back, in {count(len(places), 'partition')}"


def _draw(axes: Axes, panel: Panel) -> None:
    before = [(one.before_offset, one.before) for one in panel.falls]
    after = [(one.after_offset, one.after) for one in panel.falls]
    axes.add_collection(LineCollection(list(zip(before, after, strict=True)), colors=_RED, linewidths=0.8, alpha=0.4))
    for points, color in ((before, _BLUE), (after, _RED)):
        offsets, values = zip(*points, strict=True)
        axes.scatter(offsets, values, s=16, color=color, zorder=3)
    if panel.bound is not None:
        axes.axvline(panel.bound, color=_MOVE, linewidth=1.5, linestyle=(0, (5, 3)))
    axes.margins(0.1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("offset", fontsize=12)
    axes.tick_params(labelsize=12)
    axes.grid(color="#eceff1")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _words(panel: Panel) -> Iterator[str]:
    stretch, worst = panel.stretch, panel.stretch.worst[0]
    yield f"{panel.changelog}[{stretch.partition}]"
    keys = f"{stretch.keys:,} of {count(max(stretch.standing, stretch.keys), 'key')}"
    yield f"{keys}, worst {worst.before:,} → {worst.after:,}"
    if panel.owners is not None:
        yield f"from {panel.owners[0]}"
        yield f"to {panel.owners[1]}"


def _clipped(line: str, room: int) -> str:
    """Without its middle where it is too long: threads differ at their ends."""
    return line if len(line) <= room else f"{line[: room // 2 - 1]} … {line[-room // 2 + 2 :]}"


def _legend(drawn: Sequence[Panel]) -> list[Line2D]:
    points = [
        Line2D([], [], color=color, marker="o", linestyle="", label=label)
        for color, label in ((_BLUE, "a key's value before"), (_RED, "and after"))
    ]
    moved = Line2D([], [], color=_MOVE, linestyle=(0, (5, 3)), label="where the task's old owner was last seen")
    return [*points, moved] if any(one.bound is not None for one in drawn) else points
