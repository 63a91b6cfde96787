"""Where the state is, for the agent and for commands that root runs beside it."""

import os
from pathlib import Path

import pytest

from agent.storage.database import FILE
from agent.storage.incidents import IncidentStore
from agent.storage.state_file import current, finish_shelter, leave_shelter, make_shelter, open_state, shelter_of
from tests import samples


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


def test_a_kill_during_the_copy_to_memory_loses_nothing(tmp_path: Path) -> None:
    home = tmp_path / FILE
    with IncidentStore(home, ["slack"]) as store:
        store.save(7, [samples.incident()])
    shelter = make_shelter(home)
    try:
        IncidentStore(shelter).close()  # which the copy replaces
        assert current(home) == home
        opened = open_state(tmp_path, ["slack"], 1)
        with opened.store as store:
            assert (store.path, store.position, store.incidents()) == (home, 7, [samples.incident()])
        assert (opened.lost, opened.problem, shelter.parent.exists()) == ("", "", False)
    finally:
        leave_shelter(home)


def test_a_copy_in_memory_counts_once_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / FILE
    shelter = make_shelter(home)
    try:
        IncidentStore(shelter).close()
        finish_shelter(home, is_copy=True)
        assert current(home) == shelter
        with monkeypatch.context() as killed:
            killed.setattr("shutil.rmtree", lambda *_, **__: None)
            leave_shelter(home)
        assert current(home) == home
    finally:
        leave_shelter(home)
