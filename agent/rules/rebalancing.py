"""rebalancing: a consumer group's rebalance takes long, or rebalances repeat; and what a rebalance moved."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import msgspec
from pydantic import Field

from agent.engine.condition_rule import Interval, find_repetitions, intervals_over
from agent.engine.facts import Facts
from agent.engine.history import FLOOR, History
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import PositiveDuration, duration_text
from agent.model.findings import Finding, Severity
from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import GroupState, Member
from agent.model.text import count, instant
from agent.model.times import clock
from agent.rules.queries.partitions import is_rebalancing
from agent.rules.queries.streams import TopicPartition, thread
from agent.rules.queries.subjects import partitions_of
from agent.rules.queries.unread import first_observed

_STARTUP_MS = 60_000
"""How long after a group was without members its members may still be joining."""

_QUIET_MS = 60_000

_POLL_MS = 1_000
"""How much later than a group's state the same poll may read its log."""

_LOOK_AGAIN_MS = 60_000
"""When to look again whether the group has been observed."""

_RESTART_REBALANCES = 2
"""In how many rebalances an instance that is restarted leaves and joins."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_Owners = dict[TopicPartition, Member]


class Rebalancing(Rule):
    """A group's rebalance takes long, or rebalances repeat: no member consumes meanwhile, and tasks with state move.

    Labels: `long` (for more than `longer_than` in PreparingRebalance or CompletingRebalance), `again_and_again`
    (`times` rebalances within `within`), `moved` (info, recovers at once: a rebalance is complete and partitions have
    moved to other members; what follows from it names it as its cause).
    Not: a group that is starting (rebalances within a minute after it had no members), groups without members, the
    second half of a cooperative rebalance (one that begins while partitions wait to be assigned); a rolling restart (in
    each rebalance another instance leaves or joins, none of them more than twice), however its rebalances fall together
    with polls, also if its instances share host and client id; rebalances that assign new partitions to the same
    members.
    Recovers when the group has been quiet for a minute: Stable with the same members and partitions, or without
    members.
    """

    title = "{group} is rebalancing"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(now="Find out which member of {reader} joins and leaves, and read its log.", only_while_open=True),
    }
    observes = (GroupState,)

    groups: NameFilter = NameFilter()
    """Names of the groups that are evaluated."""

    longer_than: PositiveDuration = 30_000
    """How long a rebalance may take."""

    times: int = Field(5, ge=2, le=8)
    """Fewest rebalances that are reported."""

    within: PositiveDuration = 600_000
    """How close together they are."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Return each group in a rebalance, and each whose members or partitions have changed."""
        if not isinstance(observation, GroupState) or not self.groups.match(observation.group):
            return ()
        cluster, group = observation.cluster, observation.group
        has_changed = bool(observation.members) and len(facts.history(GroupState, cluster, group).changes) > 1
        return (Scope(cluster, group),) if has_changed or is_rebalancing(observation) else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield what was moved, then repeated, then long rebalances; of the same moment the last counts."""
        history = facts.history(GroupState, scope.cluster, scope.group or "")
        for index, state in enumerate(history.changes):
            # Final states need no second look, and groups may have thousands of partitions.
            if state.seen > facts.final_before and state.members and not is_rebalancing(state):
                yield from self._moved(scope, history.changes[max(index - FLOOR, 0) : index + 1])
        repeated = self._repeated_rebalances(scope, history.changes, facts)
        for state in repeated:
            often = f"{self.times} times within {duration_text(self.within)}"
            detail = f"{scope.group} rebalanced {often}, consuming nothing meanwhile"
            yield self.make_finding(scope, state, labels=("again_and_again",), detail=detail)
        for whole in intervals_over([history], lambda at: _is_in_rebalance(history.as_of(at))):
            interval = next((part for part in _between_departures(whole, history) if self._is_long(part)), None)
            if interval is not None and interval.begin not in repeated:
                begin = interval.begin
                observed_at = self._observed_at(scope, interval, facts)
                yield self.make_finding(
                    scope,
                    begin,
                    known_at=facts.now + _LOOK_AGAIN_MS if observed_at is None else observed_at,
                    labels=("long",),
                    detail=f"{scope.group} has been rebalancing, consuming nothing, for more than "
                    f"{duration_text(self.longer_than)} since {clock(begin.at)} UTC",
                )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        if finding.severity is Severity.INFO:
            return recovered(finding, finding.at)
        history = facts.history(GroupState, scope.cluster, scope.group or "")
        first = history.as_of(finding.at)
        later = [*([] if first is None else [first]), *history.after(finding.at)]
        end = next((state.at for state in later if not is_rebalancing(state)), None)
        if "long" in finding.labels and end is not None and "until" not in finding.current:
            detail = f"{scope.group} was rebalancing, consuming nothing, from {clock(finding.at)} to {clock(end)} UTC"
            finding = msgspec.structs.replace(finding, current={"until": end}, detail=detail)
        quiet_from = (
            max(state.at, finding.at)
            for state, following in zip(later, [*later[1:], None], strict=True)
            if not is_rebalancing(state)
            and (following is None or following.at >= max(state.at, finding.at) + _QUIET_MS)
        )
        return recovered(finding, next((at + _QUIET_MS for at in quiet_from), None))

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        group, until = finding.subject.get("group"), finding.current.get("until")
        if "moved" in finding.labels:
            return f"{finding.detail.partition(' moved')[0]} moved"
        return super().timeline(finding, day) if until is None else f"{group} rebalanced until {instant(until, day)}"

    def _moved(self, scope: Scope, states: list[GroupState]) -> Iterator[Finding]:
        """Yield what the last of the states shows with other members than before, if anything."""
        state, owners = states[-1], _owners(states[-1])
        before, earlier = states[-1], _Owners()
        for before in reversed(states[:-1]):
            if not is_rebalancing(before):
                earlier = _owners(before) | earlier
            if owners.keys() <= earlier.keys():  # usually the quiet state before this one has all of them
                break
        moves = Counter(
            (thread(earlier[partition]), thread(member))
            for partition, member in owners.items()
            if partition in earlier and earlier[partition].id != member.id
        )
        if not moves:
            return
        begin = state
        for begun in reversed(states[:-1]):
            if not is_rebalancing(begun):
                break
            begin = begun
        (old, new), *others = moves
        # Members of the same client id cannot be told apart.
        threads = "" if others or old == new else f" from {old} to {new}"
        changes = [*_member_changes(before, state), f"{count(moves.total(), 'partition')} moved{threads}"]
        yield self.make_finding(
            scope,
            state,
            since=begin.start if begin.start < state.at else None,
            severity=Severity.INFO,
            labels=("moved",),
            detail=f"{scope.group} rebalanced: {', '.join(changes)} by {clock(state.at)} UTC",
            current={"members": len(state.members), "moved": moves.total()},
        )

    def _is_long(self, interval: Interval) -> bool:
        """Return whether it certainly took long: by polls, it may have ended right after it was last observed.

        What else is read shows until when it was observed, by the same poll, a moment after the group's state.
        """
        return interval.end is None or interval.end.start + _POLL_MS > interval.begin.at + self.longer_than

    def _observed_at(self, scope: Scope, interval: Interval, facts: Facts) -> int | None:
        """Return when it was first observed to take long, or None: time alone shows nothing if nothing is read."""
        cluster, group, due = scope.cluster, scope.group or "", interval.known_at(self.longer_than, facts)
        times = [first_observed(facts, (cluster, group, *pair), due) for pair in partitions_of(facts, cluster, group)]
        times += [] if interval.end is None else [max(due, interval.end.seen)]
        return min((at for at in times if at is not None), default=None if times else due)

    def _repeated_rebalances(self, scope: Scope, changes: Sequence[GroupState], facts: Facts) -> list[GroupState]:
        """Return the rebalances that reach the threshold, if the one before did not."""
        indexes = [index for index in range(1, len(changes)) if self._begins_rebalance(scope, changes, index, facts)]

        def are_enough(recent: list[int]) -> bool:
            recent = [index for index in recent if changes[index].at >= changes[recent[-1]].at - self.within]
            if len(recent) < self.times:
                return False
            turnover = _count_turnover(changes, recent)
            return max(turnover.values(), default=0) > min(_RESTART_REBALANCES, self.times - 2)

        return [changes[index] for index in find_repetitions(indexes, are_enough)]

    def _begins_rebalance(self, scope: Scope, changes: Sequence[GroupState], index: int, facts: Facts) -> bool:
        """Return whether a rebalance of a group that is not starting begins there, other than a second half."""
        state, earlier = changes[index], changes[max(index - FLOOR, 0) : index]
        startup = state.at - _STARTUP_MS
        if not _has_begun(earlier[-1], state) or not facts.had_members(scope.cluster, scope.group or "", startup):
            return False
        quiet = [before for before in earlier if not is_rebalancing(before)]
        if any(before.at > startup and not before.members for before in quiet):
            return False
        if len(quiet) < 2 or is_rebalancing(earlier[-1]):
            return True
        return not _owners(quiet[-2]).keys() - _owners(quiet[-1]).keys()


def _between_departures(interval: Interval, history: History[GroupState]) -> Iterator[Interval]:
    """Yield the parts of what looks like one rebalance: another may have begun with each first member that has left.

    A rolling restart that is polled in step looks so. Members that have joined since end no part, so a member that
    keeps joining and leaving does not hide how long it takes.
    """
    begin, first = interval.begin, _member_ids(interval.begin)
    for state in history.after(begin.at):
        if interval.end is not None and state.at >= interval.end.at:
            break
        left = first - _member_ids(state)
        if left:
            yield Interval(begin, state)
            begin, first = state, first - left
    yield Interval(begin, interval.end)


def _member_ids(state: GroupState) -> set[str]:
    return {member.id for member in state.members}


def _is_in_rebalance(state: GroupState | None) -> bool | None:
    return (state is not None and is_rebalancing(state)) or None


def _owners(state: GroupState) -> _Owners:
    return {partition: member for member in state.members for partition in member.partitions}


def _member_changes(before: GroupState, after: GroupState) -> Iterator[str]:
    """Yield how many members were replaced, left or joined, in words."""
    old, new = ({member.id for member in state.members} for state in (before, after))
    replaced = min(len(old - new), len(new - old))
    numbers = {"replaced": replaced, "left": len(old - new) - replaced, "joined": len(new - old) - replaced}
    return (f"{'member' if number == 1 else f'{number} members'} {what}" for what, number in numbers.items() if number)


def _has_begun(before: GroupState, after: GroupState) -> bool:
    """Return whether a rebalance began between two states, whether it was observed or not."""
    if is_rebalancing(after):
        states = (before.state, after.state)
        return not is_rebalancing(before) or states == ("CompletingRebalance", "PreparingRebalance")
    if is_rebalancing(before) or not before.members or not after.members:
        return False
    return _owner_ids(before) != _owner_ids(after)


def _owner_ids(state: GroupState) -> dict[TopicPartition, str]:
    return {partition: member.id for partition, member in _owners(state).items()}


def _count_turnover(changes: Sequence[GroupState], rebalances: list[int]) -> Counter[str]:
    """Return in how many rebalances each instance left or joined; "": without either and without new partitions.

    The last rebalance is left out while it is not over. Several instances of one name, of which none has left that had
    joined, are restarted one after the other or added: they count like one restart.
    """
    quiet = [_quiet_before(changes, rebalances[0], index) for index in rebalances]
    if not is_rebalancing(changes[rebalances[-1]]):
        quiet.append(changes[rebalances[-1]])
    turnover, joined, left = Counter[str](), set[tuple[str, str]](), set[tuple[str, str]]()
    for before, after in pairwise(state for state in quiet if state is not None):
        old, new = ({(member.id, _instance(member)) for member in state.members} for state in (before, after))
        joined |= new - old
        left |= old - new
        has_grown = not _owners(after).keys() <= _owners(before).keys()
        turnover.update({name for _, name in old ^ new} or (set() if has_grown else {""}))
    unstable = {"", *(name for _, name in joined & left)}
    return Counter(
        {name: number if name in unstable else min(number, _RESTART_REBALANCES) for name, number in turnover.items()}
    )


def _quiet_before(changes: Sequence[GroupState], first: int, index: int) -> GroupState | None:
    """Return the last quiet state before the index, from just before `first` on."""
    return next((state for state in reversed(changes[max(first - 1, 0) : index]) if not is_rebalancing(state)), None)


def _instance(member: Member) -> str:
    """Return the host and the client id without its UUID, new at each start (`<application.id>-<UUID>-...`)."""
    return f"{member.host} {_UUID.sub('', member.client_id or '')}"
