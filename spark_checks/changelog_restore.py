"""changelog_restore: keys of Kafka Streams stores whose values went back or began again, key by key, per task.

A store that is declared never to decrease fell where its changelog holds a lower value after a higher one of the same
key: KAFKA-7672 and whatever else lets a task run with less state than its changelog holds. Read committed and in order
of offsets; a tombstone lets a key begin anew. With --journal: when, after which rebalance, who owned the task.
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
from agent.model.text import count, listed
from spark_checks.changelogs import connector
from spark_checks.changelogs.client import ClientError, java_properties, read_properties
from spark_checks.changelogs.connector import MissingTopicError, Tally
from spark_checks.changelogs.falls import drawn, marked, numbered, of_stretches, stretches, with_last
from spark_checks.changelogs.keys import KeyFile
from spark_checks.changelogs.past import Past, read_past
from spark_checks.changelogs.plot import MOST, Panel, plot
from spark_checks.changelogs.words import change, finding
from spark_checks.options import Options, Progress, Report
from spark_checks.session import stages_told

log = logging.getLogger(__name__)

_DRAWN = 100
"""How many falls of a stretch are drawn."""

# What is sorted at a time must fit a task's share of the default memory, or it is sorted on disk.
CONF = {
    **connector.PACKAGES,
    "spark.sql.shuffle.partitions": "64",
    # So much is fetched at a time of the keys that fell: a row takes many times its shuffled bytes in memory.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
    # It would take out of the plan what counts the records where none can be read, and their number be waited for.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
}
PARAMS = (
    click.Option(["--bootstrap-servers"], required=True, metavar="HOST:PORT,..", help="The Kafka cluster's brokers."),
    click.Option(
        ["--store", "stores"],
        multiple=True,
        required=True,
        metavar="APPLICATION/STORE=long|int|json:FIELD",
        help="A store whose values never decrease, and how they are written; repeatable.",
    ),
    click.Option(
        ["--kafka"],
        multiple=True,
        metavar="KEY=VALUE",
        help="A client property, by librdkafka's or Java's name; repeatable. Secrets belong into --kafka-file.",
    ),
    click.Option(["--kafka-file"], metavar="FILE", help="Client properties, a KEY=VALUE a line."),
    click.Option(["--journal"], metavar="DIR", help="The agent's journal: tells of times, rebalances and owners."),
    click.Option(
        ["--out"],
        metavar="FILE",
        help="Where the keys that fell are listed (Parquet). Default: keys.parquet in --report.",
    ),
)


class Compared(NamedTuple):
    """What came of one store. panels: what of it may be drawn. missing: why its changelog is not there."""

    store: DeclaredStore
    findings: Sequence[Finding] = ()
    panels: Sequence[Panel] = ()
    records: int = 0
    unreadable: int = 0
    missing: str = ""


def mistakes(options: Options) -> list[str]:
    """What is wrong with its own options."""
    found, own = [], options.own
    for text in own["stores"]:
        try:
            declared(text)
        except ValueError as error:
            found.append(f"--store {text}: {error}")
    found += [f"--kafka {text}: expected KEY=VALUE." for text in own["kafka"] if not all(text.partition("=")[:2])]
    if own["journal"] is not None and not Path(own["journal"]).is_dir():
        found.append(f"--journal {own['journal']}: there is no such directory.")
    if own["out"] is not None and Path(own["out"]).is_dir():
        found.append(f"--out {own['out']}: this is a directory, not a file.")
    if not found:
        try:
            _properties(options)
        except OSError as error:
            found.append(f"{error.filename}: {error.strerror}.")
        except ClientError as error:
            found.append(f"{error}.")
        except ValueError as error:
            found.append(f"--kafka-file {own['kafka_file']}: {error}.")
    return found


def declared(text: str) -> DeclaredStore:
    """A store as --store names it. Raises ValueError, a sentence."""
    name, _, value = text.partition("=")
    application, slash, store = name.partition("/")
    if not slash:
        msg = "expected APPLICATION/STORE=long, =int or =json:FIELD."
        raise ValueError(msg)
    try:
        return DeclaredStore(application=application, store=store, value=value or "long")
    except ValidationError as error:
        wrong = listed(sorted({str(one["loc"][0]) for one in error.errors()}))
        msg = f"wrong {wrong}; expected APPLICATION/STORE=long, =int or =json:FIELD."
        raise ValueError(msg) from error


def _properties(options: Options) -> dict[str, str]:
    given: dict[str, str] = {}
    if options.own["kafka_file"] is not None:
        given |= read_properties(Path(options.own["kafka_file"]).read_text(encoding="utf-8"))
    given |= dict(text.split("=", 1) for text in options.own["kafka"])
    return java_properties(given, lambda path: Path(path).read_text(encoding="utf-8"))


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Compare the stores one after the other.

    Raises KafkaError where a changelog cannot be read, or none of them is there, and OSError.
    """
    stores = list(dict.fromkeys(declared(text).changelog for text in options.own["stores"]))
    wanted = {one.changelog: one for one in map(declared, options.own["stores"])}
    chosen = [
        wanted[topic] for topic in stores
        if options.wants_topic(topic) and options.wants_group(wanted[topic].application)
    ]  # fmt: skip
    damaged: list[Path] = []
    past = read_past(spark, options, {one.application for one in chosen}, damaged)
    compared = []
    with _keys(options) as keys:
        for store in chosen:
            source = partial(connector.records, spark, store, options.own["bootstrap_servers"], _properties(options))
            with stages_told(spark, progress, f"parts of {store.changelog}"):
                compared.append(_compared(store, source, past, options.cluster, keys))
    if compared and all(one.missing for one in compared):
        raise MissingTopicError("; ".join(one.missing for one in compared))
    findings = [found for one in compared for found in one.findings]
    findings.sort(key=lambda one: (one.at, one.key))
    picture = plot([panel for one in compared for panel in one.panels]) if options.report else None
    return Report(findings, _summary(compared, keys, len(damaged)), picture)


def _keys(options: Options) -> KeyFile:
    out = options.own["out"] or (options.report and options.report / "keys.parquet")
    return KeyFile(None if out is None else Path(out).absolute())


def _compared(
    store: DeclaredStore, source: Callable[[Tally], DataFrame], past: Past, cluster: str, keys: KeyFile
) -> Compared:
    """What a store's changelog holds. What fell and the last of each key wait on disk: they are looked at thrice."""
    tally = Tally()
    try:
        with connector.told(store):
            marks = marked(source(tally)).persist(StorageLevel.DISK_ONLY)
            try:
                findings, panels = _told(store, marks, past, cluster, keys)
            finally:
                marks.unpersist()
    except MissingTopicError as error:
        log.warning("%s", error)
        return Compared(store, missing=str(error))
    return Compared(store, findings, panels, tally.records, tally.unreadable)


def _told(
    store: DeclaredStore, marks: DataFrame, past: Past, cluster: str, keys: KeyFile
) -> tuple[list[Finding], list[Panel]]:
    """The stretches of falls that lie in the window, as findings and as pictures; their keys are listed."""
    partitions = sorted(row["partition"] for row in marks.where("fell").select("partition").distinct().collect())
    if not partitions:
        return [], []
    with past.of(store) as ends:
        bounds = past.bounds(ends, store, partitions)
        fallen = numbered(marks, bounds)
        found = stretches(marks, fallen)
        told = [(one, around) for one, around in past.around(ends, store, found) if past.concerns(one, around)]
    if not told:
        return [], []
    keys.add(store.changelog, with_last(of_stretches(fallen, [one.place for one, _ in told]), marks))
    findings = [finding(cluster, store, one, around, keys.path) for one, around in told]
    most = sorted((one for one, _ in told), key=lambda one: -one.keys)[:MOST]
    falls = drawn(fallen, [one.place for one in most], _DRAWN)
    panels = [
        Panel(store.changelog, one, falls.get(one.place, ()), *change(one, around, bounds.get(one.partition, ())))
        for one, around in told
    ]
    return findings, panels


def _summary(compared: Sequence[Compared], keys: KeyFile, damaged: int) -> str:
    there = [one for one in compared if not one.missing]
    findings = [found for one in there for found in one.findings]
    fell = sum(found.current["keys"] for found in findings)
    result = f"{count(fell, 'value')} went back" if findings else "no value went back"
    records = count(sum(one.records for one in there), "committed record")
    parts = [f"{count(len(there), 'changelog')} with {records}: {result}"]
    if not there:
        parts = ["There was nothing to look at"]
    parts += [one.missing for one in compared if one.missing]
    parts += [
        f"{count(one.unreadable, 'record')} of {one.store.changelog} left out: no {one.store.value}"
        for one in there if one.unreadable
    ]  # fmt: skip
    parts += [f"{count(keys.rows, 'fall')} listed in {keys.path}"] if keys.rows else []
    parts += [f"{count(damaged, 'damaged file')} of the journal left out"] if damaged else []
    return "; ".join(parts) + "."
