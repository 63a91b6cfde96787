"""Times in which Backflow itself was suspended: the process was stopped, or its host. Nothing was observed then.

No source reports them, but ticks are missing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS
from agent.model.observations.base import Tick


class Suspension(NamedTuple):
    """After `begin` nothing was observed; by `end` all sources have reported what had changed, ms."""

    begin: int
    end: int


def suspensions(facts: Facts) -> Iterator[Suspension]:
    """Yield the last suspensions, oldest first."""
    for tick in facts.history(Tick):
        if tick.since is not None:
            yield Suspension(tick.since, tick.at + LATENESS_MS)
    since = facts.suspended_since
    if since is not None:
        yield Suspension(since, facts.now + LATENESS_MS)


def watched_for(facts: Facts, begin: int, duration: int) -> int:
    """Return when `duration` ms have been watched since `begin`: suspensions do not count."""
    due = begin + duration
    for suspension in suspensions(facts):
        start = max(suspension.begin, begin)
        if start < due and start < suspension.end:
            begin = suspension.end
            due += begin - start
    return due


def find_end(facts: Facts, at: int, after: int = 0) -> int | None:
    """Return the end of a suspension that has lasted for more than `after` ms at that moment; None if there is none."""
    return next((end for begin, end in suspensions(facts) if begin + after < at <= end), None)


def is_suspended(facts: Facts, at: int) -> bool:
    """Return whether nothing was observed at that moment."""
    return find_end(facts, at) is not None
