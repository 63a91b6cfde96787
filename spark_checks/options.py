"""Interface of a check: its options, its report, and the protocol of its module.

A check is one file of this package that fulfils `Check`; the file's name is the check's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import click
from pyspark.sql import SparkSession

from agent.model.config_types import duration
from agent.model.findings import Finding
from agent.model.times import millis

Progress: TypeAlias = Callable[[str], None]
"""Reports progress to people; a few words, without a full stop."""

WHOLE_LOGS: Mapping[str, str] = {
    "since": "logs are read whole, whatever the time of their records; use --topic.",
    "until": "logs are read whole, whatever the time of their records; use --topic.",
    "groups": "a broker's log has no consumer groups; use --topic.",
}
"""The options that checks of logs are WITHOUT."""


SESSION_SETTINGS = "spark.sql."
"""How the names of the settings begin that a running Spark takes for a session."""


class WrongUseError(Exception):
    """The command line is wrong; `mistakes` has a sentence for each mistake."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class Options(NamedTuple):
    """Options of a check. since, until: the window of --from and --to, event time, ms; None: unbounded.

    topics, groups: shell patterns; empty: all. remote: a Spark Connect server in place of a master. submitted: whether
    spark-submit started this process, with master and settings. own: the values of the check's own PARAMS, by name.
    """

    cluster: str = "main"
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    master: str = "local[*]"
    remote: str | None = None
    submitted: bool = False
    conf: Mapping[str, str] = {}
    report: Path | None = None
    own: Mapping[str, Any] = {}

    def wants_topic(self, name: str) -> bool:
        """Return whether this topic is selected."""
        return _matches(name, self.topics)

    def wants_group(self, name: str) -> bool:
        """Return whether this group is selected."""
        return _matches(name, self.groups)


class Report(NamedTuple):
    """Result of a check. summary: one sentence on what was read and found; plot: a PNG.

    unread: each file that could not be read, with the reason. The run has then failed, as faults in it are unknown, but
    findings in other files count.
    """

    findings: Sequence[Finding]
    summary: str
    plot: bytes | None = None
    unread: Sequence[str] = ()


class Check(Protocol):
    """Module of a check. Its docstring is its help; its file's name is the check's, and its findings' kind.

    It may have CONF, Spark settings that --conf overrides, and WITHOUT, the common options that it does not take, by
    their name in `Options`, each with the reason.
    """

    PARAMS: Sequence[click.Parameter]
    """The options that it takes besides the common ones; their values are in `Options.own`."""

    def mistakes(self, options: Options) -> list[str]:
        """Return the mistakes in its own options, a sentence each, before Spark starts."""

    def run(self, spark: SparkSession, options: Options, progress: Progress) -> Report:
        """Run the check. Any exception fails the run."""


COMMON: Sequence[click.Option] = (
    click.Option(["--cluster"], default="main", metavar="NAME", help="The cluster's name in findings. Default: main."),
    click.Option(["--topic", "topics"], multiple=True, metavar="PATTERN", help="Only these topics; repeatable."),
    click.Option(["--group", "groups"], multiple=True, metavar="PATTERN", help="Only these groups; repeatable."),
    click.Option(["--from", "since"], metavar="RFC3339", help="Begin of the time window."),
    click.Option(["--to", "until"], metavar="RFC3339", help="End of the time window."),
    click.Option(["--master"], metavar="URL", help="Spark's master. Default: local[*]."),
    click.Option(["--remote"], metavar="sc://HOST:PORT", help="A Spark Connect server, in place of --master."),
    click.Option(["--conf"], multiple=True, metavar="spark.KEY=VALUE", help="A Spark setting; repeatable."),
    click.Option(["--report"], metavar="DIR", help="Where to write summary.txt and, if there is one, plot.png."),
)


def common_options(check: Check) -> list[click.Option]:
    """Return the common options; those that the check does not take are hidden from its help."""
    return [_hide(option) if option.name in _without(check) else option for option in COMMON]


def refuse_options(check: Check, options: Options) -> Iterator[str]:
    """Yield a sentence for each given common option that the check does not take."""
    reasons = _without(check)
    for option in COMMON:
        if option.name in reasons and getattr(options, option.name) not in (None, ()):
            yield f"{option.opts[0]}: {reasons[option.name]}"


def refuse_spark_options(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each given option that spark-submit takes itself. values: parsed ones."""
    for name in ("master", "remote", "conf"):
        if values[name]:
            yield f"--{name}: this belongs to spark-submit; write it before the name of the application's file."


def parse_options(values: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """Return the options from parsed values, all but COMMON as `own`, and the mistakes in them."""
    own, mistakes = dict(values), list[str]()
    window: dict[str, int | None] = {}
    for name, flag in (("since", "--from"), ("until", "--to")):
        text = own.pop(name)
        try:
            window[name] = None if text is None else millis(text)
        except (ValueError, OverflowError) as error:
            window[name] = None
            mistakes.append(f"{flag}: {error}. Write an RFC 3339 time such as 2026-07-01T23:25:13Z.")
    since, until = window["since"], window["until"]
    if since is not None and until is not None and since > until:
        mistakes.append("--from is later than --to.")
    conf: dict[str, str] = {}
    for text in own.pop("conf"):
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            mistakes.append(f"--conf {text}: expected spark.KEY=VALUE.")
        conf[key] = value
    master, remote = own.pop("master"), own.pop("remote")
    mistakes += _check_remote(remote, master, conf)
    report = own.pop("report")
    if report is not None and Path(report).exists() and not Path(report).is_dir():
        mistakes.append(f"--report {report}: this is a file, not a directory.")
    options = Options(
        cluster=own.pop("cluster"),
        topics=tuple(own.pop("topics")),
        groups=tuple(own.pop("groups")),
        since=since,
        until=until,
        master=master or Options().master,
        remote=remote,
        conf=conf,
        report=None if report is None else Path(report),
        own=own,
    )
    return options, mistakes


def check_durations(options: Options, *names: str) -> Iterator[str]:
    """Yield the mistakes in options of the check that are lengths of time, if they are given."""
    given = {name: options.own[name] for name in names if options.own[name] is not None}
    for name, text in given.items():
        try:
            duration(text)
        except ValueError as error:
            yield f"--{name}: {error}."


def check_pairs(option: str, texts: Sequence[str], form: str, hint: str) -> Iterator[str]:
    """Yield the mistakes in the values of a repeatable option. form: of each, such as NAME=DIR; a name comes once."""
    for text in texts:
        if not all(text.partition("=")):
            yield f"{option} {text}: expected {form}, {hint}."
    for name, times in Counter(text.partition("=")[0] for text in texts).items():
        if times > 1:
            yield f"{option} {name}={form.partition('=')[2]}: given {times} times."


def _check_remote(remote: str | None, master: str | None, conf: Iterable[str]) -> Iterator[str]:
    if remote is None:
        return
    if not remote.startswith("sc://"):
        yield f"--remote {remote}: expected sc://HOST:PORT, the address of a Spark Connect server."
    if master is not None:
        yield "--remote and --master exclude each other: a Spark Connect server has its own master."
    for key in conf:
        if not key.startswith(SESSION_SETTINGS):
            yield f"--conf {key}: with --remote only {SESSION_SETTINGS}* can be set; all others belong to the server."


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _without(check: Check) -> Mapping[str | None, str]:
    return getattr(check, "WITHOUT", {})


def _hide(option: click.Option) -> click.Option:
    hidden = copy(option)
    hidden.hidden = True
    return hidden
