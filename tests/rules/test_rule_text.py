"""What the rules about Kafka say about their findings: sentences, timeline rows, and causes that they rule out."""

from typing import Any

import pytest
from msgspec.structs import replace

from agent.engine.rule import Rule, Scope
from agent.model.findings import Finding, Records, Severity
from agent.model.observations.kafka import LastStableOffset
from agent.render.advice import advice_now
from agent.rules import KINDS, transaction_hanging
from tests.samples import DAY, at, leader_change, rewind, session_expiry

PARTITION = {"cluster": "main", "topic": "topic-124", "partition": 3}
GROUP = PARTITION | {"group": "flink-job"}


def found(kind: str, detail: str, subject: dict[str, Any], **more: Any) -> Finding:
    fields: dict[str, Any] = {
        "rule": kind,
        "kind": kind,
        "severity": Severity.WARNING,
        "at": at("00:33:38.6"),
        "detail": detail,
    }
    return Finding(**fields | {"subject": subject} | more)


REWIND = rewind(3, 5_547, 327, since=at("23:25:12"))

TIMELINES = [
    (REWIND, "flink-job on topic-124[3] was reset to the log start: 5,547 -> 327 or lower"),
    (rewind(labels=()), "flink-job on topic-124[8] rewound: 12,223 -> 0"),
    (
        rewind(subject=PARTITION | {"job": "d7", "job_name": "clicks", "subtask": 2}, labels=("checkpoint_restore",)),
        "clicks on topic-124[3] was moved back by a checkpoint restore: 12,223 -> 0",
    ),
    (session_expiry(), "broker 2005: session expired; re-registered at 23:25:14.3"),
    (session_expiry(recovered_at=None), "broker 2005: session expired"),
    (
        session_expiry(previous={"session": None, "epoch": -1}, recovered_at=None),
        "broker 2005: left the cluster metadata",
    ),
    (leader_change(8, 2005, 2011, "23:25:14"), "topic-124[8]: leader 2005 -> 2011"),
    (
        leader_change(8, 2005, 2011, "23:25:14", "unclean_election"),
        "topic-124[8]: leader 2005 -> 2011, unclean election (ISR was 2005)",
    ),
    (
        found(
            "log_truncated",
            "topic-124[3]: log truncated 5,527 -> 5,249, at least 298 records lost (g had read up to 5,547)",
            PARTITION,
        ),
        "topic-124[3]: log truncated 5,527 -> 5,249, at least 298 records lost",
    ),
    (
        found("beyond_end", "", GROUP, previous={"offset": 5547}, current={"log_end": 5249}, records=Records(lost=298)),
        "flink-job on topic-124[3]: read up to 5,547, log ends at 5,249, at least 298 records lost",
    ),
    (
        found(
            "retention_overrun", "", GROUP, previous={"offset": 7}, current={"log_start": 9}, records=Records(lost=2)
        ),
        "flink-job on topic-124[3]: 2 unread records deleted (read to 7, log starts at 9)",
    ),
    (
        found(
            "offset_jump", "", GROUP, previous={"offset": 7}, current={"offset": 9000}, records=Records(skipped=8993)
        ),
        "flink-job on topic-124[3]: jumped 7 -> 9,000, 8,993 records skipped",
    ),
    (
        found("hidden_reset", "", GROUP, previous={"offset": 65_057}),
        "flink-job on topic-124[3]: committed offset stuck at 65,057, probably reset",
    ),
    (
        found(
            "offset_reset",
            "consumer: offset 9 of t[0] is out of range, reset to 0 (/var/log/a (1).log)",
            PARTITION | {"log": "/var/log/a (1).log"},
        ),
        "consumer: offset 9 of t[0] is out of range, reset to 0",
    ),
    (
        found("brokers_down_together", "", {"brokers": [1, 2, 3]}, recovered_at=at("23:25:35")),
        "brokers 1, 2 and 3 down at the same time; all up at 23:25:35.0",
    ),
    (found("broker_down", "broker 2005: down since 00:33:38.6 UTC", {"broker": 2005}), "broker 2005: down"),
    (
        found("source_unavailable", "kafka: ...", {"cluster": "main", "source": "kafka"}),
        "kafka: cluster main unavailable",
    ),
    (found("log_pattern", "/log: a", {"log": "/log"}, rule="halted", current={"lines": {"a": 1}}), "halted: a"),
]


@pytest.mark.parametrize(("finding", "row"), TIMELINES, ids=lambda value: getattr(value, "kind", ""))
def test_a_timeline_row_is_short_and_without_its_time(finding: Finding, row: str) -> None:
    assert KINDS[finding.kind].timeline(finding, DAY) == row
    assert len(row) <= 100


@pytest.mark.parametrize(
    ("detail", "row"),
    [
        ("broker 3: down since 00:33:38.6 UTC", "broker 3: down"),
        ("it failed at 00:33:38.6 UTC.", "it failed"),
        ("it failed, by 2026-11-22 00:33:38.6 UTC", "it failed"),
        ("since 00:33:38.6 UTC it fails", "since 00:33:38.6 UTC it fails"),
    ],
)
def test_the_timeline_row_of_a_rule_is_its_detail_without_time(detail: str, row: str) -> None:
    assert Rule.timeline(found("broker_down", detail, {}), DAY) == row


def test_an_open_rewind_says_when_the_reader_has_caught_up() -> None:
    assert KINDS[REWIND.kind].describe(REWIND, DAY) == (
        "flink-job on topic-124[3] was reset to the log start: 5,547 -> 327 or lower between 23:25:12.0 and "
        "23:25:13.9; at least 5,220 records are being reprocessed; at 1,000 records/s caught up by about 23:25:26.1"
    )


def test_a_recovered_rewind_says_when_the_reader_caught_up() -> None:
    assert KINDS[REWIND.kind].describe(replace(REWIND, since=None, recovered_at=at("23:25:26")), DAY) == (
        "flink-job on topic-124[3] was reset to the log start: 5,547 -> 327 at 23:25:13.9; "
        "5,220 records were reprocessed; caught up at 23:25:26.0"
    )


@pytest.mark.parametrize(
    ("current", "words", "prevent"),
    [
        ({}, "expired or was deleted", "Find out whether"),
        ({"forgotten": "expired"}, "expired", "Set offsets.retention.minutes"),
        ({"forgotten": "was deleted"}, "was deleted", "Find out who or what deleted"),
    ],
)
def test_a_rewind_says_why_the_offset_was_forgotten(current: dict[str, str], words: str, prevent: str) -> None:
    forgotten = rewind(labels=("after_expiry", "to_earliest"), current={"offset": 0} | current)
    assert KINDS["offset_rewind"].timeline(forgotten, DAY) == (
        f"flink-job on topic-124[8] rewound after its committed offset {words}: 12,223 -> 0"
    )
    assert KINDS["offset_rewind"].advice_for(forgotten).prevent.startswith(prevent)


@pytest.mark.parametrize("kind", ["log_truncated", "beyond_end"])
@pytest.mark.parametrize(
    ("replicas", "prevent"),
    [({}, "Set unclean.leader"), ({"replicas": 3}, "Set unclean.leader"), ({"replicas": 1}, "Replicate {topic}")],
)
def test_a_truncated_single_replica_should_be_replicated(kind: str, replicas: dict[str, int], prevent: str) -> None:
    truncated = rewind(kind=kind, previous={"log_end": 900}, current={"log_end": 100} | replicas)
    assert KINDS[kind].advice_for(truncated).prevent.startswith(prevent)


@pytest.mark.parametrize(("labels", "prevent"), [((), "Find out in the log of"), (("to_earliest",), "Set auto.offset")])
def test_a_rewind_without_a_label_blames_no_reset(labels: tuple[str, ...], prevent: str) -> None:
    assert KINDS["offset_rewind"].advice_for(rewind(labels=labels)).prevent.startswith(prevent)


@pytest.mark.parametrize(
    ("finding", "advice"),
    [
        (
            found(
                "reassignment_stalled",
                "",
                PARTITION | {"brokers": [4, 5]},
                labels=("target_down",),
                current={"down": [5]},
            ),
            "Restart broker 5, or choose others",
        ),
        (found("reassignment_stalled", "", PARTITION | {"brokers": [4]}), "Check that broker 4 can be reached"),
        (found("under_replicated", "", PARTITION | {"brokers": [4, 5]}), "is not replicated by brokers 4 and 5"),
        (
            found("transaction_hanging", "", PARTITION, current={"offset": 812, "producer": "producer 5"}),
            "--bootstrap-server HOST:PORT abort --topic topic-124 --partition 3 --start-offset 812`",
        ),
        (
            found("transaction_hanging", "", PARTITION, current={"offset": 812}),
            "Find its producer: id and epoch are in the log of topic-124[3] at offset 812",
        ),
        (
            found("consumer_stopped", "", {"cluster": "main", "group": "nightly $(date); x"}),
            "--delete --group 'nightly $(date); x'`",
        ),
    ],
)
def test_advice_can_be_followed_as_it_stands(finding: Finding, advice: str) -> None:
    """It names the brokers to restart, and commands that a shell takes."""
    assert advice in advice_now([finding], DAY)[0]


def test_names_of_producers_keep_their_capitals() -> None:
    name = "Orders-Sink-TX"
    current = {"groups": [], "producer": f"producer 5 (transactional.id {name})"}
    begin = LastStableOffset(at=at("00:33:38.6"), cluster="main", topic="t", partition=0, offset=7)
    text = transaction_hanging._describe(Scope("main", topic="t", partition=0), begin, current)
    assert f". Producer 5 (transactional.id {name}) began the transaction" in text
