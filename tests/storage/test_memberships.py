"""When groups got and lost their members, as the journal tells of days ago."""

from contextlib import closing
from pathlib import Path

import pytest

from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import GroupState, Member
from agent.storage.journal import memberships
from agent.storage.journal.memberships import membership_changes
from agent.storage.journal.segments import DAY_MS
from agent.storage.journal.writer import Journal
from tests.storage.journals import NOON, Unreadable

HOUR_MS = 3_600_000
MEMBER = Member(id="m", partitions=(("t", 0),))


def state(at: int, name: str = "Stable", *, group: str = "g", members: tuple[Member, ...] = ()) -> GroupState:
    return GroupState(at=at, cluster="main", group=group, state=name, members=members)


def written(directory: Path, *observations: Observation) -> Path:
    """Write a journal; return its directory."""
    with closing(Journal(directory / "journal")) as journal:
        for observation in observations:
            journal.append([observation])
            journal.flush()
    return directory / "journal"


def test_changes_of_groups_that_still_exist_are_returned(tmp_path: Path) -> None:
    """Across files of several days, without heartbeats and rebalances."""
    begin = NOON - 3 * DAY_MS
    joined = state(begin, members=(MEMBER,))
    left, back = state(begin + DAY_MS, "Empty"), state(begin + DAY_MS + HOUR_MS, "CompletingRebalance")
    stopped = state(begin + 2 * DAY_MS, "Empty")
    directory = written(
        tmp_path,
        joined,
        state(begin + 1, "PreparingRebalance"),
        state(begin + HOUR_MS, members=(MEMBER, MEMBER)),
        state(begin + 2 * HOUR_MS, "Empty", group="other"),
        left,
        state(left.at + 600_000, "Empty"),
        back,
        state(back.at + 5_000, members=(MEMBER,)),
        stopped,
        *(state(stopped.at + beat, "Empty") for beat in range(600_000, DAY_MS, 6 * HOUR_MS)),
        Tick(at=NOON),
        state(NOON, "Empty"),
    )
    assert list(membership_changes(directory, begin, NOON)) == [joined, left, back, stopped]
    assert list(membership_changes(directory, begin + HOUR_MS, left.at)) == [
        state(begin + HOUR_MS, members=(MEMBER, MEMBER))
    ]
    assert list(membership_changes(directory, begin, NOON + 1)) == []  # no group has been observed since


def test_the_newest_files_are_read_if_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = NOON - 2 * DAY_MS
    states = [state(begin + day * DAY_MS, name) for day, name in enumerate(("Stable", "Empty", "Stable"))]
    directory = written(tmp_path, *states)
    monkeypatch.setattr(memberships, "MOST_ROWS", 2)
    assert list(membership_changes(directory, begin, NOON)) == [states[1]]


def test_what_cannot_be_read_is_reported_and_skipped(tmp_path: Path) -> None:
    begin, unreadable = NOON - 2 * DAY_MS, Unreadable()
    states = [state(begin + day * DAY_MS, name) for day, name in enumerate(("Stable", "Empty", "Stable"))]
    directory = written(tmp_path, *states)
    damaged, *_ = sorted(directory.glob("group_state/*/*.parquet"))
    damaged.write_bytes(b"no parquet")
    assert list(membership_changes(directory, begin, NOON, unreadable)) == [states[1]]
    assert unreadable.paths == [damaged]
