"""Queries about Kafka Streams: which thread had a task when, and whose a changelog is.

A changelog partition belongs to the task of its number in one subtopology. If the store has a repartition topic of its
own name, that is the task that reads it; otherwise it may be any task of that number. If members do not report their
tasks, the owner of the partitions with that number owns the task.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from agent.engine.facts import Facts
from agent.engine.history import FLOOR, LATENESS_MS, History
from agent.model.observations.kafka import GroupState, Member
from agent.model.observations.logs import LogLine
from agent.model.observations.streams import StreamsApplication
from agent.rules.queries.partitions import CLOCK_SLACK_MS, is_rebalancing
from agent.rules.queries.subjects import lines_about, streams_applications_in

_CHANGELOG_PARTITION = re.compile(r"(\S+-changelog)-([0-9]{1,9})")
_THREAD = re.compile(r"stream-thread \[([^\]]+)\]")

TopicPartition = tuple[str, int]


class Assignment(NamedTuple):
    """A member owned a partition. begin: the first group state that shows it.

    end: the first state without it, or a rebalance (which may have revoked and returned it); None while it lasts.
    """

    member: Member
    begin: GroupState
    end: GroupState | None


class TaskHistory(NamedTuple):
    """The assignments of a task, oldest first; `task` is None where members do not report their tasks."""

    task: str | None
    assignments: Sequence[Assignment]


class Reassignment(NamedTuple):
    """A task went from one assignment to the next, perhaps back to the same thread through a rebalance."""

    old: Assignment
    new: Assignment

    @property
    def is_to_other_thread(self) -> bool:
        """Whether the new thread is another one."""
        return self.old.member.id != self.new.member.id

    @property
    def left(self) -> GroupState:
        """The first state in which the old assignment had ended."""
        return self.old.end or self.new.begin


def thread(member: Member) -> str:
    """Return the member's stream thread: its client id is `<client.id>-StreamThread-<n>-consumer`."""
    return (member.client_id or member.id).removesuffix("-consumer")


def may_be_from(line: LogLine, member: Member) -> bool:
    """Return whether the member's thread may have logged the line: it names that thread, or none."""
    match = _THREAD.search(line.text)
    return match is None or match[1] == thread(member)


def possible_applications(changelog: str, store: str) -> list[str]:
    """Return the applications whose changelog this can be by its name, `application-store-changelog`.

    There are several where the store is unknown, for both names may contain dashes.
    """
    suffix = f"-{store}-changelog"
    if changelog.endswith(suffix):
        return [changelog.removesuffix(suffix)]
    parts = changelog.removesuffix("-changelog").split("-")
    return ["-".join(parts[:size]) for size in range(1, len(parts))]


def find_application(facts: Facts, cluster: str, changelog: str, at: int) -> str | None:
    """Return the application that the changelog belongs to, or None if none was observed by then."""
    for application in reversed(streams_applications_in(facts, cluster)):  # the longer of two with the same prefix
        state = facts.history(StreamsApplication, cluster, application).as_of(at + LATENESS_MS)
        if state is not None and changelog in map(state.changelog, dict(state.stores)):
            return application
    return None


def store_changelog(line: LogLine) -> TopicPartition | None:
    """Return the changelog partition of the store in the line; up to 2.0 it stands in the store's place."""
    if line.topic is not None and line.partition is not None:
        return line.topic, line.partition
    match = _CHANGELOG_PARTITION.fullmatch(line.values.get("store", ""))
    return None if match is None else (match[1], int(match[2]))


def find_store_lines(facts: Facts, cluster: str, changelog: TopicPartition, pattern: str) -> list[LogLine]:
    """Return the lines of all logs that matched the pattern and are about the store of the changelog partition."""
    unplaced = lines_about(facts, cluster, pattern, None, None)
    return [
        *lines_about(facts, cluster, pattern, *changelog),
        *(line for line in unplaced if store_changelog(line) == changelog),
    ]


def find_task_histories(
    history: History[GroupState], partition: int, repartition: str, at: int, task: str | None = None
) -> list[TaskHistory]:
    """Return who owned the tasks of that number around `at`; several where it can be any of them.

    repartition: the topic whose task alone counts if the group reads it. task: the only one that counts. Looks back as
    far as histories are certain to reach, and ahead by the allowed lateness.
    """
    states = [*history.before(at, FLOOR), *history.between(at - 1, at + LATENESS_MS)]
    inputs = sorted({place for state in states for member in state.members for place in member.partitions})
    inputs = [place for place in inputs if place[1] == partition]
    # A task's inputs hardly ever change: observed a little late, they would only change an earlier finding.
    tasks = dict(entry for state in states if state.at <= at + CLOCK_SLACK_MS for entry in _input_tasks(state))
    wanted = task or tasks.get((repartition, partition))
    if wanted is not None:
        exact = [place for place in inputs if tasks.get(place) == wanted]
        inputs = exact or [place for place in inputs if place not in tasks]
    elif (repartition, partition) in inputs:
        inputs = [(repartition, partition)]
    # All inputs of a task move with it: one per task is enough.
    by_task = {tasks.get(place, place): place for place in reversed(inputs)}
    return [TaskHistory(tasks.get(place), list(_find_assignments(states, place))) for place in sorted(by_task.values())]


def find_reassignments(assignments: Sequence[Assignment], at: int, within: int) -> Iterator[Reassignment]:
    """Yield the reassignments that can have happened in the `within` ms before `at`, oldest first."""
    for old, new in pairwise(assignments):
        if new.begin.start - CLOCK_SLACK_MS <= at and new.begin.at >= at - within:
            yield Reassignment(old, new)


def _find_assignments(states: Sequence[GroupState], partition: TopicPartition) -> Iterator[Assignment]:
    current: Assignment | None = None
    before: GroupState | None = None
    for state in states:
        owner = None if is_rebalancing(state) else _find_owner(state, partition)
        may_have_moved = owner is None or (before is not None and _partitions(state) != _partitions(before))
        if current is not None and current.end is None and may_have_moved:
            current = current._replace(end=state)
        if owner is not None and (current is None or current.end is not None):
            if current is not None:
                yield current
            current = Assignment(owner, state, None)
        before = state
    if current is not None:
        yield current


def _find_owner(state: GroupState, partition: TopicPartition) -> Member | None:
    return next((member for member in state.members if partition in member.partitions), None)


def _partitions(state: GroupState) -> list[tuple[str, tuple[TopicPartition, ...]]]:
    return [(member.id, member.partitions) for member in state.members]


def _input_tasks(state: GroupState) -> Iterator[tuple[TopicPartition, str]]:
    """Yield (input partition, its task) of the members that report their tasks."""
    for member in state.members:
        if len(member.tasks) == len(member.partitions):
            yield from zip(member.partitions, member.tasks, strict=True)
