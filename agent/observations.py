"""The facts that sources emit and everything else reads: immutable, typed, timestamped. No I/O lives here.

Times are integers: milliseconds since the epoch, UTC. In JSON lines they are RFC 3339 strings in UTC with milliseconds.
"""

from collections.abc import Hashable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

Subject: TypeAlias = tuple[Hashable, ...]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = ("at", "seen_at", "since", "started_at")


class Observation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", gc=False):
    """One fact about one subject.

    at: when the fact held, as far as its source can tell. seen_at: when we saw it (None: at `at`).
    since: the last sighting of the old value where the fact was polled, so that the change happened in [since, at];
    None where `at` is exact.
    """

    at: int
    seen_at: int | None = None
    since: int | None = None

    @property
    def subject(self) -> Subject:
        """What this fact is about. Facts of one subject come in order; facts of two subjects may not."""
        raise NotImplementedError

    @property
    def start(self) -> int:
        """The earliest moment at which the change to this fact can have happened."""
        return self.at if self.since is None else min(self.since, self.at)

    @property
    def seen(self) -> int:
        """When the fact was seen, ms; never before it held."""
        return self.at if self.seen_at is None else max(self.seen_at, self.at)


class Commit(Observation, frozen=True, kw_only=True, tag="commit", gc=False):
    """A committed offset: the next record the group would read. offset None: Kafka has forgotten it (expired,
    deleted).
    """

    cluster: str
    group: str
    topic: str
    partition: int
    offset: int | None
    leader_epoch: int | None = None

    @property
    def subject(self) -> Subject:
        return ("commit", self.cluster, self.group, self.topic, self.partition)


class LogOffsets(Observation, frozen=True, kw_only=True, tag="log_offsets", gc=False):
    """A partition's log start offset and its end as consumers see it (the high watermark; the next offset to be
    written).
    """

    cluster: str
    topic: str
    partition: int
    log_start: int
    log_end: int

    @property
    def subject(self) -> Subject:
        return ("log_offsets", self.cluster, self.topic, self.partition)


class PartitionState(Observation, frozen=True, kw_only=True, tag="partition_state", gc=False):
    """Who leads a partition. leader None (or -1): nobody. replicas []: the partition was deleted.

    topic_id: the topic's id (KIP-516), before Kafka 2.8 "czxid:N" of its znode; None where unknown.
    leader_epoch: None where the source cannot tell it (AdminClient).
    """

    cluster: str
    topic: str
    partition: int
    leader: int | None
    leader_epoch: int | None = None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    topic_id: str | None = None

    @property
    def subject(self) -> Subject:
        return ("partition_state", self.cluster, self.topic, self.partition)


class BrokerRegistration(Observation, frozen=True, kw_only=True, tag="broker_registration", gc=False):
    """A broker's registration. Both null: it is gone.

    session: the znode's ephemeralOwner as 0x hex. epoch: the znode's czxid (Kafka's broker epoch).
    Under KRaft neither can be read: session None and epoch -1 say that the broker is in the cluster's metadata.
    """

    cluster: str
    broker: int
    session: str | None
    epoch: int | None

    @property
    def subject(self) -> Subject:
        return ("broker_registration", self.cluster, self.broker)

    @property
    def gone(self) -> bool:
        """Whether the broker is not registered."""
        return self.session is None and self.epoch is None


class Controller(Observation, frozen=True, kw_only=True, tag="controller", gc=False):
    """Which broker is the cluster's controller (None: nobody), and the controller epoch where the source can tell
    it.
    """

    cluster: str
    broker: int | None
    epoch: int | None = None

    @property
    def subject(self) -> Subject:
        return ("controller", self.cluster)


class Member(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A group's member, the host it runs on and the (topic, partition) pairs assigned to it."""

    id: str
    host: str = ""
    partitions: tuple[tuple[str, int], ...] = ()
    client_id: str | None = None


class GroupState(Observation, frozen=True, kw_only=True, tag="group_state", gc=False):
    """A consumer group's state as Kafka names it (Stable, Empty, Dead, ...) and its members.

    simple: whether the group has only ever been used with assign(), hence without members; None where unknown.
    """

    cluster: str
    group: str
    state: str
    members: tuple[Member, ...] = ()
    simple: bool | None = None

    @property
    def subject(self) -> Subject:
        return ("group_state", self.cluster, self.group)


class Sight(Observation, frozen=True, kw_only=True, gc=False):
    """Whether a source sees a subject. The unit is as small as the keys given: a source, a group, a topic's
    partition.
    """

    source: str
    cluster: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None

    @property
    def subject(self) -> Subject:
        return ("sight", self.source, self.cluster, self.group, self.topic, self.partition)


class Blind(Sight, frozen=True, kw_only=True, tag="blind", gc=False):
    """The source cannot see its subject; reason is a sentence for an operator."""

    reason: str


class Sighted(Sight, frozen=True, kw_only=True, tag="sighted", gc=False):
    """The source sees its subject again."""


class CheckFinding(Observation, frozen=True, kw_only=True, tag="check_finding", gc=False):
    """What a Spark check found. at: when the run that found it ended; when it happened stands in the finding.

    check: the check's name, which is also the kind of the rule that judges what it finds. finding: its public JSON.
    group, topic, partition, broker: as in the finding's subject, None where that names none or several.
    """

    cluster: str
    check: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    finding: str

    @property
    def subject(self) -> Subject:
        return ("check_finding", self.cluster, self.check, self.group, self.topic, self.partition, self.broker)


class CheckRun(Observation, frozen=True, kw_only=True, tag="check_run", gc=False):
    """A run of a Spark check has ended, at `at`; its findings came before.

    complete: whether it looked at all that the check is configured to look at, not only at what an incident asked for.
    outcome: failed also where it could not start or was stopped for its limits; reason then is a sentence and the last
    lines of its log.
    """

    cluster: str
    check: str
    started_at: int
    complete: bool
    outcome: Literal["clean", "found", "failed"]
    reason: str = ""

    @property
    def subject(self) -> Subject:
        return ("check_run", self.cluster, self.check)


class Tick(Observation, frozen=True, kw_only=True, tag="tick", gc=False):
    """Time passes: what rules about absence go by."""

    @property
    def subject(self) -> Subject:
        return ("tick",)


AnyObservation: TypeAlias = (
    Commit | LogOffsets | PartitionState | BrokerRegistration | Controller | GroupState | Blind | Sighted
    | CheckFinding | CheckRun | Tick
)  # fmt: skip

KINDS: Mapping[str, type[Observation]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        Commit, LogOffsets, PartitionState, BrokerRegistration, Controller, GroupState, Blind, Sighted,
        CheckFinding, CheckRun, Tick,
    )
}  # fmt: skip


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
    for name in _TIMES:
        value = plain.get(name)
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
    for name in _TIMES:
        if fields.get(name) is None:
            fields.pop(name, None)
        else:
            fields[name] = rfc3339(fields[name])
    return fields


def to_json(observation: Observation) -> str:
    """The observation as one JSON line."""
    return msgspec.json.encode(to_fields(observation)).decode()


def clock(at: int) -> str:
    """The time of day in UTC to a tenth of a second, as people read it: 23:25:13.9."""
    return (_EPOCH + timedelta(milliseconds=at)).strftime("%H:%M:%S.") + str(at % 1000 // 100)
