"""What every check takes and gives back: its options, its report, the protocol of its module. Nothing runs here.

A check is one file of this package, and its name is the file's: a module that fulfils `Check`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import click
from pyspark.sql import SparkSession

from agent.model.findings import Finding
from agent.model.observations import millis

Progress: TypeAlias = Callable[[str], None]
"""Tells people how far a check has come; a few words, without a full stop."""

WHOLE_LOGS: Mapping[str, str] = {
    "since": "logs are looked at whole, whatever the time of their records; --topic narrows that down.",
    "until": "logs are looked at whole, whatever the time of their records; --topic narrows that down.",
    "groups": "a broker's log knows no consumer groups; --topic narrows down what is looked at.",
}
"""What checks of logs are WITHOUT."""


class WrongUseError(Exception):
    """The command line makes no sense; `mistakes` are sentences, all of them."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class Options(NamedTuple):
    """What a check is asked to look at. since, until: the window of --from and --to, event time, ms; None: unbounded.

    topics, groups: shell patterns; empty: all. own: the values of the check's own PARAMS, by name.
    """

    cluster: str = "main"
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    master: str = "local[*]"
    conf: Mapping[str, str] = {}
    report: Path | None = None
    own: Mapping[str, Any] = {}

    def wants_topic(self, name: str) -> bool:
        """Whether the check is asked to look at this topic."""
        return _matches(name, self.topics)

    def wants_group(self, name: str) -> bool:
        """Whether the check is asked to look at this group."""
        return _matches(name, self.groups)


class Report(NamedTuple):
    """What came of a check. summary: one sentence of what was compared and found, found or not; plot: a PNG.

    unread: each file that could not be looked at, with the reason. The run has then failed, as nobody knows what the
    file holds; what was found in the others counts.
    """

    findings: Sequence[Finding]
    summary: str
    plot: bytes | None = None
    unread: Sequence[str] = ()


class Check(Protocol):
    """The module of a check. Its docstring is its help; its file's name is the check's, and its findings' kind.

    It may have CONF, a mapping: settings of Spark's that suit it, over which --conf wins; and WITHOUT, a mapping: the
    common options, by their name in `Options`, that it has no use for, each with the reason.
    """

    PARAMS: Sequence[click.Parameter]
    """The options that it takes besides the common ones; their values are in `Options.own`."""

    def mistakes(self, options: Options) -> list[str]:
        """What is wrong with its own options, a sentence each. Spark does not run yet."""

    def run(self, spark: SparkSession, options: Options, progress: Progress) -> Report:
        """Do the work. Whatever it raises ends the run as failed."""


COMMON: Sequence[click.Option] = (
    click.Option(["--cluster"], default="main", metavar="NAME", help="The cluster's name in findings. Default: main."),
    click.Option(["--topic", "topics"], multiple=True, metavar="PATTERN", help="Only these topics; repeatable."),
    click.Option(["--group", "groups"], multiple=True, metavar="PATTERN", help="Only these groups; repeatable."),
    click.Option(["--from", "since"], metavar="RFC3339", help="Nothing before this moment."),
    click.Option(["--to", "until"], metavar="RFC3339", help="Nothing after this moment."),
    click.Option(["--master"], default="local[*]", metavar="URL", help="Spark's master. Default: local[*]."),
    click.Option(["--conf"], multiple=True, metavar="spark.KEY=VALUE", help="A setting of Spark's; repeatable."),
    click.Option(["--report"], metavar="DIR", help="Where to put summary.txt and, if there is one, plot.png."),
)


def common(check: Check) -> list[click.Option]:
    """The common options as the check takes them: its help does not show those it has no use for."""
    return [_hidden(one) if one.name in _without(check) else one for one in COMMON]


def refused(check: Check, made: Options) -> Iterator[str]:
    """What was given of the common options that the check has no use for, a sentence each."""
    reasons = _without(check)
    for one in COMMON:
        if one.name in reasons and getattr(made, one.name) not in (None, ()):
            yield f"{one.opts[0]}: {reasons[one.name]}"


def options(values: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """The options of parsed COMMON values and all else as `own`; beside them what is wrong with them."""
    own, mistakes = dict(values), list[str]()
    moments: dict[str, int | None] = {}
    for name, flag in (("since", "--from"), ("until", "--to")):
        text = own.pop(name)
        try:
            moments[name] = None if text is None else millis(text)
        except (ValueError, OverflowError) as error:
            moments[name] = None
            mistakes.append(f"{flag}: {error}. Write an RFC 3339 time such as 2026-07-01T23:25:13Z.")
    since, until = moments["since"], moments["until"]
    if since is not None and until is not None and since > until:
        mistakes.append("--from is later than --to.")
    conf: dict[str, str] = {}
    for text in own.pop("conf"):
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            mistakes.append(f"--conf {text}: expected spark.KEY=VALUE.")
        conf[key] = value
    report = own.pop("report")
    if report is not None and Path(report).exists() and not Path(report).is_dir():
        mistakes.append(f"--report {report}: this is a file, not a directory.")
    made = Options(
        cluster=own.pop("cluster"),
        topics=tuple(own.pop("topics")),
        groups=tuple(own.pop("groups")),
        since=since,
        until=until,
        master=own.pop("master"),
        conf=conf,
        report=None if report is None else Path(report),
        own=own,
    )
    return made, mistakes


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, one) for one in patterns)


def _without(check: Check) -> Mapping[str | None, str]:
    return getattr(check, "WITHOUT", {})


def _hidden(option: click.Option) -> click.Option:
    hidden = copy(option)
    hidden.hidden = True
    return hidden
