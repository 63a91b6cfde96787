"""What Flink's metrics tell of where subtasks read: the names of metrics, and which readings may be believed. Pure.

Metric ids of a vertex are `<subtask>.<operator>.<metric>`, where each space, dot, colon and comma in a name has become
an underscore (org.apache.flink.runtime.metrics.dump.MetricQueryService).
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from agent.sources.flink.responses import Metric

_NAME = re.compile(
    r"(?P<subtask>\d+)\.(?P<operator>.+)\."
    r"(?:KafkaSourceReader\.topic\.(?P<topic>[^.]+)\.partition\.(?P<partition>\d+)\.(?P<kind>current|committed)Offset"
    r"|KafkaConsumer\.topic\.(?P<topic_1_5>[^.]+)\.partition\.(?P<partition_1_5>\d+)\.(?P<kind_1_5>current|committed)"
    r"Offsets"
    r"|KafkaConsumer\.(?P<kind_1_4>current|committed)-offsets\.(?P<topic_1_4>[^.]+)-(?P<partition_1_4>\d+))"
)
"""KafkaSource; the legacy FlinkKafkaConsumer from 1.5 on; and in 1.4, whose names the later ones keep beside theirs."""

_REPLACED = str.maketrans(" .:,", "____")
_LONGEST_OPERATOR = 80
"""Longer names of operators are cut (AbstractMetricGroup, METRICS_OPERATOR_NAME_MAX_LENGTH)."""

_RENEWED_MS = 10_000
"""How old a metric must be for a question to have it renewed (metrics.fetcher.update-interval; fixed in 1.4). That
question still gets the old one.
"""


class Place(NamedTuple):
    """A partition as one subtask of one operator reads it; names are those of metrics. vertex: its id."""

    vertex: str
    operator: str
    subtask: int
    topic: str
    partition: int


class Offset(NamedTuple):
    """current: of the last record read. committed: the next to be read, as Kafka was told; None where it was not."""

    current: int
    committed: int | None


class Reading(NamedTuple):
    """A reading that may be believed. since: ms, None where there was none before."""

    place: Place
    offset: Offset
    since: int | None


def filtered(name: str) -> str:
    """A name as it stands in metric ids."""
    return name.translate(_REPLACED)


def is_offset(metric: str) -> bool:
    """Whether a metric's id is that of an offset."""
    return _NAME.fullmatch(metric) is not None


def offsets(vertex: str, metrics: Iterable[Metric]) -> dict[Place, Offset]:
    """The offsets in a vertex's answer.

    Partitions of which no record has been read yet are left out: they have -1, or what the legacy consumer has for "the
    group's offset" and the like, far below zero.
    """
    told: dict[str, dict[Place, int]] = {"current": {}, "committed": {}}
    for metric in metrics:
        match = _NAME.fullmatch(metric.id)
        if match is None or metric.value is None or not metric.value.isdigit():
            continue
        kind, topic, partition = (
            match[name] or match[f"{name}_1_5"] or match[f"{name}_1_4"] for name in ("kind", "topic", "partition")
        )
        told[kind][Place(vertex, match["operator"], int(match["subtask"]), topic, int(partition))] = int(metric.value)
    return {place: Offset(current, told["committed"].get(place)) for place, current in told["current"].items()}


def operator_named(vertex: str, operator: str) -> str:
    """The operator's own name, found in that of its vertex, which lists what it chains; else as metrics have it."""
    chained = re.split(r" -> |, ?|[()]", re.sub(r"-&gt;", "->", vertex))
    return next((one for one in chained if filtered(one)[:_LONGEST_OPERATOR] == operator), operator)


def topic_named(metric_topic: str, topics: Iterable[str]) -> str | None:
    """The topic of a metric's name among those known, or that name where none fits; None where several do: their
    metrics overwrite each other in Flink.
    """
    fitting = [one for one in topics if filtered(one) == metric_topic]
    if not fitting:
        return metric_topic
    return fitting[0] if len(fitting) == 1 else None


class Readings:
    """Which readings of a job's metrics may be believed: of an answer nobody knows how old it is.

    JobManagers renew metrics only when asked, and only now and then: after a while without a question the answer is as
    old as the last one. So of a new endpoint, a new execution and after a quiet time the first reading is none. A
    later one is where it differs from the first, for then it was made since, or after the time that Flink takes to
    renew.

    One partition is read by one subtask of one operator. What others say of it has been left by an earlier execution,
    or is another operator's, which has to do without.
    """

    def __init__(self, interval: int) -> None:
        """interval: how often readings are taken, ms."""
        self._renewed = _RENEWED_MS + 2 * interval
        self._execution: Hashable = None
        self._first_at = self._last_at = 0
        self._seen: dict[Place, tuple[Offset, int | None]] = {}
        self._changed: dict[Place, int] = {}
        self._reader: dict[tuple[str, int], tuple[str, str]] = {}
        self._told: dict[tuple[str, int], tuple[Offset, int]] = {}

    def take(self, execution: Hashable, at: int, readings: Mapping[Place, Offset]) -> Sequence[Reading]:
        """Those to be believed, one of each partition, in its order.

        execution: who was asked, and of which execution of the job and which attempts of its subtasks.
        """
        before, self._last_at = self._last_at, at
        if execution != self._execution or at - before > self._renewed:
            self._execution, self._first_at, self._changed = execution, at, {}
            self._seen = {place: (offset, None) for place, offset in readings.items()}
            return ()
        for place, offset in readings.items():
            if place not in self._seen or self._seen[place][0] != offset:
                self._changed[place] = at
                self._seen[place] = (offset, before)
        old_enough = at - self._first_at >= self._renewed
        partitions: dict[tuple[str, int], list[Place]] = defaultdict(list)
        for place in readings:
            partitions[place.topic, place.partition].append(place)
        believed = []
        for partition in sorted(partitions):
            reader = self._reader_of(partition, partitions[partition])
            if reader is not None and (old_enough or reader in self._changed):
                offset, read_after = self._seen[reader]
                believed.append(Reading(reader, offset, self._since(partition, offset, read_after or self._first_at)))
        return believed

    def _reader_of(self, partition: tuple[str, int], places: list[Place]) -> Place | None:
        """Who reads the partition; None while nobody can tell."""
        operators = sorted({place[:2] for place in places})
        if self._reader.get(partition) not in operators:
            self._reader[partition] = operators[0]
        reading = [place for place in places if place[:2] == self._reader[partition]]
        if len(reading) == 1:
            return reading[0]
        moving = [place for place in reading if place in self._changed]
        return max(moving, key=lambda place: self._changed[place]) if moving else None

    def _since(self, partition: tuple[str, int], offset: Offset, read_after: int) -> int | None:
        """From when on the offset may have changed to this: what was told before was read after that moment."""
        told = self._told.get(partition)
        if told is not None and told[0] == offset:
            return None
        self._told[partition] = (offset, read_after)
        return told[1] if told is not None else None
