"""What is said of a Kafka Streams store whose values fell: figures, owners, a sentence. Whether they did: the rules."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agent.model.observations import ChangelogDecreases, clock
from agent.model.text import count
from agent.rules.queries.lost_counts import proof
from agent.rules.queries.restored_stores import restored_words
from agent.rules.queries.streams import Held, Holding, Move, thread


def held_by(holding: Holding, name: str, at: int) -> dict[str, Any]:
    """Who held it, and until or since when (`name`), ms."""
    return {"owner": thread(holding.member), "host": holding.member.host.removeprefix("/"), name: at}


def task_of(held: Sequence[Held]) -> dict[str, str]:
    """The task, where it can be but one."""
    tasks = {one.task for one in held if one.task is not None}
    return {"task": tasks.pop()} if len(held) == len(tasks) == 1 else {}


def owners(move: Move | None, held: Sequence[Held], at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What to say of the owners before and after; without a move, of the one that there was at that moment."""
    tasks = [one.task for one in held if one.task is not None]
    candidates = {"tasks": tasks} if len(tasks) > 1 else {}
    if move is not None:
        new = move.new
        return held_by(move.old, "until", move.left.at), held_by(new, "since", new.begin.at) | candidates
    known = [one for each in held for one in each.holdings if one.begin.at <= at]
    return {}, (held_by(known[-1], "since", known[-1].begin.at) if known else {}) | candidates


def fallen(falls: ChangelogDecreases) -> dict[str, Any]:
    """The figures of what fell."""
    return {
        "keys": falls.keys,
        "total": falls.total,
        "first_offset": falls.first_offset,
        "worst": [msgspec.to_builtins(one) for one in falls.worst],
    }


def told(subject: Mapping[str, Any], previous: Mapping[str, Any], current: Mapping[str, Any], began_at: int) -> str:
    """What fell, after which move, what was restored and what is missing, in a sentence."""
    place = f"{subject['topic']}[{subject['partition']}]"
    worst = "".join(f"; worst: {one['key']} {one['before']:,} -> {one['after']:,}" for one in current["worst"][:1])
    what = "was not restored" if previous else "went back"
    return (
        f"store {subject['store']} of {subject['application']} {what}: since {clock(began_at)} UTC "
        f"{count(current['keys'], 'key')} of {place} fell by {current['total']:,} in all "
        f"(from offset {current['first_offset']:,} on{worst}), "
        f"{_moved(_what(subject, current), previous, current)}{restored_words(current)}"
        f"{proof(current, subject['application'], subject['partition'], began_at)}"
    )


def _what(subject: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """What moves: the task, or where it is not known the partition of its number."""
    tasks = [subject["task"]] if "task" in subject else current.get("tasks", ())
    return f"task {' or '.join(tasks)}" if tasks else f"partition {subject['partition']}"


def _moved(what: str, previous: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    if not current.get("owner"):
        return "and nothing is known of who holds its task"
    new = _named(current)
    if not previous:
        return f"though {what} has been with {new} since {clock(current['since'])} UTC"
    old, until, since = _named(previous), clock(previous["until"]), clock(current["since"])
    if old == new:
        return f"after {what} came back to {new} at {since} UTC through a rebalance begun by {until} UTC"
    return f"after {what} went from {old} (until {until}) to {new} (since {since} UTC)"


def _named(one: Mapping[str, Any]) -> str:
    return f"{one['owner']} on {one['host']}" if one["host"] else str(one["owner"])
