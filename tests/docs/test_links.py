"""Documentation names what exists: links, anchors, files and rule kinds."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.rules import KINDS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "systemd/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SITE = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
WRITTEN = [page for page in PAGES if not page.is_relative_to(ROOT / "docs" / "reference")]
TOP = r"(?:agent|bench|docs|scripts|spark_checks|systemd|testbed|tests)"
EXAMPLES = {"tests/cases/group_empty.toml"}
"""Files that a guide creates."""


def read_prose(page: Path) -> str:
    """Return the page without its code blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def find_anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as mkdocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", read_prose(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def find_files(page: Path) -> Iterator[str]:
    """Yield the files and directories that the page names in backticks, patterns and placeholders left out."""
    yield from re.findall(rf"`({TOP}/[\w./$-]*[\w$])/?`", read_prose(page))
    for module in re.findall(r"python -m ((?:agent|bench|spark_checks)[\w.]*)", page.read_text(encoding="utf-8")):
        yield module.replace(".", "/")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", read_prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in find_anchors(file)):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    names = set(find_files(page)) - EXAMPLES
    assert not {name for name in names if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()}


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_site_navigation_has_every_page(page: Path) -> None:
    assert str(page.relative_to(ROOT / "docs")) in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_readme_names_rule_kinds_that_exist_once() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What it detects")[2].partition("\n## ")[0]
    kinds = [kind for row in re.findall(r"^\|(.*)\|$", section, re.MULTILINE) for kind in re.findall(r"`(\w+)`", row)]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= set(KINDS)


def test_every_decision_is_listed() -> None:
    decisions = ROOT / "docs" / "decisions"
    index = (decisions / "README.md").read_text(encoding="utf-8")
    titles = dict(re.findall(r"\]\((\d{4}[\w-]*\.md)\) \| (.+) \|$", index, re.MULTILINE))
    assert titles == {
        page.name: page.read_text(encoding="utf-8").partition("\n")[0][len("# 0000 ") :]
        for page in decisions.glob("[0-9]*.md")
    }


def test_make_targets_named_in_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for page in WRITTEN for target in re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8"))}
    assert named <= targets


def test_log_events_named_in_the_operations_guide_exist() -> None:
    table = (ROOT / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8").partition("| event |")[2]
    events = [
        event
        for row in re.findall(r"^\| (.*?) \|", table.partition("\n\n")[0], re.MULTILINE)
        for event in re.findall(r"`(\w+)`", row)
    ]
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "agent").rglob("*.py"))
    assert len(events) > 5
    assert not [event for event in events if f'"{event}"' not in code]
