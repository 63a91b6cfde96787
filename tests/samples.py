"""Incidents for tests, with the figures of a real run: a Flink source reset after its broker's session expired."""

from typing import Any

from msgspec.structs import replace

from agent.engine.check_requests import CheckRequest
from agent.model.findings import Finding, Incident, Records, Severity, Status
from agent.model.times import millis
from agent.notify.base import Message
from agent.render.report import report

DAY = "2026-11-20"

RULED_OUT = {
    "operator_reset": "flink-job kept committing from 23:25:11.0 to 23:25:17.0",
    "after_expiry": "read at 23:25:12.0 and 23:25:13.9",
    "topic_recreation": "same topic id",
}


def at(clock: str) -> int:
    """Return a time of that day, such as "23:25:08.3", in ms."""
    return millis(f"{DAY}T{clock}Z")


def rewind(
    partition: int = 8,
    before: int = 12_223,
    after: int = 0,
    *,
    group: str = "flink-job",
    topic: str = "topic-124",
    **more: Any,
) -> Finding:
    """Return the rewind of a committed offset."""
    fields: dict[str, Any] = {
        "rule": "rewind",
        "kind": "offset_rewind",
        "severity": Severity.CRITICAL,
        "at": at("23:25:13.9"),
        "subject": {"cluster": "main", "group": group, "topic": topic, "partition": partition},
        "labels": ("to_earliest",),
        "previous": {"offset": before},
        "current": {"offset": after, "ruled_out": RULED_OUT},
        "records": Records(reread=before - after),
        "detail": f"{group} on {topic}[{partition}] was reset to the log start: {before:,} -> {after:,}; "
        "at 1,000 records/s caught up by about 23:25:26.1 UTC",
    }
    return Finding(**fields | more)


def session_expiry(**more: Any) -> Finding:
    """Return the expiry of broker 2005's ZooKeeper session, and its re-registration."""
    fields: dict[str, Any] = {
        "rule": "session",
        "kind": "broker_session_lost",
        "severity": Severity.INFO,
        "at": at("23:25:08.3"),
        "recovered_at": at("23:25:14.3"),
        "subject": {"cluster": "main", "broker": 2005},
        "previous": {"session": "0x1a1fb461d560002", "epoch": 31},
        "current": {"session": "0x1a1fb461d560006", "epoch": 88},
        "detail": "broker 2005: ZooKeeper session 0x1a1fb461d560002 expired at 23:25:08.3 UTC; "
        "re-registered at 23:25:14.3 as 0x1a1fb461d560006",
    }
    return Finding(**fields | more)


def leader_change(
    partition: int, source: int, target: int, clock: str, kind: str = "leader_moved", **more: Any
) -> Finding:
    """Return a leader change of a partition of topic-124, or an unclean election."""
    fields: dict[str, Any] = {
        "rule": kind,
        "kind": kind,
        "severity": Severity.INFO if kind == "leader_moved" else Severity.WARNING,
        "at": at(clock),
        "subject": {"cluster": "main", "topic": "topic-124", "partition": partition, "brokers": [source, target]},
        "previous": {"leader": source, "leader_epoch": 3, "isr": [source]},
        "current": {"leader": target, "leader_epoch": 4, "isr": [target]},
        "detail": f"topic-124[{partition}]: leader {source} -> {target}",
    }
    return Finding(**fields | more)


def incident(**more: Any) -> Incident:
    """Return the reset: one rewind, its causes in shuffled order."""
    fields: dict[str, Any] = {
        "id": "INC-7F3A9C",
        "status": Status.OPEN,
        "severity": Severity.CRITICAL,
        "title": "flink-job rewound 12,223 records on topic-124[8]",
        "correlation": "reset-after-session-loss",
        "cluster": "main",
        "opened_at": at("23:25:08.3"),
        "updated_at": at("23:25:26.0"),
        "records": Records(reread=12_223),
        "causes": (
            leader_change(8, 2011, 2005, "23:25:26.0"),
            leader_change(8, 2005, 2011, "23:25:14.0"),
            leader_change(8, 2005, 2011, "23:25:14.0", "unclean_election"),
            leader_change(2, 2005, 2011, "23:25:14.0"),
            session_expiry(),
        ),
        "findings": (rewind(),),
    }
    return Incident(**fields | more)


def eventful(**more: Any) -> Incident:
    """Return an incident with one event more than the message has rows, so that its thread has an entry."""
    causes = (
        *incident().causes,
        leader_change(3, 2024, 2011, "23:25:15.0"),
        leader_change(4, 2011, 2024, "23:25:16.0"),
    )
    return incident(**{"causes": causes} | more)


def recovered(of: Incident | None = None) -> Incident:
    """Return the incident after the old offset was reached again."""
    before = of or incident()
    end = at("23:25:26.0")
    return replace(
        before,
        status=Status.RECOVERED,
        recovered_at=end,
        updated_at=end,
        findings=tuple(replace(finding, recovered_at=end) for finding in before.findings),
    )


def burst(partitions: int = 200) -> Incident:
    """Return an incident of one expired session and many rewound partitions of two topics."""
    findings = tuple(
        rewind(number % 120, 1_000 + number * 10, topic=f"orders-{number // 120}", at=at("23:25:13.9") + number)
        for number in range(partitions)
    )
    moves = tuple(
        leader_change(
            number, 2005, 2011, "23:25:14.0", subject={"cluster": "main", "topic": "orders-0", "partition": number}
        )
        for number in range(partitions)
    )
    records = sum((finding.records for finding in findings), Records())
    title = f"flink-job rewound {records.reread:,} records on {partitions} partitions"
    return incident(id="INC-B00257", title=title, findings=findings, causes=(session_expiry(), *moves), records=records)


def message(of: Incident | None = None, number: int = 0, lines: tuple[str, ...] = (), **more: Any) -> Message:
    """Return a rendered message, or an entry of its thread."""
    rendered = of or incident()
    return Message(rendered, report(rendered), number, lines, **more)


def brokers_down_together(**more: Any) -> Finding:
    """Return the power loss of KAFKA-3919: 2005 and 2011 were down at the same time."""
    fields: dict[str, Any] = {
        "rule": "brokers_down_together",
        "kind": "brokers_down_together",
        "severity": Severity.INFO,
        "at": at("23:25:08.3"),
        "recovered_at": at("23:25:40.0"),
        "known_at": at("23:25:40.0"),
        "subject": {"cluster": "main", "brokers": [2005, 2011]},
        "detail": "brokers 2005 and 2011 were away at the same time: "
        "the first from 23:25:08.3, all up at 23:25:40.0 UTC",
    }
    return Finding(**fields | more)


def offset_decrease(**more: Any) -> Finding:
    """Return an offset decrease in 2011's copy of topic-124[8]."""
    fields: dict[str, Any] = {
        "rule": "segments",
        "kind": "log_segments",
        "severity": Severity.CRITICAL,
        "at": at("23:25:31.0"),
        "known_at": at("23:31:00"),
        "subject": {
            "cluster": "main", "broker": 2011, "topic": "topic-124", "partition": 8, "file": "00000000000000000000.log"
        },
        "labels": ("offsets_went_back",),
        "position": 161_857,
        "previous": {"offset": 7_999},
        "current": {"offset": 7_852},
        "detail": "offset 7852 after 7999",
    }  # fmt: skip
    return Finding(**fields | more)


def divergence(**more: Any) -> Finding:
    """Return the divergence of 2005's and 2011's copies of topic-124[8] from offset 7,101 on."""
    fields: dict[str, Any] = {
        "rule": "divergence",
        "kind": "replica_divergence",
        "severity": Severity.CRITICAL,
        "at": at("23:25:30.0"),
        "known_at": at("23:33:00"),
        "subject": {"cluster": "main", "brokers": [2005, 2011], "topic": "topic-124", "partition": 8},
        "previous": {"offset": 7_101},
        "records": Records(lost=899),
        "detail": "2005 and 2011 differ from offset 7,101 on; if 2005 leads, 2011 loses 899 records",
    }
    return Finding(**fields | more)


def check_request(**more: Any) -> CheckRequest:
    """Return the request for a check of the reset's offset history."""
    fields: dict[str, Any] = {
        "id": "a1b2c3",
        "check": "offset_history",
        "cluster": "main",
        "finding": session_expiry().key,
        "since": at("00:00:00"),
        "until": at("23:30:00"),
        "topics": ("topic-124",),
        "groups": ("flink-job",),
    }
    return CheckRequest(**fields | more)


PLOT = b"\x89PNG\r\n\x1a\nand so on"
"""A stand-in for a plot."""
