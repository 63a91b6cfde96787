"""Charts of the page, drawn as SVG inside of it: incidents per day, and a curve of lag."""

from collections.abc import Sequence
from typing import NamedTuple

from spark_checks.reviews.markup import Html, element, joined

_WIDTH, _HEIGHT = 640, 150
_BASE, _TOP = 124, 16
_CURVE_WIDTH, _CURVE_HEIGHT = 150, 30
_GAP = 2


class Bar(NamedTuple):
    """A day. is_now: whether it belongs to the reviewed week. label: below it, or empty."""

    critical: int
    warning: int
    is_now: bool
    title: str
    label: str = ""


def bars(days: Sequence[Bar]) -> Html:
    """Return stacked bars, critical ones below; a chart for the width of the page."""
    highest = max((bar.critical + bar.warning for bar in days), default=0) or 1
    step, unit = _WIDTH / max(len(days), 1), (_BASE - _TOP) / highest
    parts: list[Html] = []
    for index, bar in enumerate(days):
        left, width = index * step + _GAP / 2, max(step - _GAP, 1)
        top = float(_BASE)
        red, amber = ("--red", "--amber") if bar.is_now else ("--oldred", "--old")
        drawn = []
        for number, colour in ((bar.critical, red), (bar.warning, amber)):
            if number:
                top -= number * unit
                drawn.append(_rectangle(left, top, width, number * unit, colour))
        if not drawn:
            drawn.append(_rectangle(left, _BASE - 1, width, 1, "--line"))
        total = bar.critical + bar.warning
        if bar.is_now and total:
            drawn.append(_label(left + width / 2, top - 4, f"{total:,}"))
        if bar.label:
            drawn.append(_label(left, _BASE + 18, bar.label, anchor="start"))
        parts.append(element("g", element("title", bar.title), *drawn))
    view = f"0 0 {_WIDTH} {_HEIGHT}"
    return element("svg", *parts, viewBox=view, role="img", aria_label="Incidents per day", width="100%")


def curve(values: Sequence[float], title: str) -> Html:
    """Return a small curve without axes, from 0 to its highest value."""
    if not values:
        return Html()
    highest, last = max(values) or 1, max(len(values) - 1, 1)
    points = [
        f"{index * _CURVE_WIDTH / last:.1f},{_CURVE_HEIGHT - 1 - value * (_CURVE_HEIGHT - 3) / highest:.1f}"
        for index, value in enumerate(values)
    ]
    area = f"0,{_CURVE_HEIGHT} {' '.join(points)} {_CURVE_WIDTH},{_CURVE_HEIGHT}"
    return element(
        "svg",
        element("title", title),
        element("polygon", points=area, style="fill:var(--blue);opacity:.15"),
        element("polyline", points=" ".join(points), style="fill:none;stroke:var(--blue);stroke-width:1.5"),
        viewBox=f"0 0 {_CURVE_WIDTH} {_CURVE_HEIGHT}",
        width=_CURVE_WIDTH,
        height=_CURVE_HEIGHT,
        role="img",
        aria_label=title,
    )


def weeks(numbers: Sequence[float]) -> Html:
    """Return a small bar for each week, the reviewed one last and in colour."""
    highest, width = max(numbers, default=0) or 1, 10
    drawn = [
        _rectangle(
            index * (width + _GAP), 22 - (height := max(1.0, number * 20 / highest)), width, height,
            "--blue" if index == len(numbers) - 1 else "--old",
        )
        for index, number in enumerate(numbers)
    ]  # fmt: skip
    size = len(numbers) * (width + _GAP)
    return element("svg", joined(drawn), viewBox=f"0 0 {size} 22", width=size, height=22, aria_hidden="true")


def _rectangle(left: float, top: float, width: float, height: float, colour: str) -> Html:
    return element(
        "rect", x=f"{left:.1f}", y=f"{top:.1f}", width=f"{width:.1f}", height=f"{height:.1f}",
        style=f"fill:var({colour})",
    )  # fmt: skip


def _label(at: float, bottom: float, words: str, anchor: str = "middle") -> Html:
    return element("text", words, x=f"{at:.1f}", y=f"{bottom:.1f}", text_anchor=anchor)
