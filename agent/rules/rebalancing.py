"""rebalancing: a consumer group's rebalance lasts long, or one follows the other; and what a rebalance moved."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

import msgspec
from pydantic import Field

from agent.engine.facts import FINALIZATION_MS, FLOOR, Facts, History
from agent.engine.rule import Advice, Rule, Scope, recovered
from agent.model.config_types import NameFilter, PositiveDuration, duration_text
from agent.model.findings import Finding, Severity
from agent.model.observations import GroupState, Member, Observation, clock
from agent.rules.queries.flink import Spell, lasting
from agent.rules.queries.partitions import is_rebalancing
from agent.rules.queries.streams import thread

_START_MS = 60_000
"""How long after a group was without members its members may still be coming."""

_CALM_MS = 60_000

_TURNS = 2
"""In how many rebalances an instance that is restarted goes and comes."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNREAD = "nobody reads its partitions meanwhile"
_SHOWN = 3


class Rebalancing(Rule):
    """A group's rebalance takes long, or it rebalances again and again: nobody reads meanwhile, and tasks with state
    move.

    Labels: `long` (for more than `longer_than` in PreparingRebalance or CompletingRebalance), `again_and_again`
    (`times` rebalances within `within`), `moved` (info, over at once: a rebalance is done and partitions went to other
    members; what follows from it names it as its cause).
    Not: a group that is being started (rebalances within a minute of its having had no members), the second half of a
    cooperative rebalance (what begins while partitions wait to be handed over), a rolling restart (in each rebalance
    another instance goes or comes, none of them more than twice), groups without members.
    Recovers when the group has been at rest for a minute: Stable with the same members and partitions, or without
    members.
    """

    title = "{group} is rebalancing"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "": Advice(now="see which member of {reader} comes and goes, and its log.", only_while_open=True),
    }
    observes = (GroupState,)

    groups: NameFilter = NameFilter()
    """Groups judged."""

    longer_than: PositiveDuration = 30_000
    """How long a rebalance may last."""

    times: int = Field(5, ge=2, le=8)
    """Fewest rebalances told."""

    within: PositiveDuration = 600_000
    """How close together they are."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        """Each group in a rebalance, and each whose members or their partitions are others."""
        if not isinstance(observation, GroupState) or not self.groups.match(observation.group):
            return ()
        cluster, group = observation.cluster, observation.group
        changed = bool(observation.members) and len(facts.history(GroupState, cluster, group).changes) > 1
        return (Scope(cluster, group),) if changed or is_rebalancing(observation) else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """What each rebalance moved, each that is long, each row; of one moment the last counts."""
        history = facts.history(GroupState, scope.cluster, scope.group or "")
        for place, state in enumerate(history.changes):
            # Of one that is settled nothing is asked any more, and groups may have thousands of partitions.
            if state.seen > facts.now - FINALIZATION_MS and state.members and not is_rebalancing(state):
                yield from self._moved(scope, history.changes[max(place - FLOOR, 0) : place + 1])
        rows = list(self._rows(scope, facts))
        for one in rows:
            how = f"has rebalanced {self.times} times within {duration_text(self.within)}"
            yield self.make_finding(scope, one, labels=("again_and_again",), detail=f"{scope.group} {how}: {_UNREAD}")
        for spell in lasting([history], lambda at: _holds(history.as_of(at))):
            if spell.begin in rows or not self._is_long(spell, history):
                continue
            yield self.make_finding(
                scope,
                spell.begin,
                known_at=spell.known_at(self.longer_than),
                labels=("long",),
                detail=self._lasting(scope, spell.begin.at, ""),
            )

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over when the group has been at rest for a minute; at once where it tells only what moved."""
        if finding.severity is Severity.INFO:
            return recovered(finding, finding.at)
        history = facts.history(GroupState, scope.cluster, scope.group or "")
        held = history.as_of(finding.at)
        later = [*([] if held is None else [held]), *history.after(finding.at)]
        end = next((one.at for one in later if not is_rebalancing(one)), None)
        if "long" in finding.labels and end is not None and "until" not in finding.current:
            detail = self._lasting(scope, finding.at, f", until {clock(end)} UTC")
            finding = msgspec.structs.replace(finding, current={"until": end}, detail=detail)
        calm = (
            max(one.at, finding.at) + _CALM_MS
            for one, following in zip(later, [*later[1:], None], strict=True)
            if not is_rebalancing(one) and (following is None or following.at >= max(one.at, finding.at) + _CALM_MS)
        )
        return recovered(finding, next(calm, None))

    def _moved(self, scope: Scope, states: list[GroupState]) -> Iterator[Finding]:
        """Which partitions the last of the states shows with another member than before."""
        now, owners = _owners(states[-1]), dict[tuple[str, int], Member]()
        for one in reversed(states[:-1]):
            if not is_rebalancing(one):
                owners = _owners(one) | owners
            if now.keys() <= owners.keys():  # as a rule the state at rest before this one shows all of them
                break
        moved = Counter(
            (thread(owners[place]), thread(member))
            for place, member in now.items()
            if place in owners and owners[place].id != member.id
        )
        if not moved:
            return
        begin = states[-1]
        for one in reversed(states[:-1]):
            if not is_rebalancing(one):
                break
            begin = one
        went = [f"{number:,} from {old} to {new}" for (old, new), number in moved.most_common(_SHOWN)]
        went += [f"{moved.total() - sum(one for _, one in moved.most_common(_SHOWN)):,} more"] * (len(moved) > _SHOWN)
        yield self.make_finding(
            scope,
            states[-1],
            since=begin.start if begin.start < states[-1].at else None,
            severity=Severity.INFO,
            labels=("moved",),
            detail=f"{scope.group} rebalanced by {clock(states[-1].at)} UTC, and partitions went to other members: "
            f"{', '.join(went)}",
            current={"members": len(states[-1].members), "moved": moved.total()},
        )

    def _lasting(self, scope: Scope, begin: int, until: str) -> str:
        how = f"has rebalanced for more than {duration_text(self.longer_than)} since {clock(begin)} UTC{until}"
        return f"{scope.group} {how}: {_UNREAD}"

    def _is_long(self, spell: Spell, history: History[GroupState]) -> bool:
        """Whether it surely lasted: seen by polls, it may have ended when it was last seen."""
        end = None if spell.end is None else history.as_of(spell.end)
        return end is None or end.start > spell.begin.at + self.longer_than

    def _rows(self, scope: Scope, facts: Facts) -> Iterator[GroupState]:
        """The rebalances that make it enough, where the one before did not."""
        changes = facts.history(GroupState, scope.cluster, scope.group or "").changes
        places = [place for place in range(1, len(changes)) if self._counts(scope, changes, place, facts)]
        for count, place in enumerate(places, 1):
            # No further back than histories surely reach, or what is told would hang on what they still hold.
            row = [each for each in places[:count] if each > place - FLOOR]
            if self._enough(changes, row) and not self._enough(changes, row[:-1]):
                yield changes[place]

    def _enough(self, changes: list[GroupState], row: list[int]) -> bool:
        """Whether the last of the rebalances in the row (places in the history) is one too many."""
        recent = [place for place in row if changes[place].at >= changes[row[-1]].at - self.within]
        if len(recent) < self.times:
            return False
        most = max(Counter(one for each in _turnovers(changes, recent) for one in each).values(), default=0)
        return most > min(_TURNS, self.times - 2)

    def _counts(self, scope: Scope, changes: list[GroupState], place: int, facts: Facts) -> bool:
        """Whether another rebalance of a group at work begins there."""
        one, before = changes[place], changes[max(place - FLOOR, 0) : place]
        if not _begins(before[-1], one) or not facts.had_members(scope.cluster, scope.group or "", one.at - _START_MS):
            return False
        if any(other.at > one.at - _START_MS for other in before if not other.members and not is_rebalancing(other)):
            return False
        rests = [other for other in before if not is_rebalancing(other)][-2:]
        return len(rests) < 2 or is_rebalancing(before[-1]) or not _owners(rests[0]).keys() - _owners(rests[1]).keys()


def _holds(state: GroupState | None) -> bool | None:
    return (state is not None and is_rebalancing(state)) or None


def _owners(state: GroupState) -> dict[tuple[str, int], Member]:
    return {place: member for member in state.members for place in member.partitions}


def _begins(before: GroupState, one: GroupState) -> bool:
    """Whether a rebalance began between two sightings, seen or not."""
    if is_rebalancing(one):
        return not is_rebalancing(before) or (before.state, one.state) == ("CompletingRebalance", "PreparingRebalance")
    there = before.members and one.members and not is_rebalancing(before)
    return bool(there) and _ids(_owners(before)) != _ids(_owners(one))


def _turnovers(changes: list[GroupState], row: list[int]) -> Iterator[set[str]]:
    """What was restarted, went or came in each rebalance but the last, which may not be over; "" where nobody did."""
    rests = [_rest_before(changes, row[0], place) for place in row]
    if not is_rebalancing(changes[row[-1]]):
        rests.append(changes[row[-1]])
    for before, after in pairwise(one for one in rests if one is not None):
        others = {one.id for one in before.members} ^ {one.id for one in after.members}
        yield {_instance(one) for one in (*before.members, *after.members) if one.id in others} or {""}


def _rest_before(changes: list[GroupState], first: int, place: int) -> GroupState | None:
    """The last state at rest before that place, of those from just before the `first` on."""
    return next((one for one in reversed(changes[max(first - 1, 0) : place]) if not is_rebalancing(one)), None)


def _instance(member: Member) -> str:
    """The host and the client id without what is made anew at each start (`<application.id>-<UUID>-StreamThread-1`)."""
    return f"{member.host} {_UUID.sub('', member.client_id or '')}"


def _ids(owners: Mapping[tuple[str, int], Member]) -> dict[tuple[str, int], str]:
    return {place: member.id for place, member in owners.items()}
