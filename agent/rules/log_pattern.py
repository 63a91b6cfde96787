"""log_pattern: a line of a log file matches a regex."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Annotated

from pydantic import AfterValidator

from agent.engine.facts import Facts
from agent.engine.rule import EventRule, Scope
from agent.model.config_types import NameFilter
from agent.model.findings import Finding
from agent.model.log_text import counted
from agent.model.observations import LogLine, Observation
from agent.model.text import time_range


def _regex(value: str) -> str:
    try:
        compiled = re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        msg = f"no regular expression that Python's re knows: {error}"
        raise ValueError(msg) from error
    if compiled.search(""):
        msg = "the regular expression matches every line, since it matches an empty one"
        raise ValueError(msg)
    return value


class LogPattern(EventRule):
    r"""A line of a file under [logs.*] matches `pattern`. Its named groups `topic`, `partition`, `broker` and `job` say
    what the line is about and are the finding's keys; all groups are its values, told before the line, and `lines` is
    what was written in that millisecond, and how often. A line of a stack trace is dated by the entry that it belongs
    to. Over at once: a line stays written. Lines within a minute of each other are one incident, which says how many
    there are and how many of them differ by more than numbers.

    A pattern with a lookaround, a backreference or an inline flag other than (?i), (?s) and (?m) is slow: every line is
    then looked at by itself. Backslashes are best written in a TOML literal: pattern = 'broker (?P<broker>\d+) halts'.

    Not: files that no [logs.*] names, lines written before they were first followed.
    """

    title = "{rule} in {log}: {line}"
    observes = (LogLine,)

    pattern: Annotated[str, AfterValidator(_regex)]
    """A regular expression as Python's re knows it, found anywhere in a line."""

    components: NameFilter = NameFilter()
    """Whose lines: what writes the log (kafka, zookeeper, consumer, librdkafka, streams, flink; "" where unknown)."""

    logs: NameFilter = NameFilter()
    """Which files, by their paths."""

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        """Say which rule asked for the line and when it was written: times in a line are of any zone."""
        return f"{finding.rule}: {finding.detail.rstrip('.')}, {time_range(finding, day)}"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each line that matched, by what it names."""
        if (
            not isinstance(observation, LogLine)
            or observation.pattern != self.pattern
            or not self.components.match(observation.component)
            or not self.logs.match(observation.log)
        ):
            return ()
        one = observation
        return (Scope(one.cluster, None, one.topic, one.partition, one.broker, job=one.job, log=one.log),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each line; one for those of the same millisecond."""
        key = (
            scope.cluster,
            scope.log,
            self.pattern,
            scope.topic,
            scope.partition,
            scope.broker,
            scope.job,
        )
        lines = [one for one in facts.history(LogLine, *key) if self.components.match(one.component)]
        for _, moment in groupby(lines, attrgetter("at")):
            line, *others = moment
            where = f"{line.log} on {line.host}" if line.host else line.log
            values = ", ".join(f"{name}={value}" for name, value in line.values.items())
            named = f" ({values})" if values else ""
            told = counted(one.text for one in (line, *others))
            also = "".join(f"; and {number} x {text}" for text, number in list(told.items())[1:])
            detail = f"{where}{named}: {line.text}{also}"
            yield self.make_finding(scope, line, detail=detail, current={**line.values, "lines": told})
