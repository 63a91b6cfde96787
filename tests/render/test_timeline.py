"""Findings that report one event are one statement."""

from typing import Any

import pytest

from agent.model.findings import Finding, Records
from agent.render import timeline
from agent.render.timeline import format_row, rows, statements
from tests import samples


def merge(*findings: Finding) -> list[tuple[str, int]]:
    """Return the kind of each statement's finding and the number of other findings in it."""
    return [(statement.finding.kind, len(statement.others)) for statement in statements(findings)]


def position(**more: Any) -> Finding:
    """Return a rewound position of a Flink subtask."""
    subject = {"cluster": "main", "topic": "topic-124", "partition": 8, "job": "d779", "job_name": "clicks"}
    return samples.rewind(after=500, subject=subject, **more)


def test_an_election_and_its_leader_change_are_one() -> None:
    moved, elected = (
        samples.leader_change(8, 1, 2, "23:25:14.0", kind) for kind in ("leader_moved", "unclean_election")
    )
    assert merge(moved, elected) == merge(elected, moved) == [("unclean_election", 1)]
    assert len(merge(moved, samples.leader_change(2, 1, 2, "23:25:14.0"))) == 2


def test_a_jobs_position_and_its_groups_commit_are_one_reader() -> None:
    (statement,) = statements([position(), samples.rewind()])
    assert statement.finding == samples.rewind()
    assert len(statements([position(at=samples.at("23:35:00.0")), samples.rewind()])) == 2


def test_two_groups_are_two_readers() -> None:
    assert len(statements([samples.rewind(), samples.rewind(group="billing")])) == 2


def test_a_loss_that_two_rules_report_is_one() -> None:
    lost: dict[str, Any] = {"records": Records(lost=9), "since": samples.at("23:25:01.0")}
    subject = {"cluster": "main", "topic": "topic-124", "partition": 8}
    truncated = samples.rewind(kind="log_truncated", subject=subject, **lost)
    beyond = samples.rewind(kind="beyond_end", subject=subject | {"group": "g"}, **lost)
    assert merge(beyond, truncated) == [("log_truncated", 1)]


def test_a_checks_finding_confirms_the_live_finding() -> None:
    check = samples.rewind(kind="offset_history")
    (statement,) = statements([check, samples.rewind()])
    assert (statement.finding.kind, statement.confirmations) == ("offset_rewind", [check])
    elsewhere = samples.rewind(3, kind="offset_history")
    assert len(statements([elsewhere, samples.rewind()])) == 2


def test_a_check_that_found_a_skip_confirms_no_rewind() -> None:
    skipped = samples.rewind(kind="offset_history", records=Records(skipped=5))
    assert len(statements([skipped, samples.rewind()])) == 2


@pytest.mark.parametrize("partitioned", [True, False])
def test_thousands_of_readers_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch, *, partitioned: bool
) -> None:
    """But each with the check that confirms it, and with the Flink job that reads with its group."""
    compared = []

    def compare(finding: Finding, known: Finding) -> bool:
        compared.append(finding)
        return is_same_event(finding, known)

    is_same_event = timeline._is_same_event
    monkeypatch.setattr(timeline, "_is_same_event", compare)
    place = {"partition": 8} if partitioned else {}
    groups = [f"group-{number}" for number in range(1_000)]
    subjects = [{"cluster": "main", "topic": "topic-124", "group": group, **place} for group in groups]
    live = [samples.rewind(subject=subject) for subject in subjects]
    checks = [samples.rewind(kind="offset_history", subject=subject) for subject in subjects]
    made = statements([*live, *checks, *([position()] if partitioned else [])])
    assert len(made) == len(live)
    assert sum(len(statement.confirmations) for statement in made) == len(checks)
    assert sum(len(statement.others) for statement in made) == len(checks) + partitioned
    assert len(compared) <= 3 * len(live)


def test_long_rows_end_with_a_clause() -> None:
    detail = f"first clause; {'a word ' * 6}, {'more words ' * 9}"
    (row,) = rows(statements([samples.rewind(kind="something_new", detail=detail)]), samples.DAY, 6)
    assert format_row(row, samples.DAY) == f"23:25:13.9  first clause; {'a word ' * 6}".rstrip() + "…"


def test_a_finding_without_the_rules_fields_shows_its_detail() -> None:
    bare = samples.rewind(kind="beyond_end", previous={}, current={}, detail="Something happened.")
    (row,) = rows(statements([bare]), samples.DAY, 6)
    assert row.text == "Something happened"


@pytest.mark.parametrize(
    ("partitions", "times", "counted"),
    [
        (3, 4, "(and 2 more partitions, 12 times in all)"),
        (9, 1, "(and 8 more partitions)"),
        (1, 8, "(and 7 more times)"),
    ],
)
def test_partitions_of_a_summary_are_counted_once_however_often_they_were_reset(
    partitions: int, times: int, counted: str
) -> None:
    resets = [
        samples.rewind(partition, 10_000 + partition, at=samples.at("23:25:13.9") + 300_000 * time)
        for time in range(times)
        for partition in range(partitions)
    ]
    (row,) = rows(statements(resets), samples.DAY, 2)
    assert row.text.endswith(counted)
