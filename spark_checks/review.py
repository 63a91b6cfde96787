"""review: the week of a Kafka cluster: what was detected, what nearly happened, and how it compares with before.

Reads the agent's journal and state file. Writes review.html, a page for people, besides summary.txt and plot.png; of
several clusters, review-CLUSTER.html for each. Its findings, info, are the groups that nearly lost unread records to
retention.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import click
from pyspark.sql import SparkSession

from agent.clock import now_ms
from agent.model.config_types import duration
from agent.storage.database import read_incidents_since
from agent.storage.journal.places import JournalFiles
from agent.storage.journal.reader import last_at
from spark_checks.journal.files import DamagedFiles, JournalWindow
from spark_checks.journal.given import (
    CLUSTER_PARAMS,
    GivenCluster,
    check_clusters,
    describe_none,
    given_clusters,
    given_journals,
)
from spark_checks.options import Options, Progress, Report, check_durations
from spark_checks.reviews.facts import Facts
from spark_checks.reviews.findings import findings_of
from spark_checks.reviews.incidents import read_incidents
from spark_checks.reviews.measure import Subject, measure
from spark_checks.reviews.page import page
from spark_checks.reviews.periods import DAY_MS, Periods
from spark_checks.reviews.picture import picture
from spark_checks.reviews.summary import fleet_summary, summary, urgency
from spark_checks.session import QUICK_START

CONF: Mapping[str, str] = {**QUICK_START, "spark.sql.shuffle.partitions": "8"}
PARAMS = (
    *CLUSTER_PARAMS,
    click.Option(
        ["--before", "weeks_before"],
        type=click.IntRange(0, 51),
        default=3,
        show_default=True,
        help="With how many equally long periods before to compare.",
    ),
    click.Option(["--idle"], default="1d", show_default=True, help="After how long without commits to name a group."),
    click.Option(
        ["--flink"],
        multiple=True,
        metavar="NAME[=CLUSTER]",
        help="Also incidents of this Flink cluster, which reads from that Kafka cluster; repeatable.",
    ),
    click.Option(["--rule", "rules"], multiple=True, metavar="NAME", help="A rule in rules.toml; repeatable."),
    click.Option(
        ["--out"],
        metavar="FILE",
        help="Where to write the page; of several clusters, FILE-CLUSTER. Default: review.html in --report.",
    ),
)
WINDOW_MS = 7 * DAY_MS


def mistakes(options: Options) -> list[str]:
    """Return the mistakes in its own options."""
    found = check_clusters(options)
    found += check_durations(options, "idle")
    if options.since is not None and options.since == options.until:
        found.append("--from and --to are the same.")
    since = None if options.until is not None else options.since
    if not found and since is not None and since >= now_ms() and since >= _end(given_journals(options)):
        found.append("--from is later than now and than the end of the journal.")
    return found


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Review the clusters. Raises OSError and StorageError if files cannot be read or written."""
    length = 0 if options.since is None else (options.until or now_ms()) - options.since
    clusters = given_clusters(options, options.own["weeks_before"] * length)
    if not clusters:
        return Report([], describe_none(options))
    periods = _periods(options, clusters)
    reviews = []
    for cluster in clusters:
        progress(f"reading {cluster.label}, {periods} and {periods.before} periods before")
        reviews.append(_review(spark, cluster, periods, options))
    pages = [_target(options, facts.label if len(reviews) > 1 else None) for facts in reviews]
    for facts, target in zip(reviews, pages, strict=True):
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(page(facts), encoding="utf-8")
    findings = sorted((f for facts in reviews for f in findings_of(facts)), key=lambda found: (found.at, found.key))
    if len(reviews) == 1:
        return Report(findings, summary(reviews[0], options.own["out"]), picture(reviews[0]))
    return Report(findings, fleet_summary(reviews, pages), picture(max(reviews, key=urgency)))


def _review(spark: SparkSession, cluster: GivenCluster, periods: Periods, options: Options) -> Facts:
    """Return what the review of one cluster needs."""
    damaged = DamagedFiles()
    window = JournalWindow(spark, cluster.journal, cluster.name, periods.first, periods.until, damaged)
    names = {cluster.name, *_flink_clusters(options, cluster.name)}
    subject = Subject(
        incidents=cluster.read_store(options, lambda store: read_incidents(store, names)),
        rules=options.own["rules"],
        idle=duration(options.own["idle"]),
        is_wanted=lambda group, topic: options.wants_group(group) and (topic is None or options.wants_topic(topic)),
        incidents_since=cluster.read_store(options, read_incidents_since) or 0,
    )
    return measure(window, periods, subject)._replace(label=cluster.label, notes=tuple(damaged.summary()))


def _periods(options: Options, clusters: Sequence[GivenCluster]) -> Periods:
    """Return the window given; by default the last week that a journal has, up to now if it has nothing of it."""
    until = options.until
    if until is None:
        until = _end({cluster.journal for cluster in clusters})
        if until <= (options.since or 0):
            until = now_ms()
    since = until - WINDOW_MS if options.since is None else options.since
    return Periods(since, until, options.own["weeks_before"])


def _end(journals: Iterable[JournalFiles]) -> int:
    """Return when the last of the journals ends, ms; 0 if they are empty."""
    return max((end + 1 for journal in journals if (end := last_at(journal)) is not None), default=0)


def _flink_clusters(options: Options, cluster: str) -> list[str]:
    """Return the Flink clusters that read from a Kafka cluster, or of which that is unknown."""
    named = [text.partition("=") for text in options.own["flink"]]
    return [name for name, _, kafka in named if kafka in ("", cluster)]


def _target(options: Options, label: str | None) -> Path | None:
    """Return where to write the page, or None if that was not asked for. label: of the cluster, if there are others."""
    if options.own["out"] is not None:
        page = Path(options.own["out"])
    elif options.report is not None:
        page = options.report / "review.html"
    else:
        return None
    return page if label is None else page.with_name(f"{page.stem}-{quote(label, safe='@')}{page.suffix}")
