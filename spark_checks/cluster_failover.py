"""cluster_failover: records that a consumer group skips or reprocesses because it moved to another cluster.

Compares the position where a group left a cluster with that where it continued on a mirror of the topic (MirrorMaker
2), by when the log ends were there. Also says what a failover now would do to groups whose offsets are mirrored.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import click
from pyspark.sql import DataFrame, SparkSession

from agent.model.config_types import duration
from agent.model.findings import Finding
from agent.model.text import count, join_names, span
from agent.model.times import minute
from agent.storage.journal.places import JournalFiles
from agent.storage.journal.segments import FOREVER
from spark_checks.failovers.findings import Limits, findings_of
from spark_checks.failovers.measured import Effect, read_effects
from spark_checks.failovers.observed import find_observed
from spark_checks.failovers.positions import Comparison, Log, read_comparisons
from spark_checks.failovers.tenures import LATE_MS, GroupChange, Move, find_moves, read_changes
from spark_checks.journal.files import DamagedFiles, Piece, find_pieces, scan, without_damaged
from spark_checks.journal.given import JOURNAL_PARAMS, check_journals, check_names, given_journals
from spark_checks.options import Options, Progress, Report, check_durations, check_pairs
from spark_checks.progress import report_stages
from spark_checks.session import QUICK_START

CONF = {**QUICK_START, "spark.sql.shuffle.partitions": "8"}
PARAMS = (
    *JOURNAL_PARAMS,
    click.Option(
        ["--prefix", "prefixes"],
        multiple=True,
        metavar="CLUSTER=PREFIX",
        help="How mirrors name topics of a cluster, before the name there; repeatable. Default: CLUSTER and a dot.",
    ),
    click.Option(
        ["--min-records"],
        type=click.IntRange(1),
        default=1000,
        show_default=True,
        help="The fewest records skipped or reprocessed.",
    ),
    click.Option(
        ["--tolerance"],
        default="5m",
        show_default=True,
        help="Report records that are reprocessed only if writing them took longer than this.",
    ),
    click.Option(
        ["--delay"],
        default="1m",
        show_default=True,
        help="How late mirrored records may be, if the logs do not show a longer delay.",
    ),
    click.Option(
        ["--baseline"],
        default="3d",
        show_default=True,
        help="How long before --from to read, for positions and delays.",
    ),
)
_NOUNS: Mapping[str, str] = {
    "skipped": "skip",
    "reprocessed": "repetition",
    "beyond_log_end": "out-of-range offset",
}


def mistakes(options: Options) -> list[str]:
    """Return the mistakes in its own options."""
    found = check_journals(options)
    found += check_durations(options, "tolerance", "delay", "baseline")
    found += check_pairs("--prefix", options.own["prefixes"], "CLUSTER=PREFIX", "such as main=eu1")
    if found:
        return found
    wanted = [("--cluster", options.cluster), *(("--prefix", name) for name in _given_prefixes(options))]
    return check_names(options, given_journals(options), wanted)


def _given_prefixes(options: Options) -> dict[str, str]:
    return dict(text.split("=", 1) for text in options.own["prefixes"])


class _Tables:
    """The journals of all agents as tables, in the time that is read. reported: what findings are about, ms."""

    def __init__(self, spark: SparkSession, options: Options) -> None:
        self._spark, self._journals, self.damaged = spark, given_journals(options), DamagedFiles()
        begin, end = 0 if options.since is None else options.since, options.until or FOREVER
        self.since = max(begin - duration(options.own["baseline"]), 0)
        ticks = {journal: self._pieces("tick", self.since, end, [journal]) for journal in self._journals}
        last = {journal: max(piece.high for piece in pieces) for journal, pieces in ticks.items() if pieces}
        self.observed = find_observed({journal: min(at, end) for journal, at in last.items()}, self.damaged)
        in_window = [piece for pieces in ticks.values() for piece in pieces if piece.high >= begin]
        self.now = min(max((piece.high for piece in in_window), default=0), end)
        if options.since is None:
            begin = min((piece.low for piece in in_window), default=0)
            self.since = max(begin - duration(options.own["baseline"]), 0)
        self.reported = range(begin, end)

    def read(
        self, kind: str, columns: Sequence[str], only: Mapping[str, Sequence[str]], *, distinct: bool = False
    ) -> DataFrame:
        """Return the columns of a kind. only: groups, topics and clusters. distinct: see `scan`."""
        pieces = self._pieces(kind, self.since, self.now + 1)
        return scan(
            self._spark,
            kind,
            pieces,
            columns,
            since=self.since,
            until=self.now + 1,
            only=only,
            damaged=self.damaged,
            distinct=distinct,
        )

    def _pieces(self, kind: str, since: int, until: int, journals: Sequence[JournalFiles] | None = None) -> list[Piece]:
        wanted = self._journals if journals is None else journals
        return [piece for journal in wanted for piece in find_pieces(journal, kind, since, until, self.damaged)]


def run(spark: SparkSession, options: Options, progress: Progress) -> Report:
    """Compare the clusters in the journals of all agents. Raises OSError if files cannot be read."""
    tables = _Tables(spark, options)
    with report_stages(spark, progress, "parts of the journal searched"):
        changes, moves, comparisons, effects = without_damaged(
            spark, tables.damaged, lambda: _search(tables, options, progress)
        )
    limits = Limits(options.own["min_records"], duration(options.own["tolerance"]))
    findings = [
        finding
        for finding in findings_of(effects, limits)
        if "projected" in finding.labels or finding.at in tables.reported
    ]
    ends = _ends({change.cluster for change in changes}, tables)
    return Report(findings, _summary(moves, comparisons, effects, findings, [*ends, *tables.damaged.summary()]))


def _search(
    tables: _Tables, options: Options, progress: Progress
) -> tuple[list[GroupChange], list[Move], list[Comparison], list[Effect]]:
    """Return the changes of groups on several clusters, the moves, and what these do to which partitions."""
    states = tables.read("group_state", ("cluster", "group", "at", "since", "position", "state"), {})
    changes = read_changes(states)
    moves = [
        move
        for move in find_moves(changes, tables.now, tables.observed)
        if options.wants_group(move.group) and fnmatchcase(move.target, options.cluster)
    ]
    progress(f"{count(len(moves), 'possible move')} of groups between clusters")
    comparisons = _compare(tables, moves, options) if moves else []
    return changes, moves, comparisons, _measure(tables, comparisons, options) if comparisons else []


def _ends(clusters: set[str], tables: _Tables) -> Iterator[str]:
    """Yield until when the clusters were observed. clusters: those that have a group in common."""
    ends = sorted((name, tables.observed[name].until) for name in clusters if name in tables.observed)
    if ends:
        yield f"observed until {', '.join(f'{name} {minute(at)}' for name, at in ends)} UTC"
    late = [name for name, at in ends if at < tables.now - LATE_MS]
    if late:
        yield f"failovers to and from {join_names(late)} not projected: nothing newer is in the journal"
    if unseen := sorted(clusters - tables.observed.keys()):
        yield f"{join_names(unseen)} not observed in the last hour"


def _compare(tables: _Tables, moves: Sequence[Move], options: Options) -> list[Comparison]:
    names = {name for move in moves for name in (move.origin, move.target)}
    commits = tables.read(
        "commit",
        ("cluster", "group", "topic", "partition", "at", "position", "offset"),
        {"cluster": sorted(names), "group": sorted({move.group for move in moves})},
    )
    prefixes = {name: f"{name}." for name in names} | _given_prefixes(options)
    return [
        compared
        for compared in read_comparisons(commits, moves, prefixes)
        if options.wants_topic(compared.origin.topic) or options.wants_topic(compared.target.topic)
    ]


def _measure(tables: _Tables, comparisons: Sequence[Comparison], options: Options) -> list[Effect]:
    logs = [log for compared in comparisons for log in compared.logs]
    only = {"cluster": sorted({log.cluster for log in logs}), "topic": sorted({log.topic for log in logs})}
    partitions = tables.read("log_offsets", Log._fields, only, distinct=True)
    readings = tables.read("log_offsets", (*Log._fields, "at", "since", "log_start", "log_end"), only)
    return read_effects(readings, partitions, comparisons, duration(options.own["delay"]))


def _summary(
    moves: Sequence[Move],
    comparisons: Sequence[Comparison],
    effects: Sequence[Effect],
    findings: Sequence[Finding],
    limits: Sequence[str],
) -> str:
    """Return the summary. limits: until when clusters were observed, and what was not read."""
    happened = [move for move in moves if not move.is_projected]
    parts = [f"{count(len(happened), 'move')} of groups between clusters"]
    parts += [f"{count(len(moves) - len(happened), 'group')} without members on another cluster"]
    parts += [f"{count(sum(label in found.labels for found in findings), noun)}" for label, noun in _NOUNS.items()]
    if comparisons:
        parts.append(f"{len(effects):,} of {count(len(comparisons), 'partition')} could be compared")
    if effects:
        parts.append(f"mirror delay up to {span(max(effect.measured.delay for effect in effects))}")
    return "; ".join([*parts, *limits]) + "."
