"""The matcher finds in blocks of bytes what each line matches by itself."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.log_text import compile_pattern
from agent.sources.logs.matcher import Matcher
from agent.sources.logs.patterns import SHIPPED, Pattern
from agent.sources.logs.timestamps import begins_entry

_TIME = "2026-11-21 06:21:30,001"
_LINES = st.text(st.sampled_from("ab 0\t\x0b\x1c\ré²K\u2028{},3:[]()Z-"), max_size=12).map(
    lambda line: line.strip("\r")
)


def _pattern(pattern: str) -> Pattern:
    return Pattern(pattern, None, compile_pattern(pattern))


def _find(pattern: str, lines: list[str], encoding: str = "utf-8") -> list[str]:
    matcher = Matcher(SHIPPED, [_pattern(pattern)])
    block = "".join(f"{line}\n" for line in lines).encode(encoding, "replace")
    return [line.text for line in matcher.find_lines(block, encoding, "")[0] if line.pattern.name == pattern]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"broker (?P<broker>\d+) halts", ["broker 7 halts"]),
        (r"(?i)BROKER (?P<broker>\d+)$", ["a Broker 12"]),
        (r"\(?P<x>", ["(P<x>"]),
        (r"[(?P<x>]+", ["(P<x>", "xx"]),
    ],
)
def test_group_names_are_told_from_text_like_them(pattern: str, found: list[str]) -> None:
    assert _find(pattern, ["ab", "b", "broker 7 halts", "a Broker 12", "(P<x>", "xx", ""]) == found


@pytest.mark.parametrize("pattern", [r"a(?=b)", r"(a)\1", r"b\Z", r"("])
def test_what_re2_does_not_know_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        compile_pattern(pattern)


def test_no_pattern_takes_more_than_linear_time() -> None:
    line = "a" * 30_000 + "é"
    assert _find(r"(a+)+$", [line]) == []


@given(
    st.sampled_from(
        [
            r"\w+$",
            r"^\s",
            r"\S+ \d",
            r"[^a]b",
            r"a.b",
            r"(?i)k",
            r"\bé\b",
            r"\d\D",
            r"(?P<x>a|b)0",
            r"a{0,3}b",
            r"b\z",
            "²",
        ]
    ),
    st.lists(_LINES, max_size=6),
    st.sampled_from(["utf-8", "latin-1"]),
)
@example(r"^\s", ["\x0b", "\x1c"], "utf-8")
@example(r"(?i)k", ["\u212a"], "utf-8")
def test_what_is_found_is_what_each_line_matches(pattern: str, lines: list[str], encoding: str) -> None:
    lines = [line.encode(encoding, "replace").decode(encoding) for line in lines]
    assert _find(pattern, lines, encoding) == [line for line in lines if compile_pattern(pattern).search(line)]


def test_stack_trace_line_has_the_header_of_its_entry() -> None:
    """Found in the block, or carried over from the block before."""
    matcher = Matcher((), [_pattern("Caused by")])
    entry = f"{_TIME} ERROR failed\n\tat a.b\nCaused by: first\n\tat c.d\n"
    (line,), header = matcher.find_lines(entry.encode(), "utf-8", "")
    assert (line.text, line.header) == ("Caused by: first", f"{_TIME} ERROR failed")
    assert header == line.header
    (later,), header = matcher.find_lines(b"\tat e.f\nCaused by: second\n", "utf-8", header)
    assert later.header == header == line.header
    (own,), header = matcher.find_lines(b"2026-11-21 06:21:31,001 Caused by me\n", "utf-8", header)
    assert own.header == header == own.text
    (none,), header = matcher.find_lines(b"Caused by: who knows\n", "utf-8", "")
    assert (none.header, header) == ("", "")


@given(
    st.lists(st.sampled_from([f"{_TIME} A", "\tat x", "Caused by: y", f"{_TIME} Caused by B"]), max_size=8), st.data()
)
def test_headers_do_not_depend_on_block_boundaries(lines: list[str], data: st.DataObject) -> None:
    """Each line's header is the last line up to it that begins with a time."""
    matcher = Matcher((), [_pattern("Caused by")])
    cut = data.draw(st.integers(0, len(lines)))
    header, found = "", []
    for part in (lines[:cut], lines[cut:]):
        if part:
            block = "".join(f"{line}\r\n" for line in part).encode()
            matched, header = matcher.find_lines(block, "utf-8", header)
            found += [(line.text, line.header) for line in matched]
    expected, last = [], ""
    for line in lines:
        last = line if begins_entry(line) else last
        expected += [(line, last)] if "Caused by" in line else []
    assert found == expected
