"""offset_reset: a consumer's log says that its offset was out of range and that it resets it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS
from agent.engine.rule import Advice, EventRule, Scope, TopicRule
from agent.model.findings import Finding
from agent.model.observations.base import Observation
from agent.model.observations.logs import LogLine, whole_number


class OffsetReset(TopicRule, EventRule):
    """A consumer's log line says that its offset is out of range, or beyond a truncated log, and that it is reset.

    Lines of the Java consumer (also in Flink and Kafka Streams) and of librdkafka. The reset of a consumer
    that commits nothing is visible only here. `current` has the new offset if a line names it.
    Not: a consumer that finds no committed offset when it starts, a position that is set when partitions are assigned.
    Over at once; each line is a finding.
    """

    title = "a consumer was reset on {topic}[{partition}]"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(prevent="Set auto.offset.reset=none for consumers of {topic} that should rather stop."),
    }
    observes = (LogLine,)

    PATTERNS: ClassVar[Mapping[str, str]] = {
        "fetch_offset_out_of_range": "is out of range",
        "truncation_detected": "is beyond the end of the truncated log",
        "offset_reset": "",
    }
    """What each pattern, by its name in agent/sources/logs/patterns.py, says about the offset that it names."""

    TARGET_PATTERN: ClassVar[str] = "offset_reset"
    """The pattern that names the new offset; the Java consumer's line names no old one, librdkafka's names both."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        return finding.detail.removesuffix(f" ({finding.subject.get('log')})")

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        line = observation
        if not isinstance(line, LogLine) or line.pattern not in self.PATTERNS or line.topic is None:
            return ()
        return (Scope(line.cluster, None, line.topic, line.partition, line.broker, job=line.job, log=line.log),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        if not self.topics.match(scope.topic or ""):
            return
        for pattern, problem in self.PATTERNS.items():
            for line in facts.history(LogLine, *_line_key(scope, pattern)):
                offset = whole_number(line.values.get("offset"))
                if offset is None:
                    continue
                target = line.values.get("to") or self._find_target(scope, line, facts)
                target_offset = whole_number(target)
                clauses = [*([problem] if problem else []), *([f"reset to {target}"] if target else [])]
                host = f" on {line.host}" if line.host else ""
                what = f"offset {offset:,} of {scope.topic}[{scope.partition}] {', '.join(clauses) or 'was reset'}"
                yield self.make_finding(
                    scope,
                    line,
                    detail=f"{line.component}{host}: {what} ({scope.log})",
                    subject={"component": line.component, **({"host": line.host} if line.host else {})},
                    previous={"offset": offset},
                    current=(
                        {} if target is None else {"to": target} if target_offset is None else {"offset": target_offset}
                    ),
                )

    def _find_target(self, scope: Scope, line: LogLine, facts: Facts) -> str | None:
        """Return where the consumer went, by the next line about the same partition; None if no line says so."""
        later = facts.history(LogLine, *_line_key(scope, self.TARGET_PATTERN)).between(
            line.at - 1, line.at + LATENESS_MS
        )
        targets = (found for found in later if "offset" not in found.values and "to" in found.values)
        return next((found.values["to"] for found in targets if _may_have_same_group(found, line)), None)


def _may_have_same_group(line: LogLine, other: LogLine) -> bool:
    """Return whether the lines may be of one consumer: newer clients write the group."""
    return len({line.values.get("group"), other.values.get("group")} - {None}) <= 1


def _line_key(scope: Scope, pattern: str) -> tuple[str | int | None, ...]:
    return (scope.cluster, scope.log, pattern, scope.topic, scope.partition, scope.broker, scope.job)
