"""Writes docs/reference, the man page and the shell completions from the code: `make reference`."""

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference.manual import FILES
from scripts.reference.pages import PAGES

ROOT = Path(__file__).parents[2]


def write(directory: Path, files: Mapping[str, Callable[[], str]]) -> None:
    """Write all files into the directory."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content(), encoding="utf-8")


if __name__ == "__main__":
    write(ROOT / "docs" / "reference", PAGES)
    write(ROOT / "package", FILES)
