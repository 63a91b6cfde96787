"""What the options of a check name: journals and the clusters in them, and the state files of their agents."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeVar

import click

from agent.storage.database import FILE, StorageError
from agent.storage.journal.places import JournalFiles, is_url, open_journals
from agent.storage.journal.segments import DAY_MS, FOREVER
from spark_checks.journal.files import KAFKA_KINDS, check_journal, clusters
from spark_checks.options import Options

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATTERN = frozenset("*?[")

ARCHIVE_PARAMS = (
    click.Option(["--archive"], metavar="URL", help="The journal's archive, to read together with it."),
    click.Option(
        ["--agent", "agents"], multiple=True, metavar="PATTERN", help="Only these agents of an archive; repeatable."
    ),
)
"""The options that a check with `--journal` takes besides."""

JOURNAL_PARAMS = (
    click.Option(["--journal"], required=True, metavar="DIR|URL", help="The agent's journal, or an archive."),
    *ARCHIVE_PARAMS,
)
"""The options of a check that reads the journals of one or several agents."""

CLUSTER_PARAMS = (
    *JOURNAL_PARAMS,
    click.Option(
        ["--store"],
        metavar="FILE",
        help="The agent's state file, with its incidents. Default: the one beside the journal.",
    ),
)
"""The options of a check that reads the clusters of one or several agents, and what the live rules detected."""


class GivenCluster(NamedTuple):
    """A Kafka cluster in the journal of an agent. store: the agent's state file, None if there is none.

    is_shared: whether the journal of another agent has a cluster of this name too.
    """

    name: str
    journal: JournalFiles
    store: Path | None
    is_shared: bool = False

    @property
    def label(self) -> str:
        """The name, with that of the agent if others have such a cluster."""
        return f"{self.name}@{self.journal.agent or 'local'}" if self.is_shared else self.name

    def read_store(self, options: Options, read: Callable[[Path], T]) -> T | None:
        """Return what `read` returns for the state file; None if there is none, or none that can be read.

        Raises StorageError if that is so of the one that `--store` names.
        """
        try:
            return None if self.store is None else read(self.store)
        except StorageError as error:
            if options.own["store"]:
                raise
            log.warning("state_file_unreadable reason=%s", error)
            return None


def given_journals(options: Options) -> list[JournalFiles]:
    """Return the journals, an agent's each. Raises OSError."""
    own = options.own
    return open_journals(own["journal"], own.get("archive"), own.get("agents") or (), os.environ)


def given_clusters(options: Options, before: int = 0) -> list[GivenCluster]:
    """Return the clusters that `--cluster` selects, in order of their names. Raises OSError, ReadError.

    A name is taken as it is, a pattern selects among the Kafka clusters of the journals in the window of --from and
    --to. before: how long before it they count too, ms.
    """
    journals, days = given_journals(options), _days(options, before)
    found = [
        GivenCluster(name, journal, _store(journal, options))
        for journal in journals
        for name in _select(options, journal, days, is_only=len(journals) == 1)
    ]
    times = Counter(cluster.name for cluster in found)
    shared = (cluster._replace(is_shared=times[cluster.name] > 1) for cluster in found)
    return sorted(shared, key=lambda cluster: (cluster.name, cluster.journal.agent))


def describe_none(options: Options) -> str:
    """Return the summary of a check for which `given_clusters` returns none."""
    when = " in this time" if _days(options) is not None else ""
    return f"No cluster matches {options.cluster}{when}."


def _days(options: Options, before: int = 0) -> range | None:
    """Return the days in the window of --from and --to, and so long (ms) before; None for all."""
    if options.since is None and options.until is None:
        return None
    since = -FOREVER if options.since is None else options.since - before
    until = FOREVER if options.until is None else options.until
    return range(since // DAY_MS, (until - 1) // DAY_MS + 1)


def _select(options: Options, journal: JournalFiles, days: range | None, *, is_only: bool) -> Collection[str]:
    if not _PATTERN.isdisjoint(options.cluster):
        return {name for name in clusters(journal, KAFKA_KINDS, days) if _selects(options.cluster, name)}
    return [options.cluster] if is_only or options.cluster in clusters(journal, KAFKA_KINDS, days) else []


def check_clusters(options: Options) -> list[str]:
    """Return the mistakes in the options of CLUSTER_PARAMS and in `--cluster`."""
    found, store = check_journals(options), options.own["store"]
    if not found:
        journals = given_journals(options)
        kinds = None if _PATTERN.isdisjoint(options.cluster) else KAFKA_KINDS
        found += check_names(options, journals, [("--cluster", options.cluster)], kinds)
        if store is not None and len(journals) > 1 and all(journal.directory is None for journal in journals):
            names = ", ".join(journal.agent for journal in journals)
            found.append(f"--store {store}: this is the state of one agent; select it with --agent: {names}.")
    if store is not None and not Path(store).exists():
        found.append(f"--store {store}: no such file.")
    return found


def check_names(
    options: Options,
    journals: Iterable[JournalFiles],
    wanted: Iterable[tuple[str, str]],
    kinds: Collection[str] | None = None,
) -> list[str]:
    """Return the mistakes in clusters that options name: no journal has them. wanted: the options, each with its name.

    kinds: of the observations that name clusters; None: all.
    """
    places, names, missing = list(journals), set[str](), list(wanted)
    # What is not in the window of --from and --to may be in the rest.
    parts = dict.fromkeys((_days(options), None))
    for name in (name for days in parts for journal in places for name in clusters(journal, kinds, days)):
        names.add(name)
        missing = [(option, other) for option, other in missing if not _selects(other, name)]
        if not missing:
            return []
    if not names:
        return []  # the journal has only just begun, or nothing of it can be read: the run reports that
    place, known = options.own["journal"], ", ".join(sorted(names))
    return [f"{option} {other}: not in the journal {place}. Clusters in it: {known}." for option, other in missing]


def _selects(wanted: str, name: str) -> bool:
    return name == wanted or fnmatchcase(name, wanted)


def _store(journal: JournalFiles, options: Options) -> Path | None:
    """Return the state file of the agent that wrote the journal, or None."""
    given = options.own["store"]
    if journal.directory is None:
        return None if given is None else Path(given)
    store = journal.directory.parent / FILE if given is None else Path(given)
    return store if store.exists() else None


def check_journals(options: Options) -> list[str]:
    """Return the mistakes in the options that name journals."""
    return list(_mistakes(options))


def check_one_journal(options: Options) -> list[str]:
    """Return the mistakes in the options of a check that reads the journal of one agent."""
    if mistakes := check_journals(options):
        return mistakes
    agents = [journal.agent or "the local one" for journal in given_journals(options)]
    if len(agents) == 1:
        return []
    place, names = options.own["journal"], ", ".join(agents)
    return [f"--journal {place}: this check reads one agent's journal; select it with --agent: {names}."]


def _mistakes(options: Options) -> Iterator[str]:
    place, archive = options.own["journal"], options.own.get("archive")
    if archive is not None and not is_url(archive):
        yield f"--archive {archive}: expected a URL such as s3://bucket/prefix."
        return
    if is_url(place) and archive is not None:
        yield f"--archive {archive}: --journal is an archive already; give the local directory there."
        return
    if not is_url(place):
        yield from check_journal(Path(place))
    url = place if is_url(place) else archive
    if url is None:
        if options.own.get("agents"):
            yield "--agent: selects agents of an archive; give its URL as --journal or --archive."
        return
    try:
        journals = given_journals(options)
    except (OSError, ValueError) as error:
        yield f"{'--journal' if is_url(place) else '--archive'} {url}: cannot be read: {error}"
        return
    if not journals:
        wanted = f" of {', '.join(options.own['agents'])}" if options.own.get("agents") else ""
        yield f"--journal {url}: there is no journal{wanted} in this archive."
