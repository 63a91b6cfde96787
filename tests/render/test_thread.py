"""The thread of an incident is a log: one line per event that is new or has no room in the message."""

from msgspec.structs import replace

from agent.model.findings import Incident, Severity, Status
from agent.model.observations.base import Unavailable
from agent.render.thread import MAX_LINES, ThreadLog, is_announcement, thread_entry
from tests import samples


def render_entries(*versions: Incident) -> list[tuple[str, ...]]:
    """Return the entries of an incident that goes through these versions."""
    log, entries = ThreadLog(), []
    for version in versions:
        lines, log = thread_entry(log, version)
        entries.append(lines)
    return entries


def test_the_first_entry_has_what_the_message_has_no_room_for() -> None:
    assert render_entries(samples.incident()) == [()]
    assert render_entries(samples.eventful()) == [("23:25:16.0  topic-124[4]: leader 2011 → 2024",)]


def test_a_new_event_is_logged_once() -> None:
    first = samples.incident(causes=())
    entries = render_entries(
        first,
        first,
        samples.incident(causes=(samples.session_expiry(),)),
        samples.incident(causes=(samples.session_expiry(),)),
    )
    assert entries == [(), (), ("23:25:08.3  broker 2005: session expired; re-registered at 23:25:14.3",), ()]


def test_an_event_that_lost_its_row_is_logged_once() -> None:
    later = (samples.leader_change(3, 2024, 2011, "23:25:15.0"), samples.leader_change(8, 2005, 2024, "23:25:27.0"))
    first = samples.incident(causes=(*samples.incident().causes, later[0]))
    _, displaced = render_entries(first, replace(first, causes=(*first.causes, later[1])))
    assert displaced == (
        "23:25:15.0  topic-124[3]: leader 2024 → 2011",
        "23:25:27.0  topic-124[8]: leader 2005 → 2024",
    )


def test_status_changes_are_logged() -> None:
    full, over = samples.incident(), samples.recovered()
    closed = replace(over, status=Status.CLOSED)
    assert render_entries(full, over, full, over, closed) == [
        (), ("23:25:26.0  recovered",), ("Reopened.",), ("23:25:26.0  recovered",), ("Closed.",),
    ]  # fmt: skip


def test_recovery_is_logged_if_it_was_closed_meanwhile() -> None:
    closed = replace(samples.recovered(), status=Status.CLOSED)
    assert render_entries(samples.incident(), closed) == [(), ("23:25:26.0  recovered", "Closed.")]


def test_severity_changes_are_logged_and_critical_escalates() -> None:
    critical = samples.incident()
    warning = replace(critical, severity=Severity.WARNING)
    _, raised, lowered = render_entries(warning, critical, warning)
    assert (raised, lowered) == (
        ("Severity raised to critical, was warning.",),
        ("Severity lowered to warning, was critical.",),
    )
    assert is_announcement(raised)
    assert not is_announcement(lowered)


def test_withdrawn_findings_are_logged_unless_they_are_redated() -> None:
    full = samples.incident()
    _, dropped = render_entries(full, replace(full, causes=full.causes[:-1]))
    assert dropped == ("No longer applies: 23:25:08.3  broker 2005: session expired; re-registered at 23:25:14.3",)
    redated = replace(full, causes=(*full.causes[:-1], samples.session_expiry(at=samples.at("23:25:08.1"))))
    _, moved = render_entries(full, redated)
    assert moved == ("23:25:08.1  broker 2005: session expired; re-registered at 23:25:14.3",)


def test_merging_and_withdrawal_end_the_log() -> None:
    full = samples.incident()
    merged = replace(full, merged_into="INC-B00257", status=Status.CLOSED, findings=(), causes=())
    withdrawn = replace(full, status=Status.CLOSED, findings=(), causes=())
    assert render_entries(full, merged, merged) == [(), ("Merged into INC-B00257.",), ()]
    assert render_entries(full, withdrawn, withdrawn) == [(), ("Withdrawn: its findings no longer apply.",), ()]


def outage(topic: str | None = None) -> Incident:
    """Return the incident while a source, or a topic's partitions, are unavailable."""
    unseen = Unavailable(
        at=samples.at("23:25:20.0"), source="kafka", cluster="main", topic=topic, reason="no broker answers"
    )
    return samples.incident(sighted=False, unseen=(unseen,))


def test_an_outage_that_limits_the_incident_is_logged() -> None:
    assert render_entries(samples.incident(), outage(), outage(), samples.incident()) == [
        (),
        ("23:25:20.0  May be out of date from here: kafka cannot read cluster main: no broker answers",),
        (),
        ("Available again; this incident is up to date.",),
    ]


def test_an_unreadable_partition_is_in_the_message_only() -> None:
    assert render_entries(samples.incident(), outage("topic-124"), samples.incident()) == [(), (), ()]


def test_a_burst_makes_a_short_entry() -> None:
    (_, entry) = render_entries(samples.burst(1), samples.burst(200))
    assert 0 < len(entry) <= MAX_LINES


def test_a_burst_does_not_hide_that_it_became_critical() -> None:
    """Slack notifies no one of an edit: the channel learns of it by this line alone."""
    burst = tuple(samples.rewind(partition=n, group=f"group-{n}", topic=f"topic-{n}") for n in range(30))
    before = samples.incident(severity=Severity.WARNING, causes=(), findings=(samples.rewind(),))
    _, entry = render_entries(before, replace(before, severity=Severity.CRITICAL, findings=(samples.rewind(), *burst)))
    assert len(entry) == MAX_LINES
    assert entry[-2:] == ("(and 12 more)", "Severity raised to critical, was warning.")
    assert is_announcement(entry)
