"""What the journal tells around the falls of a changelog: owners, moves, when offsets were written, what logs say."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from agent.model.declared_stores import DeclaredStore
from agent.model.observations import GroupState, LogLine
from agent.rules.queries.streams import store_changelog
from agent.storage.journal import read
from agent.storage.journal.segments import DAY_MS, FOREVER
from spark_checks.changelogs.dates import LogEnds
from spark_checks.changelogs.falls import Stretch
from spark_checks.changelogs.rebalances import Ownership, by_group
from spark_checks.changelogs.words import RESTORING, Around, when
from spark_checks.history.context import Journal
from spark_checks.options import Options

log = logging.getLogger(__name__)

_BEFORE_MS = DAY_MS
"""How long before the window the journal is read: what held then was last told at most a few minutes earlier."""


class Past(NamedTuple):
    """The journal, owners by group, lines about restoring. since, until: the window asked for, ms.

    journal: None where none is given; then nothing is known of anything.
    """

    journal: Journal | None
    owners: Mapping[str, Ownership]
    lines: Sequence[LogLine]
    since: int
    until: int

    @contextmanager
    def of(self, store: DeclaredStore) -> Iterator[LogEnds | None]:
        """The log ends of the store's changelog, while the body runs."""
        if self.journal is None:
            yield None
        else:
            with LogEnds(self.journal, store.changelog) as ends:
                yield ends

    def bounds(
        self, ends: LogEnds | None, store: DeclaredStore, partitions: Iterable[int]
    ) -> Mapping[int, Sequence[int]]:
        """Where in each partition new stretches begin: the log's end when its task was last seen at an old owner, and
        when the window began.
        """
        if ends is None:
            return {}
        owners = self.owners.get(store.application, Ownership())
        moments = [(one, at) for one in partitions for at in (self.since, *(move.since for move in owners.of(one)))]
        bounds: dict[int, list[int]] = {}
        for (partition, _), offset in sorted(ends.at(moments).items()):
            bounds.setdefault(partition, []).append(offset)
        return bounds

    def around(
        self, ends: LogEnds | None, store: DeclaredStore, found: Sequence[Stretch]
    ) -> Iterator[tuple[Stretch, Around]]:
        """Each stretch with what stood around it."""
        owners = self.owners.get(store.application, Ownership())
        dates = {} if ends is None else ends.written([place for one in found for place in _ends(one)])
        for one in found:
            if ends is None:
                yield one, Around()
                continue
            first, last = (dates[place] for place in _ends(one))
            lines = [line for line in self.lines if _about(line, store, one.partition)]
            yield one, Around(first, last, owners, lines, told=True)

    def concerns(self, stretch: Stretch, around: Around) -> bool:
        """Whether some of it can have been written in the window."""
        at = when(stretch, around)
        begin = at if around.first.since is None else around.first.since
        last = stretch.last_at if around.first == (None, None) else around.last.at or at
        return max(last, at) >= self.since and begin <= self.until


def read_past(spark: SparkSession, options: Options, groups: set[str], damaged: list[Path]) -> Past:
    """What the journal tells of the groups. damaged: takes the files of it that cannot be read."""
    since = -FOREVER if options.since is None else options.since
    until = FOREVER - 1 if options.until is None else options.until
    if options.own["journal"] is None:
        return Past(None, {}, (), since, until)

    def unreadable(path: Path, reason: str) -> None:
        log.warning("%s is left out: %s", path, reason)
        damaged.append(path)

    directory = Path(options.own["journal"]).absolute()
    begin = since if options.since is None else since - _BEFORE_MS
    # What was written up to --to may be told of later.
    journal = Journal(spark, directory, options.cluster, begin, FOREVER - 1, unreadable)
    states: list[GroupState] = []
    lines: list[LogLine] = []
    for one in read(directory, begin, None, ["group_state", "log_line"], unreadable):
        if isinstance(one, GroupState) and one.cluster == options.cluster and one.group in groups:
            states.append(one)
        elif isinstance(one, LogLine) and one.cluster == options.cluster and one.pattern in RESTORING:
            lines.append(one)
    return Past(journal, by_group(states), sorted(lines, key=lambda one: one.at), since, until)


def _ends(stretch: Stretch) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where its first and its last fall are."""
    return (stretch.partition, stretch.first_offset), (stretch.partition, stretch.last_offset)


def _about(line: LogLine, store: DeclaredStore, partition: int) -> bool:
    """Whether the line tells of the store's partition: by its changelog, where it names none by its task."""
    named = store_changelog(line)
    if named is not None:
        return named == (store.changelog, partition)
    return line.values.get("store") == store.store and line.values.get("task", "").endswith(f"_{partition}")
