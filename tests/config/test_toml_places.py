"""Places of keys in generated TOML documents, compared with what tomli reads."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import tomli
from hypothesis import given
from hypothesis import strategies as st

from agent.config.toml_places import KeyPath, Place, find_places

BARE = st.text("ab-_19", min_size=1, max_size=3)
QUOTED = st.text("a.b\"\\#=[]{}' ,é\t\n", max_size=4)
BLANKS = st.sampled_from(["", " ", "\t"])
BREAKS = st.sampled_from(["", " ", "\n", "  # ]}, \" '\n", "\n\n\t"])
DECORATION = st.sampled_from(["", " # a = 1", '  # """'])


def quoted(name: str) -> str:
    return (
        '"' + "".join(f"\\u{ord(character):04x}" if character in '"\\\n\t' else character for character in name) + '"'
    )


def bare_or_quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


class Writer:
    """Writes a random document, each of whose leaves is the text of a number used nowhere else."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw = draw
        self.leaves = 0

    def text(self, choices: st.SearchStrategy[str]) -> str:
        return str(self.draw(choices))

    def names(self) -> list[str]:
        return list(self.draw(st.lists(BARE | QUOTED, max_size=3, unique=True)))

    def key(self, name: str) -> str:
        if "'" not in name and "\n" not in name and self.draw(st.booleans()):
            return f"'{name}'"
        return quoted(name) if self.draw(st.booleans()) else bare_or_quoted(name)

    def leaf(self) -> str:
        self.leaves += 1
        number = 1000 + self.leaves
        return self.text(FORMS).format(number)

    def value(self, depth: int) -> str:
        kind = self.draw(st.sampled_from(["leaf", "list", "table"])) if depth else "leaf"
        if kind == "list":
            elements = [
                self.text(BREAKS) + self.value(depth - 1) + self.text(BREAKS)
                for _ in range(self.draw(st.integers(0, 3)))
            ]
            return (
                "["
                + ",".join(elements)
                + (self.text(st.sampled_from(["", ","])) if elements else "")
                + self.text(BREAKS)
                + "]"
            )
        if kind == "table":
            return "{" + ", ".join(self.pair(name, depth - 1) for name in self.names()) + "}"
        return self.leaf()

    def pair(self, name: str, depth: int) -> str:
        inner = self.names()[:1] if self.draw(st.booleans()) else []
        key = (self.text(BLANKS) + "." + self.text(BLANKS)).join(self.key(part) for part in [name, *inner])
        return f"{key}{self.text(BLANKS)}={self.text(BLANKS)}{self.value(depth)}"

    def table(self, path: list[str], depth: int) -> Iterator[str]:
        names = self.names()
        split = self.draw(st.integers(0, len(names)))
        for name in names[:split]:
            yield self.text(BLANKS) + self.pair(name, 2) + self.text(DECORATION)
        for name in names[split:] if depth else []:
            below = [*path, name]
            header = self.text(BLANKS).join(["", ".".join(map(self.key, below)), ""])
            if self.draw(st.booleans()):
                for _ in range(self.draw(st.integers(1, 2))):
                    yield f"[[{header}]]{self.text(DECORATION)}"
                    yield from self.table(below, depth - 1)
            elif self.draw(st.booleans()):
                yield f"{self.text(BLANKS)}[{header}]"
                yield from self.table(below, depth - 1)
            else:
                yield f"[{header}.{self.key('implied')}]"


FORMS = st.sampled_from([
    "{}", "{}.5e3", '"{}"', "'{}'", '"{} \\" # \\\\"', '"""{}\n"" \\\n # = x"""', "'''{}\n[a]\nb = 1 '' '''",
    '"""{}"""""', "'''{}'''''", "{}-05-27 07:32:00.5Z", "{}-05-27T07:32:00",
])  # fmt: skip


@st.composite
def documents(draw: Callable[..., Any]) -> str:
    ending = str(draw(st.sampled_from(["\n", "\r\n"])))
    return "\n".join(["", *Writer(draw).table([], 2), ""]).replace("\n", ending)


def paths(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    yield path, value
    for part, below in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from paths(below, (*path, part))


def text_at(document: str, place: Place) -> str:
    lines = document.split("\n")[place.line - 1 :]
    return "\n".join([lines[0][place.column - 1 :], *lines[1:]])


@given(documents())
def test_places_are_exactly_the_paths_that_tomli_reads(document: str) -> None:
    assert set(find_places(document)) == {path for path, _ in paths(tomli.loads(document))}


@given(documents())
def test_place_is_that_of_the_key_or_list_element(document: str) -> None:
    places = find_places(document)
    for path, value in paths(tomli.loads(document)):
        if not path:
            continue
        text, name = text_at(document, places[path]), path[-1]
        number = None if isinstance(value, dict | list) else re.search(r"1\d{3}", str(value))
        if isinstance(name, str):
            key = re.match(r"""("([^"\\]|\\.)*"|'[^']*'|[\w-]+)[ \t]*(.)""", text)
            assert key is not None
            assert tomli.loads(f"{key[1]} = 1") == {name: 1}
            if number:
                assert key[3] == "="
                assert re.match(rf"[ \t]*[\"']*{number[0]}", text[key.end() :])
        elif number:
            assert re.match(rf"[\"']*{number[0]}", text)


def test_table_is_at_its_own_header_even_if_implied_earlier() -> None:
    places = find_places("[a.b.c]\nx = 1\n\n[a.b]\ny = 1\n")
    assert places["a", "b"] == Place(4, 4)
    assert places["a",] == Place(1, 2)
