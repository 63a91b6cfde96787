"""The cache of what the testbed runs is filled once, and again when it is to hold something else; Java is compiled."""

from pathlib import Path

import pytest

from testbed.artifacts import ArtifactError, cached
from testbed.java_sources import jar


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_folder_is_filled_once_and_again_when_its_origin_changes() -> None:
    """What is there for the same origin is taken as it is; for another it is replaced, old files included."""
    fills: list[str] = []

    def fill_with(name: str) -> None:
        def fill(folder: Path) -> None:
            fills.append(name)
            (folder / name).touch()

        cached("system-1", f"origin of {name}", fill)

    fill_with("one")
    fill_with("one")
    fill_with("two")
    folder = cached("system-1", "origin of two", lambda _: None)
    assert fills == ["one", "two"]
    assert sorted(one.name for one in folder.iterdir()) == ["coordinates", "two"]


def test_a_folder_that_could_not_be_filled_is_not_there() -> None:
    """What goes wrong while it is filled leaves nothing that a later run would take for whole."""

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ArtifactError

    with pytest.raises(ArtifactError):
        cached("system-1", "origin", fail)
    whole = cached("system-1", "origin", lambda folder: (folder / "whole").touch())
    assert not (whole / "half").exists()


def test_java_that_does_not_compile_is_refused_in_the_compilers_words(tmp_path: Path) -> None:
    """The error names the folder and shows what the compiler said."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "Broken.java").write_text("class Broken { nonsense }")
    with pytest.raises(ArtifactError, match=r"(?s)broken could not be compiled.*Broken\.java:1: error"):
        jar(tmp_path / "broken", name="broken")
