"""offset_history: every rewind, jump and gap of committed offsets in the agent's journal, also those nobody saw live.

Falls and leaps are searched per group and partition, independently of the live rules, and joined with the session
losses, leader moves and truncations around them. Where the journal tells nothing, that is said.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import click
from pyspark.sql import SparkSession

from agent.model.config_types import duration
from agent.model.findings import Finding
from agent.model.text import count, span
from agent.sources.availability import now_ms
from agent.storage.database import FILE, StorageError
from agent.storage.journal.segments import DAY_MS, find
from spark_checks.history import live_findings
from spark_checks.history.compaction import compact, retain
from spark_checks.history.context import Journal
from spark_checks.history.events import Spell
from spark_checks.history.files import Piece, clusters, no_journal
from spark_checks.history.findings import Told, around, badness, gap_finding, judged, unseen
from spark_checks.history.live_findings import Live
from spark_checks.history.plot import plot
from spark_checks.history.scan import Asked, search
from spark_checks.history.verdicts import Event
from spark_checks.options import Options, Progress, Report
from spark_checks.session import QUICK_START, stages_told

log = logging.getLogger(__name__)

# The heavy work is done in Python; what Spark's own joins are given is small.
CONF = {**QUICK_START, "spark.sql.shuffle.partitions": "8"}
PARAMS = (
    click.Option(["--journal"], required=True, metavar="DIR", help="The agent's journal."),
    click.Option(
        ["--store"],
        metavar="FILE",
        help="The agent's state file: tells what the live rules had seen. Default: the one beside the journal.",
    ),
    click.Option(
        ["--min-records"], type=click.IntRange(1), default=1000, show_default=True, help="The smallest rewind or jump."
    ),
    click.Option(
        ["--baseline"], default="14d", show_default=True, help="How long before --from the past is read for comparison."
    ),
    click.Option(["--compact"], is_flag=True, help="Merge the small files of dates before yesterday afterwards."),
    click.Option(["--retention"], metavar="DURATION", help="Remove dates older than this afterwards, as 30d."),
)


def mistakes(options: Options) -> list[str]:
    """What is wrong with its own options."""
    found = []
    for name in ("journal", "store"):
        path = options.own[name]
        if path is not None and not Path(path).exists():
            found.append(f"--{name} {path}: there is no such {'directory' if name == 'journal' else 'file'}.")
    for name in ("baseline", "retention"):
        try:
            duration(options.own[name] or "0d")
        except ValueError as error:
            found.append(f"--{name}: {error}.")
    journal = Path(options.own["journal"])
    return found + _wrong_journal(journal, options.cluster) if journal.exists() else found


def _wrong_journal(journal: Path, cluster: str) -> list[str]:
    """That the directory is no journal, or one that has never heard of the cluster; empty where it is the right one."""
    if wrong := no_journal(journal):
        return wrong
    named = set()
    for one in clusters(journal):
        named.add(one)
        if one == cluster:
            return []
    if not named:
        return []  # a journal that has only just begun, or of which nothing can be read: the run says so
    return [f"--cluster {cluster}: the journal {journal} names no such cluster; there are: {', '.join(sorted(named))}."]


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Search the journal. Raises OSError and StorageError where files cannot be read."""
    damaged: list[Path] = []
    days = [one.day for one in find(Path(options.own["journal"]), ["commit", "tick"])]
    first, last = min(days, default=0) * DAY_MS, (max(days, default=0) + 1) * DAY_MS
    window = _window(options, first, last)
    journal = _journal(spark, options, max(window.start - duration(options.own["baseline"]), first), window, damaged)
    clock, hidden = unseen(journal)
    every = journal.pieces("commit")
    asked = Asked(
        cluster=options.cluster,
        group=options.wants_group,
        topic=options.wants_topic,
        since=journal.since,
        until=journal.until,
        least=options.own["min_records"],
        clock=clock,
    )
    with stages_told(spark, progress, f"parts of {sum(one.rows for one in every):,} commits"):
        hits = search(spark, every, asked, journal.unreadable)
    progress(f"{len(hits):,} falls and leaps to look into")
    events = [Event.of(key, hit, clock) for key, hit in hits]
    verdicts = judged(journal, [one for one in events if one.back or one.at in window], hidden, clock, asked.least)
    told = [one for one in verdicts if one.event.at in window]
    series = around(journal, asked, told)
    live = _live(journal, options)
    begun = max(journal.since, min((one.low for one in every), default=journal.since))
    teller = Told(verdicts, series, journal, live, begun)
    gaps = (one for one in hidden if window.start < one.end and one.begin < window.stop)
    findings = [
        *map(teller.finding, told),
        *(gap_finding(one, options.cluster) for one in gaps if _concerns(one, options)),
    ]
    findings.sort(key=lambda one: (one.at, one.key))
    picture = plot(journal, max(told, key=badness), series) if told else None
    _keep_house(spark, options, progress)
    return Report(findings, _summary(journal, every, findings, damaged), picture)


def _concerns(spell: Spell, options: Options) -> bool:
    """Whether what was not seen is among what is asked about."""
    group, topic = spell.subject.get("group"), spell.subject.get("topic")
    return (group is None or options.wants_group(group)) and (topic is None or options.wants_topic(topic))


def _live(journal: Journal, options: Options) -> Live | None:
    """What the live rules saw; None where there is no state file, or none that was asked for can be read."""
    store = Path(options.own["store"] or journal.directory.parent / FILE)
    try:
        return live_findings.findings(store, options.cluster) if store.exists() else None
    except StorageError as error:
        if options.own["store"]:
            raise
        log.warning("what was seen live is not told: %s", error)
        return None


def _keep_house(spark: SparkSession, options: Options, progress: Progress) -> None:
    """Merge and remove files, where that was asked for."""
    directory, retention = Path(options.own["journal"]), options.own["retention"]
    if options.own["compact"]:
        progress(f"{count(compact(spark, directory, now_ms()), 'small file')} merged")
    if retention is not None and not retain(directory, duration(retention) // DAY_MS, now_ms()):
        progress("the running agent itself removes what is past its retention")


def _window(options: Options, first: int, last: int) -> range:
    """The part of the journal's time, from first to last (ms), that is asked about."""
    since = first if options.since is None else max(options.since, first)
    return range(since, last if options.until is None else min(options.until, last))


def _journal(spark: SparkSession, options: Options, since: int, window: range, damaged: list[Path]) -> Journal:
    """The journal from the beginning of the past to compare with, since (ms), to the end of the window."""

    def unreadable(path: Path, reason: str) -> None:
        log.warning("%s is left out: %s", path, reason)
        damaged.append(path)

    until = max(window.stop, window.start + 1)
    return Journal(spark, Path(options.own["journal"]).absolute(), options.cluster, since, until, unreadable)


def _summary(journal: Journal, every: Sequence[Piece], findings: Sequence[Finding], damaged: Sequence[Path]) -> str:
    told = [count(sum(label in one.labels for one in findings), label) for label in ("rewind", "jump", "gap")]
    unseen_live = sum("unseen_live" in one.labels for one in findings)
    rows = sum(one.rows for one in every)
    low, high = min((one.low for one in every), default=0), max((one.high for one in every), default=0)
    over = span(max(min(high, journal.until) - max(low, journal.since), 0))
    if not rows or low >= journal.until or high < journal.since:
        told = ["the journal holds no commits of that time", *told]
    parts = [f"Cluster {journal.cluster}: {', '.join(told)} in {rows:,} commits, {over} of the journal"]
    parts += [f"{unseen_live:,} of them not seen live"] if unseen_live else []
    parts += [f"{count(len(damaged), 'damaged file')} left out"] if damaged else []
    return "; ".join(parts) + "."
