"""Where the state is, for the agent and for commands that root runs beside it."""

import os
from pathlib import Path

import pytest

from agent.storage.database import FILE
from agent.storage.state_file import current, leave_shelter, shelter_of


def test_roots_commands_find_the_state_that_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, is_root = tmp_path / FILE, os.geteuid() == 0
    user = 1234 if is_root else os.geteuid()
    with monkeypatch.context() as of_agent:
        of_agent.setattr("os.geteuid", lambda: user)
        shelter = shelter_of(home)
    shelter.parent.mkdir(mode=0o700)
    shelter.touch()
    for folder in (tmp_path, shelter.parent) if is_root else ():
        os.chown(folder, user, -1)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert current(home) == shelter
    leave_shelter(home)
    assert current(home) == home


def test_a_service_keeps_its_state_in_its_own_runtime_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.storage.state_file._RUNTIME", tmp_path / "run")
    monkeypatch.setattr("agent.storage.state_file._STATE_DIRECTORIES", (tmp_path / "lib",))
    home = tmp_path / "lib" / "backflow" / FILE
    assert not shelter_of(home).is_relative_to(tmp_path), "there is no runtime directory"
    (tmp_path / "run" / "backflow").mkdir(parents=True)
    assert shelter_of(home).is_relative_to(tmp_path / "run" / "backflow")
    assert not shelter_of(tmp_path / "backflow" / FILE).is_relative_to(tmp_path / "run"), "not the service's state"
