"""The command `doctor`: connect to everything that is configured, and say what works and what does not."""

import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from agent.cli.common import EPILOG, config_option, load_or_exit, silence_logs, wait_option
from agent.config.credentials import CredentialError
from agent.config.journal import Journal
from agent.config.problems import describe_path
from agent.config.requirements import find_spark_problem
from agent.config.settings import Settings
from agent.config.toml_places import KeyPath
from agent.config.warnings import logs_of_no_cluster, missing_paths, missing_rules, properties_without_effect
from agent.daemon.loops import Loop
from agent.daemon.startup_log import ABOUT_ACCESS, count_subjects
from agent.model.exit_status import CLEAN, FOUND
from agent.model.findings import observed_part
from agent.model.observations.agent import name_of_source
from agent.model.observations.base import Availability, Observation, Subject, Unavailable
from agent.model.text import join_names
from agent.notify.base import Identifiable, NotDelivered
from agent.sources.base import Batch, Emit, Source

if TYPE_CHECKING:
    from agent.storage.journal.archive import Archive

_ARCHIVE = "journal archive"

_POLLS = 3
"""How often a source is polled at least: what only parts of a cluster refuse shows itself later."""

_TICK_S = 0.2
_LITTLE_SPACE = 1 << 30


Fact = TypeVar("Fact", bound=Observation)


class Verdict(NamedTuple):
    """What was found about one thing. problem: None if it works; else why it does not, and what that costs.

    is_warning: whether the agent does what is configured in spite of the problem.
    """

    name: str
    detail: str
    problem: str | None = None
    is_warning: bool = False

    @property
    def status(self) -> str:
        """The word that begins its line."""
        return "ok" if self.problem is None else "warning" if self.is_warning else "PROBLEM"


@click.command("doctor", epilog=EPILOG)
@config_option
@wait_option("How long a source may take to answer.")
def doctor_command(config: Path | None, wait: int) -> None:
    """Connect to everything that is configured; list what works and what does not. Exits with 1 if anything does not.

    It sends no notification (`backflow test-alert` does), and can run beside the agent. It writes nothing but a small
    file to the journal's archive, which it removes. Run it as the agent's user: files and credentials are read as that
    user reads them.
    """
    settings = load_or_exit(config, need_clusters=False)
    silence_logs()
    failed = False
    for verdict in _verdicts(settings, wait):
        failed = failed or (verdict.problem is not None and not verdict.is_warning)
        click.echo(f"{verdict.status:<8}  {verdict.name:<24}  {verdict.detail}".rstrip())
        if verdict.problem:
            click.echo("".join(f"{'':10}{line}\n" for line in verdict.problem.splitlines()), nl=False)
    sys.exit(FOUND if failed else CLEAN)


def _verdicts(settings: Settings, wait: int) -> Iterator[Verdict]:
    missing_secrets, examined = _examine_secrets(settings)
    if missing_secrets is not None:
        yield missing_secrets
    yield from _examine_sources(examined, wait)
    if settings.is_console_only or not examined.is_console_only:
        yield from examine_receivers(examined)
    yield _examine_state(settings.agent.state_directory)
    yield from (Verdict("rules", "", problem, is_warning=True) for problem in missing_rules(settings))
    yield from examine_archive(examined.journal)
    if settings.spark.enabled:
        problem = find_spark_problem(remote=settings.spark.remote)
        yield Verdict("Spark checks", "", f"{problem}. Without, set enabled = false in [spark]." if problem else None)
    for key, problem in missing_paths(settings._replace(logs={})):  # the source of the logs has said it
        yield Verdict(describe_path(key), "", problem)
    for key, problem in (*properties_without_effect(settings), *logs_of_no_cluster(settings)):
        yield Verdict(describe_path(key), "", problem, is_warning=True)


class View:
    """What one source has emitted. facts: what it has read, of each subject the last."""

    def __init__(self, source_name: str) -> None:
        self.name = source_name
        self.facts: dict[Subject, Observation] = {}
        self.polls = 0
        self.is_over = False
        self._availability: dict[Subject, Availability] = {}
        self._lock = threading.Lock()

    def emit(self, batch: Batch) -> None:
        """Take note of the batch, unless it is about a source that is being closed."""
        with self._lock:
            for fact in () if self.is_over else batch:
                if isinstance(fact, Availability):
                    self._availability[fact.subject] = fact
                elif not isinstance(fact, ABOUT_ACCESS):
                    self.facts[fact.subject] = fact

    def unavailable(self) -> list[Unavailable]:
        """Return what cannot be read."""
        with self._lock:
            return [fact for fact in self._availability.values() if isinstance(fact, Unavailable)]

    def is_settled(self) -> bool:
        """Return whether it was polled often enough, and nothing is unavailable that may become available soon."""
        return self.polls >= _POLLS and bool(self.facts) and not self.unavailable()

    def of(self, kind: type[Fact]) -> list[Fact]:
        """Return the facts of a kind."""
        with self._lock:
            return [fact for fact in self.facts.values() if isinstance(fact, kind)]

    def verdict(self) -> Verdict:
        """Return what is known by now."""
        with self._lock:
            counts = count_subjects(self.facts.values())
        detail = ", ".join(f"{number:,} {noun.replace('_', ' ')}" for noun, number in counts.items())
        problems = [_reason(fact) for fact in self.unavailable()]
        if not problems and not self.facts:
            problems = ["it has read nothing yet; give it more time with --wait"]
        return Verdict(self.name, detail, "\n".join(problems) or None)


def _reason(fact: Unavailable) -> str:
    """Return why it cannot be read, with what it is unless that is all of the source."""
    names = ("group", "topic", "partition")
    part = {name: value for name in names if (value := getattr(fact, name)) is not None}
    return f"cannot read {observed_part(part | {'cluster': fact.cluster})}: {fact.reason}" if part else fact.reason


def _examine_secrets(settings: Settings) -> tuple[Verdict | None, Settings]:
    """Return the secrets that cannot be read as a verdict, and the settings without the parts that need them."""
    unreadable = {key: f"{describe_path(key)}: {reason}" for key, _, reason in settings.unreadable_secrets()}
    if not unreadable:
        return None, settings
    parts = sorted({part for key in unreadable if (part := _part_with(key))})
    untried = f"Not tried for lack of them: {join_names(map(describe_path, parts))}" if parts else ""
    streams = {  # by default on the only cluster, which may be left out
        name: table.model_copy(update={"cluster": table.cluster or next(iter(settings.clusters))})
        for name, table in settings.streams.items()
    }
    examined = settings._replace(streams=streams)
    for part in reversed(parts):  # what is in a table before the table
        examined = _without(examined, part)
    return Verdict("credentials", "", "\n".join([*unreadable.values(), untried]).rstrip()), examined


def _part_with(secret: KeyPath) -> KeyPath:
    """Return the path of what needs the secret at a path; empty if that is nothing that doctor tries."""
    match secret:
        case ("clusters", name, "zookeeper_client", *_):
            return ("clusters", name, "zookeeper")
        case ("clusters" | "flink" | "streams" | "receivers", *_) | ("slack", "app_token"):
            return secret[:2]
        case ("slack", *_):
            return ("slack",)
        case ("journal", *_):
            return ("journal", "archive")
    return ()


def _without(table: Any, path: KeyPath) -> Any:
    """Return the settings, or a table of them, without what is at the path."""
    key, rest = str(path[0]), path[1:]
    if isinstance(table, Mapping):
        others = {name: value for name, value in table.items() if name != key}
        return {**others, key: _without(table[key], rest)} if rest else others
    change: dict[str, Any] = {key: _without(getattr(table, key), rest) if rest else None}
    return table._replace(**change) if isinstance(table, Settings) else table.model_copy(update=change)


def _examine_sources(settings: Settings, wait: int) -> Iterator[Verdict]:
    views, failures = read_sources(settings, wait)
    for view in views:
        verdict = view.verdict()
        yield verdict._replace(problem=failures.get(verdict.name, verdict.problem))


def read_sources(
    settings: Settings, wait: int, is_complete: Callable[[View], bool] = View.is_settled
) -> tuple[list[View], dict[str, str]]:
    """Poll each source until it is complete, or for `wait` ms; return what each emitted, and internal errors.

    Secrets must be readable. Raises CredentialError.
    """
    from agent.daemon.wiring import make_sources  # noqa: PLC0415 - the clients take a second to load

    views: dict[str, View] = {}

    def emit_for(cluster: str, source: str) -> Emit:
        return views.setdefault(name_of_source(cluster, source), View(name_of_source(cluster, source))).emit

    sources = make_sources(settings, emit_for, [])
    failures: dict[str, str] = {}

    def poll(source: Source) -> None:
        source.poll()
        views[name_of_source(source.cluster, source.name)].polls += 1

    def failed(source: Source, error: Exception) -> None:
        failures[name_of_source(source.cluster, source.name)] = f"internal error: {error!r}"

    loops = [Loop(source.name, source.interval, partial(poll, source), partial(failed, source)) for source in sources]
    for loop in loops:
        loop.start()
    deadline = time.monotonic() + wait / 1000
    while time.monotonic() < deadline and not failures and not all(map(is_complete, views.values())):
        time.sleep(_TICK_S)
    for loop in loops:
        loop.stop()
    for view in views.values():
        view.is_over = True
    for source in sources:
        source.close()
    return list(views.values()), failures


def examine_receivers(settings: Settings) -> Iterator[Verdict]:
    """Yield whether each receiver can be reached, without notifying anybody."""
    from agent.daemon.wiring import make_receivers, make_slack_socket  # noqa: PLC0415 - the clients take a second to load

    try:
        receivers = make_receivers(settings, sys.stdout)
        socket = make_slack_socket(settings.slack)
    except CredentialError as error:
        yield Verdict("receivers", "", str(error))
        return
    for receiver in receivers:
        if isinstance(receiver, Identifiable):
            try:
                yield Verdict(receiver.name, receiver.identify())
            except NotDelivered as error:
                yield Verdict(receiver.name, "", f"{error}\nUntil then, its notifications wait.")
        elif settings.is_console_only:
            yield Verdict(receiver.name, "", "no one is notified: there is neither [slack] nor [receivers.NAME]")
        else:
            yield Verdict(receiver.name, "can be tried with `backflow test-alert` only")
    if socket is not None:
        try:
            yield Verdict("Slack buttons", socket.identify())
        except NotDelivered as error:
            yield Verdict("Slack buttons", "", f"{error}\nUntil then, no button in Slack has an effect.")


def examine_archive(journal: Journal) -> Iterator[Verdict]:
    """Yield whether files can be written to the journal's archive, read and removed; nothing without an archive."""
    from agent.storage.journal.archive import Archive  # noqa: PLC0415 - pyarrow takes a moment to load

    if journal.archive is None:
        return
    try:
        probe_archive(Archive(journal.archive, os.environ | journal.s3.variables()))
    except CredentialError as error:
        yield Verdict(_ARCHIVE, journal.archive, str(error))
    except OSError as error:
        reason = (str(error).splitlines() or [repr(error)])[0]
        consequence = "Until then, the journal stays on the local disk, where retention does not remove it."
        yield Verdict(_ARCHIVE, journal.archive, f"{reason}\n{consequence}")
    else:
        yield Verdict(_ARCHIVE, f"{journal.archive}: a file was written, read and removed")


def probe_archive(archive: "Archive") -> None:
    """Write a small file to the archive, read it and remove it. Raises OSError."""
    from pyarrow import fs  # noqa: PLC0415 - it takes a moment to load

    from agent.storage.journal.archive import OBJECT_STORES, measure  # noqa: PLC0415 - likewise

    folder = archive.root
    # Folders are the agent's to create, which may run as another user.
    while archive.files.type_name not in OBJECT_STORES and "/" in folder:
        if archive.files.get_file_info(folder).type is not fs.FileType.NotFound:
            break
        folder = folder.rpartition("/")[0]
    # Names that begin with an underscore are ignored by readers.
    target = f"{folder}/_backflow-{secrets.token_hex(8)}"
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"backflow doctor\n")
        file.flush()
        file.seek(0)
        archive.put(Path(file.name), measure(file), target)
    archive.files.delete_file(target)


def _examine_state(directory: Path) -> Verdict:
    """Return whether the state directory can be written, and how much space it has."""
    existing = next(path for path in (directory, *directory.absolute().parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        return Verdict("state directory", str(directory), f"cannot be written: {error.strerror}")
    detail = f"{directory}: {free >> 30:,} GiB free" + ("" if existing == directory else ", will be created")
    return Verdict("state directory", detail, "less than 1 GiB is free" if free < _LITTLE_SPACE else None)
