"""consumer_stalled: a group with members does not read on, although there are records to read."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import ClassVar

from agent.engine.condition_rule import intervals_where
from agent.engine.facts import Facts
from agent.engine.history import FINALIZATION_MS, FLOOR, History
from agent.engine.ordinary import SeriesAtRest
from agent.engine.rule import Advice, GroupRule, Scope, ended, recovered
from agent.model.batches import UNKNOWN, Flags
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding, reader
from agent.model.observations.kafka import Commit, GroupState, LogOffsets
from agent.model.text import count, place, span
from agent.model.times import clock
from agent.rules.queries.partitions import drop_unmoved, find_deletion, is_rebalancing, is_recreated
from agent.rules.queries.unread import (
    MARKER,
    REGULAR,
    end_of_markers,
    first_not_final,
    first_observed,
    first_unread,
    has_unread,
    is_waiting_for_transaction,
    log_end_at,
    longest_interval,
    readable_since,
    reads_partition,
    remembered,
)

_INTERVALS = 5
"""How many of its longest commit intervals a group may stand still."""


class ConsumerStalled(GroupRule):
    """A group has members and records to read, but its committed offset does not move.

    For max(`after`, 5 x its longest interval), counted from its last commit, the first unread record, or the end of the
    last rebalance, whichever is latest. One stalled partition among others that move on is often a record that fails
    again and again.
    Not: a group without members (consumer_stopped), an offset that had not moved regularly (four moves), a group at the
    log end or one offset before it, which may be a transaction marker. Nor one up to ten offsets before a log end that
    was there a minute after its last move: markers of several producers, aborted records. Nor a read_committed group
    that waits for an open transaction, or a partition without a leader or that Kafka does not answer for.
    Recovers when the offset moves. Over when the group has no members any more, or the group or topic is deleted.
    """

    title = "{group} is stuck on {topic}[{partition}]"
    is_ongoing = True
    is_single = True
    is_delay = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Read the log of {reader}'s consumer of {place}: the record at offset {low} may fail again and again, "
            "or a call to another system blocks.",
            only_while_open=True,
        ),
    }
    observes = ()
    revisits = Commit

    after: PositiveDuration = 600_000
    """How long the offset may stand still in any case."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        offset, unread = finding.previous.get("offset"), finding.current.get("unread")
        if offset is None or unread is None:
            return finding.detail
        where = f"{reader(finding.subject)} on {place(finding.subject)}"
        return f"{where}: committed offset stuck at {offset:,}, {count(unread, 'record')} unread"

    def revisit(self, history: History[Commit], facts: Facts) -> Iterable[Scope]:
        if len(history.changes) >= FLOOR and history.changes[-FLOOR].at > facts.now - self.after:
            return ()
        move = first_not_final(facts, history)
        following = history.after(move.at)
        until = following[0].at if following else facts.now
        if until - move.at < self.after or not has_unread(facts, move):
            return ()
        states = facts.history(GroupState, move.cluster, move.group)
        if states.last is None or not (states.last.members or first_not_final(facts, states).members):
            return ()
        scope = Scope(move.cluster, move.group, move.topic, move.partition)
        return (scope,) if self.applies_to(move.group, move.topic) else ()

    def ignores_series(self, series: SeriesAtRest, facts: Facts) -> Flags:
        is_read = (series.last_at <= series.now - FINALIZATION_MS) & (series.last_offset + MARKER >= series.log_end)
        is_moving = ~is_read & (series.now - series.last_at < self.after)
        is_moving[is_moving] = ~series.has_paused(is_moving, self.after)
        ignored: Flags = is_read | is_moving

        def is_empty(cluster: str, group: str) -> bool:
            states = facts.history(GroupState, cluster, group)
            return states.last is None or not (states.last.members or first_not_final(facts, states).members)

        ignored |= series.by_group(is_empty, ~ignored) != 0
        return ignored

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = facts.history(Commit, *scope.series)
        log = facts.history(LogOffsets, *scope.in_partition)
        readings = remembered(log)
        moves = drop_unmoved(history)
        for index, (move, following) in enumerate(zip_longest(moves, moves[1:])):
            offset = move.offset or 0
            if index + 1 < REGULAR or (following is not None and following.at - move.at < self.after):
                continue
            unread = first_unread(readings, end_of_markers(readings, move)) if readings else None
            if unread is None:
                continue
            longest = longest_interval(moves[: index + 1])
            wait = max(self.after, _INTERVALS * longest)
            begins = (
                begin
                for reads_from, reads_until in self._find_reading(scope, facts)
                for begin in [readable_since(facts, scope.series, max(move.at, unread[1], reads_from), wait)]
                if begin is not None and (reads_until is None or begin + wait < reads_until)
            )
            begin = next(begins, None)
            if begin is None:
                continue
            due = max(begin + wait, move.seen)
            known_at = first_observed(facts, scope.series, due)
            if known_at is None or (following is not None and following.start < due):
                continue
            last = history.as_of(due)
            if last is None or last.offset is None:
                continue
            if is_waiting_for_transaction(facts, scope.in_partition, offset, due):
                continue
            if is_recreated(facts, scope.in_partition, move.at, due):
                continue
            records = max(int(log_end_at(log, due) or 0) - offset, 0)
            yield self.make_finding(
                scope,
                move,
                at=begin,
                since=move.since if begin == move.at else None,
                known_at=known_at,
                detail=f"{scope.group} has not moved on from {offset:,} on {scope.topic}[{scope.partition}] since "
                f"{clock(begin)} UTC, although it has members and {count(records, 'record')} to read; before, it moved "
                f"at least every {span(longest)}",
                previous={"offset": offset},
                current={"offset": offset, "unread": records},
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        old = finding.previous["offset"]
        ends: list[tuple[int, str]] = []
        commits = facts.history(Commit, *scope.series)
        moved_at = commits.when(finding.at, "offset", lambda offset: (offset != old) & (offset != UNKNOWN))
        if moved_at is not None:
            ends.append((moved_at, ""))
        forgotten_at = commits.when(finding.at, "offset", lambda offset: offset == UNKNOWN)
        if forgotten_at is not None:
            ends.append((forgotten_at, "its committed offset was deleted"))
        states = facts.history(GroupState, scope.cluster, scope.group or "").after(finding.at)
        left = next((state for state in states if not state.has_consumers), None)
        if left is not None:
            ends.append((left.at, "the group was deleted" if left.is_gone else "the group has no members"))
        deleted = find_deletion(facts, scope.in_partition, finding.at)
        if deleted is not None:
            ends.append((deleted, "the topic was deleted"))
        if not ends:
            return finding
        at, reason = min(ends)
        return ended(finding, at, reason) if reason else recovered(finding, at)

    def _find_reading(self, scope: Scope, facts: Facts) -> Iterator[tuple[int, int | None]]:
        """Yield from when until when the group read the partition without a rebalance, oldest first."""
        _, group, topic, partition = scope.series

        def reads(state: GroupState) -> bool:
            return bool(state.members) and not is_rebalancing(state) and reads_partition(state, topic, partition)

        for interval in intervals_where(facts.history(GroupState, scope.cluster, group), reads):
            yield interval.begin.at, None if interval.end is None else interval.end.at
