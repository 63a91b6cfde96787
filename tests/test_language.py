"""Code, docs and messages are in plain English: the glossary's words, active sentences, nouns as variables."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = sorted(
    path
    for folder in ("agent", "spark_checks", "testbed", "bench", "scripts")
    for path in (ROOT / folder).rglob("*.py")
)
AGENT = [path for path in CODE if path.is_relative_to(ROOT / "agent")]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "systemd").glob("*.md")])
MESSAGES = sorted((ROOT / "tests" / "messages").glob("*.txt"))

BANNED = re.compile(
    r"\b(anew|untold|tells?|told|telling|leapt|leaderless|culprit|blame[ds]?|sights?|sighted|out of sight|"
    r"went back|goes back|going back|gone back|strikes? off|struck off|by right|all the same|is to be had|"
    r"what must be said|what must still be said|nobody|read again|reread|cut short|lost its session|"
    r"let go of|holds good|that is to say|for ever|of its own accord|thereby|wherein|whereof|lest)\b",
    re.IGNORECASE,
)
"""Words that the glossary replaces, and archaisms. Code in backticks, quoted names and code blocks are exempt."""

VARIABLES = {"one", "ones", "each", "told", "some", "these", "those", "it", "data", "info"}
LONGEST_SENTENCE = 45
"""Words; a longer sentence is two."""

_EXEMPT = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|\"[^\"\n]*\"|https?://\S+|<[^>]+>", re.DOTALL)
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, and of each text under a field."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, text


def prose(text: str) -> str:
    """Return the text without code, quotations and links."""
    return _EXEMPT.sub(" X ", text)


def banned_words(text: str) -> list[str]:
    """Return the banned words in the text's prose."""
    return [match[0] for match in BANNED.finditer(prose(text))]


def long_sentences(text: str) -> list[str]:
    """Return the sentences of the text's prose that are too long; tables and lists are read line by line."""
    parts = re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.))|\|", prose(text))
    return [part.strip() for part in parts if len(part.split()) > LONGEST_SENTENCE]


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_are_plain_english(path: Path) -> None:
    texts = list(docstrings(path))
    wrong = [f"{path}:{line}: {word}" for line, text in texts for word in banned_words(text)]
    wrong += [f"{path}:{line}: too long: {part}" for line, text in texts for part in long_sentences(text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_plain_english(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        text = text.partition("\n## 0.1.0")[0]
    wrong = [*banned_words(text), *(f"too long: {part}" for part in long_sentences(text))]
    assert not wrong, f"{path}: " + "\n".join(wrong)


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: path.stem)
def test_messages_are_plain_english(path: Path) -> None:
    assert not banned_words(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_variables_are_nouns(path: Path) -> None:
    names = {
        (node.lineno, node.id if isinstance(node, ast.Name) else node.arg)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    wrong = [f"{path}:{line}: {name}" for line, name in sorted(names) if name in VARIABLES]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", AGENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_log_events_are_stable_keys(path: Path) -> None:
    events = [
        (node.lineno, str(node.args[0].value))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _LOG_METHODS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]
    wrong = [f"{path}:{line}: {event}" for line, event in events if not re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", event)]
    assert not wrong, "\n".join(wrong)


def test_the_check_finds_what_it_forbids() -> None:
    assert banned_words('The group went back; `told` is code, "went back" a quotation.') == ["went back"]
    assert len(long_sentences(" ".join(["word"] * 46) + ". Short one.")) == 1
