"""transaction_hanging: an open transaction keeps the last stable offset of a partition from moving."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from agent.engine.facts import Facts
from agent.engine.rule import Advice, Scope, TopicRule, ended, recovered, without_covered
from agent.engine.suspensions import find_end
from agent.model.config_types import Duration
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Availability, Observation, Unavailable
from agent.model.observations.kafka import (
    ClusterSettings,
    Commit,
    GroupState,
    LastStableOffset,
    LogOffsets,
    OpenTransaction,
)
from agent.model.text import count, join_names, place
from agent.model.times import clock
from agent.rules.queries.partitions import CLOCK_SLACK_MS, find_deletion
from agent.rules.queries.subjects import groups_of

_MARKERS = 100
"""How far below the last stable offset a group that has read everything may stand: behind transaction markers."""

_MINUTE_MS = 60_000

_PREVENT = "Upgrade brokers and producers to 4.0 or later (KIP-890), which end hanging transactions."

_UNKNOWN_PRODUCER = Advice(
    now="Find its producer: id and epoch are in the log of {place} at offset {offset} (kafka-dump-log.sh). If that is "
    "dead, discard its records with the command abort of kafka-transactions.sh, which is part of Kafka 3.0 and later.",
    prevent=_PREVENT,
    only_while_open=True,
)
"""Brokers before 3.0 do not describe producers, and cannot find one by the transaction's first offset."""


class TransactionHanging(TopicRule):
    """An open transaction has held back the last stable offset of a partition for longer than Kafka allows (KIP-664).

    No consumer with isolation.level=read_committed reads anything beyond it, and the log is not compacted. Label
    `long_open`: not yet that long, but a group waits there for `waiting`. Critical if it hangs and a group waits.
    Not: an offset that moves on, a group that stands still elsewhere, time in which the partition cannot be read.
    Recovers when the last stable offset moves.
    """

    title = "Transaction hangs on {topic}[{partition}]"
    titles: ClassVar[Mapping[str, str]] = {"long_open": "Transaction on {topic}[{partition}] keeps readers waiting"}
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "long_open": Advice(
            now="Find out why {producer} neither commits nor aborts its transaction on {place}.",
            only_while_open=True,
        ),
        "": Advice(
            now="If {producer} is dead, discard its records: `kafka-transactions.sh --bootstrap-server HOST:PORT abort "
            "--topic {topic} --partition {partition} --start-offset {offset}`. A Flink job may still commit them when "
            "it restores a checkpoint.",
            prevent=_PREVENT,
            only_while_open=True,
        ),
    }
    observes = (LastStableOffset,)

    after: Duration = 900_000
    """How long the last stable offset must stand still, unless the cluster allows longer transactions.

    The default is Kafka's `transaction.max.timeout.ms`. If brokers are configured with more, that counts.
    """
    waiting: Duration = 300_000
    """How long a group must wait there to be reported earlier."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        if not isinstance(observation, LastStableOffset) or not observation.held_back:
            return ()
        if not self.topics.match(observation.topic):
            return ()
        return (Scope(observation.cluster, topic=observation.topic, partition=observation.partition),)

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for standstill in _standstills(scope, facts):
            hangs_at = self._hangs_at(standstill, facts)
            due = min([hangs_at, *self._waits(standstill, facts)])
            known_at = _confirmed(facts, scope, max(due, standstill.begin.seen))
            if known_at is None or not standstill.lasts_until(known_at):
                continue
            yield self._make_finding(scope, standstill, facts, known_at, known_at)
            if max(known_at, facts.now) < hangs_at:
                yield self._make_finding(scope, standstill, facts, hangs_at, hangs_at)  # to be evaluated again then

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Return the finding with the groups that wait and the records hidden by now, or by the last full minute."""
        standstill = _standstill_of(finding, scope, facts)
        if standstill is None:
            return recovered(finding, _moved_at(finding, scope, facts))
        now = max(finding.known_at, facts.now)
        # While records are written, their number changes with each poll, and with it the message.
        times = (finding.known_at, self._hangs_at(standstill, facts), now // _MINUTE_MS * _MINUTE_MS)
        at = max(time for time in times if time <= now) if standstill.end is None else now
        grown = replace(self._make_finding(scope, standstill, facts, finding.known_at, at), rule=finding.rule)
        deleted_at = find_deletion(facts, scope.in_partition, finding.at)
        if deleted_at is not None and standstill.lasts_until(deleted_at):
            return ended(grown, deleted_at, "the topic was deleted")
        return recovered(grown, None if standstill.end is None else standstill.end.at)

    def reconcile(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        """Return the findings once per standstill: after a restart, one that is reported seems to begin later."""
        return without_covered(findings, _covers)

    def _make_finding(self, scope: Scope, standstill: "_Standstill", facts: Facts, known_at: int, at: int) -> Finding:
        """Return the finding as it is at `at`, or at the end of the standstill if that is earlier."""
        at = standstill.cut(at)
        is_hanging = at >= self._hangs_at(standstill, facts)
        groups = [
            group for group in groups_of(facts, *scope.in_partition) if self._is_waiting(group, standstill, facts, at)
        ]
        log = facts.history(LogOffsets, *scope.in_partition).as_of(at)
        current = {
            "offset": standstill.begin.offset,
            "log_end": None if log is None else log.log_end,
            "groups": groups,
            **_producer_fields(_transaction(standstill, facts, at)),
        }
        return self.make_finding(
            scope,
            standstill.begin,
            known_at=known_at,
            detail=_describe(scope, standstill.begin, current),
            severity=Severity.CRITICAL if is_hanging and groups else None,
            labels=() if is_hanging else ("long_open",),
            current={name: value for name, value in current.items() if value is not None},
        )

    def _waits(self, standstill: "_Standstill", facts: Facts) -> Iterator[int]:
        """Yield the moments at which a group has waited for long enough."""
        begin = standstill.begin
        for group in groups_of(facts, begin.cluster, begin.topic, begin.partition):
            for commit in facts.history(Commit, begin.cluster, group, begin.topic, begin.partition):
                at = max(commit.at, begin.at) + self.waiting
                if self._is_waiting(group, standstill, facts, at):
                    yield at

    def _is_waiting(self, group: str, standstill: "_Standstill", facts: Facts, at: int) -> bool:
        """Return whether the group has stood at the last stable offset for long enough and may still have a reader."""
        begin = standstill.begin
        commit = facts.history(Commit, begin.cluster, group, begin.topic, begin.partition).as_of(at)
        if commit is None or commit.offset is None or not 0 <= begin.offset - commit.offset <= _MARKERS:
            return False
        state = facts.history(GroupState, begin.cluster, group).as_of(at)
        is_gone = state is not None and state.state in {"Empty", "Dead"} and not state.simple
        return not is_gone and at - max(commit.at, begin.at) >= self.waiting

    def _hangs_at(self, standstill: "_Standstill", facts: Facts) -> int:
        history = facts.history(ClusterSettings, standstill.begin.cluster)
        # After a restart they may be known only from later than the begin.
        settings = history.as_of(standstill.begin.at) or next(iter(history), None)
        allowed = settings.transaction_max_timeout_ms if settings is not None else None
        return standstill.begin.at + max(self.after, allowed or 0)

    @classmethod
    def advice_for(cls, finding: Finding) -> Advice:
        advice = super().advice_for(finding)
        return _UNKNOWN_PRODUCER if advice is cls.advice[""] and "producer" not in finding.current else advice

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        offset = finding.current.get("offset", 0)
        return f"{place(finding.subject)}: last stable offset stays at {offset:,}, a transaction is open"


class _Standstill(NamedTuple):
    """The last stable offset was `begin.offset`, below the log end, until `end`; None while it lasts."""

    begin: LastStableOffset
    end: LastStableOffset | None

    def lasts_until(self, at: int) -> bool:
        """Return whether it certainly lasted until then, as far as is known."""
        return self.end is None or self.end.start >= at

    def cut(self, at: int) -> int:
        """Return the time, or the end if that is earlier."""
        return at if self.end is None else min(at, self.end.start)


def _standstills(scope: Scope, facts: Facts) -> Iterator[_Standstill]:
    changes: list[LastStableOffset | None] = [*facts.history(LastStableOffset, *scope.in_partition), None]
    for begin, end in pairwise(changes):
        if begin is not None and begin.held_back:
            yield _Standstill(begin, end)


def _standstill_of(finding: Finding, scope: Scope, facts: Facts) -> _Standstill | None:
    """Return the finding's standstill, with its begin: after a restart the history may begin later. None if unknown."""
    history = facts.history(LastStableOffset, *scope.in_partition)
    begin = history.as_of(finding.at) or next(iter(history), None)
    if begin is None or not begin.held_back or begin.offset != finding.current.get("offset"):
        return None
    end = next(iter(history.after(begin.at)), None)
    return _Standstill(replace(begin, at=finding.at, since=finding.since), end)


def _moved_at(finding: Finding, scope: Scope, facts: Facts) -> int | None:
    """Return when the last stable offset was first seen elsewhere than where the finding reports it; None if never."""
    later = facts.history(LastStableOffset, *scope.in_partition).after(finding.at)
    return later[0].at if later else None


def _covers(earlier: Finding, later: Finding) -> bool:
    """Return whether both are about one standstill, which the earlier one reports."""
    return earlier.current.get("offset") == later.current.get("offset") and earlier.is_open_at(later.at)


def _transaction(standstill: _Standstill, facts: Facts, at: int) -> OpenTransaction | None:
    begin = standstill.begin
    transaction = facts.history(OpenTransaction, begin.cluster, begin.topic, begin.partition).as_of(at)
    return transaction if transaction is not None and transaction.start_offset == begin.offset else None


def _confirmed(facts: Facts, scope: Scope, at: int) -> int | None:
    """Return the first moment from `at` on at which the partition could be read, or None while it cannot be."""
    cluster, topic, partition = scope.in_partition
    histories = [
        facts.history(Availability, "kafka", cluster, None, *unit) for unit in ((None, None), (topic, partition))
    ]
    while outage := next((history for history in histories if isinstance(history.as_of(at), Unavailable)), None):
        available = next((change for change in outage.after(at) if not isinstance(change, Unavailable)), None)
        if available is None:
            return None
        at = available.at + CLOCK_SLACK_MS
    end = find_end(facts, at)
    return at if end is None else end


def _producer_fields(transaction: OpenTransaction | None) -> dict[str, object]:
    if transaction is None:
        return {}
    name = transaction.transactional_id
    fields: dict[str, object] = {
        "producer": f"producer {transaction.producer_id}" + ("" if name is None else f" (transactional.id {name})"),
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
    }
    if name is not None:
        fields["transactional_id"] = name
    if transaction.last_write_at is not None:
        fields["last_write_at"] = transaction.last_write_at
    return fields


def _describe(scope: Scope, begin: LastStableOffset, current: Mapping[str, object]) -> str:
    log_end, groups = current.get("log_end"), current.get("groups")
    text = f"{scope.topic}[{scope.partition}] has been readable up to offset {begin.offset:,} only since "
    text += f"{clock(begin.at)} UTC (isolation.level=read_committed)"
    if isinstance(log_end, int) and log_end > begin.offset:
        text += f": an open transaction hides {count(log_end - begin.offset, 'record')}"
    if isinstance(groups, list) and groups:
        text += f"; {join_names(groups)} wait{'s' * (len(groups) == 1)} there"
    if "producer" in current:
        text += f". {str(current['producer']).replace('producer', 'Producer', 1)} began the transaction"
        if isinstance(last_write_at := current.get("last_write_at"), int):
            text += f" and last wrote at {clock(last_write_at)} UTC"
    return text
