"""The facts that sources emit and everything else reads: immutable, typed, timestamped. No I/O lives here.

One module per system that the facts are about. Times are integers: milliseconds since the epoch, UTC. In JSON lines
they are RFC 3339 strings in UTC with milliseconds.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, get_args

import msgspec

from agent.model.observations.base import Availability, Available, Observation, Subject, Tick, Unavailable
from agent.model.observations.checks import CheckFinding, CheckRun
from agent.model.observations.flink import (
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Position,
)
from agent.model.observations.kafka import (
    BrokerRegistration,
    Commit,
    Controller,
    GroupState,
    LogOffsets,
    Member,
    PartitionState,
)
from agent.model.observations.logs import LogFile, LogLine, whole_number
from agent.model.observations.streams import ChangelogDecreases, Fall, StreamsApplication, TaskRestore

__all__ = [
    "KINDS",
    "AnyObservation",
    "Availability",
    "Available",
    "BrokerRegistration",
    "ChangelogDecreases",
    "CheckFinding",
    "CheckRun",
    "Checkpoints",
    "Commit",
    "Controller",
    "Fall",
    "FlinkJob",
    "GroupState",
    "JobGraph",
    "JobGraphFile",
    "JobListing",
    "JobManagerLeader",
    "LogFile",
    "LogLine",
    "LogOffsets",
    "Member",
    "Observation",
    "PartitionState",
    "Position",
    "StreamsApplication",
    "Subject",
    "TaskRestore",
    "Tick",
    "Unavailable",
    "clock",
    "from_fields",
    "from_json",
    "is_time",
    "millis",
    "rfc3339",
    "to_fields",
    "to_json",
    "whole_number",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

AnyObservation: TypeAlias = (
    Commit | LogOffsets | PartitionState | BrokerRegistration | Controller | GroupState
    | FlinkJob | JobListing | Checkpoints | JobManagerLeader | JobGraph | JobGraphFile | Position
    | StreamsApplication | TaskRestore | ChangelogDecreases | LogLine | LogFile
    | CheckFinding | CheckRun | Unavailable | Available | Tick
)  # fmt: skip

KINDS: Mapping[str, type[Observation]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyObservation)}
"""Every kind of observation by its name in JSON lines and in the journal."""

for _tag, _kind in KINDS.items():
    _kind.subject_kind = _kind.subject_kind or _tag


def is_time(field: str) -> bool:
    """Whether a field of that name holds a time."""
    return field in ("at", "since") or field.endswith("_at")


def rfc3339(at: int) -> str:
    """Milliseconds since the epoch as RFC 3339 in UTC with milliseconds."""
    return (_EPOCH + timedelta(milliseconds=at)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at % 1000:03d}Z"


def millis(text: str) -> int:
    """RFC 3339 text as milliseconds since the epoch. Raises ValueError where it is no time or names no zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        msg = f"{text!r} names no time zone; write UTC as a trailing Z"
        raise ValueError(msg)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def from_fields(fields: Mapping[str, Any]) -> AnyObservation:
    """An observation from the fields of a JSON line or a TOML table. Raises ValueError, a sentence naming the field."""
    plain = dict(fields)
    for name, value in fields.items():
        if not is_time(name):
            continue
        if isinstance(value, str):
            try:
                plain[name] = millis(value)
            except (ValueError, OverflowError) as error:
                msg = f"`{name}`: {error}"
                raise ValueError(msg) from error
        elif isinstance(value, datetime):
            plain[name] = (value - _EPOCH) // timedelta(milliseconds=1)
        elif value is not None:
            msg = f"`{name}`: expected an RFC 3339 time in UTC, got {value!r}"
            raise ValueError(msg)
    observation: AnyObservation = msgspec.convert(plain, AnyObservation, strict=True)
    return observation


def from_json(line: str | bytes) -> AnyObservation:
    """An observation from one JSON line. Raises ValueError (msgspec's errors are ValueErrors) with what is wrong."""
    fields = msgspec.json.decode(line)
    if not isinstance(fields, dict):
        msg = f"expected an object, got {type(fields).__name__}"
        raise ValueError(msg)
    return from_fields(fields)


def to_fields(observation: Observation) -> dict[str, Any]:
    """The observation as the fields of a JSON line: `kind` first, times as RFC 3339; `seen_at` and `since` only
    where set.
    """
    fields: dict[str, Any] = msgspec.to_builtins(observation)
    for name in [name for name in fields if is_time(name)]:
        if fields[name] is not None:
            fields[name] = rfc3339(fields[name])
        elif name in ("seen_at", "since"):
            del fields[name]
    return fields


def to_json(observation: Observation) -> str:
    """The observation as one JSON line."""
    return msgspec.json.encode(to_fields(observation)).decode()


def clock(at: int) -> str:
    """The time of day in UTC to a tenth of a second, as people read it: 23:25:13.9."""
    return (_EPOCH + timedelta(milliseconds=at)).strftime("%H:%M:%S.") + str(at % 1000 // 100)
