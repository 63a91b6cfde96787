"""A plot of committed offsets against the log as inline SVG, which needs neither scripts nor styles of its own."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement

from agent.daemon.offsets import ReaderOffsets, Series
from agent.model.text import visible
from agent.model.times import clock

_WIDTH, _HEIGHT = 400, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 4, 396, 22, 196
"""The edges of the area that has the lines; labels are above and below it."""

_MOST_BELOW = 1.0
"""How far below the other lines, in their height, the log start is still drawn."""


def draw_offsets(offsets: ReaderOffsets) -> Element:
    """Return a figure: the plot with a text alternative, and a caption that says which line is which."""
    figure = Element("figure")
    drawn = {"committed": offsets.committed, "log-end": offsets.log_end}
    values = [offset for series in drawn.values() for _, offset in series]
    low, high = min(values), max(values)
    lowest = min((offset for _, offset in offsets.log_start), default=low)
    if low - lowest <= _MOST_BELOW * (high - low):
        drawn["log-start"] = offsets.log_start
        low = min(low, lowest)
    begin = min(series[0][0] for series in drawn.values() if series)
    end = max(series[-1][0] for series in drawn.values() if series)
    scale = _Scale(begin, end, low, high)
    size = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "aria-label": describe_offsets(offsets)}
    svg = SubElement(figure, "svg", {"class": "plot", **size})
    event = f"{scale.x(offsets.at):.1f}"
    SubElement(svg, "line", {"class": "event", "x1": event, "x2": event, "y1": str(_TOP), "y2": str(_BOTTOM)})
    for name, series in drawn.items():
        if series:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in scale.steps(series))
            SubElement(svg, "polyline", {"class": name, "points": points})
    _label(svg, _LEFT, _TOP - 8, f"{high:,}")
    _label(svg, _LEFT, _BOTTOM + 18, f"{low:,} at {clock(begin)[:8]}")
    _label(svg, _RIGHT, _BOTTOM + 18, f"{clock(end)[:8]} UTC", "end")
    caption = SubElement(figure, "figcaption")
    for name, words in (("committed", "committed offset"), ("log-end", "log end"), ("log-start", "log start")):
        if drawn.get(name):
            SubElement(caption, "span", {"class": f"key {name}"}).text = words
    if offsets.log_start and "log-start" not in drawn:
        SubElement(caption, "span").text = f"log start {offsets.log_start[-1][1]:,}, below the plot"
    return figure


def describe_offsets(offsets: ReaderOffsets) -> str:
    """Return what the plot shows, in words."""
    before = [offset for at, offset in offsets.committed if at < offsets.at]
    after = [offset for at, offset in offsets.committed if at >= offsets.at]
    moved = f", {before[-1]:,} before {clock(offsets.at)} UTC and {after[0]:,} then" if before and after else ""
    log = f"; log end {offsets.log_end[-1][1]:,}, log start {offsets.log_start[-1][1]:,}" if offsets.log_end else ""
    return visible(
        f"Committed offsets of {offsets.group} on {offsets.topic}[{offsets.partition}]{moved}, "
        f"now {offsets.committed[-1][1]:,}{log}"
    )


class _Scale:
    """Maps times and offsets to the area of the lines."""

    def __init__(self, begin: int, end: int, low: int, high: int) -> None:
        self._begin, self._low = begin, low
        self._per_ms = (_RIGHT - _LEFT) / max(end - begin, 1)
        self._per_record = (_BOTTOM - _TOP) / max(high - low, 1)

    def x(self, at: int) -> float:
        return min(max(_LEFT + (at - self._begin) * self._per_ms, _LEFT), _RIGHT)

    def y(self, offset: int) -> float:
        return _BOTTOM - (offset - self._low) * self._per_record

    def steps(self, series: Series) -> Iterator[tuple[float, float]]:
        """Yield the corners of the line: an offset holds until the next. Of what falls on one pixel, its extremes."""
        columns: dict[int, list[int]] = {}
        for at, offset in series:
            columns.setdefault(int(self.x(at)), []).append(offset)
        last: int | None = None
        for x, found in columns.items():
            held = [] if last is None else [last]
            for corner in dict.fromkeys((*held, found[0], min(found), max(found), found[-1])):
                yield x, self.y(corner)
            last = found[-1]


def _label(svg: Element, x: int, y: int, text: str, anchor: str = "start") -> None:
    SubElement(svg, "text", {"x": str(x), "y": str(y), "text-anchor": anchor}).text = text
