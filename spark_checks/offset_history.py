"""offset_history: every rewind, jump and gap of committed offsets in the agent's journal, also those not detected live.

Searches rewinds and jumps per group and partition, independently of the live rules, and joins them with the session
losses, leader changes and truncations around them. Reports gaps in the journal.
"""

from collections.abc import Sequence
from pathlib import Path

import click
from pyspark.sql import SparkSession

from agent.clock import now_ms
from agent.model.config_types import duration
from agent.model.findings import Finding
from agent.model.text import count, span
from agent.model.times import minute
from agent.storage.database import read_incidents_since
from agent.storage.journal.places import is_url
from agent.storage.journal.segments import DAY_MS
from spark_checks.journal.compaction import apply_retention, compact
from spark_checks.journal.files import DamagedFiles, JournalWindow, Piece
from spark_checks.journal.given import CLUSTER_PARAMS, GivenCluster, check_clusters, describe_none, given_clusters
from spark_checks.offsets.commits import MOST_MOVES, CommitFilter, search
from spark_checks.offsets.coverage import Gap, read_coverage
from spark_checks.offsets.diagnosis import Event, diagnose
from spark_checks.offsets.findings import FindingBuilder, gap_finding, read_live_findings, read_series
from spark_checks.offsets.plot import plot
from spark_checks.options import Options, Progress, Report, check_durations
from spark_checks.progress import report_stages
from spark_checks.session import QUICK_START

# The heavy work is done in Python; Spark's own joins are small.
CONF = {**QUICK_START, "spark.sql.shuffle.partitions": "8"}
PARAMS = (
    *CLUSTER_PARAMS,
    click.Option(
        ["--min-records"], type=click.IntRange(1), default=1000, show_default=True, help="The smallest rewind or jump."
    ),
    click.Option(
        ["--baseline"], default="14d", show_default=True, help="How long before --from to read, for comparison."
    ),
    click.Option(["--compact"], is_flag=True, help="Merge the small files of dates before yesterday afterwards."),
    click.Option(["--retention"], metavar="DURATION", help="Remove dates older than this afterwards, as 30d."),
)


def mistakes(options: Options) -> list[str]:
    """Return the mistakes in its own options."""
    found = check_clusters(options)
    found += check_durations(options, "baseline", "retention")
    if is_url(options.own["journal"]):
        found += [
            f"--{name}: is for a local journal; an archive has `archive_retention` and is never rewritten."
            for name in ("compact", "retention")
            if options.own[name]
        ]
    return found


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Search the journals of all agents and clusters. Raises OSError and StorageError if files cannot be read."""
    clusters = given_clusters(options, duration(options.own["baseline"]))
    reports = [_search(spark, cluster, options, progress) for cluster in clusters]
    _maintain(spark, options, progress)
    findings = [finding for report in reports for finding in report.findings]
    findings.sort(key=lambda finding: (finding.at, finding.key))
    plots = (report.plot for report in reports if report.plot is not None)
    summary = " ".join(report.summary for report in reports) or describe_none(options)
    return Report(findings, summary, next(plots, None))


def _search(spark: SparkSession, cluster: GivenCluster, options: Options, progress: Progress) -> Report:
    """Search one cluster in the journal of an agent."""
    journal, damaged = cluster.journal, DamagedFiles()
    days = [segment.day for segment in journal.find(["commit", "tick"])]
    first, last = min(days, default=0) * DAY_MS, (max(days, default=0) + 1) * DAY_MS
    begin = first if options.since is None else max(options.since, first)
    reported = range(begin, last if options.until is None else min(options.until, last))
    since = max(begin - duration(options.own["baseline"]), first)
    window = JournalWindow(spark, journal, cluster.name, since, max(reported.stop, begin + 1), damaged)
    clock, gaps = read_coverage(window)
    pieces = window.pieces("commit")
    wanted = CommitFilter(
        cluster=cluster.name,
        group=options.wants_group,
        topic=options.wants_topic,
        since=window.since,
        until=window.until,
        min_records=options.own["min_records"],
        clock=clock,
    )
    with report_stages(spark, progress, f"parts of {sum(piece.rows for piece in pieces):,} commits searched"):
        found = search(spark, pieces, wanted, damaged)
    progress(f"{count(len(found.moves), 'candidate')} found; reading what happened around them")
    events = [Event.of(key, move, clock) for key, move in found.moves]
    candidates = [event for event in events if event.is_rewind or event.at in reported]
    diagnoses = diagnose(window, candidates, gaps, clock, wanted.min_records)
    in_window = [diagnosis for diagnosis in diagnoses if diagnosis.event.at in reported]
    series = read_series(window, wanted, in_window)
    commits_begin = max(window.since, min((piece.low for piece in pieces), default=window.since))
    live = cluster.read_store(options, lambda store: read_live_findings(store, cluster.name))
    live_since = cluster.read_store(options, read_incidents_since) or 0
    builder = FindingBuilder(
        diagnoses, series, cluster.name, live, commits_begin, left_out=found.left_out, live_since=live_since
    )
    findings = [
        *map(builder.finding, in_window),
        *(
            gap_finding(gap, cluster.name)
            for gap in gaps
            if reported.start < gap.end and gap.begin < reported.stop and _concerns(gap, options)
        ),
    ]
    worst = max(in_window, key=lambda diagnosis: diagnosis.badness, default=None)
    png = None if worst is None else plot(window, worst, series)
    readers = count(len(found.left_out), "reader")
    more = [f"of {readers} only the last {MOST_MOVES} moves examined"] if found.left_out else []
    if live is not None and any(diagnosis.event.at < live_since for diagnosis in in_window):
        more.append(f"not compared with live findings before {minute(live_since)} UTC, which the agent has deleted")
    return Report(findings, _summary(window, pieces, findings, [*more, *damaged.summary()]), png)


def _concerns(gap: Gap, options: Options) -> bool:
    group, topic = gap.subject.get("group"), gap.subject.get("topic")
    return (group is None or options.wants_group(group)) and (topic is None or options.wants_topic(topic))


def _maintain(spark: SparkSession, options: Options, progress: Progress) -> None:
    """Merge and remove files of the local journal, if asked for."""
    directory, retention = Path(options.own["journal"]), options.own["retention"]
    if options.own["compact"]:
        progress(f"{count(compact(spark, directory, now_ms()), 'small file')} merged")
    if retention is not None and not apply_retention(directory, duration(retention) // DAY_MS, now_ms()):
        progress("retention skipped: the agent applies its own")


def _summary(window: JournalWindow, pieces: Sequence[Piece], findings: Sequence[Finding], limits: Sequence[str]) -> str:
    """Return the summary. limits: what was not examined."""
    numbers = [
        count(sum(label in finding.labels for finding in findings), label) for label in ("rewind", "jump", "gap")
    ]
    unseen_live = sum("unseen_live" in finding.labels for finding in findings)
    rows = sum(piece.rows for piece in pieces)
    low, high = min((piece.low for piece in pieces), default=0), max((piece.high for piece in pieces), default=0)
    read = f"{rows:,} commits read over {span(max(min(high, window.until) - max(low, window.since), 0))}"
    if not rows or low >= window.until or high < window.since:
        read = "the journal has no commits in this window"
    parts = [f"Cluster {window.cluster}: {', '.join(numbers)}"]
    parts += [f"{unseen_live:,} not detected live"] if unseen_live else []
    return "; ".join([*parts, read, *limits]) + "."
