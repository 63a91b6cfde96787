"""What a message contains: figures, bounds, a timeline in order, advice, and no more lines than a phone shows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.findings import Finding, Incident, Records, Severity, Status
from agent.model.observations.base import Unavailable
from agent.render.report import MAX_ROWS, Report, report
from agent.render.thread import ThreadLog, thread_entry
from agent.rules import KINDS
from tests import samples


def texts(rendered: Report) -> list[str]:
    """Return the timeline without its times."""
    return [row.partition("  ")[2] for row in rendered.timeline]


def test_headline_names_severity_what_where_and_how_much() -> None:
    assert report(samples.incident()).headline == "CRITICAL · flink-job rewound 12,223 records on topic-124[8]"


def test_paragraph_describes_the_worst_effect() -> None:
    paragraph = report(samples.incident()).paragraph
    assert paragraph.startswith("flink-job on topic-124[8] was reset to the log start: 12,223 → 0 at 23:25:13.9; ")
    assert "12,223 records are being reprocessed" in paragraph


def test_polled_figures_are_worded_as_bounds() -> None:
    polled = samples.rewind(after=104, since=samples.at("23:25:11.9"))
    paragraph = report(samples.incident(findings=(polled,))).paragraph
    assert "12,223 → 104 or lower between 23:25:11.9 and 23:25:13.9" in paragraph
    assert "at least 12,119 records are being reprocessed" in paragraph


def test_timeline_is_in_the_order_of_time() -> None:
    assert texts(report(samples.incident())) == [
        "broker 2005: session expired; re-registered at 23:25:14.3",
        "flink-job on topic-124[8] was reset to the log start: 12,223 → 0",
        "topic-124[2]: leader 2005 → 2011",
        "topic-124[8]: leader 2005 → 2011, unclean election (ISR was 2005)",
        "topic-124[8]: leader 2011 → 2005",
    ]


def test_polled_events_are_ordered_by_the_time_observed() -> None:
    polled = samples.leader_change(8, 2005, 2011, "23:25:14.0", since=samples.at("23:25:01.0"))
    rows = texts(report(samples.incident(causes=(polled, samples.session_expiry()), findings=(samples.rewind(),))))
    assert [row.partition(" ")[0] for row in rows] == ["broker", "flink-job", "topic-124[8]:"]


def test_the_same_change_of_several_partitions_is_one_row() -> None:
    moves = tuple(samples.leader_change(number, 2024, 2011, "23:25:15.0") for number in (1, 4, 5))
    rows = texts(report(samples.incident(causes=(samples.session_expiry(), *moves))))
    assert rows[-1] == "topic-124[1,4,5]: leader 2024 → 2011"


def test_rows_that_matter_least_are_left_out() -> None:
    others = (*samples.incident().causes, *(samples.leader_change(n, 2024, n, f"23:25:0{n}.0") for n in (1, 3, 4, 5)))
    rendered = report(samples.incident(causes=others))
    assert (len(rendered.timeline), rendered.omitted) == (MAX_ROWS, 3)
    assert rendered.timeline_lines[-1] == "(and 3 more)"
    assert [row for row in texts(rendered) if "topic-124[8]" in row or "broker 2005" in row] == texts(
        report(samples.incident())
    )[:2] + texts(report(samples.incident()))[3:]


def test_only_what_the_findings_support_is_ruled_out() -> None:
    assert report(samples.incident()).ruled_out == (
        "operator reset (flink-job kept committing from 23:25:11.0 to 23:25:17.0) · "
        "expired offsets (read at 23:25:12.0 and 23:25:13.9) · topic re-creation (same topic id)"
    )
    reset = samples.incident(findings=(samples.rewind(labels=("operator_reset", "after_expiry")),))
    assert report(reset).ruled_out == "topic re-creation (same topic id)"
    unchecked = samples.incident(findings=(samples.rewind(current={"offset": 0}),))
    assert report(unchecked).ruled_out == ""
    recreated = samples.rewind(
        kind="topic_recreated", subject={"cluster": "main", "topic": "topic-124"}, detail="Re-created."
    )
    assert "re-creation" not in report(samples.incident(findings=(samples.rewind(), recreated))).ruled_out
    assert report(samples.incident(findings=(samples.session_expiry(),))).ruled_out == ""


def test_a_cause_that_one_finding_leaves_open_is_not_ruled_out() -> None:
    doubts = {"operator_reset": "all members of g left or changed between 23:25:10.0 and 23:25:13.9"}
    unsure = samples.rewind(3, 10, 0, group="g", current={"offset": 0, "not_ruled_out": doubts})
    rendered = report(samples.incident(findings=(samples.rewind(), unsure)))
    assert rendered.ruled_out.startswith("expired offsets (")
    assert rendered.possible == f"operator reset: {doubts['operator_reset']}"
    assert f"Possible    {rendered.possible}" in rendered.lines()
    operators = samples.rewind(4, 20, 0, labels=("operator_reset",), current={"offset": 0})
    assert report(samples.incident(findings=(unsure, operators))).possible == ""


def test_partitions_with_a_leader_change_but_no_rewind_are_named() -> None:
    assert "Leader also changed, no rewind detected: topic-124[2]." in report(samples.incident()).paragraph
    truncated = samples.rewind(2, kind="log_truncated", subject=samples.leader_change(2, 1, 2, "23:25:14.0").subject)
    assert "no rewind" not in report(samples.incident(findings=(samples.rewind(), truncated))).paragraph


def test_advice_names_the_reader_the_place_and_the_offsets() -> None:
    rendered = report(samples.incident())
    (now,) = rendered.do_now
    assert now.startswith("Stop or deduplicate consumers of flink-job's output since 23:25:13.9")
    assert "topic-124[8] offsets 0-12,223" in now
    assert rendered.prevent[0] == "Find out why broker 2005 was away for 6.0 s: restart, GC pause, disk or network."
    assert "unclean.leader.election.enable=false" in rendered.prevent[1]


def test_an_operators_reset_needs_no_advice() -> None:
    meant = samples.incident(findings=(samples.rewind(labels=("operator_reset",)),), causes=())
    assert report(meant).do_now == report(meant).prevent == ()


def test_state_and_date_are_in_the_context() -> None:
    assert report(samples.incident()).context == "OPEN since 23:25:08.3 UTC, 2026-11-20 · cluster main"
    resolved = report(samples.recovered())
    assert resolved.headline.startswith("CRITICAL (RECOVERED) · flink-job")
    assert resolved.context.startswith("RECOVERED, began 23:25:08.3, recovered 23:25:26.0 UTC after 17.7 s, 2026-11-20")
    assert "12,223 records were reprocessed; caught up at 23:25:26.0" in resolved.paragraph
    assert "(CLOSED)" in report(replace(samples.recovered(), status=Status.CLOSED)).headline


def test_an_unavailable_source_is_in_the_context() -> None:
    parts = tuple(
        Unavailable(
            at=samples.at("23:25:20.0"), source="kafka", cluster="main", topic="topic-124", partition=number, reason="?"
        )
        for number in (3, 8)
    )
    context = report(samples.incident(sighted=False, unseen=parts)).context
    assert "may be out of date: kafka cannot read topic-124[3,8] ·" in context
    assert "may be out of date: a source is unavailable" in report(samples.incident(sighted=False)).context


LINE = Finding(
    rule="out-of-memory", kind="log_pattern", severity=Severity.WARNING, at=samples.at("23:25:12.0"),
    recovered_at=samples.at("23:25:12.0"), subject={"cluster": "main", "log": "/x.log"},
    current={"what": "OOM"}, detail="/x.log on kafka-1 (what=OOM): 2026-11-21 00:25:12 UTC+1 killed: OOM.",
)  # fmt: skip


def test_a_momentary_event_does_not_recover() -> None:
    once = samples.incident(
        status=Status.RECOVERED, opened_at=LINE.at, recovered_at=LINE.at, causes=(), findings=(LINE,), title="a line"
    )
    assert report(once).headline == "CRITICAL · a line"
    assert report(once).context == "Happened at 23:25:12.0 UTC, 2026-11-20 · cluster main"
    assert not report(once).is_resolved
    closed = report(replace(once, status=Status.CLOSED))
    assert "(CLOSED)" in closed.headline
    assert closed.context.startswith("CLOSED, happened at 23:25:12.0 UTC, 2026-11-20")
    mixed = replace(once, findings=(LINE, *samples.recovered().findings), recovered_at=samples.at("23:25:26.0"))
    assert "(RECOVERED)" in report(mixed).headline


def test_a_cause_that_ended_does_not_make_an_event_recover() -> None:
    lasting = samples.incident(causes=(samples.session_expiry(recovered_at=None),), findings=(LINE,))
    over = replace(
        lasting, status=Status.RECOVERED, causes=(samples.session_expiry(),), recovered_at=samples.at("23:25:14.3")
    )
    assert report(over).headline == report(lasting).headline
    assert report(over).context.startswith("Happened between 23:25:08.3 and 23:25:14.3 UTC, 2026-11-20")
    lines, _ = thread_entry(ThreadLog(incident=lasting), over)
    assert lines == ("23:25:14.3  over",)


def _written(second: int, text: str) -> Finding:
    at = samples.at(f"23:25:{second:02}.0")
    return replace(LINE, at=at, recovered_at=at, current={"lines": {text: 1}}, detail=f"/x.log: {text}")


def test_lines_that_differ_in_numbers_only_are_one_row() -> None:
    lines = (*(_written(second, f"killed {second}") for second in range(12, 40)), _written(20, "the last straw"))
    rows = report(samples.incident(findings=lines, causes=(), records=Records())).timeline
    assert len(rows) == 2
    assert rows[0].endswith("killed 12; 27 more lines like it until 23:25:39.0")
    assert rows[1].endswith("the last straw")


def test_a_resolved_outage_needs_no_action_but_damage_does() -> None:
    outage = Finding(
        rule="source_unavailable", kind="source_unavailable", severity=Severity.WARNING, at=samples.at("23:25:12.0"),
        subject={"cluster": "main", "source": "kafka", "group": "g"}, detail="kafka has not seen group g of main",
    )  # fmt: skip
    lasting = samples.incident(findings=(outage,), causes=())
    assert len(report(lasting).do_now) == 1
    assert report(samples.recovered(lasting)).do_now == ()
    headings = [heading for heading, _ in report(samples.recovered()).sections()]
    assert headings == ["Ruled out", "Still to do", "Prevent"]


def test_advice_names_the_parts_of_a_job_graph() -> None:
    back = Finding(
        rule="job_resurrected", kind="job_resurrected", severity=Severity.CRITICAL, at=samples.at("23:25:12.0"),
        subject={"cluster": "jobs", "job": "d779", "job_name": "clicks"}, labels=("running",), detail="It runs.",
        current={"znode": "/flink/jobs/jobgraphs/d779", "file": "submittedJobGraph01", "others": ["a1c0"]},
    )  # fmt: skip
    (line,) = report(samples.incident(findings=(back,), causes=())).do_now
    assert "the znode /flink/jobs/jobgraphs/d779 and the file submittedJobGraph01" in line
    (line,) = report(samples.incident(findings=(replace(back, current={}),), causes=())).do_now
    assert "its znode and its file" in line


def test_a_time_on_another_day_has_its_date() -> None:
    late = replace(samples.incident(), status=Status.RECOVERED, recovered_at=samples.at("23:25:26.0") + 86_400_000)
    assert "recovered 2026-11-21 23:25:26.0 UTC after 1 d" in report(late).context


def test_two_hundred_partitions_fit_the_message() -> None:
    rendered = report(samples.burst())
    assert rendered.paragraph.startswith("flink-job on orders-1[79]")
    assert (
        "Affected in all: orders-1 (80 partitions), orders-0 (120 partitions): 399,000 records reprocessed."
        in rendered.paragraph
        or "Affected in all: orders-0 (120 partitions), orders-1 (80 partitions): 399,000 records reprocessed."
        in rendered.paragraph
    )
    assert [row.rpartition(" (")[2] for row in rendered.timeline[1:]] == [
        "and 119 more partitions)", "and 199 more partitions)", "and 79 more partitions)",
    ]  # fmt: skip
    assert len(rendered.lines()) < 20


def _lost(rule: str, seconds: int, before: dict[str, int], log_end: int, **more: Any) -> Finding:
    return Finding(
        rule=rule,
        kind=rule,
        severity=Severity.WARNING,
        at=samples.at(f"23:25:{seconds}.0"),
        since=samples.at(f"23:25:{seconds - 1}.0"),
        subject={"cluster": "main", "topic": "topic-124", "partition": 8, **more},
        detail=f"lost after {log_end}",
        previous=before,
        current={"log_end": log_end},
        records=Records(lost=sum(before.values()) - log_end),
    )


def test_records_that_a_reader_goes_on_to_commit_beyond_the_log_end_are_counted_once() -> None:
    beyond = [
        _lost("beyond_end", second, {"offset": 12_000 + 100 * second}, 11_000, group="flink-job")
        for second in (20, 22, 24)
    ]
    paragraph = report(samples.incident(causes=(), findings=tuple(beyond))).paragraph
    assert paragraph.endswith("Affected in all: topic-124[8]: 3,400+ records lost.")


def test_an_effect_is_described_first_even_if_a_cause_describes_it_better() -> None:
    election = samples.leader_change(8, 2005, 2011, "23:25:14.0")
    truncated = _lost("log_truncated", 20, {"log_end": 14_000}, 11_000)
    beyond = _lost("beyond_end", 20, {"offset": 12_500}, 11_000, group="flink-job")
    paragraph = report(samples.incident(causes=(election, truncated), findings=(beyond,))).paragraph
    assert paragraph.startswith("lost after 11000")


def test_a_merged_incident_points_to_the_other() -> None:
    rendered = report(samples.incident(merged_into="INC-B00257"))
    assert "(MERGED)" in rendered.headline
    assert (rendered.paragraph, rendered.timeline, rendered.sections()) == (
        "Merged into INC-B00257: see there.",
        (),
        [],
    )


def test_an_incident_without_findings_is_withdrawn() -> None:
    rendered = report(samples.incident(status=Status.CLOSED, findings=(), causes=()))
    assert "(WITHDRAWN)" in rendered.headline
    assert rendered.paragraph == "Withdrawn: its findings no longer apply. No action needed."


def test_another_update_time_makes_no_other_report() -> None:
    assert report(samples.incident(updated_at=1)) == report(samples.incident())


_KINDS = sorted({*KINDS, "something_new"})
_names = st.fixed_dictionaries(
    {},
    optional={
        "cluster": st.just("main"), "group": st.text(max_size=9), "topic": st.sampled_from(["t", "u[0]"]),
        "partition": st.integers(0, 300), "broker": st.integers(0, 9), "source": st.just("kafka"),
    },
)  # fmt: skip
_figures = st.fixed_dictionaries(
    {},
    optional={
        "offset": st.integers(0, 10**12), "leader": st.none() | st.integers(-1, 9),
        "isr": st.lists(st.integers(0, 9)), "session": st.none() | st.just("0x1"), "keys": st.integers(0, 9),
    },
)  # fmt: skip
_times = st.integers(0, 2 * 10**12)


@st.composite
def findings(draw: st.DrawFn) -> Finding:
    """Draw any finding of any kind, with any figures."""
    fields: dict[str, Any] = {
        "rule": "r",
        "kind": draw(st.sampled_from(_KINDS)),
        "severity": draw(st.sampled_from(Severity)),
        "at": draw(_times),
        "since": draw(st.none() | _times),
        "recovered_at": draw(st.none() | _times),
        "subject": draw(_names),
        "labels": tuple(
            draw(st.lists(st.sampled_from(["operator_reset", "to_earliest", "to_divergence", "probable"])))
        ),
        "previous": draw(_figures),
        "current": draw(_figures),
        "records": Records(*draw(st.tuples(*[st.integers(0, 10**9)] * 3))),
        "detail": draw(st.text(max_size=40)),
    }
    return Finding(**fields)


_incidents = st.builds(
    Incident,
    id=st.just("INC-1"),
    status=st.sampled_from(Status),
    sighted=st.booleans(),
    merged_into=st.none() | st.just("INC-2"),
    severity=st.sampled_from(Severity),
    title=st.text(max_size=200),
    cluster=st.none() | st.just("main"),
    opened_at=_times,
    updated_at=_times,
    recovered_at=st.none() | _times,
    records=st.builds(Records, reread=st.integers(0, 10**12)),
    causes=st.lists(findings(), max_size=14).map(tuple),
    findings=st.lists(findings(), max_size=14).map(tuple),
)


@pytest.mark.slow
@given(_incidents, _incidents)
def test_every_incident_can_be_rendered(first: Incident, second: Incident) -> None:
    assert len(report(first).lines()) < 60
    lines, log = thread_entry(ThreadLog(), first)
    assert isinstance(lines, tuple)
    assert thread_entry(log, first) == ((), log)
    thread_entry(log, second)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_advice_needs_no_field_that_a_finding_may_lack(kind: str) -> None:
    bare = samples.rewind(kind=kind, labels=(), subject={}, previous={}, current={}, detail="Something happened.")
    assert report(samples.incident(findings=(bare,), causes=(bare,))).lines()


POWER_LOSS = samples.incident(
    causes=(samples.leader_change(8, 2005, 2011, "23:25:13.0"), samples.brokers_down_together()),
    findings=(samples.offset_decrease(), samples.divergence()),
)


def test_a_power_loss_shows_both_faults_and_the_brokers() -> None:
    rendered = report(POWER_LOSS)
    assert "2005 and 2011 differ from offset 7,101 on" in rendered.paragraph
    rows = texts(rendered)
    assert rows[0].startswith("brokers 2005 and 2011 ")
    assert len(rows) == 4


def test_a_power_loss_says_what_not_to_do_first() -> None:
    rendered = report(POWER_LOSS)
    assert len(rendered.do_now) == 2
    assert rendered.do_now[0].lower().startswith("do not restart")
    assert "00000000000000000000.log" in rendered.do_now[1]
    assert any("2005 and 2011" in line for line in rendered.prevent)


def test_a_failed_check_says_how_to_run_it_by_hand() -> None:
    failed = Finding(
        rule="check_failed", kind="check_failed", severity=Severity.WARNING, at=samples.at("23:40:00.0"),
        subject={"cluster": "main", "source": "offset_history"},
        detail="the check offset_history failed at 23:40:00.0 UTC: it needed more than 4.0 GiB",
    )  # fmt: skip
    rendered = report(samples.incident(findings=(failed,), causes=()))
    assert rendered.paragraph == f"{failed.detail}."
    assert "`backflow check offset_history`" in rendered.do_now[0]


def test_keys_listed_by_a_check_are_in_the_live_rules_advice() -> None:
    subject = {"cluster": "main", "group": "shop", "topic": "shop-counts-changelog", "partition": 2}
    alike: dict[str, Any] = {"subject": subject, "labels": ("values_fell",), "previous": {}, "detail": "it fell"}
    live = samples.rewind(kind="state_not_restored", current={"keys": 3, "undeclared": ["sums"]}, **alike)
    check = samples.rewind(kind="changelog_restore", current={"keys": 3, "listed_in": "/keys.parquet"}, **alike)
    for pair in ((live, check), (check, live)):
        rendered = report(samples.incident(findings=pair, causes=()))
        (line,) = rendered.do_now
        assert "/keys.parquet" in line
        assert "Also check store sums" in line
        assert "Confirmed by Spark: 3 of 3 keys." in rendered.paragraph
        assert len(rendered.timeline) == 1


def test_control_characters_in_names_are_visible() -> None:
    """A group's name must not forge a line, nor speak to the terminal."""
    name = "g\nCRITICAL · all is lost\x1b[2J\u202e"
    shown = report(samples.incident(title=f"{name} rewound 5 records"))
    assert shown.title == "g\\nCRITICAL · all is lost\\x1b[2J\\u202e rewound 5 records"
    assert all(line.isprintable() for line in shown.lines())
