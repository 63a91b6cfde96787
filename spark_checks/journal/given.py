"""The journals that the options of a check name: `--journal`, `--archive`, `--agent`."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from agent.storage.journal.places import JournalFiles, is_url, open_journals
from spark_checks.journal.files import check_journal
from spark_checks.options import Options

ARCHIVE_PARAMS = (
    click.Option(["--archive"], metavar="URL", help="The journal's archive, to read together with it."),
    click.Option(
        ["--agent", "agents"], multiple=True, metavar="PATTERN", help="Only these agents of an archive; repeatable."
    ),
)
"""The options that a check with `--journal` takes besides."""


def given_journals(options: Options) -> list[JournalFiles]:
    """Return the journals, an agent's each. Raises OSError."""
    own = options.own
    return open_journals(own["journal"], own.get("archive"), own.get("agents") or (), os.environ)


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
