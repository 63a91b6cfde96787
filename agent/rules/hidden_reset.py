"""hidden_reset: a committed offset stops moving because its consumer is reprocessing old records."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from agent.engine.facts import Facts
from agent.engine.history import FINALIZATION_MS, LATENESS_MS, LONG_AGO, History
from agent.engine.ordinary import SeriesAtRest
from agent.engine.rule import Advice, GroupRule, Scope
from agent.engine.suspensions import suspensions
from agent.model.batches import UNKNOWN, Flags, Integers
from agent.model.config_types import Duration
from agent.model.findings import Finding, reader
from agent.model.observations.kafka import Commit, GroupState, LastStableOffset, LogOffsets, PartitionState
from agent.model.text import place
from agent.model.times import clock
from agent.rules.queries.operators import is_empty
from agent.rules.queries.partitions import (
    CLOCK_SLACK_MS,
    commit_intervals,
    drop_unmoved,
    find_leader_changes,
    find_truncations,
    find_unclean_elections,
    is_rebalancing,
    is_recreated,
    leader_of,
)
from agent.rules.queries.subjects import recovered_or_ended
from agent.rules.queries.unread import REGULAR, RHYTHM, log_end_at, longest_interval, remembered

_STALLED_MS = 600_000
_STALE_MS = 60_000
_CLIENT_TIMEOUT_MS = 60_000
"""How long a client may wait for a broker that hangs (socket.timeout.ms of librdkafka): it reads on elsewhere."""

_LONG_MS = 3_600_000
"""How long after a leader change or truncation a series may begin to seem stuck: it commits every ten minutes or so."""

_SOON_MS = 10_000
"""How long after such a disturbance, and how often, it is looked which series stand still."""

_MANY = 1_000
"""If more series than that seem to stand still, only those count whose groups have moved on elsewhere.

Commits may only not have been read yet.
"""

_JITTER_MS = 1_000
"""How far two polls may be from their interval."""


class _Trigger(NamedTuple):
    """A leader change or a truncation at which a reset may have happened. is_loss: whether records may be lost.

    not_before: when it happened at the earliest, by Backflow's clock, as commits are dated; `at` may be ZooKeeper's.
    """

    at: int
    not_before: int
    is_loss: bool


class HiddenReset(GroupRule):
    """A committed offset moved regularly until its log lost records or changed leader, and has not moved since.

    librdkafka's auto-commit never commits below the last committed offset, so a consumer that was reset and reprocesses
    old records looks like this. Probable, not proven: positions, logs or client statistics prove it.

    The offset must be stuck for max(`wait`, 3 x its longest interval) while the log grows and the group has members or
    commits other partitions; rebalances do not count. What else is required depends on what happened to the log:

    - A truncation or an unclean leader election, which put a consumer out of range: nothing else.

    - Another leader change: the offset is stuck for a minute, and not at what the log held at the change. The same
      consumer commits other partitions, and no commit was overdue before the change.

    - Another leader change, and the reader has a single partition, so that nothing else shows: it stopped with the
      change, within one interval, and is stuck for ten minutes. If it is one member of several, others read on, and
      none stopped with it.

    Labels:

    - `possible`: the reader of a single partition; it may as well have failed.

    Not:

    - a consumer that stands still on all its partitions (its sink is down), or waits at the last stable offset behind
      an open transaction

    - a group whose members have left, or that is at the log end or busy with what has just been written

    - a preferred leader that takes over from one that stays in sync

    - a log that does not grow, a re-created topic

    - an offset that had not moved regularly (four moves) or was stuck long before

    Recovers when the offset moves on. Ends when the topic or the committed offset is deleted.
    """

    title = "{group} on {topic}[{partition}] is stuck since a leader change or truncation: probably reset"
    titles: ClassVar[Mapping[str, str]] = {
        "possible": "{group} on {topic}[{partition}] is stuck since a leader change: reset or failed"
    }
    is_ongoing = True
    moves_position = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(
            now="Search the log of {reader}'s consumer for 'offset reset' or 'out of range' on {place}. If it was "
            "reset, deduplicate its output since {start}.",
            prevent="Commit offsets explicitly in {reader}: librdkafka's auto-commit hides a reset.",
        ),
    }
    observes = ()
    revisits = Commit
    revisit_ms = _SOON_MS

    wait: Duration = 15_000
    """The shortest standstill reported."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        offset = finding.previous.get("offset")
        stuck = "" if offset is None else f" at {offset:,}"
        is_possible = "possible" in finding.labels
        what = "reset or failed" if is_possible else "probably reset"
        return f"{reader(finding.subject)} on {place(finding.subject)}: committed offset stuck{stuck}, {what}"

    def revisit(self, history: History[Commit], facts: Facts) -> Iterable[Scope]:
        last = history.changes[-1]
        number = facts.partitions.find((last.cluster, last.topic, last.partition))
        if number is None or not self.applies_to(last.group, last.topic):
            return ()
        disturbed_at = _disturbed_at(facts, slice(number, number + 1))
        if disturbed_at.max() < facts.now - _LONG_MS:
            return ()
        times = [commit.at for commit in drop_unmoved(history)]
        if len(times) < REGULAR:
            return ()
        intervals = np.diff(times)[::-1][None, :].astype(np.int64)
        stands = _find_standstills(facts.now, np.array(times[-1:]), disturbed_at, intervals, self.wait)
        return (Scope(last.cluster, last.group, last.topic, last.partition),) if stands[0] else ()

    def ignores_series(self, series: SeriesAtRest, facts: Facts) -> Flags:
        of_partitions, since = _disturbed_at(facts, slice(None)), series.now - _LONG_MS
        if of_partitions.max() < since:
            return np.ones(len(series), np.bool_)
        disturbances = np.stack([series.of_partition(times) for times in of_partitions])
        disturbed_at, last_at, longest = disturbances.max(axis=0), series.last_at, series.longest_at_most
        lasts = (series.now - last_at >= self.wait - _SOON_MS) & (disturbed_at >= since)
        lasts &= (disturbed_at >= last_at - CLOCK_SLACK_MS) & (disturbed_at <= last_at + _stale_ms(longest))
        has_ended = ~lasts & (disturbed_at >= series.now - FINALIZATION_MS - longest - CLOCK_SLACK_MS)
        has_ended[has_ended] = series.has_paused(has_ended, self.wait)

        def stand_still(places: Integers, intervals: Integers) -> Flags:
            return _find_standstills(series.now, last_at[places], disturbances[:, places], intervals, self.wait)

        found = series.where(lasts | has_ended, stand_still)
        if np.count_nonzero(found) > _MANY:
            found &= has_ended | (series.by_group(facts.commits.newest_of, found) >= disturbed_at + _SOON_MS)
        return ~found

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield the standstill after the first leader change or truncation that no commit followed."""
        history = facts.history(Commit, *scope.series)
        for trigger in sorted(_find_triggers(facts, scope.in_partition)):
            at = trigger.at
            last = history.as_of(at + CLOCK_SLACK_MS)
            soon_after = history.between(at + CLOCK_SLACK_MS, at + self.wait - 1)
            if last is None or any(commit.offset not in (None, last.offset) for commit in soon_after):
                continue
            commits = drop_unmoved(history)
            awake_since = max((end for _, end in suspensions(facts) if end <= at), default=LONG_AGO)
            until_then = [commit for commit in commits if awake_since <= commit.at <= at + CLOCK_SLACK_MS]
            if len(until_then) < REGULAR:
                continue
            stuck, longest = until_then[-1], longest_interval(until_then)
            known_at = self._known_at(scope, stuck, trigger, longest, facts)
            if known_at is None or any(
                commit.start < known_at for commit in commits if stuck.at < commit.at <= known_at + LATENESS_MS
            ):
                continue
            if at - stuck.at > max(_STALE_MS, 3 * longest):
                continue
            if is_recreated(facts, scope.in_partition, stuck.at, known_at):
                continue
            is_possible = not trigger.is_loss and _is_only_partition(scope, facts, at)
            if is_possible and at - stuck.at > longest + CLOCK_SLACK_MS:
                continue
            if not trigger.is_loss and _had_stopped(facts, scope.in_partition, stuck.at + longest, trigger.not_before):
                continue
            is_due = facts.now >= known_at
            if is_due and is_possible and not _do_others_read_on(scope, at, known_at, facts):
                continue
            if is_due and not is_possible and not _is_stuck_alone(scope, stuck, trigger, known_at, facts):
                continue
            yield self._finding(scope, stuck, at, known_at, is_possible=is_possible)
            return

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        old = int(finding.previous["offset"])
        moved_at = facts.history(Commit, *scope.series).when(finding.at, "offset", lambda offset: offset > old)
        return recovered_or_ended(finding, moved_at, scope, facts)

    def _known_at(self, scope: Scope, stuck: Commit, trigger: _Trigger, longest: int, facts: Facts) -> int | None:
        """Return when the standstill has lasted although there were records to read, or None if that is unknown."""
        since = max(trigger.at, stuck.at)
        wait = max(self.wait, 3 * longest, 0 if trigger.is_loss else _CLIENT_TIMEOUT_MS)
        if not trigger.is_loss and _is_only_partition(scope, facts, trigger.at):
            wait = max(_STALLED_MS, 5 * longest)
        due = _find_end_of_rebalances(facts, scope, since, wait) + wait
        if facts.now < due:
            return due
        grown_at = _find_growth(facts, scope.in_partition, stuck.offset or 0, since)
        known_at = max(due, (grown_at or 0) + longest + CLOCK_SLACK_MS)
        is_active = _is_active(facts, scope, since, known_at) or _reads_without_members(facts, scope, stuck, known_at)
        return known_at if grown_at is not None and is_active else None

    def _finding(self, scope: Scope, stuck: Commit, at: int, known_at: int, *, is_possible: bool) -> Finding:
        guess = (
            "probably reset and reprocessing old records, hidden by an auto-commit that never commits a lower offset"
        )
        if is_possible:
            guess = "reset, with old records being reprocessed and an auto-commit that hides it, or failed"
        return self.make_finding(
            scope,
            stuck,
            at=at,
            since=stuck.at if stuck.at < at else None,
            known_at=known_at,
            detail=(
                f"{scope.group} has committed {stuck.offset:,} on {scope.topic}[{scope.partition}] since "
                f"{clock(stuck.at)} UTC while the log grows: {guess}"
            ),
            labels=("possible" if is_possible else "probable",),
            previous={"offset": stuck.offset},
            current={"offset": stuck.offset},
        )


def _is_stuck_alone(scope: Scope, stuck: Commit, trigger: _Trigger, known_at: int, facts: Facts) -> bool:
    """Return whether the reader's other partitions show that only this one is stuck, or at least nothing else.

    A reader that stands still everywhere waits for its sink. A leader change without a loss puts no consumer out of
    range: it must read on elsewhere, must not have moved since, and must have had more to read here.
    """
    if not trigger.is_loss:
        log_end = _last_log_end(facts.history(LogOffsets, *scope.in_partition), trigger.at)
        if log_end is None or log_end <= (stuck.offset or 0) or stuck.at > trigger.at:
            return False
    others = False
    for history in _other_partitions(scope, facts):
        if not _have_same_reader(facts, scope, history.changes[0], known_at):
            continue
        for has_moved in _find_movement(history, trigger.at, known_at, facts):
            if has_moved:
                return True
            others = True
    return trigger.is_loss and not others


def _last_log_end(history: History[LogOffsets], at: int) -> float | None:
    """Return the log end offset as last read at that moment; estimated if readings of that time have been thinned."""
    reading = history.as_of(at)
    return log_end_at(history, at) if reading is None else reading.log_end


def _other_partitions(scope: Scope, facts: Facts) -> list[History[Commit]]:
    return [
        history
        for history in facts.histories(Commit, cluster=scope.cluster, group=scope.group)
        if history.subject[-2:] != (scope.topic, scope.partition)
    ]


def _find_movement(history: History[Commit], at: int, known_at: int, facts: Facts) -> Iterator[bool]:
    """Yield whether another partition has moved on since; nothing if it need not have."""
    first = history.changes[0]
    partition = (first.cluster, first.topic, first.partition)
    # What was read before the reader stopped may be committed a little later.
    middle = (at + known_at) // 2
    known = history.before(middle + 1, 2) or history.changes[:1]  # older ones of a busy reader are gone
    last = drop_unmoved(known)[-1:]  # an offset is forgotten once
    if not last:
        return
    later = drop_unmoved([*last, *history.between(middle, known_at + LATENESS_MS)])[1:]
    if any(commit.start < known_at for commit in later):
        yield True
        return
    before = [commit for commit in drop_unmoved(history) if commit.at <= middle]
    if len(before) >= REGULAR and at - before[-1].at <= max(_STALE_MS, 3 * max(commit_intervals(before))):
        has_trigger = any(abs(trigger.at - at) <= LATENESS_MS for trigger in _find_triggers(facts, partition))
        since = max(at, before[-1].at)
        if not has_trigger and _find_growth(facts, partition, before[-1].offset or 0, since) is not None:
            yield False


def _have_same_reader(facts: Facts, scope: Scope, other: Commit, at: int) -> bool:
    """Return whether one member has both partitions, or may have."""
    state = facts.history(GroupState, scope.cluster, scope.group or "").as_of(at)
    members = state.members if state is not None else ()
    owners = [member for member in members if (scope.topic, scope.partition) in member.partitions]
    return not owners or any((other.topic, other.partition) in member.partitions for member in owners)


def _disturbed_at(facts: Facts, numbers: slice) -> Integers:
    """Return when each of these partitions changed leader, the time before that, and when the end of its log decreased.

    An array of three rows, ms. A preferred leader soon takes over again, within the standstill since it was lost.
    """
    known = facts.partitions
    return np.stack(
        [known.leader_changed_before_at[numbers], known.leader_changed_at[numbers], known.decreased_at[numbers]]
    )


def _stale_ms(longest: Integers) -> Integers:
    """Return how long after its last move a series was certainly not stuck by a disturbance. longest: of its intervals.

    Another disturbance may have followed the one that it stands still since.
    """
    return np.maximum(_STALE_MS, 3 * longest) + FINALIZATION_MS


def _find_standstills(now: int, last_at: Integers, disturbances: Integers, intervals: Integers, wait: int) -> Flags:
    """Return which series may stand still since their partition was disturbed, or did until a short time ago.

    last_at: of the last move, ms. disturbances: of its partition, see `_disturbed_at`. intervals: between moves, newest
    first, UNKNOWN where there are no more; the three before a standstill show how long the series usually takes.
    """
    disturbed_at = disturbances.max(axis=0)
    # One that lasts is looked at when it may soon be reported. Most series have moved on by then.
    usual, longest = intervals[:, : REGULAR - 1].max(axis=1), intervals[:, : RHYTHM - 1].max(axis=1)
    soon = last_at + np.maximum(2 * usual, np.maximum(wait, 3 * usual) - _SOON_MS)
    begin = np.maximum(soon, disturbed_at + np.maximum(2 * usual, _SOON_MS))
    found: Flags = (begin <= now) & (now <= begin + LATENESS_MS) & (intervals[:, REGULAR - 2] != UNKNOWN)
    found &= (disturbed_at >= last_at - CLOCK_SLACK_MS) & (disturbed_at <= last_at + _stale_ms(longest))

    rows, places = np.nonzero(intervals[:, : 1 - REGULAR] >= max(wait, 1))
    before = [intervals[rows, places + more] for more in range(1, REGULAR)]
    since_end = intervals.cumsum(axis=1)[rows, places] - intervals[rows, places]
    end = last_at[rows] - since_end
    begin = end - intervals[rows, places]
    is_within = disturbances[:, rows] >= begin - CLOCK_SLACK_MS
    first = np.where(is_within, disturbances[:, rows], disturbed_at[rows]).min(axis=0)
    may_have_stood_still = end >= np.maximum(begin, first) + np.maximum(wait, 3 * np.max(before, axis=0))
    may_have_stood_still &= is_within.any(axis=0) & (end > now - FINALIZATION_MS)
    may_have_stood_still &= before[-1] != UNKNOWN
    found[rows[may_have_stood_still]] = True
    return found


def _find_triggers(facts: Facts, partition: tuple[str, str, int]) -> set[_Trigger]:
    history = facts.history(PartitionState, *partition)
    lossy = {election.after.at for election in find_unclean_elections(facts, partition)}
    lossy |= {found.after.at for found in find_truncations(facts, partition) if found.known_at <= facts.now}
    changes = (new for old, new in find_leader_changes(history) if not _is_handover(old, new))
    clean = {_Trigger(new.at, _not_before(new), is_loss=False) for new in changes if new.at not in lossy}
    return {_Trigger(at, at, is_loss=True) for at in lossy} | clean


def _not_before(change: PartitionState) -> int:
    """Return when the change happened at the earliest: a watch sees it at once, a poll some time after the last one."""
    return change.seen if change.start == change.at else change.start


def _is_handover(old: PartitionState, new: PartitionState) -> bool:
    """Return whether the preferred leader took over from a leader that stays in sync, so has all that was read."""
    return leader_of(new) in new.replicas[:1] and leader_of(old) in new.isr


def _had_stopped(facts: Facts, partition: tuple[str, str, int], due: int, until: int) -> bool:
    """Return whether the log, and so its leader, went on for long enough until then that a commit had been due."""
    readings = remembered(facts.history(LogOffsets, *partition))
    return any(
        before.log_end < after.log_end and due - _JITTER_MS <= after.at <= until for before, after in pairwise(readings)
    )


def _find_growth(facts: Facts, partition: tuple[str, str, int], offset: int, since: int) -> int | None:
    """Return when there was first more to read than the committed offset, in a log that has grown since then.

    A reader with isolation.level=read_committed reads up to the last stable offset; so may this one if it is known.
    """
    history = facts.history(LogOffsets, *partition)
    last = history.as_of(since)
    lowest = None if last is None else last.log_end
    for reading in history.after(since):
        if lowest is not None and reading.log_end > lowest and reading.log_end != offset:
            return _find_stable_growth(facts, partition, offset, reading)
        lowest = reading.log_end if lowest is None else min(lowest, reading.log_end)
    return None


def _find_stable_growth(facts: Facts, partition: tuple[str, str, int], offset: int, grown: LogOffsets) -> int | None:
    history = facts.history(LastStableOffset, *partition)
    last = history.as_of(grown.at)
    stable = [*([] if last is None else [last]), *history.after(grown.at)]
    if not stable:
        return grown.seen
    may_read = (reading for reading in stable if reading.offset > offset or not reading.held_back)
    return next((max(grown.seen, reading.seen) for reading in may_read), None)


def _find_end_of_rebalances(facts: Facts, scope: Scope, since: int, wait: int) -> int:
    """Return the end of the rebalances that left the group less than `wait` to commit, or `since` without any."""
    for before, after in pairwise(facts.history(GroupState, scope.cluster, scope.group or "")):
        if is_rebalancing(before) and before.at < since + wait and after.at > since:
            since = after.at
    return since


def _has_one_partition(scope: Scope, facts: Facts) -> bool:
    return len(facts.histories(Commit, cluster=scope.cluster, group=scope.group)) == 1


def _is_only_partition(scope: Scope, facts: Facts, at: int) -> bool:
    """Return whether the partition's reader reads no other: neither the group nor the member that has it."""
    state = facts.history(GroupState, scope.cluster, scope.group or "").as_of(at)
    owned = [member.partitions for member in (() if state is None else state.members)]
    return ((scope.topic, scope.partition),) in owned or _has_one_partition(scope, facts)


def _do_others_read_on(scope: Scope, at: int, known_at: int, facts: Facts) -> bool:
    """Return whether the group's other members, if it has others, have all read on that had something to read."""
    others = _other_partitions(scope, facts)
    movements = [has_moved for history in others for has_moved in _find_movement(history, at, known_at, facts)]
    return not others or (bool(movements) and all(movements))


def _reads_without_members(facts: Facts, scope: Scope, stuck: Commit, until: int) -> bool:
    """Return whether the reader of a single partition uses assign(): it moved its offset while the group was Empty."""
    states = facts.history(GroupState, scope.cluster, scope.group or "")
    known = [states.as_of(stuck.start), *states.between(stuck.start, until)]
    return _has_one_partition(scope, facts) and all(state is not None and is_empty(state) for state in known)


def _is_active(facts: Facts, scope: Scope, since: int, until: int) -> bool:
    """Return whether the group has a member for the partition at `until`, or has committed other partitions since."""
    cluster, group, topic, partition = scope.series
    state = facts.history(GroupState, cluster, group).as_of(until)
    if state is not None and is_rebalancing(state):
        return False
    if state is not None and state.members:
        assigned = {pair for member in state.members for pair in member.partitions}
        return not assigned or (topic, partition) in assigned
    histories = facts.histories(Commit, cluster=cluster, group=group)
    return any(_has_moved(history, since, until) for history in histories if history.subject[-2:] != (topic, partition))


def _has_moved(history: History[Commit], since: int, until: int) -> bool:
    """Return whether the offset moved after `since` and up to `until`."""
    later = history.between(since, until)
    return bool(later) and len(drop_unmoved([*history.before(later[0].at, 1), *later])) > 1
