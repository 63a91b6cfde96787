"""The sieve finds what Python's re finds, whatever the pattern and the line."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.sources.logs.lines import begins_entry
from agent.sources.logs.matcher import Sieve
from agent.sources.logs.patterns import SHIPPED, Pattern

_TIME = "2026-11-21 06:21:30,001"
_LINES = st.text(st.sampled_from("ab 0\t\x0b\x1c\ré²K\u2028{},3:[]()Z-"), max_size=12).map(lambda one: one.strip("\r"))


def _found(pattern: str, lines: list[str], encoding: str = "utf-8") -> list[str]:
    sieve = Sieve(SHIPPED, [Pattern(pattern, None, re.compile(pattern))])
    block = "".join(f"{line}\n" for line in lines).encode(encoding, "replace")
    return [one.text for one in sieve.lines(block, encoding, "")[0] if one.pattern.name == pattern]


@pytest.mark.parametrize(
    ("pattern", "fast"),
    [
        (r"broker (?P<broker>\d+) halts", True),
        (r"(?i)BROKER (?P<broker>\d+)$", True),
        (r"\(?P<x>", True),
        (r"a(?=b)", False),
        (r"(a)\1", False),
        (r"a++b", False),
        (r"a{,2}b", False),
        (r"b\Z", False),
        (r"[(?P<x>]+", False),
    ],
)
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
def test_a_pattern_that_re2_does_not_know_is_searched_by_re_alone(pattern: str, *, fast: bool) -> None:
    """It costs time, and nothing is missed."""
    sieve = Sieve((), [Pattern(pattern, None, re.compile(pattern))])
    assert sieve.fast == fast
    lines = ["ab", "aab", "aa", "b", "broker 7 halts", "a Broker 12", "(P<x>", "xx", ""]
    assert _found(pattern, lines) == [line for line in lines if re.search(pattern, line)]


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
            r"a{,3}b",
            r"b\Z",
            "²",
        ]
    ),
    st.lists(_LINES, max_size=6),
    st.sampled_from(["utf-8", "latin-1"]),
)
@example(r"^\s", ["\x0b", "\x1c"], "utf-8")
@example(r"(?i)k", ["\u212a"], "utf-8")
def test_what_is_found_is_what_re_finds(pattern: str, lines: list[str], encoding: str) -> None:
    """Also of characters that RE2 has another mind about."""
    lines = [line.encode(encoding, "replace").decode(encoding) for line in lines]
    assert _found(pattern, lines, encoding) == [line for line in lines if re.search(pattern, line)]


def test_all_shipped_patterns_are_known_to_re2() -> None:
    """One that is not would have every line looked at by itself."""
    assert Sieve(SHIPPED).fast


def test_a_line_of_a_stack_trace_is_dated_by_its_entry() -> None:
    """Found in the block, or carried over from the block before."""
    sieve = Sieve((), [Pattern("Caused by", None, re.compile("Caused by"))])
    entry = f"{_TIME} ERROR failed\n\tat a.b\nCaused by: first\n\tat c.d\n"
    (line,), header = sieve.lines(entry.encode(), "utf-8", "")
    assert (line.text, line.header) == ("Caused by: first", f"{_TIME} ERROR failed")
    assert header == line.header
    (later,), header = sieve.lines(b"\tat e.f\nCaused by: second\n", "utf-8", header)
    assert later.header == header == line.header
    (own,), header = sieve.lines(b"2026-11-21 06:21:31,001 Caused by me\n", "utf-8", header)
    assert own.header == header == own.text
    (none,), header = sieve.lines(b"Caused by: who knows\n", "utf-8", "")
    assert (none.header, header) == ("", "")


@given(
    st.lists(st.sampled_from([f"{_TIME} A", "\tat x", "Caused by: y", f"{_TIME} Caused by B"]), max_size=8), st.data()
)
def test_headers_do_not_depend_on_how_lines_are_cut_into_blocks(lines: list[str], data: st.DataObject) -> None:
    """Each line's header is the last line up to it that begins with a time."""
    sieve = Sieve((), [Pattern("Caused by", None, re.compile("Caused by"))])
    cut = data.draw(st.integers(0, len(lines)))
    header, found = "", []
    for part in (lines[:cut], lines[cut:]):
        if part:
            some, header = sieve.lines("".join(f"{one}\r\n" for one in part).encode(), "utf-8", header)
            found += [(one.text, one.header) for one in some]
    expected, last = [], ""
    for line in lines:
        last = line if begins_entry(line) else last
        expected += [(line, last)] if "Caused by" in line else []
    assert found == expected
