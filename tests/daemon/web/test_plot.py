"""The plot of a reader's offsets against the log: what it shows, what it leaves out, and its text alternative."""

from xml.etree.ElementTree import Element

from hypothesis import given
from hypothesis import strategies as st

from agent.daemon.offsets import ReaderOffsets, Series
from agent.daemon.web.plot import describe_offsets, draw_offsets

MINUTE = 60_000
LIMIT = 1 << 62
YEAR_9999 = 253_402_300_799_999


def offsets(committed: Series, log_start: Series = (), log_end: Series = (), at: int = 3 * MINUTE) -> ReaderOffsets:
    return ReaderOffsets("billing", "orders", 3, at, committed, log_start, log_end)


REWOUND = offsets(
    [(0, 1_000), (2 * MINUTE, 5_000), (3 * MINUTE, 400), (4 * MINUTE, 900)],
    log_start=[(0, 400), (4 * MINUTE, 400)],
    log_end=[(0, 1_100), (2 * MINUTE, 5_100), (4 * MINUTE, 6_100)],
)


def line(figure: Element, name: str) -> list[tuple[float, float]]:
    """Return the corners of a line."""
    (found,) = figure.findall(f"svg/polyline[@class='{name}']")
    return [tuple(map(float, corner.split(","))) for corner in found.attrib["points"].split()]  # type: ignore[misc]


def test_offsets_are_steps_from_the_left_to_the_right_edge() -> None:
    figure = draw_offsets(REWOUND)
    committed, log_end = line(figure, "committed"), line(figure, "log-end")
    assert committed[0][0] == log_end[0][0] == 4.0
    assert committed[-1][0] == log_end[-1][0] == 396.0
    at_the_rewind = [y for x, y in committed if x == 298.0]
    assert at_the_rewind == [min(y for _, y in committed), max(y for _, y in committed)]  # straight down
    assert log_end[-1][1] == 22.0  # the highest offset is at the top
    assert line(figure, "log-start")[0][1] == 196.0
    (event,) = figure.findall("svg/line")
    assert event.attrib["x1"] == event.attrib["x2"] == "298.0"


def test_labels_and_caption_say_what_is_drawn() -> None:
    figure = draw_offsets(REWOUND)
    assert [text.text for text in figure.findall("svg/text")] == ["6,100", "400 at 00:00:00", "00:04:00 UTC"]
    assert [span.text for span in figure.findall("figcaption/span")] == ["committed offset", "log end", "log start"]


def test_the_text_alternative_names_the_movement() -> None:
    svg = draw_offsets(REWOUND).find("svg")
    assert svg is not None
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-label"] == (
        "Committed offsets of billing on orders[3], 5,000 before 00:03:00.0 UTC and 400 then, now 900; "
        "log end 6,100, log start 400"
    )


def test_a_log_start_far_below_flattens_nothing() -> None:
    far = offsets([(0, 1_000_000), (MINUTE, 1_000_900)], log_start=[(0, 5), (MINUTE, 5)])
    figure = draw_offsets(far)
    assert figure.findall("svg/polyline[@class='log-start']") == []
    assert [y for _, y in line(figure, "committed")] == [196.0, 196.0, 22.0]
    assert figure.findall("figcaption/span")[-1].text == "log start 5, below the plot"


def test_a_log_that_is_unknown_is_left_out() -> None:
    figure = draw_offsets(offsets([(0, 7), (MINUTE, 7)]))
    assert [found.attrib["class"] for found in figure.findall("svg/polyline")] == ["committed"]
    assert describe_offsets(offsets([(0, 7), (MINUTE, 7)])) == "Committed offsets of billing on orders[3], now 7"


OFFSETS = st.integers(0, LIMIT)
SERIES = st.lists(st.tuples(st.integers(0, YEAR_9999), OFFSETS), min_size=1, max_size=2_000).map(sorted)


@given(SERIES, SERIES, st.one_of(st.just([]), SERIES), st.integers(0, YEAR_9999))
def test_lines_stay_in_the_plot_and_are_short(committed: Series, log_start: Series, log_end: Series, at: int) -> None:
    for found in draw_offsets(offsets(committed, log_start, log_end, at)).findall("svg/polyline"):
        corners = [tuple(map(float, corner.split(","))) for corner in found.attrib["points"].split()]
        assert 0 < len(corners) <= 5 * 393
        assert all(4 <= x <= 396 for x, _ in corners)
