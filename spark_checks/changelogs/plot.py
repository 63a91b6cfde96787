"""Plot of decreases: by offset, the value of each key before and after, and where its task left the old owner."""

import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from agent.model.text import count
from spark_checks.changelogs.decreases import Episode, KeyDecrease

MAX_PANELS = 2
"""How many episodes fit."""

_INCHES, _DOTS = (12, 6.75), 100
_CHARACTERS, _TITLE = 100, 74
"""How many fit in a line across the plot, and in its title at full size."""
_BLUE, _RED, _MOVE = "#1565c0", "#c62828", "#ef6c00"


class Panel(NamedTuple):
    """An episode to draw. decreases: a sample; empty if the episode does not fit.

    bound: the log end when the old owner was last observed, None if unknown. owners: the old and the new one.
    """

    changelog: str
    episode: Episode
    decreases: Sequence[KeyDecrease]
    bound: int | None = None
    owners: tuple[str, str] | None = None


def plot(panels: Sequence[Panel]) -> bytes | None:
    """Return a PNG of the episodes with most keys, as large as Slack shows it (1200 x 675); None without episodes."""
    if not panels:
        return None
    drawn = sorted(panels, key=lambda panel: -panel.episode.keys)[:MAX_PANELS]
    drawn.sort(key=lambda panel: (panel.changelog, panel.episode.partition, panel.episode.number))
    figure = Figure(figsize=_INCHES, dpi=_DOTS)
    for axes, panel in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        _draw(axes, panel)
        lines = (_clip(line, _CHARACTERS // len(drawn)) for line in _heading(panel))
        axes.set_title("\n".join(lines), loc="left", fontsize=12)
    figure.axes[0].set_ylabel("value", fontsize=13)
    text = title(panels)
    figure.suptitle(text, x=0.02, ha="left", fontsize=min(18, 18 * _TITLE // len(text)), fontweight="bold")
    figure.legend(handles=_legend(drawn), loc="lower left", ncols=3, fontsize=12, frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 0.99))
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def title(panels: Sequence[Panel]) -> str:
    """Return the plot's title."""
    keys = count(sum(panel.episode.keys for panel in panels), "key")
    changelogs = sorted({panel.changelog for panel in panels})
    places = {(panel.changelog, panel.episode.partition) for panel in panels}
    where = changelogs[0] if len(changelogs) == 1 else count(len(changelogs), "changelog")
    return f"{keys} of {where} decreased, in {count(len(places), 'partition')}"


def _draw(axes: Axes, panel: Panel) -> None:
    before = [(decrease.before_offset, decrease.before) for decrease in panel.decreases]
    after = [(decrease.after_offset, decrease.after) for decrease in panel.decreases]
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


def _heading(panel: Panel) -> Iterator[str]:
    episode, worst = panel.episode, panel.episode.worst[0]
    yield f"{panel.changelog}[{episode.partition}]"
    keys = f"{episode.keys:,} of {count(max(episode.live_keys, episode.keys), 'key')}"
    yield f"{keys}, worst {worst.before:,} → {worst.after:,}"
    if panel.owners is not None:
        yield f"from {panel.owners[0]}"
        yield f"to {panel.owners[1]}"


def _clip(line: str, room: int) -> str:
    """Remove the middle of a line that is too long: thread names differ at their ends."""
    return line if len(line) <= room else f"{line[: room // 2 - 1]} … {line[-room // 2 + 2 :]}"


def _legend(drawn: Sequence[Panel]) -> list[Line2D]:
    points = [
        Line2D([], [], color=color, marker="o", linestyle="", label=label)
        for color, label in ((_BLUE, "value of a key before"), (_RED, "after"))
    ]
    moved = Line2D([], [], color=_MOVE, linestyle=(0, (5, 3)), label="task's old owner last observed")
    return [*points, moved] if any(panel.bound is not None for panel in drawn) else points
