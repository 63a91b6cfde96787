"""transaction_hanging across a restart of Backflow, which knows only the last minutes of the journal."""

from collections.abc import Sequence

import pytest

from agent.engine.engine import Engine
from agent.model.findings import Finding, Incident, Status
from agent.model.observations.base import Observation
from agent.model.observations.kafka import ClusterSettings, LastStableOffset
from tests.builders import BEGINNING, after, commit, log_offsets, tick
from tests.engine.test_engine import SHIPPED
from tests.engine.test_restore import taken


def stable(minutes: float, offset: int, *, held_back: bool = True) -> LastStableOffset:
    return LastStableOffset(
        at=after(60 * minutes), cluster="main", topic="t", partition=0, offset=offset, held_back=held_back
    )


def minutes(finding: Finding) -> tuple[float, float | None]:
    """Return when a finding began and recovered, in minutes after BEGINNING."""
    recovered_at = finding.recovered_at
    return (finding.at - BEGINNING) / 60_000, None if recovered_at is None else (recovered_at - BEGINNING) / 60_000


def hanging_across_restart(
    restart: int, later: Sequence[Observation], settings: Sequence[Observation]
) -> tuple[Incident, list[Incident]]:
    """Return the incident of a transaction that hangs from minute 2 on, and all incidents after a restart."""
    heartbeats = [fact for at in range(2, restart, 11) for fact in (stable(at, 700), log_offsets(60 * at, 900 + at))]
    lived = sorted([*settings, *heartbeats], key=lambda fact: fact.at)
    rules = {"transaction_hanging": SHIPPED.rules["transaction_hanging"]}
    before = taken(Engine(rules, {}), [*([fact] for fact in lived), [tick(60 * restart)]])
    restarted = Engine(rules, {})
    restarted.restore([fact] for fact in lived if fact.at >= after(60 * (restart - 21)))
    restarted.resume(before.values())
    ticks = [tick(60 * restart + second) for second in range(1, 3600, 30)]
    found = taken(restarted, [[fact] for fact in sorted([*later, *ticks], key=lambda fact: fact.at)])
    (incident,) = before.values()
    return incident, list((before | found).values())


@pytest.mark.parametrize("restart", [30, 44, 50, 57, 120])
def test_a_transaction_that_hung_before_a_restart_recovers_after_it(restart: int) -> None:
    ends = [stable(restart + 5, 1_500, held_back=False)]
    before, (incident,) = hanging_across_restart(restart, ends, [])
    assert before.status is Status.OPEN
    assert [minutes(finding) for finding in incident.findings] == [(2, restart + 5)]


def test_a_transaction_that_ended_during_a_restart_recovers_with_what_is_read_first() -> None:
    _, (incident,) = hanging_across_restart(40, [stable(47, 1_700), stable(47.5, 1_900, held_back=False)], [])
    assert [minutes(finding) for finding in incident.findings] == [(2, 47)]


def test_a_transaction_that_still_hangs_after_a_restart_is_the_same_one_with_figures_of_now() -> None:
    _, (incident,) = hanging_across_restart(50, [log_offsets(60 * 70, 5_700), stable(71, 700)], [])
    (finding,) = incident.findings
    assert (minutes(finding), finding.current["log_end"]) == ((2, None), 5_700)


def test_longer_transactions_are_allowed_after_a_restart_too() -> None:
    settings = [
        ClusterSettings(
            at=after(60 * at), cluster="main", offsets_retention_ms=604_800_000, transaction_max_timeout_ms=7_200_000
        )
        for at in range(0, 60, 10)
    ]
    waits = [commit(60 * at, 700) for at in (1, 12, 23, 34, 45)]
    _, (incident,) = hanging_across_restart(50, [log_offsets(60 * 70, 5_700)], [*settings, *waits])
    assert [finding.labels for finding in incident.findings] == [("long_open",)]
