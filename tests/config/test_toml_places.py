"""Where keys of a TOML document stand, held against what tomli reads from generated documents."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import tomli
from hypothesis import given
from hypothesis import strategies as st

from agent.config.toml_places import Path, Place, find_places

BARE = st.text("ab-_19", min_size=1, max_size=3)
QUOTED = st.text("a.b\"\\#=[]{}' ,é\t\n", max_size=4)
BLANKS = st.sampled_from(["", " ", "\t"])
BREAKS = st.sampled_from(["", " ", "\n", "  # ]}, \" '\n", "\n\n\t"])
DECORATION = st.sampled_from(["", " # a = 1", '  # """'])


def quoted(name: str) -> str:
    """The name as a basic string, which can hold any."""
    return '"' + "".join(f"\\u{ord(one):04x}" if one in '"\\\n\t' else one for one in name) + '"'


def bare_or_quoted(name: str) -> str:
    """The name as TOML writes it at its shortest."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


class Writer:
    """Writes a random document, each of whose leaves is the text of a number used nowhere else."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw = draw
        self.leaves = 0

    def text(self, choices: st.SearchStrategy[str]) -> str:
        """One of the choices."""
        return str(self.draw(choices))

    def names(self) -> list[str]:
        """Different keys of one table."""
        return list(self.draw(st.lists(BARE | QUOTED, max_size=3, unique=True)))

    def key(self, name: str) -> str:
        """A key, in quotes or not."""
        if "'" not in name and "\n" not in name and self.draw(st.booleans()):
            return f"'{name}'"
        return quoted(name) if self.draw(st.booleans()) else bare_or_quoted(name)

    def leaf(self) -> str:
        """A value in one of TOML's many forms."""
        self.leaves += 1
        number = 1000 + self.leaves
        return self.text(FORMS).format(number)

    def value(self, depth: int) -> str:
        """A leaf, a list or an inline table."""
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
        """A key, dotted or not, and its value."""
        inner = self.names()[:1] if self.draw(st.booleans()) else []
        key = (self.text(BLANKS) + "." + self.text(BLANKS)).join(self.key(part) for part in [name, *inner])
        return f"{key}{self.text(BLANKS)}={self.text(BLANKS)}{self.value(depth)}"

    def table(self, path: list[str], depth: int) -> Iterator[str]:
        """The lines of a table under its own header, of what stands in it, and of tables below."""
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
    """A TOML document in any of the ways of writing one."""
    ending = str(draw(st.sampled_from(["\n", "\r\n"])))
    return "\n".join(["", *Writer(draw).table([], 2), ""]).replace("\n", ending)


def paths(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every key path of what tomli read, with what stands there."""
    yield path, value
    for part, below in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from paths(below, (*path, part))


def text_at(document: str, place: Place) -> str:
    """The document from the place on."""
    lines = document.split("\n")[place.line - 1 :]
    return "\n".join([lines[0][place.column - 1 :], *lines[1:]])


@given(documents())
def test_every_path_that_tomli_reads_has_a_place_and_no_other_has(document: str) -> None:
    """Places and values agree on what is in the document."""
    assert set(find_places(document)) == {path for path, _ in paths(tomli.loads(document))}


@given(documents())
def test_at_the_place_stands_the_key_itself_or_the_element_itself(document: str) -> None:
    """A leaf's number is used once, so that the key before it, or the element with it, is the very one."""
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


def test_a_table_stands_at_its_own_header_even_when_another_implied_it_before() -> None:
    """What a table lacks is told at its header."""
    places = find_places("[a.b.c]\nx = 1\n\n[a.b]\ny = 1\n")
    assert places["a", "b"] == Place(4, 4)
    assert places["a",] == Place(1, 2)
