"""log_pattern: a line of a log file matches a regular expression."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Annotated

from pydantic import AfterValidator

from agent.engine.facts import Facts
from agent.engine.rule import EventRule, Scope
from agent.model.findings import Finding
from agent.model.log_text import compile_pattern, count_lines, first_line, shorten_line
from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.logs import LogLine
from agent.model.text import time_range


def _regex(value: str) -> str:
    try:
        compiled = compile_pattern(value)
    except ValueError as error:
        msg = f"not a valid regular expression of RE2, which has no lookaround and no backreference: {error}"
        raise ValueError(msg) from error
    if compiled.search(""):
        msg = "the regular expression matches the empty line, and so every line"
        raise ValueError(msg)
    return value


class LogPattern(EventRule):
    r"""A line of a file under [logs.*] matches `pattern`.

    Its named groups `topic`, `partition`, `broker` and `job` are the finding's keys; all named groups are its values,
    shown before the line, and `lines` counts the lines of that millisecond. A line of a stack trace has the time of the
    log entry it belongs to. Over at once. Lines within a minute of each other are one incident, which says how many
    there are and how many of them differ in more than numbers.

    Patterns are matched by RE2, whose time is linear in a line's length whatever the pattern: it has no lookaround and
    no backreference, and its \w, \d and \b know ASCII only. Write a pattern as a TOML literal string:
    pattern = 'broker (?P<broker>\d+) halts'.

    Not: files that no [logs.*] names, lines written before their file was first followed.
    """

    title = "{rule} in {log}: {line}"
    observes = (LogLine,)

    pattern: Annotated[str, AfterValidator(_regex)]
    """A regular expression in the syntax of RE2, searched for anywhere in a line."""

    components: NameFilter = NameFilter()
    """What writes the log: kafka, zookeeper, consumer, librdkafka, streams, flink; "" if unknown."""

    logs: NameFilter = NameFilter()
    """Which files, by their paths."""

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        # Names the rule, and the time even if the line has one: that may be in any time zone.
        return f"{finding.rule}: {finding.detail.rstrip('.')}, {time_range(finding, day)}"

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        return shorten_line(f"{finding.rule}: {first_line(finding)}", 100)

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        line = observation
        if not isinstance(line, LogLine) or line.pattern != self.pattern:
            return ()
        if not self.components.match(line.component) or not self.logs.match(line.log):
            return ()
        return (Scope(line.cluster, None, line.topic, line.partition, line.broker, job=line.job, log=line.log),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield a finding per millisecond with lines."""
        cluster, log, topic, partition = scope.cluster, scope.log, scope.topic, scope.partition
        key = (cluster, log, self.pattern, topic, partition, scope.broker, scope.job)
        lines = [line for line in facts.history(LogLine, *key) if self.components.match(line.component)]
        for _, moment in groupby(lines, attrgetter("at")):
            first, *others = moment
            where = f"{first.log} on {first.host}" if first.host else first.log
            values = ", ".join(f"{name}={value}" for name, value in first.values.items())
            counts = count_lines(line.text for line in (first, *others))
            also = "".join(f"; and {number} x {text}" for text, number in list(counts.items())[1:])
            detail = f"{where}{f' ({values})' if values else ''}: {first.text}{also}"
            yield self.make_finding(scope, first, detail=detail, current={**first.values, "lines": counts})
