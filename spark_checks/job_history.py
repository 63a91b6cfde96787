"""job_history: Flink jobs that came back after they ended, restarted checkpoint ids, job graphs without a job.

Searches the agent's journal, with the leader changes, restores and other jobs around each finding, and the HA storage
directories, if given. Findings name Flink clusters: select them with --flink, not --cluster.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import click
from pyspark.sql import SparkSession

from agent.engine.history import LATENESS_MS
from agent.model.config_types import duration
from agent.model.findings import Finding
from agent.model.observations.flink import JobGraphFile
from agent.model.text import count, join_names
from agent.sources.flink.high_availability import list_job_graph_files
from agent.storage.journal.reader import entries
from agent.storage.journal.segments import FOREVER
from spark_checks.jobs import findings as report
from spark_checks.jobs.context import Context, Occurrence, read_context
from spark_checks.jobs.graphs import LastSeen, find_last_seen, find_leftover_graphs, find_stray_files
from spark_checks.jobs.runs import (
    COLUMNS,
    LineageRestart,
    Resurrection,
    clusters,
    create_views,
    find_lineage_restarts,
    find_resurrections,
)
from spark_checks.journal.files import DamagedFiles, find_pieces, without_damaged
from spark_checks.journal.given import JOURNAL_PARAMS, check_one_journal, given_journals
from spark_checks.options import Options, Progress, Report, check_durations, check_pairs
from spark_checks.progress import report_stages
from spark_checks.session import QUICK_START

MakeFinding: TypeAlias = Callable[[Context], Finding]
"""Makes the finding about an occurrence, given its context."""

CONF = {**QUICK_START, "spark.sql.shuffle.partitions": "4"}  # a few jobs, observed every few seconds
PARAMS = (
    *JOURNAL_PARAMS,
    click.Option(["--flink"], multiple=True, metavar="NAME", help="Only this Flink cluster; repeatable."),
    click.Option(
        ["--storage", "storages"],
        multiple=True,
        metavar="NAME=DIR",
        help="A Flink cluster's high-availability.storageDir; repeatable. Default: what the journal says about it.",
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
    "topics": "jobs are searched whatever they read; use --flink.",
    "groups": "jobs are searched whatever they read; use --flink.",
}
LABELS: Mapping[str, str] = {
    "came_back": "return",
    "lineage_restarted": "restarted lineage",
    "graph_of_ended_job": "leftover graph",
    "graph_without_job": "stray graph file",
}
"""The first labels of findings, and their names in the summary."""


def mistakes(options: Options) -> list[str]:
    """Return the mistakes in its own options."""
    found = check_one_journal(options)
    found += check_durations(options, "baseline")
    for option, own, form in (("--storage", "storages", "NAME=DIR"), ("--cluster-id", "cluster_ids", "NAME=ID")):
        found += check_pairs(option, options.own[own], form, "with the Flink cluster's name")
    if options.cluster not in (Options().cluster, *options.own["flink"]):
        found.append(f"--cluster {options.cluster}: this check searches Flink clusters; select one with --flink.")
    return found or [*_check_clusters(options), *_check_storage(options)]


def _check_clusters(options: Options) -> Iterator[str]:
    """Yield the Flink clusters in options that the journal does not name.

    A journal that names none yet proves no mistake, but a storage directory must belong to a cluster in --flink, if
    there are any.
    """
    journal, flink = options.own["journal"], set(options.own["flink"])
    storages, ids = _by_cluster(options, "storages"), _by_cluster(options, "cluster_ids")
    wanted = {*flink, *storages, *ids}
    names = set[str]()
    for name in clusters(given_journals(options)[0]) if wanted else ():
        names.add(name)
        if wanted <= names:
            return
    known = ", ".join(sorted(names or flink))
    for name in sorted(flink - names) if names else ():
        yield f"--flink {name}: not in the journal {journal}. Flink clusters in it: {known}."
    for option, given in (("--storage", storages), ("--cluster-id", ids)):
        for name, value in given.items():
            if known and name not in names | flink:
                yield (
                    f"{option} {name}={value}: Flink cluster {name} is neither in the journal {journal} nor in --flink."
                    f" Known: {known}."
                )


def _check_storage(options: Options) -> Iterator[str]:
    """Yield the storage directories that cannot be listed, also those of clusters that --flink excludes."""
    for name, directory in _by_cluster(options, "storages").items():
        try:
            _list_storage(options, name, directory)
        except OSError as error:
            yield f"--storage {name}={directory}: cannot read {error.filename}: {error.strerror}."


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Search the journal and the storage. Raises OSError if they cannot be read."""
    journal, damaged = given_journals(options)[0], DamagedFiles()
    since = -FOREVER if options.since is None else options.since
    begin = -FOREVER if options.since is None else since - duration(options.own["baseline"])
    until = FOREVER - 1 if options.until is None else options.until
    pieces = [piece for kind in (*COLUMNS, "tick") for piece in find_pieces(journal, kind, begin, until, damaged)]
    rows = sum(piece.rows for piece in pieces if piece.kind in COLUMNS)
    files = _list_storages(options)

    def search() -> tuple[list[LastSeen], list[tuple[Occurrence, MakeFinding]], list[Context]]:
        with create_views(spark, pieces, options.own["flink"], begin, until, damaged=damaged):
            last = min(max((piece.high for piece in pieces), default=until), until - 1)
            changes = entries(journal, begin, until, ["blind", "sighted"], damaged, skips_failures=False)
            seen = find_last_seen(spark, last, (change for _, change in changes))
            if any("job_graph" in path.parts[-6:] for path in damaged):
                seen = [cluster._replace(graphs=False) for cluster in seen]
            found = [*_search_runs(spark, since, until), *_search_graphs(spark, seen, files, options)]
            return seen, found, read_context(spark, [occurrence for occurrence, _ in found])

    with report_stages(spark, progress, f"parts of {count(rows, 'Flink observation')} searched"):
        seen, found, contexts = without_damaged(spark, damaged, search)
    findings = [make_finding(context) for (_, make_finding), context in zip(found, contexts, strict=True)]
    findings.sort(key=lambda finding: (finding.at, finding.key))
    return Report(findings, _summary(seen, files, findings, rows, damaged))


def _list_storages(options: Options) -> dict[str, list[JobGraphFile]]:
    """Return the files now in the storage directories, by Flink cluster. Raises OSError."""
    wanted = options.own["flink"]
    return {
        name: _list_storage(options, name, directory)
        for name, directory in _by_cluster(options, "storages").items()
        if not wanted or name in wanted
    }


def _list_storage(options: Options, name: str, directory: str) -> list[JobGraphFile]:
    return list_job_graph_files(Path(directory), _by_cluster(options, "cluster_ids").get(name, "/default"), name, 0)


def _by_cluster(options: Options, own: str) -> dict[str, str]:
    return dict(text.split("=", 1) for text in options.own[own])


def _search_runs(spark: SparkSession, since: int, until: int) -> Iterator[tuple[Occurrence, MakeFinding]]:
    """Yield the jobs that came back in the window, and the lineages that restarted otherwise."""
    resurrections = find_resurrections(spark)
    for job in resurrections:
        if since <= job.at < until:
            yield Occurrence(job.cluster, job.job, job.noticed_at, job.at), partial(report.came_back, job)
    for lineage in find_lineage_restarts(spark):
        if since <= lineage.at < until and not any(_explains(job, lineage) for job in resurrections):
            occurrence = Occurrence(lineage.cluster, lineage.job, lineage.since, lineage.at)
            yield occurrence, partial(report.lineage_restarted, lineage)


def _explains(job: Resurrection, lineage: LineageRestart) -> bool:
    same = (job.cluster, job.job) == (lineage.cluster, lineage.job)
    return same and lineage.since - LATENESS_MS <= job.at <= lineage.at + LATENESS_MS


def _search_graphs(
    spark: SparkSession, seen: Sequence[LastSeen], files: Mapping[str, Sequence[JobGraphFile]], options: Options
) -> Iterator[tuple[Occurrence, MakeFinding]]:
    """Yield the graphs without a running job at the end of the window, whatever their age."""
    seen_at, storages = {cluster.cluster: cluster.at for cluster in seen}, _by_cluster(options, "storages")
    for graph in find_leftover_graphs(spark, seen):
        occurrence = Occurrence(graph.cluster, graph.job, graph.made_at, seen_at[graph.cluster])
        yield occurrence, partial(report.graph_of_ended_job, graph)
    for file in find_stray_files(spark, seen, files):
        occurrence = Occurrence(file.cluster, file.job or "", file.modified_at, seen_at[file.cluster])
        yield occurrence, partial(report.graph_without_job, file, storages.get(file.cluster))


def _summary(
    seen: Sequence[LastSeen],
    files: Mapping[str, Sequence[JobGraphFile]],
    findings: Sequence[Finding],
    rows: int,
    damaged: DamagedFiles,
) -> str:
    found = Counter(finding.labels[0] for finding in findings)
    numbers = ", ".join(count(found[label], noun) for label, noun in LABELS.items())
    names = join_names(cluster.cluster for cluster in seen) if seen else "none"
    parts = [f"Flink clusters {names}: {numbers}"]
    parts.append(
        f"{count(rows, 'observation')} read" if rows else "the journal has no Flink observations in this window"
    )
    if files:
        parts.append(f"{count(sum(map(len, files.values())), 'graph file')} in storage")
    with_graphs = {cluster.cluster for cluster in seen if cluster.graphs}
    if without := sorted({*files, *(cluster.cluster for cluster in seen)} - with_graphs):
        parts.append(f"graph files not checked on {join_names(without)}: the journal has nothing from ZooKeeper")
    return "; ".join([*parts, *damaged.summary()]) + "."
