"""The cache is filled once per origin, and Java is compiled into it."""

from pathlib import Path

import pytest

from testbed.artifacts import ArtifactError, cached, jar


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_folder_is_filled_once_per_origin() -> None:
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
    assert sorted(path.name for path in folder.iterdir()) == ["coordinates", "two"]


def test_a_failed_fill_leaves_no_folder() -> None:

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ArtifactError

    with pytest.raises(ArtifactError):
        cached("system-1", "origin", fail)
    whole = cached("system-1", "origin", lambda folder: (folder / "whole").touch())
    assert not (whole / "half").exists()


def test_compile_errors_show_folder_and_compiler_output(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "Broken.java").write_text("class Broken { nonsense }")
    with pytest.raises(ArtifactError, match=r"(?s)broken could not be compiled.*Broken\.java:1: error"):
        jar(tmp_path / "broken", name="broken")
