"""A divergence as a finding, in numbers and in words: what differs, who would lose what, which log is faulty by itself.

Pure; what differs is found by replica_divergence.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from agent.kafka_log.segments import LocatedFault
from agent.model.findings import Finding, Records, Severity
from agent.model.text import count
from spark_checks.logs.ranges import Divergence, Run, Side
from spark_checks.logs.replicas import Written

SHOWN = 100
"""Ranges that a finding lists for each side; the numbers of records are of all."""
FALLS = 3
"""Places where offsets go back that a finding's sentence names."""


class Pair(NamedTuple):
    """Two replicas of a partition and the offsets at which they must agree: from lower to below upper."""

    topic: str
    partition: int
    a: int
    b: int
    lower: int
    upper: int


def finding(pair: Pair, found: Divergence, written: Written, cluster: str) -> Finding:
    """A divergence as a finding. written: when files were, for records that carry no time."""
    at = found.timestamp
    if at < 0:
        at = max(written.of(broker, side.start.file) for broker, side in found.sides.items())
    if found.only_epochs:
        label, severity = "epochs_differ", Severity.WARNING
    else:
        label, severity = "records_differ" if len(found.sides) == 2 else "records_missing", Severity.CRITICAL
    lost = 0 if found.only_epochs else max(found.lost(pair.a), found.lost(pair.b))
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
        previous=_side(pair.a, found),
        current=_side(pair.b, found),
        records=Records(lost=lost),
        detail=_detail(pair, found),
    )


def with_faults(findings: Sequence[Finding], falls: Sequence[tuple[int, LocatedFault]]) -> list[Finding]:
    """The findings, where a log in itself is faulty within what differs with a sentence that says so. falls: as found
    by log_segments, with the broker.
    """
    made = []
    for finding in findings:
        first, last = reach(finding)
        sentences = [
            f" Broker {broker}'s own log is faulty there: offset {int(fall.fault.current['offset']):,} comes after"
            f" {int(fall.fault.previous['offset']):,} ({fall.file}, byte {fall.fault.position:,})."
            for broker, fall in falls
            if broker in finding.subject["brokers"]
            and (fall.topic, fall.partition) == (finding.subject["topic"], finding.subject["partition"])
            and int(fall.fault.current["offset"]) <= last
            and int(fall.fault.previous["offset"]) >= first
        ]
        more = [f" So it is at {count(len(sentences) - FALLS, 'more place')}."] if len(sentences) > FALLS else []
        made.append(msgspec.structs.replace(finding, detail="".join([finding.detail, *sentences[:FALLS], *more])))
    return made


def reach(finding: Finding) -> tuple[int, int]:
    """The first and the last offset that differ."""
    sides = [one for one in (finding.previous, finding.current) if one["ranges"]]
    return min(one["offset"] for one in sides), max(one["last_offset"] for one in sides)


def _side(broker: int, found: Divergence) -> dict[str, Any]:
    """What this replica alone holds; offset: where that begins, None where it holds nothing of its own."""
    side = found.sides.get(broker)
    if side is None:
        return {"broker": broker, "offset": None, "last_offset": None, "records": 0, "ranges": []}
    return {
        "broker": broker,
        "offset": side.runs[0][0],
        "last_offset": side.runs[-1][1],
        "records": side.records,
        "ranges": [list(one) for one in side.runs[:SHOWN]],
        "file": side.start.file,
        "position": side.start.position,
    }


def _detail(pair: Pair, found: Divergence) -> str:
    where = (
        f"{pair.topic}[{pair.partition}] differs between brokers {pair.a} and {pair.b} from offset {found.first:,} on"
        f" ({_runs(found.ranges)}; both replicas had committed up to {pair.upper:,})"
    )
    if found.only_epochs:
        return f"{where}: the same bytes, written under other leader epochs."
    return f"{where}: {_loss(pair.a, pair.b, found)}; {_loss(pair.b, pair.a, found)}."


def _loss(leader: int, follower: int, found: Divergence) -> str:
    side = found.sides.get(follower)
    lost = "nothing" if side is None else f"{count(side.records, 'record')} ({_runs(side.runs)}{_twice(side)})"
    return f"if {leader} leads, {follower} loses {lost}"


def _twice(side: Side) -> str:
    """Why there are more records than offsets: a log in which offsets went back holds some more than once."""
    more = side.records - sum(last - first + 1 for first, last in side.runs)
    return f", {more:,} of them for offsets that it holds more than once" if more > 0 else ""


def _runs(runs: Sequence[Run]) -> str:
    shown = ", ".join(f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in runs[:3])
    return f"offsets {shown}" + (f" and {count(len(runs) - 3, 'more range')}" if len(runs) > 3 else "")
