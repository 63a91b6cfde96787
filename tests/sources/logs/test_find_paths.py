"""Paths that shell patterns find, with directories at any depth and links that lead back."""

from pathlib import Path

from agent.sources.logs.followed_logs import find_paths, is_path_of


def test_two_looping_links_are_followed_once(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    for directory in (tmp_path, tmp_path / "a", below):
        (directory / "server.log").touch()
    for name in ("first", "second"):
        (below / name).symlink_to(tmp_path)
    found = sorted(find_paths(f"{tmp_path}/**/*.log"))
    assert found == sorted(str(directory / "server.log") for directory in (tmp_path, tmp_path / "a", below))


def test_patterns_find_what_glob_finds(tmp_path: Path) -> None:
    for path in ("x/logs/a.log", "x/y/logs/b.log", "x/y/logs/z/c.log", "x/.hidden/logs/d.log", "[x]/logs/e.log"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for pattern in ("**/logs/*.log", "x/**/logs/**/*.log", "*/logs/*.log", "**/*"):
        expected = {str(path) for path in tmp_path.glob(pattern) if ".hidden" not in str(path)} - {str(tmp_path)}
        assert set(find_paths(f"{tmp_path}/{pattern}")) == expected
        files = {str(path) for path in tmp_path.rglob("*") if ".hidden" not in str(path)}
        assert {path for path in files if is_path_of(f"{tmp_path}/{pattern}", path)} == expected
