"""job_history: Flink jobs that ended and came back, checkpoint ids that began anew, job graphs that belong to no job.

Searched in the agent's journal, with the leader changes, restores and other jobs around each, and, where given, in the
HA storage directories. Findings bear the names of Flink clusters; --flink chooses among them, not --cluster.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import click
from pyspark.sql import SparkSession

from agent.engine.facts import LATENESS_MS
from agent.model.config_types import duration
from agent.model.findings import Finding
from agent.model.observations import JobGraphFile
from agent.model.text import count, listed
from agent.sources.flink.high_availability import list_job_graph_files
from agent.storage.journal import entries
from agent.storage.journal.segments import FOREVER
from spark_checks.history import job_words
from spark_checks.history.files import no_journal, pieces
from spark_checks.history.job_context import Around, Moment, around
from spark_checks.history.job_graphs import Look, kept, orphans, seen_until
from spark_checks.history.jobs import COLUMNS, Restart, Return, clusters, restarts, returns, views
from spark_checks.options import Options, Progress, Report
from spark_checks.session import QUICK_START, stages_told

Told: TypeAlias = Callable[[Around], Finding]
"""Makes what was found a finding, given what stood around it."""

log = logging.getLogger(__name__)

CONF = {**QUICK_START, "spark.sql.shuffle.partitions": "4"}  # a few jobs, told of every few seconds
PARAMS = (
    click.Option(["--journal"], required=True, metavar="DIR", help="The agent's journal."),
    click.Option(["--flink"], multiple=True, metavar="NAME", help="Only this Flink cluster; repeatable."),
    click.Option(
        ["--storage", "storages"],
        multiple=True,
        metavar="NAME=DIR",
        help="A Flink cluster's high-availability.storageDir; repeatable. Of others the journal tells.",
    ),
    click.Option(
        ["--cluster-id", "cluster_ids"],
        multiple=True,
        metavar="NAME=ID",
        help="A Flink cluster's high-availability.cluster-id, a folder in its storage; repeatable. Default: /default.",
    ),
    click.Option(["--baseline"], default="14d", show_default=True, help="How long before --from jobs may have ended."),
)
WITHOUT: Mapping[str, str] = {
    "topics": "jobs are looked at whatever they read; --flink narrows down which.",
    "groups": "jobs are looked at whatever they read; --flink narrows down which.",
}
LABELS: Mapping[str, str] = {
    "came_back": "return",
    "lineage_restarted": "restarted lineage",
    "graph_of_ended_job": "leftover graph",
    "graph_without_job": "stray graph file",
}
"""The first labels of findings, and what they are called in the summary."""


def mistakes(options: Options) -> list[str]:
    """What is wrong with its own options."""
    found = _wrong_journal(Path(options.own["journal"]))
    try:
        duration(options.own["baseline"])
    except ValueError as error:
        found.append(f"--baseline: {error}.")
    for option, own, what in (("--storage", "storages", "DIR"), ("--cluster-id", "cluster_ids", "ID")):
        named = Counter(text.partition("=")[0] for text in options.own[own])
        found += [
            f"{option} {text}: expected NAME={what}, with the Flink cluster's name."
            for text in options.own[own]
            if not all(text.partition("="))
        ]
        found += [
            f"{option} {name}={what}: {name} is given {times} times." for name, times in named.items() if times > 1
        ]
    if options.cluster not in (Options().cluster, *options.own["flink"]):
        found.append(f"--cluster {options.cluster}: this check is about Flink clusters; name one with --flink.")
    return found or [*_unknown(options), *_unreadable(options)]


def _wrong_journal(journal: Path) -> list[str]:
    """That the directory is missing, or is no journal; empty where it is one."""
    if not journal.is_dir():
        return [f"--journal {journal}: there is no such directory."]
    return no_journal(journal)


def _unknown(options: Options) -> Iterator[str]:
    """The Flink clusters in options that the journal does not name. One that names none yet knows of no mistake, but a
    storage directory must then be of a cluster in --flink, if there are any.
    """
    journal, flink = options.own["journal"], set(options.own["flink"])
    storages, ids = _named(options, "storages"), _named(options, "cluster_ids")
    asked = {*flink, *storages, *ids}
    named = set[str]()
    for one in clusters(Path(journal)) if asked else ():
        named.add(one)
        if asked <= named:
            return
    there_are = ", ".join(sorted(named or flink))
    for name in sorted(flink - named) if named else ():
        yield f"--flink {name}: the journal {journal} names no such Flink cluster; there are: {there_are}."
    for option, given in (("--storage", storages), ("--cluster-id", ids)):
        for name, value in given.items():
            if there_are and name not in named | flink:
                yield (
                    f"{option} {name}={value}: neither the journal {journal} nor --flink names such a Flink cluster; "
                    f"there are: {there_are}."
                )


def _unreadable(options: Options) -> Iterator[str]:
    """The storage directories that cannot be listed, also those of clusters that --flink leaves out."""
    for name, place in _named(options, "storages").items():
        try:
            _lying(options, name, place)
        except OSError as error:
            yield f"--storage {name}={place}: {error.filename} cannot be read: {error.strerror}."


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Search the journal and the storage. Raises OSError where they cannot be read."""
    directory, damaged = Path(options.own["journal"]).absolute(), list[Path]()

    def unreadable(path: Path, reason: str) -> None:
        log.warning("%s is left out: %s", path, reason)
        damaged.append(path)

    since = -FOREVER if options.since is None else options.since
    begin = -FOREVER if options.since is None else since - duration(options.own["baseline"])
    until = FOREVER - 1 if options.until is None else options.until
    every = [one for kind in (*COLUMNS, "tick") for one in pieces(directory, kind, begin, until, unreadable)]
    rows = sum(one.rows for one in every if one.kind in COLUMNS)
    files = _files(options)
    with (
        views(spark, every, options.own["flink"], begin, until),
        stages_told(spark, progress, f"parts of {count(rows, 'observation')} of Flink"),
    ):
        last = min(max((one.high for one in every), default=until), until - 1)
        sights = (one for _, one in entries(directory, begin, until, ["blind", "sighted"], unreadable))
        looks = seen_until(spark, last, sights)
        if any(path.parent.parent.name == "job_graph" for path in damaged):
            looks = [one._replace(graphs=False) for one in looks]
        found = [*_of_runs(spark, since, until), *_of_graphs(spark, looks, files, _named(options, "storages"))]
        surroundings = around(spark, [moment for moment, _ in found])
    findings = [told(one) for (_, told), one in zip(found, surroundings, strict=True)]
    findings.sort(key=lambda one: (one.at, one.key))
    return Report(findings, _summary(looks, files, findings, rows, len(damaged)))


def _files(options: Options) -> dict[str, list[JobGraphFile]]:
    """What lies in the storage directories at this moment, by Flink cluster. Raises OSError."""
    wanted = options.own["flink"]
    return {
        name: _lying(options, name, place)
        for name, place in _named(options, "storages").items()
        if not wanted or name in wanted
    }


def _lying(options: Options, name: str, place: str) -> list[JobGraphFile]:
    """What lies in a cluster's storage directory. Raises OSError."""
    return list_job_graph_files(Path(place), _named(options, "cluster_ids").get(name, "/default"), name, 0)


def _named(options: Options, own: str) -> dict[str, str]:
    return dict(text.split("=", 1) for text in options.own[own])


def _of_runs(spark: SparkSession, since: int, until: int) -> Iterator[tuple[Moment, Told]]:
    """The jobs that came back in the window, and the lineages that began anew without."""
    back = returns(spark)
    for one in back:
        if since <= one.at < until:
            yield Moment(one.cluster, one.job, one.noticed_at, one.at), partial(job_words.came_back, one)
    for anew in restarts(spark):
        if since <= anew.at < until and not any(_explains(one, anew) for one in back):
            yield Moment(anew.cluster, anew.job, anew.since, anew.at), partial(job_words.lineage_restarted, anew)


def _explains(back: Return, anew: Restart) -> bool:
    """Whether the checkpoint ids fell as the job came back."""
    same = (back.cluster, back.job) == (anew.cluster, anew.job)
    return same and anew.since - LATENESS_MS <= back.at <= anew.at + LATENESS_MS


def _of_graphs(
    spark: SparkSession, looks: Sequence[Look], files: Mapping[str, Sequence[JobGraphFile]], storages: Mapping[str, str]
) -> Iterator[tuple[Moment, Told]]:
    """The graphs that belong to no job that runs, as they stand at the window's end, however long they have."""
    seen = {one.cluster: one.at for one in looks}
    for one in kept(spark, looks):
        yield Moment(one.cluster, one.job, one.made_at, seen[one.cluster]), partial(job_words.graph_of_ended_job, one)
    for alone in orphans(spark, looks, files):
        moment = Moment(alone.cluster, alone.job or "", alone.modified_at, seen[alone.cluster])
        yield moment, partial(job_words.graph_without_job, alone, storages.get(alone.cluster))


def _summary(
    looks: Sequence[Look],
    files: Mapping[str, Sequence[JobGraphFile]],
    findings: Sequence[Finding],
    rows: int,
    damaged: int,
) -> str:
    found = Counter(one.labels[0] for one in findings)
    numbers = [count(found[label], noun) for label, noun in LABELS.items()]
    if not rows:
        numbers.insert(0, "the journal holds nothing of Flink of that time")
    seen = listed(one.cluster for one in looks) if looks else "none"
    parts = [f"Flink clusters {seen}: {', '.join(numbers)}, in {count(rows, 'observation')}"]
    if files:
        parts.append(f"{count(sum(map(len, files.values())), 'graph file')} in storage")
    judged = {one.cluster for one in looks if one.graphs}
    if unjudged := sorted({*files, *(one.cluster for one in looks)} - judged):
        parts.append(f"no graph files judged of {listed(unjudged)}, whose ZooKeeper the journal does not tell of")
    parts += [f"{count(damaged, 'damaged file')} left out"] if damaged else []
    return "; ".join(parts) + "."
