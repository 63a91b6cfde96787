"""Which moves between clusters follow from when a group had members where."""

import pytest

from spark_checks.failovers.observed import Observed
from spark_checks.failovers.tenures import LATE_MS, UNSEEN_MS, GroupChange, Move, find_moves

MINUTE = 60_000
NOW = 600 * MINUTE


def changes(
    cluster: str, *runs: tuple[float, float], first: int = 0, last: int = NOW, group: str = "g"
) -> list[GroupChange]:
    """Return the changes of a group that runs in these minutes, seen two seconds late."""
    began = {int(begin * MINUTE): True for begin, _ in runs}
    ended = {int(end * MINUTE): False for _, end in runs if end * MINUTE <= last}
    moments = sorted({first: False, **began, **ended}.items())
    found: list[GroupChange] = []
    for at, has_members in moments:
        had = found[-1].has_members if found else None
        since = at - 2_000 if found else None
        found.append(GroupChange(cluster, group, at, since, has_members, had, since, last, 0))
    return found


def moves(*found: list[GroupChange]) -> list[tuple[str, str, int, bool]]:
    """Return origin, target, minute and whether it is projected."""
    ordered = sorted((change for of_cluster in found for change in of_cluster), key=lambda change: change.cluster)
    return [(move.origin, move.target, move.joined // MINUTE, move.is_projected) for move in find_moves(ordered, NOW)]


@pytest.mark.parametrize(
    ("main", "backup", "expected"),
    [
        ([(10, 100)], [(101, 700)], [("main", "backup", 101, False)]),
        ([(10, 100)], [(101, 102), (102.5, 700)], [("main", "backup", 101, False)]),
        ([(10, 105)], [(100, 700)], [("main", "backup", 100, False)]),
        ([(10, 100)], [(101, 200), (201, 700)], [("main", "backup", 101, False)]),
        ([(10, 100), (301, 700)], [(101, 300)], [("main", "backup", 101, False), ("backup", "main", 301, False)]),
        ([(10, 700)], [(100, 700)], []),
        ([(10, 100), (101, 700)], [(50, 99), (100, 700)], []),
        ([(10, 100)], [(50, 99), (101, 700)], []),
        ([(10, 100), (102, 700)], [(101, 103)], [("backup", "main", 102, False)]),
        ([(10, 700)], [], []),
    ],
)
def test_moves_follow_from_members(
    main: list[tuple[float, float]], backup: list[tuple[float, float]], expected: list[tuple[str, str, int, bool]]
) -> None:
    found = moves(changes("main", *main), changes("backup", *backup))
    assert [move for move in found if not move[3]] == expected


def test_a_group_on_standby_has_a_projected_move() -> None:
    assert moves(changes("main", (10, 700)), changes("backup")) == [("main", "backup", NOW // MINUTE, True)]
    assert moves(changes("main", (10, 500)), changes("backup")) == []
    assert moves(changes("main", (10, 700)), changes("backup", last=NOW - UNSEEN_MS - 1)) == []


def test_an_origin_that_is_no_longer_observed_is_unseen() -> None:
    gone, there = changes("main", (10, 700), last=100 * MINUTE), changes("backup", (105, 700))
    ordered = sorted([*gone, *there], key=lambda change: change.cluster)
    (move,) = find_moves(ordered, NOW)
    assert isinstance(move, Move)
    assert (move.origin, move.target, move.unseen) == ("main", "backup", True)
    assert move.origin_seen == move.joined == 105 * MINUTE


def first_seen(cluster: str, minute: int, cluster_minute: int) -> GroupChange:
    """Return the first state of a group, with members, on a cluster that is observed since a minute."""
    return GroupChange(cluster, "g", minute * MINUTE, None, True, None, None, NOW, cluster_minute * MINUTE)


def test_a_group_that_was_there_when_the_journal_begins_did_not_move_there() -> None:
    main = changes("main", (0.1, 100), last=500 * MINUTE)
    assert moves(main, [first_seen("backup", 101, 0)]) == [("main", "backup", 101, False)]
    assert moves(main, [first_seen("backup", 101, 100)]) == []


def test_a_group_that_is_seen_again_did_not_move_there() -> None:
    gap = GroupChange("backup", "g", 130 * MINUTE, None, True, True, 90 * MINUTE, NOW, 0)
    main = changes("main", (95, 100), last=500 * MINUTE)
    assert moves(main, [*changes("backup", (50, 700)), gap]) == []


@pytest.mark.parametrize("minutes", [20, 50, LATE_MS // MINUTE])
def test_a_projected_move_is_of_the_time_up_to_which_both_clusters_are_archived(minutes: int) -> None:
    end = NOW - minutes * MINUTE
    observed = {"main": Observed(end, end - 9 * MINUTE), "backup": Observed(NOW, NOW)}
    found = [*changes("backup"), *changes("main", (10, 700), last=end - 9 * MINUTE)]
    (move,) = find_moves(found, NOW, observed)
    assert (move.origin, move.target, move.joined, move.is_projected) == ("main", "backup", end, True)
    assert [*find_moves(found, NOW)] == []
    assert [*find_moves(found, NOW + LATE_MS, observed | {"backup": Observed(NOW + LATE_MS, NOW)})] == []


def test_nothing_is_projected_for_a_time_at_which_the_target_had_members() -> None:
    observed = {"main": Observed(NOW - 50 * MINUTE, NOW - 50 * MINUTE), "backup": Observed(NOW, NOW)}
    main = changes("main", (10, 700), last=NOW - 50 * MINUTE)
    found = find_moves([*changes("backup", (555, 560)), *main], NOW, observed)
    assert not any(move.is_projected for move in found)


def test_a_move_after_the_end_of_the_origins_journal_is_unseen() -> None:
    end = 100 * MINUTE
    found = [*changes("backup", (105, 700)), *changes("main", (10, 700), last=end)]
    (move,) = find_moves(found, NOW, {"main": Observed(end, end)})
    assert (move.unseen, move.observed_until) == (True, end)
    (move,) = find_moves(found, NOW)
    assert (move.unseen, move.observed_until) == (True, None)
