"""offset_history: what its findings take over from those of the live rules."""

import pytest

from agent.model.findings import Finding, Records, Severity
from agent.model.times import millis
from spark_checks.offsets.arrays import Move
from spark_checks.offsets.context import SessionLoss
from spark_checks.offsets.diagnosis import Diagnosis, Event
from spark_checks.offsets.findings import FindingBuilder
from spark_checks.offsets.keys import Key

AT = millis("2026-11-20T22:00:00.000Z")
KEY = Key("billing", "orders", 2)
LOSS = SessionLoss(4, AT - 60_000, "0x1", AT - 55_000)
REWIND = Diagnosis(
    Event(KEY, Move(AT, 20, 3_000, None, AT - 10_000, 10, 48_000, expired=False, earlier=()), AT, AT, AT - 10_000),
    ("rewind", "after_session_loss", "after_leader_move"),
    Records(reread=45_000),
    session_losses=(LOSS,),
)


def live(*labels: str) -> Finding:
    """Return the finding of the live rule about the same rewind."""
    return Finding(
        rule="rewind",
        kind="offset_rewind",
        severity=Severity.INFO,
        at=AT,
        subject={"cluster": "main", **KEY._asdict()},
        labels=labels,
        records=Records(reread=45_000),
        detail="it was moved back",
    )


@pytest.mark.parametrize(
    ("known", "labels", "severity"),
    [
        ([live("operator_reset")], ("rewind", "operator_reset", "seen_live"), Severity.INFO),
        ([live()], ("rewind", "after_session_loss", "after_leader_move", "seen_live"), Severity.INFO),
        ([], ("rewind", "after_session_loss", "after_leader_move", "unseen_live"), Severity.WARNING),
    ],
)
def test_an_operators_reset_is_blamed_on_nothing_else(
    known: list[Finding], labels: tuple[str, ...], severity: Severity
) -> None:
    finding = FindingBuilder([REWIND], {}, "main", {KEY: known}, AT - 3_600_000).finding(REWIND)
    assert (finding.labels, finding.severity) == (labels, severity)
    assert ("broker 4 session expired" in finding.detail) is ("after_session_loss" in labels)
    assert ("an operator reset the group" in finding.detail) is ("operator_reset" in labels)


def test_rewind_before_the_live_findings_is_not_called_unseen() -> None:
    def label(known: list[Finding], since: int) -> str:
        builder = FindingBuilder([REWIND], {}, "main", {KEY: known}, AT - 3_600_000, live_since=since)
        return builder.finding(REWIND).labels[-1]

    assert [label([], AT), label([], AT + 1), label([live()], AT + 1)] == [
        "unseen_live",
        "after_leader_move",
        "seen_live",
    ]
