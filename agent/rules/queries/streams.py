"""What rules about Kafka Streams ask of the facts: who held a task and when, whose a changelog is. Rules judge.

A changelog partition is one task's of its number, in one subtopology. Where the store has a repartition topic of its
own name, it is the task that reads that one; else it may be any of that number. Where members do not tell their tasks,
a task is held by whoever holds the partitions of its number.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from agent.engine.facts import FLOOR, LATENESS_MS, Facts, History
from agent.model.observations import GroupState, LogLine, Member, StreamsApplication
from agent.rules.queries.partitions import CLOCK_SLACK_MS, is_rebalancing
from agent.rules.queries.subjects import lines_about, streams_applications_in

_CHANGELOG_PARTITION = re.compile(r"(\S+-changelog)-([0-9]{1,9})")
_THREAD = re.compile(r"stream-thread \[([^\]]+)\]")


class Holding(NamedTuple):
    """A member held a partition. begin: the first state that shows it.

    left: the first that shows it no more, or a rebalance, which may have taken it away and given it back; None while
    it lasts.
    """

    member: Member
    begin: GroupState
    left: GroupState | None


class Held(NamedTuple):
    """Who held a task, or where tasks are not told (None) a partition, oldest first."""

    task: str | None
    holdings: Sequence[Holding]


class Move(NamedTuple):
    """A task went from one holding to the next; also back to the same thread, through a rebalance."""

    old: Holding
    new: Holding

    @property
    def changed(self) -> bool:
        """Whether the thread is another."""
        return self.old.member.id != self.new.member.id

    @property
    def left(self) -> GroupState:
        """The first state that shows the old holding no more."""
        return self.old.left or self.new.begin


def thread(member: Member) -> str:
    """The stream thread that the member is, by its consumer's client id (`<client.id>-StreamThread-<n>-consumer`)."""
    return (member.client_id or member.id).removesuffix("-consumer")


def may_be_of(line: LogLine, member: Member) -> bool:
    """Whether the thread that the member is may have written the line: it names that one, or none."""
    named = _THREAD.search(line.text)
    return named is None or named[1] == thread(member)


def applications(changelog: str, store: str) -> list[str]:
    """Whose the changelog topic `application-store-changelog` can be; several where the store's name is not known."""
    suffix = f"-{store}-changelog"
    if changelog.endswith(suffix):
        return [changelog.removesuffix(suffix)]
    parts = changelog.removesuffix("-changelog").split("-")
    return ["-".join(parts[:size]) for size in range(1, len(parts))]


def owner(facts: Facts, cluster: str, changelog: str, at: int) -> str | None:
    """The application found whose changelog the topic is; None where none has been found by then."""
    for application in reversed(streams_applications_in(facts, cluster)):  # the longer of two that begin alike
        found = facts.history(StreamsApplication, cluster, application).as_of(at + LATENESS_MS)
        if found is not None and changelog in map(found.changelog, dict(found.stores)):
            return application
    return None


def store_changelog(line: LogLine) -> tuple[str, int] | None:
    """The changelog partition of the store that the line names; up to 2.0 it stands in the store's place."""
    if line.topic is not None and line.partition is not None:
        return line.topic, line.partition
    match = _CHANGELOG_PARTITION.fullmatch(line.values.get("store", ""))
    return None if match is None else (match[1], int(match[2]))


def store_lines(facts: Facts, cluster: str, place: tuple[str, int], pattern: str) -> list[LogLine]:
    """The lines of all logs that matched a pattern and are about the store of a changelog partition."""
    nameless = lines_about(facts, cluster, pattern, None, None)
    return [*lines_about(facts, cluster, pattern, *place), *(one for one in nameless if store_changelog(one) == place)]


def holdings(
    history: History[GroupState], partition: int, repartition: str, at: int, task: str | None = None
) -> list[Held]:
    """By task of that number, who held it around the moment; several where it can be any of them.

    repartition: the topic whose task alone counts where the group reads it. task: the only one that counts. No further
    back than histories surely reach, no further ahead than a minute.
    """
    states = [*history.before(at, FLOOR), *history.between(at - 1, at + LATENESS_MS)]
    places = sorted({each for one in states for member in one.members for each in member.partitions})
    places = [place for place in places if place[1] == partition]
    # What feeds a task hardly ever changes: told a little late, it would only change what was said already.
    tasks = dict(each for one in states if one.at <= at + CLOCK_SLACK_MS for each in _tasks(one))
    wanted = task or tasks.get((repartition, partition))
    if wanted is not None:
        exact = [place for place in places if tasks.get(place) == wanted]
        places = exact or [place for place in places if place not in tasks]
    elif (repartition, partition) in places:
        places = [(repartition, partition)]
    # All that feeds a task goes where the task goes: one of them will do.
    of_each = {tasks.get(place, place): place for place in reversed(places)}
    return [Held(tasks.get(place), list(_holdings(states, place))) for place in sorted(of_each.values())]


def moves(held: Sequence[Holding], at: int, within: int) -> Iterator[Move]:
    """The moves that can have happened in the time `within` before that moment, clocks considered; oldest first."""
    for old, new in pairwise(held):
        if new.begin.start - CLOCK_SLACK_MS <= at and new.begin.at >= at - within:
            yield Move(old, new)


def _holdings(states: Sequence[GroupState], place: tuple[str, int]) -> Iterator[Holding]:
    held: Holding | None = None
    before: GroupState | None = None
    for state in states:
        owner = None if is_rebalancing(state) else _owner(state, place)
        shaken = owner is None or (before is not None and _assigned(state) != _assigned(before))
        if held is not None and held.left is None and shaken:
            held = held._replace(left=state)
        if owner is not None and (held is None or held.left is not None):
            if held is not None:
                yield held
            held = Holding(owner, state, None)
        before = state
    if held is not None:
        yield held


def _owner(state: GroupState, place: tuple[str, int]) -> Member | None:
    return next((one for one in state.members if place in one.partitions), None)


def _assigned(state: GroupState) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    return [(one.id, one.partitions) for one in state.members]


def _tasks(state: GroupState) -> Iterator[tuple[tuple[str, int], str]]:
    """What feeds which task."""
    for one in state.members:
        if len(one.tasks) == len(one.partitions):
            yield from zip(one.partitions, one.tasks, strict=True)
