"""What an incident says: figures, bounds, causes in order, advice, and no more lines than a reader takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.findings import Finding, Incident, Records, Severity, Status
from agent.model.observations import Unavailable
from agent.render.report import Report, report, timeline
from agent.rules import KINDS
from tests import samples


def section(told: Report, heading: str) -> tuple[str, ...]:
    """The lines under a heading; none where it is not there."""
    return next((lines for name, lines in told.sections if name == heading), ())


def test_the_first_line_says_how_bad_what_where_and_how_much() -> None:
    """Severity word, title, id."""
    headline = "CRITICAL  flink-job went back 12,223 records on topic-124[8]  INC-7F3A9C"
    assert report(samples.incident()).headline == headline


def test_a_rewind_tells_from_where_to_where_when_how_many_and_until_when() -> None:
    """An exact rewind to the log's start."""
    assert section(report(samples.incident()), "") == (
        (
            "flink-job on topic-124[8] was reset to the log's start: 12,223 -> 0 at 23:25:13.9; "
            "12,223 records are read again; at 1,000 records/s it is back by 23:25:26.1 UTC"
        ),
    )


def test_what_a_poll_saw_is_worded_as_bounds() -> None:
    """`since` set: by when, at least back to, at least so many."""
    polled = samples.rewind(after=104, since=samples.at("23:25:11.9"))
    (line,) = section(report(samples.incident(findings=(polled,))), "")
    assert "12,223 -> at least back to 104 by 23:25:13.9 (seen before it at 23:25:11.9)" in line
    assert "at least 12,119 records are read again" in line


def test_causes_are_told_in_the_order_of_time() -> None:
    """Whatever place they are about; the unclean election and leader move of one moment are one line."""
    lines = section(report(samples.incident()), "Cause")
    assert [line.partition(" UTC")[0] for line in lines] == [
        "broker 2005 lost its ZooKeeper session 0x1a1fb461d560002 (gone 23:25:08.3",
        "leader of topic-124[8] 2005 -> 2011 at 23:25:14.0 (unclean: 2011 was not in the ISR, which was 2005)",
        "leader of topic-124[2] 2005 -> 2011 at 23:25:14",
        "leader of topic-124[8] 2011 -> 2005 at 23:25:26",
    ]


def test_what_a_poll_saw_is_ordered_by_when_it_was_seen_to_hold() -> None:
    """Which is the time that its line tells; the old value may have been seen long before."""
    polled = samples.move(8, 2005, 2011, "23:25:14", since=samples.at("23:25:01"), detail="polled at 23:25:14.0 UTC")
    lines = section(report(samples.incident(causes=(polled, samples.session()))), "Cause")
    assert [line.partition(" ")[0] for line in lines] == ["broker", "polled"]


def test_only_what_the_findings_support_is_ruled_out() -> None:
    """Neither an operator's reset nor a topic created again is ruled out where it was found."""
    (line,) = section(report(samples.incident()), "Ruled out")
    assert line == "nobody reset flink-job; no committed offset had expired; topic-124 was not re-created."
    reset = samples.incident(findings=(samples.rewind(labels=("operator_reset", "after_expiry")),))
    assert section(report(reset), "Ruled out") == ("topic-124 was not re-created.",)
    anew = samples.rewind(kind="topic_recreated", subject={"cluster": "main", "topic": "topic-124"}, detail="Anew.")
    both = samples.incident(findings=(samples.rewind(), anew))
    assert "re-created" not in section(report(both), "Ruled out")[0]
    assert section(report(samples.incident(findings=(samples.session(),))), "Ruled out") == ()


def test_partitions_that_changed_leader_and_did_not_go_back_are_named() -> None:
    """They are what an operator would check next."""
    assert section(report(samples.incident()), "Also") == (
        "topic-124[2] changed leader too and nothing was seen to go back there.",
    )


def test_advice_names_the_reader_the_place_and_the_offsets() -> None:
    """Do now, and do later for effects and causes."""
    told = report(samples.incident())
    assert section(told, "Do now") == (
        (
            "stop or dedupe what reads flink-job's output from 23:25:13.9; "
            "check downstream counts for topic-124[8] offsets 0-12,223."
        ),
    )
    assert section(told, "Do later")[1:] == (
        "why did broker 2005 let its session expire and stay away 6.0 s? (GC log, disk, network)",
        "unclean.leader.election.enable=false for topic-124.",
    )


def test_what_was_meant_asks_for_nothing() -> None:
    """An operator's reset has no advice."""
    meant = samples.incident(findings=(samples.rewind(labels=("operator_reset",)),), causes=())
    assert section(report(meant), "Do now") == section(report(meant), "Do later") == ()


def test_state_sight_and_date_are_shown() -> None:
    """Open, recovered after how long, closed, and out of sight."""
    assert report(samples.incident()).context == "OPEN since 23:25:08.3 UTC, 2026-11-20 · cluster main"
    over = report(samples.recovered())
    assert "CRITICAL (RECOVERED)  flink-job" in over.headline
    assert over.context.startswith("RECOVERED, begun 23:25:08.3 UTC, 2026-11-20 · recovered 23:25:26.0 after 17.7 s")
    assert "12,223 records were read again; back where it was at 23:25:26.0" in section(over, "")[0]
    assert "(CLOSED)" in report(replace(samples.recovered(), status=Status.CLOSED)).headline
    assert "CANNOT BE SEEN" in report(samples.incident(sighted=False)).context


LINE = Finding(
    rule="out-of-memory", kind="log_pattern", severity=Severity.WARNING, at=samples.at("23:25:12"),
    recovered_at=samples.at("23:25:12"), subject={"cluster": "main", "log": "/x.log"},
    current={"what": "OOM"}, detail="/x.log on kafka-1 (what=OOM): 2026-11-21 00:25:12 UTC+1 killed: OOM.",
)  # fmt: skip


def test_what_was_over_as_it_happened_is_not_called_recovered() -> None:
    """A line stays written: nothing was made good. It is closed in time like all others."""
    once = samples.incident(
        status=Status.RECOVERED, opened_at=LINE.at, recovered_at=LINE.at, causes=(), findings=(LINE,), title="a line"
    )
    assert report(once).headline == "CRITICAL  a line  INC-7F3A9C"
    assert report(once).context == "happened at 23:25:12.0 UTC, 2026-11-20 · cluster main"
    assert not report(once).calm
    closed = report(replace(once, status=Status.CLOSED))
    assert "(CLOSED)" in closed.headline
    assert closed.context.startswith("CLOSED, happened at 23:25:12.0 UTC, 2026-11-20")
    mixed = replace(once, findings=(LINE, *samples.recovered().findings), recovered_at=samples.at("23:25:26"))
    assert "(RECOVERED)" in report(mixed).headline


def test_a_cause_that_is_over_makes_no_recovery_of_an_effect_that_was_over_as_it_happened() -> None:
    """The broker is back; what its loss did is done."""
    lasting = samples.incident(causes=(samples.session(recovered_at=None),), findings=(LINE,))
    over = replace(lasting, status=Status.RECOVERED, causes=(samples.session(),), recovered_at=samples.at("23:25:14.3"))
    assert report(over).headline == report(lasting).headline
    assert report(over).context.startswith("happened between 23:25:08.3 and 23:25:14.3 UTC, 2026-11-20")
    assert timeline(lasting, over) == ("over at 23:25:14.3",)


def test_a_line_of_a_log_is_told_with_its_rule_and_its_time() -> None:
    """Only the rule's name says why it was looked for; a time within the line is no substitute for ours."""
    assert section(report(samples.incident(findings=(LINE,), causes=())), "") == (
        "out-of-memory: /x.log on kafka-1 (what=OOM): 2026-11-21 00:25:12 UTC+1 killed: OOM, at 23:25:12.0",
    )


def _written(second: int, text: str) -> Finding:
    at = samples.at(f"23:25:{second:02}")
    return replace(LINE, at=at, recovered_at=at, current={"lines": {text: 1}}, detail=f"/x.log: {text}")


def test_lines_that_differ_in_numbers_alone_are_told_once_with_how_many_there_were() -> None:
    """What else was written is not lost among them."""
    lines = (*(_written(second, f"killed {second}") for second in range(12, 40)), _written(20, "the last straw"))
    assert section(report(samples.incident(findings=lines, causes=(), records=Records())), "") == (
        "out-of-memory: /x.log: killed 12, at 23:25:12.0; 27 more such until 23:25:39.0",
        "out-of-memory: /x.log: the last straw, at 23:25:20.0",
    )


def test_more_than_ten_different_lines_are_summed_up_by_their_rule() -> None:
    """How many lines, how many of them different, and the first ten of those."""
    lines = tuple(_written(second, "x" * second) for second in range(12, 40))
    told = section(report(samples.incident(findings=lines, causes=(), records=Records())), "")
    assert told[:2] == (
        "out-of-memory, cluster main: 28 lines, 28 of them different, between 23:25:12.0 and 23:25:39.0",
        "The worst 10 of 28:",
    )


def test_what_is_over_asks_for_nothing_more_but_damage_does() -> None:
    """A source that sees again needs no visit; records that were read twice still are."""
    blind = Finding(
        rule="source_unavailable", kind="source_unavailable", severity=Severity.WARNING, at=samples.at("23:25:12"),
        subject={"cluster": "main", "source": "kafka", "group": "g"}, detail="kafka has not seen group g of main",
    )  # fmt: skip
    lasting = samples.incident(findings=(blind,), causes=())
    assert section(report(lasting), "Do now") == (
        "see why kafka cannot see group g of main; until it does, nothing is known of it.",
    )
    over = report(samples.recovered(lasting))
    assert section(over, "Do now") == section(over, "Still to do") == ()
    rewound = report(samples.recovered())
    assert section(rewound, "Do now") == ()
    assert section(rewound, "Still to do")[0].startswith("stop or dedupe what reads flink-job's output")


def test_advice_names_what_a_job_graph_consists_of() -> None:
    """Znode and file, as far as they are known."""
    back = Finding(
        rule="job_resurrected", kind="job_resurrected", severity=Severity.CRITICAL, at=samples.at("23:25:12"),
        subject={"cluster": "jobs", "job": "d779", "job_name": "clicks"}, labels=("running",), detail="It runs.",
        current={"znode": "/flink/jobs/jobgraphs/d779", "file": "submittedJobGraph01", "others": ["a1c0"]},
    )  # fmt: skip
    (line,) = section(report(samples.incident(findings=(back,), causes=())), "Do now")
    assert "its job graph, the znode /flink/jobs/jobgraphs/d779 and the file submittedJobGraph01, before" in line
    (line,) = section(report(samples.incident(findings=(replace(back, current={}),), causes=())), "Do now")
    assert "its job graph, its znode and its file, before" in line


def test_a_time_of_another_day_carries_its_date() -> None:
    """An incident that lasts past midnight."""
    late = replace(samples.incident(), status=Status.RECOVERED, recovered_at=samples.at("23:25:26") + 86_400_000)
    assert "recovered 2026-11-21 23:25:26.0 after 1 d" in report(late).context


def test_two_hundred_partitions_are_a_summary_and_the_worst_ten() -> None:
    """Per group and topic, then ten lines by records; the causes by kind of move."""
    told = report(samples.burst())
    lines = section(told, "")
    assert lines[:4] == (
        "In all: 399,000 records read again.",
        "offset rewind, flink-job on orders-1: 80 partitions at 23:25:14.0; 207,600 records read again",
        (
            "offset rewind, flink-job on orders-0: 120 partitions between 23:25:13.9 and 23:25:14.0; "
            "191,400 records read again"
        ),
        "The worst 10 of 200:",
    )
    assert len(lines) == 14
    assert lines[4].startswith("• flink-job on orders-1[79]")
    assert section(told, "Cause")[1:] == (
        "leader moved 2005 -> 2011: 200 partitions at 23:25:14.0: orders-0 (200 partitions)",
    )


def test_a_merged_incident_points_to_where_it_went() -> None:
    """No figures twice."""
    told = report(samples.incident(merged_into="INC-B00257"))
    assert "(MERGED)" in told.headline
    assert told.sections == (("", ("This is part of INC-B00257: see there.",)),)


def test_an_incident_without_findings_says_that_it_was_withdrawn() -> None:
    """Closed with nothing left."""
    told = report(samples.incident(status=Status.CLOSED, findings=(), causes=()))
    assert "(WITHDRAWN)" in told.headline
    assert "Withdrawn" in section(told, "")[0]


def test_nothing_that_nobody_can_see_makes_another_report() -> None:
    """`updated_at` alone is no edit."""
    assert report(samples.incident(updated_at=1)) == report(samples.incident())


def test_the_timeline_tells_each_new_thing_once() -> None:
    """Nothing again, the late cause, the recovery, the relapse."""
    first = samples.incident(causes=())
    assert len(timeline(None, first)) == 1
    assert timeline(first, first) == ()
    (line,) = timeline(first, samples.incident(causes=(samples.session(),)))
    assert line.startswith("broker 2005 lost its ZooKeeper session")
    full, over = samples.incident(), samples.recovered()
    assert timeline(full, over) == ("recovered at 23:25:26.0",)
    assert timeline(over, full) == ("open again",)


BLIND = Unavailable(
    at=samples.at("23:25:20"), source="kafka", cluster="main", group="flink-job", topic="topic-124", partition=8,
    reason="kafka-8:9092 does not answer",
)  # fmt: skip


def test_many_partitions_out_of_sight_are_named_by_the_first_of_them() -> None:
    """Of each source; the reason is the first one's."""
    many = (
        *(replace(BLIND, group=None, partition=number) for number in range(7)),
        replace(BLIND, source="zookeeper", group=None, topic=None, partition=None, reason="away"),
    )
    (line,) = timeline(samples.incident(), samples.incident(sighted=False, unseen=many))
    assert "topic-124[3] of main, topic-124[4] of main, and 2 others, since 23:25:20.0 UTC: kafka-8:9092" in line
    assert line.endswith("; zookeeper: cluster main, since 23:25:20.0 UTC: away")


def test_the_timeline_tells_what_no_longer_holds_and_where_it_went() -> None:
    """Withdrawn findings, severity, sight, merging, withdrawal."""
    full = samples.incident()
    less = replace(full, causes=full.causes[:-1], severity=Severity.WARNING, sighted=False)
    held, severity, sight = timeline(full, less)
    assert held.startswith("no longer holds: broker 2005")
    assert (severity, sight) == ("now warning, was critical", "cannot be seen at present")
    hidden = replace(full, sighted=False, unseen=(BLIND,))
    (line,) = timeline(full, hidden)
    assert line == (
        "cannot be seen at present: kafka: group flink-job on topic-124[8] of main, since 23:25:20.0 UTC: "
        "kafka-8:9092 does not answer"
    )
    assert timeline(hidden, full) == ("seen again: kafka: group flink-job on topic-124[8] of main",)
    assert "CANNOT BE SEEN at present (kafka: group flink-job on topic-124[8] of main)" in report(hidden).context
    merged = replace(full, merged_into="INC-B00257", status=Status.CLOSED, findings=(), causes=())
    assert timeline(full, merged) == ("merged into INC-B00257",)
    assert timeline(merged, merged) == ()
    gone = replace(full, status=Status.CLOSED, findings=(), causes=())
    assert timeline(full, gone) == ("withdrawn: nothing that it was made of holds any more",)


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
        "isr": st.lists(st.integers(0, 9)), "session": st.none() | st.just("0x1"),
    },
)  # fmt: skip
_times = st.integers(0, 2 * 10**12)


@st.composite
def findings(draw: st.DrawFn) -> Finding:
    """Any finding of any kind, with whatever figures."""
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


@given(_incidents, _incidents)
def test_every_incident_can_be_told(first: Incident, second: Incident) -> None:
    """No finding of any rule, present or future, keeps an incident from being told, in a readable length."""
    assert len(report(first).lines()) < 60
    assert isinstance(timeline(first, second), tuple)
    assert timeline(first, first) == ()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_advice_needs_no_field_that_a_finding_may_lack(kind: str) -> None:
    """Each template is filled from a finding that names nothing."""
    bare = samples.rewind(kind=kind, labels=(), subject={}, previous={}, current={}, detail="Something happened.")
    assert report(samples.incident(findings=(bare,), causes=(bare,))).lines()


POWER_LOSS = samples.incident(
    causes=(samples.move(8, 2005, 2011, "23:25:13"), samples.lost_together()),
    findings=(samples.dip(), samples.divergence()),
)


def test_a_power_loss_names_both_faults_and_the_brokers_that_were_lost() -> None:
    """Where the offsets go back, from where on the replicas differ; of records on a disk only their own time is
    known.
    """
    told = report(POWER_LOSS)
    assert section(told, "")[1:] == (
        "2005 and 2011 differ from offset 7,101 on; if 2005 leads, 2011 loses 899 records (records of 23:25:30.0 UTC)",
        (
            "offsets go back in broker 2011's copy of topic-124[8]: 7,852 follows 7,999 at byte 161,857 of "
            "00000000000000000000.log (records of 23:25:31.0 UTC)"
        ),
    )
    assert section(told, "Cause")[0].startswith("brokers 2005 and 2011 were away at the same time")


def test_a_power_loss_says_what_not_to_do_before_the_copies_are_saved() -> None:
    """The next start and the next leader destroy what is there."""
    now, later = (section(report(POWER_LOSS), heading) for heading in ("Do now", "Do later"))
    assert now[0].startswith(
        "do not restart 2005 and 2011 or move the leadership of topic-124[8] before you have copied"
    )
    assert now[1].startswith("copy 00000000000000000000.log of topic-124[8] on broker 2011 before it restarts")
    assert [line for line in later if "brokers 2005 and 2011 were lost together" in line]
    assert all("KIP-101" in line for line in later[:2])


def test_what_a_check_no_longer_finds_is_said() -> None:
    """A run over all that there is looked for it."""
    over = replace(samples.dip(), recovered_at=samples.at("23:59:00"))
    (line,) = section(report(samples.incident(findings=(over,), causes=())), "")
    assert line.endswith("(records of 23:25:31.0 UTC); no longer found at 23:59:00.0")


def test_other_faults_of_a_segment_are_told_in_the_checks_own_words() -> None:
    """Here a checksum."""
    fault = samples.dip(labels=("crc_mismatch",), previous={"crc": 1}, current={"crc": 2}, detail="the CRC is wrong.")
    (line,) = section(report(samples.incident(findings=(fault,), causes=())), "")
    assert line == "the CRC is wrong (records of 23:25:31.0 UTC)"


def test_a_check_that_failed_says_how_to_run_it_by_hand() -> None:
    """Its name is in the subject."""
    failed = Finding(
        rule="check_failed", kind="check_failed", severity=Severity.WARNING, at=samples.at("23:40:00"),
        subject={"cluster": "main", "source": "offset_history"},
        detail="the check offset_history failed at 23:40:00.0 UTC: it needed more than 4.0 GiB",
    )  # fmt: skip
    told = report(samples.incident(findings=(failed,), causes=()))
    assert section(told, "") == (failed.detail,)
    assert "`backflow check offset_history` runs it by hand" in section(told, "Do now")[0]


def test_the_keys_that_a_check_has_listed_are_named_where_the_live_rule_says_what_to_do() -> None:
    """One line for both: with the stores that only the rule knows and the file that only the check has made."""
    subject = {"cluster": "main", "group": "shop", "topic": "shop-counts-changelog", "partition": 2}
    alike: dict[str, Any] = {"subject": subject, "labels": ("values_fell",), "previous": {}, "detail": "it fell"}
    live = samples.rewind(kind="state_not_restored", current={"keys": 3, "undeclared": ["sums"]}, **alike)
    check = samples.rewind(kind="changelog_restore", current={"keys": 3, "listed_in": "/keys.parquet"}, **alike)
    for findings in ((live, check), (check, live)):
        (line,) = section(report(samples.incident(findings=findings, causes=())), "Do now")
        assert line.startswith("stop every instance of shop: ")
        assert "those known by now, with their values before: /keys.parquet. Also check store sums" in line
