"""review: the week of a Kafka cluster: what was detected, what nearly happened, and how it compares with before.

Reads the agent's journal and state file. Writes review.html, a page for people, besides summary.txt and plot.png. Its
findings, info, are the groups that nearly lost unread records to retention.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import click
from pyspark.sql import SparkSession

from agent.model.config_types import duration
from agent.model.findings import Incident
from agent.sources.availability import now_ms
from agent.storage.database import FILE, StorageError
from agent.storage.journal.reader import last_at
from spark_checks.journal.files import DamagedFiles, JournalWindow, check_journal, clusters
from spark_checks.options import Options, Progress, Report
from spark_checks.reviews.findings import findings_of
from spark_checks.reviews.incidents import read_incidents
from spark_checks.reviews.measure import Subject, measure
from spark_checks.reviews.page import page
from spark_checks.reviews.periods import DAY_MS, Periods
from spark_checks.reviews.picture import picture
from spark_checks.reviews.summary import summary
from spark_checks.session import QUICK_START

log = logging.getLogger(__name__)

CONF: Mapping[str, str] = {**QUICK_START, "spark.sql.shuffle.partitions": "8"}
PARAMS = (
    click.Option(["--journal"], required=True, metavar="DIR", help="The agent's journal."),
    click.Option(
        ["--store"],
        metavar="FILE",
        help="The agent's state file, with the incidents. Default: the one beside the journal.",
    ),
    click.Option(
        ["--before", "weeks_before"],
        type=click.IntRange(0, 51),
        default=3,
        show_default=True,
        help="With how many equally long periods before to compare.",
    ),
    click.Option(["--idle"], default="1d", show_default=True, help="After how long without commits to name a group."),
    click.Option(["--flink"], multiple=True, metavar="NAME", help="Also incidents of this Flink cluster; repeatable."),
    click.Option(["--rule", "rules"], multiple=True, metavar="NAME", help="A rule in rules.toml; repeatable."),
    click.Option(["--out"], metavar="FILE", help="Where to write the page. Default: review.html in --report."),
)
WINDOW_MS = 7 * DAY_MS


def mistakes(options: Options) -> list[str]:
    """Return the mistakes in its own options."""
    journal, store = Path(options.own["journal"]), options.own["store"]
    found = check_journal(journal)
    if store is not None and not Path(store).exists():
        found.append(f"--store {store}: no such file.")
    try:
        duration(options.own["idle"])
    except ValueError as error:
        found.append(f"--idle: {error}.")
    if options.since is not None and options.since == options.until:
        found.append("--from and --to are the same.")
    return found or _check_cluster(journal, options.cluster)


def _check_cluster(journal: Path, cluster: str) -> list[str]:
    names = set[str]()
    for name in clusters(journal):
        names.add(name)
        if name == cluster:
            return []
    known = ", ".join(sorted(names))
    return [f"--cluster {cluster}: not in the journal {journal}. Clusters in it: {known}."] if names else []


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Review the cluster. Raises OSError and StorageError if files cannot be read or written."""
    directory, damaged = Path(options.own["journal"]).absolute(), DamagedFiles()
    periods = _periods(options, directory)
    window = JournalWindow(spark, directory, options.cluster, periods.first, periods.until, damaged)
    progress(f"reading {periods} and {periods.before} periods before")
    subject = Subject(
        incidents=_read_incidents(directory, options),
        rules=options.own["rules"],
        idle=duration(options.own["idle"]),
        is_wanted=lambda group, topic: options.wants_group(group) and (topic is None or options.wants_topic(topic)),
    )
    facts = measure(window, periods, subject)
    facts = facts._replace(notes=tuple(damaged.summary()))
    target = _target(options)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(facts), encoding="utf-8")
    return Report(findings_of(facts), summary(facts, options.own["out"]), picture(facts))


def _periods(options: Options, journal: Path) -> Periods:
    """Return the window given; by default the last week that the journal has."""
    until = options.until
    if until is None:
        last = last_at(journal)
        until = now_ms() if last is None else last + 1
    since = until - WINDOW_MS if options.since is None else options.since
    return Periods(since, until, options.own["weeks_before"])


def _target(options: Options) -> Path | None:
    """Return where to write the page, or None if that was not asked for."""
    if options.own["out"] is not None:
        return Path(options.own["out"])
    return None if options.report is None else options.report / "review.html"


def _read_incidents(journal: Path, options: Options) -> list[Incident] | None:
    """Return the incidents, or None if there is no readable state file and none was asked for."""
    store = Path(options.own["store"] or journal.parent / FILE)
    try:
        return read_incidents(store, {options.cluster, *options.own["flink"]}) if store.exists() else None
    except StorageError as error:
        if options.own["store"]:
            raise
        log.warning("incidents_unavailable reason=%s", error)
        return None
