"""offset_reset: a consumer's log says that its offset was out of range and that it resets it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from agent.engine.facts import LATENESS_MS, Facts
from agent.engine.rule import Advice, EventRule, Scope, TopicRule
from agent.model.findings import Finding
from agent.model.observations import LogLine, Observation, clock, whole_number


class OffsetReset(TopicRule, EventRule):
    """A log line of a Java consumer (Flink's and Kafka Streams' too) or of librdkafka: the offset that it read at is
    not in the partition's log, or the log was truncated below it, and it resets.

    What a consumer that commits nothing tells of its reset is only here. `current` has where to, where a line says so.
    Not: a consumer that finds no committed offset when it starts, a position that is set when partitions are assigned.
    Over at once; each line is a finding.
    """

    title = "a consumer was reset on {topic}[{partition}]"
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(prevent="auto.offset.reset=none for what reads {topic}, if stopping is better."),
    }
    observes = (LogLine,)

    LOST: ClassVar[dict[str, str]] = {
        "fetch_offset_out_of_range": "is out of range",
        "truncation_detected": "is beyond where the log was truncated",
        "offset_reset": "was reset",
    }
    """What each pattern, by its name in agent/sources/logs/patterns.py, says of the offset that it names."""

    TO: ClassVar[str] = "offset_reset"
    """The pattern that says where to; of Java's consumer it names no other offset, of librdkafka's both."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each line that names the offset lost, and where to."""
        if not isinstance(observation, LogLine) or observation.pattern not in self.LOST or observation.topic is None:
            return ()
        one = observation
        return (Scope(one.cluster, None, one.topic, one.partition, one.broker, job=one.job, log=one.log),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each line of the partition in that log."""
        if not self.topics.match(scope.topic or ""):
            return
        for pattern, what in self.LOST.items():
            for one in facts.history(LogLine, *_line_key(scope, pattern)):
                offset = whole_number(one.values.get("offset"))
                if offset is None:
                    continue
                to = one.values.get("to") or self._to(scope, one, facts)
                to_offset = whole_number(to)
                where = f"{scope.topic}[{scope.partition}]"
                on = f" on {one.host}" if one.host else ""
                at = f", and the consumer goes to {to}" if to else ""
                yield self.make_finding(
                    scope,
                    one,
                    detail=f"{one.component}{on} logs that offset {offset:,} of {where} {what}{at} "
                    f"({scope.log}, {clock(one.at)} UTC)",
                    subject={"component": one.component, **({"host": one.host} if one.host else {})},
                    previous={"offset": offset},
                    current={} if to is None else {"to": to} if to_offset is None else {"offset": to_offset},
                )

    def _to(self, scope: Scope, line: LogLine, facts: Facts) -> str | None:
        """Where the next line about the same partition says that it went."""
        later = facts.history(LogLine, *_line_key(scope, self.TO)).between(line.at - 1, line.at + LATENESS_MS)
        return next((one.values["to"] for one in later if "offset" not in one.values and "to" in one.values), None)


def _line_key(scope: Scope, pattern: str) -> tuple[str | int | None, ...]:
    return (scope.cluster, scope.log, pattern, scope.topic, scope.partition, scope.broker, scope.job)
