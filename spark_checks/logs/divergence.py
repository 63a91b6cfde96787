"""Where two replicas of a partition differ: offset ranges from unmatched batches, and the finding about them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from agent.kafka_log.segments import LocatedFault
from agent.model.findings import Finding, Records, Severity
from agent.model.text import count
from spark_checks.logs.replicas import WriteTimes

LISTED_RANGES = 100
"""Ranges that a finding lists for each side; its numbers of records cover all of them."""

NAMED_FAULTS = 3
"""Places with decreasing offsets that a finding's text names."""

OffsetRange: TypeAlias = tuple[int, int]
"""First and last offset, both included."""


class ReplicaPair(NamedTuple):
    """Two replicas of a partition and the offsets at which they must agree: from lower to below upper."""

    topic: str
    partition: int
    a: int
    b: int
    lower: int
    upper: int


class UnmatchedBatch(NamedTuple):
    """A batch on one of two replicas without an exact twin on the other.

    first, last: offsets. timestamp: its largest, ms; -1 if unknown. other_epoch: the other replica holds the same bytes
    under another leader epoch.
    """

    broker: int
    first: int
    last: int
    records: int
    timestamp: int
    file: str
    position: int
    other_epoch: bool = False


class Side(NamedTuple):
    """What only one replica holds. ranges: in order, not touching; start: the first such batch.

    records: how many; all are lost if the other replica leads and this one has to follow it.
    """

    ranges: tuple[OffsetRange, ...]
    records: int
    start: UnmatchedBatch


class Divergence(NamedTuple):
    """How two replicas differ. ranges: all differing offsets, in order, not touching, never empty.

    sides: by broker; none for a replica that only lacks records. only_epochs: the bytes are the same.
    """

    ranges: tuple[OffsetRange, ...]
    sides: Mapping[int, Side]
    only_epochs: bool

    @property
    def first(self) -> int:
        """Return the first diverging offset."""
        return self.ranges[0][0]

    def lost(self, broker: int) -> int:
        """Return how many records this replica loses if the other one leads."""
        return self.sides[broker].records if broker in self.sides else 0


def resolve(batches: Iterable[UnmatchedBatch], lower: int, upper: int) -> Divergence | None:
    """Return what differs at offsets from `lower` to below `upper`, or None. Batches come by first offset.

    A batch across a bound counts with the part inside; if its offsets have gaps (format 2 after compaction), it counts
    as many records as there can be.
    """
    ranges: list[OffsetRange] = []
    own_ranges: dict[int, list[OffsetRange]] = {}
    records: dict[int, int] = {}
    starts: dict[int, UnmatchedBatch] = {}
    only_epochs = True
    for batch in batches:
        first, last = max(batch.first, lower), min(batch.last, upper - 1)
        if first > last:
            continue
        _extend(ranges, first, last)
        _extend(own_ranges.setdefault(batch.broker, []), first, last)
        records[batch.broker] = records.get(batch.broker, 0) + min(batch.records, last - first + 1)
        starts.setdefault(batch.broker, batch)
        only_epochs = only_epochs and batch.other_epoch
    if not ranges:
        return None
    sides = {broker: Side(tuple(own_ranges[broker]), records[broker], starts[broker]) for broker in sorted(starts)}
    return Divergence(tuple(ranges), sides, only_epochs)


def _extend(ranges: list[OffsetRange], first: int, last: int) -> None:
    """Add offsets to ranges that begin no later; touching ranges become one."""
    if ranges and first <= ranges[-1][1] + 1:
        ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
    else:
        ranges.append((first, last))


def make_finding(pair: ReplicaPair, divergence: Divergence, written: WriteTimes, cluster: str) -> Finding:
    """Return the finding about a divergence, dated by when the first differing records of each side were written."""
    starts = [side.start for side in divergence.sides.values()]
    at = max(written.date(start.broker, start.file, start.timestamp) for start in starts)
    if divergence.only_epochs:
        label, severity = "epochs_differ", Severity.WARNING
    else:
        label, severity = "records_differ" if len(divergence.sides) == 2 else "records_missing", Severity.CRITICAL
    lost = 0 if divergence.only_epochs else max(divergence.lost(pair.a), divergence.lost(pair.b))
    return Finding(
        rule="replica_divergence",
        kind="replica_divergence",
        severity=severity,
        at=at,
        known_at=at,
        subject={
            "cluster": cluster,
            "brokers": [pair.a, pair.b],
            "topic": pair.topic,
            "partition": pair.partition,
        },
        labels=(label,),
        previous=_side_fields(pair.a, divergence),
        current=_side_fields(pair.b, divergence),
        records=Records(lost=lost),
        detail=_describe(pair, divergence),
    )


def add_faults(findings: Sequence[Finding], faults: Sequence[tuple[int, LocatedFault]]) -> list[Finding]:
    """Return the findings with the decreasing offsets in their own ranges. faults: as of log_segments, with broker."""
    return [_add_faults(finding, faults) for finding in findings]


def _add_faults(finding: Finding, faults: Sequence[tuple[int, LocatedFault]]) -> Finding:
    first, last = differing_offsets(finding)
    sentences = [
        f" Broker {broker}'s own log is faulty there: offset {int(found.fault.current['offset']):,} comes after"
        f" {int(found.fault.previous['offset']):,} ({found.file}, byte {found.fault.position:,})."
        for broker, found in faults
        if broker in finding.subject["brokers"]
        and (found.topic, found.partition) == (finding.subject["topic"], finding.subject["partition"])
        and int(found.fault.current["offset"]) <= last
        and int(found.fault.previous["offset"]) >= first
    ]
    hidden = len(sentences) - NAMED_FAULTS
    more = [f" Offsets decrease at {count(hidden, 'more place')}."] if hidden > 0 else []
    return msgspec.structs.replace(finding, detail="".join([finding.detail, *sentences[:NAMED_FAULTS], *more]))


def differing_offsets(finding: Finding) -> tuple[int, int]:
    """Return the first and the last offset that differ."""
    sides = [side for side in (finding.previous, finding.current) if side["ranges"]]
    return min(side["offset"] for side in sides), max(side["last_offset"] for side in sides)


def _side_fields(broker: int, divergence: Divergence) -> dict[str, Any]:
    """Return what only this replica holds; offset: where that begins, None if nothing."""
    side = divergence.sides.get(broker)
    if side is None:
        return {"broker": broker, "offset": None, "last_offset": None, "records": 0, "ranges": []}
    return {
        "broker": broker,
        "offset": side.ranges[0][0],
        "last_offset": side.ranges[-1][1],
        "records": side.records,
        "ranges": [list(offsets) for offsets in side.ranges[:LISTED_RANGES]],
        "file": side.start.file,
        "position": side.start.position,
    }


def _describe(pair: ReplicaPair, divergence: Divergence) -> str:
    where = (
        f"{pair.topic}[{pair.partition}] differs between brokers {pair.a} and {pair.b} from offset"
        f" {divergence.first:,} on ({_format(divergence.ranges)}; lower high watermark {pair.upper:,})"
    )
    if divergence.only_epochs:
        return f"{where}: the same bytes, written under different leader epochs."
    return f"{where}: {_describe_loss(pair.a, pair.b, divergence)}; {_describe_loss(pair.b, pair.a, divergence)}."


def _describe_loss(leader: int, follower: int, divergence: Divergence) -> str:
    side = divergence.sides.get(follower)
    if side is None:
        return f"if {leader} leads, {follower} loses nothing"
    # A log with decreasing offsets has more records than offsets.
    repeated = side.records - sum(last - first + 1 for first, last in side.ranges)
    twice = f", {repeated:,} of them at offsets that it holds more than once" if repeated > 0 else ""
    return f"if {leader} leads, {follower} loses {count(side.records, 'record')} ({_format(side.ranges)}{twice})"


def _format(ranges: Sequence[OffsetRange]) -> str:
    shown = ", ".join(f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in ranges[:3])
    return f"offsets {shown}" + (f" and {count(len(ranges) - 3, 'more range')}" if len(ranges) > 3 else "")
