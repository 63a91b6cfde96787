"""The kill matrix sees what is lost and doubled, and its table in the documentation has all fault points."""

import re
from pathlib import Path

import pytest

from testbed.fault_points import POINTS, UNSEARCHABLE
from testbed.kill_matrix import KNOWN_REASON, Matrix, Outcome, content, table
from testbed.slack import Slack

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "crashes.md"
CHANNEL = "C0000000001"


def test_every_message_line_and_plot_is_counted(slack: Slack) -> None:
    first = slack.workspace.post(CHANNEL, {"text": "INC-0000000A rewound"})
    for _ in range(2):
        slack.workspace.post(CHANNEL, {"text": "INC-0000000B rewound"})
        slack.workspace.post(CHANNEL, {"text": "recovered\nClosed.", "thread_ts": first.ts}).files = ["F1"]
    assert content(slack) == {
        "INC-0000000A: INC-0000000A rewound": 1,
        "INC-0000000B: INC-0000000B rewound": 2,
        "INC-0000000A, thread: recovered": 2,
        "INC-0000000A, thread: Closed.": 2,
        "INC-0000000A, thread: plot": 2,
    }


def test_only_a_known_reason_excuses_a_duplicate_and_nothing_a_loss() -> None:
    point = POINTS[0]
    assert Outcome(point, 10, 0, 0).is_right
    assert Outcome(point, 10, 0, 3, KNOWN_REASON).is_right
    assert not Outcome(point, 10, 0, 1).is_right
    assert not Outcome(point, 10, 1, 0, KNOWN_REASON).is_right
    assert not Outcome(point, 0, 0, 0).is_right


def test_the_documentation_has_the_table_of_all_points() -> None:
    documented = re.findall(
        r"^\| ([^|*]+) \| (before|after|halfway) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert documented == [(point.name, point.moment) for point in (*POINTS, *UNSEARCHABLE)]
    assert [line.count("|") for line in table([Outcome(POINTS[0], 1, 0, 0)])] == [6] * 4


@pytest.mark.integration
def test_a_lost_answer_doubles_only_what_cannot_be_looked_up(tmp_path: Path) -> None:
    matrix = Matrix(tmp_path)
    unsearchable = UNSEARCHABLE[0]
    posted = next(point for point in POINTS if (point.target, point.moment) == (unsearchable.target, "after"))
    assert matrix.kill_at(posted, 1)[1:4] == (1, 0, 0)
    assert matrix.kill_at(unsearchable, 1)[1:] == (1, 0, 1, KNOWN_REASON)
