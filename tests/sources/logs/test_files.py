"""Encodings of log files and where their lines end."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.logs.files import TailedFile, detect_codec, find_first_line_end, find_last_line_end


@given(st.sampled_from(["utf-8", "latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]), st.text())
def test_lines_end_where_the_encoding_ends_them(encoding: str, text: str) -> None:
    """Not at a byte that equals a line feed within another character, such as U+0A0A in UTF-16."""
    text = text.replace("\ufeff", "")
    raw = text.encode(encoding, "ignore")
    codec = detect_codec(encoding, raw[:4])
    text = raw.decode(encoding)
    assert raw[: find_last_line_end(raw, codec)].decode(encoding) == text[: text.rfind("\n") + 1]
    assert raw[: find_first_line_end(raw, codec)].decode(encoding) == text[: text.find("\n") + 1]


@pytest.mark.parametrize(
    ("encoding", "is_compatible"), [("utf-8", True), ("latin-1", True), ("utf-16", False), ("cp037", False)]
)
def test_ascii_compatible_encodings_are_recognized(encoding: str, *, is_compatible: bool) -> None:
    assert detect_codec(encoding, b"").is_ascii_compatible == is_compatible


def test_the_same_inode_of_another_file_system_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    file = TailedFile.open(str(path), "utf-8")
    assert file.attach(str(path))
    assert file.device is not None
    file.device += 1  # as if it had been opened there
    assert not file.attach(str(path))
    file.close()
