"""What operators decide is kept in the state file: who decided what until when, and what a closure knows."""

import sqlite3
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from agent.model.findings import Acknowledgement, Closure, Incident, Severity, Status, closed_findings
from agent.model.matchers import Matchers, Silence
from agent.storage.incidents import IncidentStore
from agent.storage.outbox import Outbox
from tests import samples
from tests.storage.conftest import deliver_all, read_rows

MATCHERS = Matchers.model_validate_json('{"groups": {"include": ["a*"], "exclude": ["ab"]}, "severities": ["warning"]}')
SILENCE = Silence("SIL-00AA11", MATCHERS, 1_000, 5_000, "lena", "a planned reset")
TAKEN = Acknowledgement(at=7, by="lena", comment="on it", severity=Severity.CRITICAL)


def closure(incident: Incident) -> Closure:
    return Closure(at=9, by="omar", reason="a test", findings=closed_findings(incident))


def test_a_silence_is_kept_until_it_ends(state_file: Path, store: IncidentStore) -> None:
    store.decisions.add(SILENCE)
    store.decisions.add(SILENCE._replace(id="SIL-2", begins_at=2_000, ends_at=3_000))
    with IncidentStore(state_file) as other:
        assert [found.id for found in other.decisions.silences(0)] == ["SIL-2", "SIL-00AA11"]
        assert other.decisions.silences(3_000) == [SILENCE]
        assert other.decisions.silences(5_000) == []
    opened = Outbox(state_file, "slack")
    assert [len(opened.silences(now)) for now in (999, 1_000, 2_000, 3_000, 4_999, 5_000)] == [0, 1, 2, 1, 1, 0]
    opened.close()


def test_an_expired_silence_ends_at_once_and_once(store: IncidentStore) -> None:
    store.decisions.add(SILENCE)
    assert store.decisions.expire(SILENCE.id, 2_000)
    assert store.decisions.silences(2_000) == []
    assert not store.decisions.expire(SILENCE.id, 3_000)
    assert not store.decisions.expire("SIL-NONE", 3_000)
    assert store.decisions.silences(0) == [SILENCE._replace(ends_at=2_000)]


def test_decisions_are_pruned_with_their_incidents(store: IncidentStore) -> None:
    old = samples.incident(status=Status.CLOSED, updated_at=1_000, causes=(), findings=(samples.rewind(known_at=1),))
    store.save(1, [old])
    store.decisions.add(SILENCE)
    store.decisions.acknowledge(old, TAKEN)
    outbox = Outbox(store.path, "slack")
    deliver_all(outbox)
    outbox.close()
    assert store.prune(5_000) == 1
    assert store.decisions.silences(0) == [SILENCE]
    store.prune(5_001)
    assert store.decisions.silences(0) == []
    assert store.decisions.handled(old) == old


def test_decisions_about_an_incident_are_queued_for_its_receivers(store: IncidentStore, outbox: Outbox) -> None:
    incident = samples.eventful()
    store.save(1, [incident])
    deliver_all(outbox)
    store.decisions.acknowledge(incident, TAKEN)
    (row,) = read_rows(outbox)
    assert row.incident == replace(incident, acknowledged=TAKEN)
    deliver_all(outbox)
    store.decisions.close(incident, closure(incident))
    (row,) = read_rows(outbox)
    assert (row.incident.status, row.incident.acknowledged) == (Status.CLOSED, TAKEN)
    assert store.incidents() == [incident]  # what rules found stays as it is


@pytest.mark.parametrize(
    "change",
    [
        {"findings": (samples.rewind(), samples.rewind(3))},
        {"findings": (samples.rewind(at=samples.at("23:50:00.0")),)},
        {"causes": (samples.session_expiry(severity=Severity.WARNING),)},
    ],
)
def test_a_closed_incident_reopens_with_a_new_finding(store: IncidentStore, change: dict[str, object]) -> None:
    incident = samples.incident()
    store.save(1, [incident])
    store.decisions.close(incident, closure(incident))
    over = samples.incident(findings=(samples.rewind(recovered_at=incident.updated_at),))
    for known in (incident, over, samples.incident(causes=())):
        assert store.decisions.handled(known).status is Status.CLOSED
    again = store.decisions.handled(samples.incident(**change))
    assert (again.status, again.closed) == (Status.OPEN, None)


def test_a_closed_incident_stays_closed_while_its_findings_get_milder(store: IncidentStore) -> None:
    """As when the last group that waits for a transaction leaves."""
    incident, milder = (
        samples.incident(causes=(), findings=(samples.rewind(severity=severity),))
        for severity in (Severity.CRITICAL, Severity.WARNING)
    )
    store.save(1, [incident])
    store.decisions.close(incident, closure(incident))
    assert store.decisions.handled(milder).status is Status.CLOSED
    store.save(2, [milder])
    store.decisions.close(milder, closure(milder))
    assert store.decisions.handled(milder).status is Status.CLOSED
    assert store.decisions.handled(incident).status is Status.OPEN


def test_decisions_that_cannot_be_read_hold_nothing_back(state_file: Path, store: IncidentStore) -> None:
    incident = samples.incident()
    store.save(1, [incident])
    store.decisions.add(SILENCE)
    store.decisions.close(incident, closure(incident))
    with sqlite3.connect(state_file) as db:
        db.execute("UPDATE silences SET body = '{}'")
        db.execute("UPDATE handling SET body = '['")
    db.close()
    with structlog.testing.capture_logs() as logs:
        assert store.decisions.silences(0) == []
        assert store.decisions.handled(incident) == incident
    assert [event["row"] for event in logs] == ["silences SIL-00AA11", f"handling {incident.id}"]
    assert store.decisions.silences(0) == []


def test_an_acknowledgement_outlives_a_merge(store: IncidentStore) -> None:
    """The incident that remains keeps its own; a closure of a part closes nothing else."""
    part, whole = samples.incident(id="INC-PART"), samples.incident(id="INC-WHOLE")
    store.save(1, [part, whole])
    store.decisions.acknowledge(part, TAKEN)
    store.decisions.close(part, closure(part))
    store.save(2, [replace(part, merged_into=whole.id, findings=(), causes=()), whole])
    assert store.decisions.handled(whole).acknowledged == TAKEN
    assert store.decisions.handled(whole).closed is None
    later = samples.incident(id="INC-LATER")
    store.save(3, [later])
    store.decisions.acknowledge(later, replace(TAKEN, by="omar"))
    store.save(4, [replace(later, merged_into=whole.id, findings=(), causes=())])
    assert store.decisions.handled(whole).acknowledged == TAKEN
