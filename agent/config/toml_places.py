"""Line and column of each key of a TOML document; tomli reads the values and reports syntax errors."""

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import tomli

KeyPath: TypeAlias = tuple[str | int, ...]
"""The keys and list indexes that lead to a value, such as ("clusters", "main", "groups", "include", 0)."""


class Place(NamedTuple):
    """Line and column, counted from 1."""

    line: int
    column: int


class _Token(NamedTuple):
    text: str
    place: Place


# A multi-line string may end in up to five quotes, the last three of which close it (TOML 1.0, "String").
_TOKEN = re.compile(
    r"""
      (?P<skip> [ \t\r]+ | \#[^\n]* )
    | (?P<text> \"{3} (?: [^"\\] | \\. | \"{1,2}(?!\") )* \"{3,5} | '{3} (?: [^'] | '{1,2}(?!') )* '{3,5}
              | " (?: [^"\\\n] | \\. )* " | ' [^'\n]* '
              | [\n=.,{}\[\]]
              | [^\s=.,{}\[\]\#"']+ )
    """,
    re.VERBOSE | re.DOTALL,
)


def find_places(document: str) -> dict[KeyPath, Place]:
    """Return the place of every key and list element of a valid TOML document by key path.

    The place of a key is that of its name, of a list element that of its value, of a table that of its own header or
    else of the first key that implies it. The document itself, (), is at line 1.
    """
    return _Walk(_tokens(document)).places


def _tokens(document: str) -> Iterator[_Token]:
    line, line_start, position = 1, 0, 0
    while match := _TOKEN.match(document, position):
        if match["text"]:
            yield _Token(match["text"], Place(line, position - line_start + 1))
        position = match.end()
        if newlines := match[0].count("\n"):
            line += newlines
            line_start = document.rindex("\n", 0, position) + 1
    yield _Token("", Place(line, 1))


def _name(token: str) -> str:
    return str(tomli.loads(f"key = {token}")["key"]) if token[0] in "\"'" else token


class _Walk:
    """One pass over the tokens of a document that is known to be valid."""

    def __init__(self, tokens: Iterator[_Token]) -> None:
        self.places: dict[KeyPath, Place] = {(): Place(1, 1)}
        self._tokens = tokens
        self._next = next(tokens)
        self._tables_in: dict[KeyPath, int] = {}  # number of [[tables]] so far in each list of tables
        table: KeyPath = ()
        while self._next.text:
            if self._next.text == "[":
                table = self._header()
            elif self._next.text == "\n":
                self._take()
            else:
                self._pair(table)

    def _take(self) -> _Token:
        token, self._next = self._next, next(self._tokens, self._next)
        return token

    def _skip(self, *texts: str) -> None:
        while self._next.text in texts:
            self._take()

    def _key(self) -> list[_Token]:
        parts = [self._take()]
        while self._next.text == ".":
            self._take()
            parts.append(self._take())
        return parts

    def _header(self) -> KeyPath:
        self._take()
        in_list = self._next.text == "["
        self._skip("[")
        path: KeyPath = ()
        parts = self._key()
        for depth, part in enumerate(parts, 1):
            path = (*path, _name(part.text))
            if depth < len(parts):
                self.places.setdefault(path, part.place)
                path = self._latest(path)
        if in_list:
            self.places.setdefault(path, parts[-1].place)
            self._tables_in[path] = self._tables_in.get(path, 0) + 1
            path = self._latest(path)
        self.places[path] = parts[-1].place
        self._skip("]")
        return path

    def _latest(self, path: KeyPath) -> KeyPath:
        return (*path, self._tables_in[path] - 1) if path in self._tables_in else path

    def _pair(self, table: KeyPath) -> None:
        path = table
        for part in self._key():
            path = (*path, _name(part.text))
            self.places.setdefault(path, part.place)
        self._skip("=")
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        opening = self._take().text
        if opening == "[":
            index = 0
            self._skip("\n", ",")
            while self._next.text != "]":
                self.places[(*path, index)] = self._next.place
                self._value((*path, index))
                self._skip("\n", ",")
                index += 1
            self._take()
        elif opening == "{":
            self._skip("\n", ",")
            while self._next.text != "}":
                self._pair(path)
                self._skip("\n", ",")
            self._take()
        else:  # a float or a time may contain dots, and a time a blank
            while self._next.text not in {"", "\n", ",", "]", "}"}:
                self._take()
