"""changelog_restore: keys of Kafka Streams stores whose values decreased or restarted, key by key, per task.

A store that is declared never to decrease lost state if its changelog has a lower value after a higher one of the same
key: KAFKA-7672 and anything else that lets a task run with less state than its changelog holds. Reads committed
records in order of offsets; after a tombstone a key may start again. With --journal: when, after which rebalance, and
who owned the task.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from pydantic import ValidationError
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from agent.model.declared_stores import DeclaredStore
from agent.model.findings import Finding
from agent.model.text import count, join_names
from agent.storage.journal.places import is_url
from spark_checks.changelogs.client import ClientError, java_properties, read_properties
from spark_checks.changelogs.context import JournalHistory, read_history
from spark_checks.changelogs.decreases import (
    KeyFile,
    find_episodes,
    mark,
    number_episodes,
    sample_decreases,
    select_episodes,
    with_last_value,
)
from spark_checks.changelogs.findings import last_reassignment, make_finding
from spark_checks.changelogs.plot import MAX_PANELS, Panel, plot
from spark_checks.changelogs.reader import MissingTopicError, RecordCounts, kafka_errors, read_changelog
from spark_checks.jars import CONNECTOR
from spark_checks.journal.files import DamagedFiles
from spark_checks.journal.given import ARCHIVE_PARAMS, check_one_journal
from spark_checks.options import Options, Progress, Report
from spark_checks.progress import report_stages

log = logging.getLogger(__name__)

_MARKS = "marks"
_DRAWN = 100
"""How many decreases of an episode are drawn."""

# What is sorted at a time must fit a task's share of the default memory, or it is sorted on disk.
CONF = {
    "spark.jars.packages": CONNECTOR,
    "spark.sql.shuffle.partitions": "64",
    # How much is fetched at a time of the keys that decreased: a row takes many times its shuffled bytes in memory.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
    # If no record can be read, this rule would remove the count of records from the plan, and waiting for it hangs.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
}
PARAMS = (
    click.Option(["--bootstrap-servers"], required=True, metavar="HOST:PORT,..", help="The Kafka cluster's brokers."),
    click.Option(
        ["--store", "stores"],
        multiple=True,
        required=True,
        metavar="APPLICATION/STORE=long|int|json:FIELD",
        help="A store whose values never decrease, and how they are encoded; repeatable.",
    ),
    click.Option(
        ["--kafka"],
        multiple=True,
        metavar="KEY=VALUE",
        help="A client property, by librdkafka's or Java's name; repeatable. Put secrets into --kafka-file.",
    ),
    click.Option(["--kafka-file"], metavar="FILE", help="Client properties, one KEY=VALUE per line."),
    click.Option(
        ["--journal"], metavar="DIR|URL", help="The agent's journal or an archive, for times, rebalances and owners."
    ),
    *ARCHIVE_PARAMS,
    click.Option(
        ["--out"],
        metavar="FILE",
        help="Where to list the keys that decreased (Parquet). Default: keys.parquet in --report.",
    ),
)


class StoreResult(NamedTuple):
    """The result for one store. panels: what may be drawn. missing: why its changelog could not be found."""

    store: DeclaredStore
    findings: Sequence[Finding] = ()
    panels: Sequence[Panel] = ()
    records: int = 0
    unreadable: int = 0
    missing: str = ""


def mistakes(options: Options) -> list[str]:
    """Return the mistakes in its own options."""
    found, own = [], options.own
    for text in own["stores"]:
        try:
            parse_store(text)
        except ValueError as error:
            found.append(f"--store {text}: {error}")
    found += [f"--kafka {text}: expected KEY=VALUE." for text in own["kafka"] if not all(text.partition("=")[:2])]
    if own["journal"] is not None and not is_url(own["journal"]) and not Path(own["journal"]).is_dir():
        found.append(f"--journal {own['journal']}: no such directory.")
    elif own["journal"] is not None and (is_url(own["journal"]) or own.get("archive")):
        found += check_one_journal(options)
    if own["out"] is not None and Path(own["out"]).is_dir():
        found.append(f"--out {own['out']}: this is a directory, not a file.")
    if not found:
        try:
            _client_properties(options)
        except OSError as error:
            found.append(f"{error.filename}: {error.strerror}.")
        except ClientError as error:
            found.append(f"{error}.")
        except ValueError as error:
            found.append(f"--kafka-file {own['kafka_file']}: {error}.")
    return found


def parse_store(text: str) -> DeclaredStore:
    """Return a store given by --store. Raises ValueError."""
    name, _, value = text.partition("=")
    application, slash, store = name.partition("/")
    if not slash:
        msg = "expected APPLICATION/STORE=long, =int or =json:FIELD."
        raise ValueError(msg)
    try:
        return DeclaredStore(application=application, store=store, value=value or "long")
    except ValidationError as error:
        wrong = join_names(sorted({str(problem["loc"][0]) for problem in error.errors()}))
        msg = f"wrong {wrong}; expected APPLICATION/STORE=long, =int or =json:FIELD."
        raise ValueError(msg) from error


def _client_properties(options: Options) -> dict[str, str]:
    given: dict[str, str] = {}
    if options.own["kafka_file"] is not None:
        given |= read_properties(Path(options.own["kafka_file"]).read_text(encoding="utf-8"))
    given |= dict(text.split("=", 1) for text in options.own["kafka"])
    return java_properties(given, lambda path: Path(path).read_text(encoding="utf-8"))


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Compare the stores one after the other.

    Raises KafkaError if a changelog cannot be read or none of them exists, and OSError.
    """
    by_changelog = {store.changelog: store for store in map(parse_store, options.own["stores"])}
    stores = [
        store
        for changelog, store in by_changelog.items()
        if options.wants_topic(changelog) and options.wants_group(store.application)
    ]
    damaged = DamagedFiles()
    history = read_history(spark, options, {store.application for store in stores}, damaged)
    results = []
    with _key_file(options) as keys:
        for store in stores:
            servers, properties = options.own["bootstrap_servers"], _client_properties(options)
            source = partial(read_changelog, spark, store, servers, properties)
            with report_stages(spark, progress, f"parts of {store.changelog} compared"):
                results.append(_compare(store, source, history, options.cluster, keys))
    if results and all(result.missing for result in results):
        raise MissingTopicError("; ".join(result.missing for result in results))
    findings = [finding for result in results for finding in result.findings]
    findings.sort(key=lambda finding: (finding.at, finding.key))
    png = plot([panel for result in results for panel in result.panels]) if options.report else None
    return Report(findings, _summary(results, keys, damaged), png)


def _key_file(options: Options) -> KeyFile:
    out = options.own["out"] or (options.report and options.report / "keys.parquet")
    return KeyFile(None if out is None else Path(out).absolute())


def _compare(
    store: DeclaredStore,
    source: Callable[[RecordCounts], DataFrame],
    history: JournalHistory,
    cluster: str,
    keys: KeyFile,
) -> StoreResult:
    """Compare a store's changelog. Keeps the marks on disk, as they are read three times."""
    counts = RecordCounts()
    try:
        with kafka_errors(store):
            marks = mark(source(counts)).persist(StorageLevel.DISK_ONLY)
            try:
                findings, panels = _search(store, marks, history, cluster, keys)
            finally:
                marks.unpersist()
    except MissingTopicError as error:
        log.warning("changelog_missing topic=%s", store.changelog)
        return StoreResult(store, missing=str(error))
    return StoreResult(store, findings, panels, counts.records, counts.unreadable)


def _search(
    store: DeclaredStore, marks: DataFrame, history: JournalHistory, cluster: str, keys: KeyFile
) -> tuple[list[Finding], list[Panel]]:
    """Return the episodes in the window as findings and panels, and list their keys."""
    partitions = sorted(row["partition"] for row in marks.where("decreased").select("partition").distinct().collect())
    if not partitions:
        return [], []
    # Spark Connect's client (4.0) cannot join a frame with itself whose plan observes metrics; a view hides them.
    marks.createOrReplaceTempView(_MARKS)
    marks = marks.sparkSession.table(_MARKS)
    with history.log_ends(store) as ends:
        bounds = history.bounds(ends, store, partitions)
        decreases = number_episodes(marks, bounds)
        found = list(history.contexts(ends, store, find_episodes(marks, decreases)))
    if not found:
        return [], []
    episodes = [episode for episode, _ in found]
    keys.add(
        store.changelog,
        with_last_value(select_episodes(decreases, [episode.place for episode in episodes]), marks),
    )
    findings = [make_finding(cluster, store, episode, context, keys.path) for episode, context in found]
    most = sorted(episodes, key=lambda episode: -episode.keys)[:MAX_PANELS]
    samples = sample_decreases(decreases, [episode.place for episode in most], _DRAWN)
    panels = []
    for episode, context in found:
        moved = last_reassignment(episode, context, bounds.get(episode.partition, ()))
        panels.append(Panel(store.changelog, episode, samples.get(episode.place, ()), *moved))
    return findings, panels


def _summary(results: Sequence[StoreResult], keys: KeyFile, damaged: DamagedFiles) -> str:
    read = [result for result in results if not result.missing]
    decreased = sum(finding.current["keys"] for result in read for finding in result.findings)
    result = f"{count(decreased, 'value')} decreased" if decreased else "no value decreased"
    records = count(sum(result.records for result in read), "committed record")
    parts = [f"{count(len(read), 'changelog')} with {records} read: {result}"]
    if not read:
        parts = ["Nothing to read"]
    parts += [result.missing for result in results if result.missing]
    parts += [
        f"{count(result.unreadable, 'record')} of {result.store.changelog} skipped: not {result.store.value}"
        for result in read
        if result.unreadable
    ]
    parts += [f"{count(keys.rows, 'decrease')} listed in {keys.path}"] if keys.rows else []
    return "; ".join([*parts, *damaged.summary()]) + "."
