"""Findings about values that decreased: one for each episode, with what the journal says around it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.model.declared_stores import DeclaredStore
from agent.model.findings import Finding, Severity
from agent.model.observations.logs import LogLine
from agent.model.text import count, day_of, instant, join_names
from agent.rules.queries.partitions import CLOCK_SLACK_MS
from agent.sources.streams.changelog_values import key_text
from spark_checks.changelogs.context import RESTORED, UNKNOWN, Context
from spark_checks.changelogs.decreases import Episode, KeyDecrease

KIND = "changelog_restore"

_LINES = 3
_OFTEN = 3


def make_finding(cluster: str, store: DeclaredStore, episode: Episode, context: Context, keys: Path | None) -> Finding:
    """Return the finding about an episode. keys: the file that lists its keys, None if there is none."""
    at = context.started_at(episode)
    worst = episode.worst[0]
    return Finding(
        rule=KIND,
        kind=KIND,
        severity=Severity.CRITICAL,
        at=at,
        known_at=at,
        since=context.first.since,
        subject={
            "cluster": cluster,
            "group": store.application,
            "topic": store.changelog,
            "partition": episode.partition,
        },
        labels=("values_fell", *(["restarted"] if episode.restarted else [])),
        previous={"key": key_text(worst.key), "value": worst.before, "offset": worst.before_offset},
        current={
            "key": key_text(worst.key),
            "value": worst.after,
            "offset": worst.after_offset,
            "keys": episode.keys,
            "restarted": episode.restarted,
            "total": episode.total,
            "first_offset": episode.first_offset,
            "last_offset": episode.last_offset,
            **({} if keys is None else {"listed_in": str(keys)}),
        },
        detail=" ".join([
            _describe_decrease(store, episode, context),
            *_describe_worst(store, episode),
            *(_describe_cause(store, episode, context) if context.has_journal else ()),
            *_describe_rest(episode, keys),
        ]),
    )  # fmt: skip


def last_reassignment(
    episode: Episode, context: Context, bounds: Sequence[int]
) -> tuple[int | None, tuple[str, str] | None]:
    """Return the log end offset when the task's old owner was last observed, and the old and new owner, or None.

    bounds: offsets at which episodes of the partition begin.
    """
    reassignments, _ = context.owners.before(episode.partition, context.started_at(episode))
    if not reassignments:
        return None, None
    owners = ((reassignment.old, reassignment.new) for reassignment in reassignments)
    old, new = (join_names(dict.fromkeys(names)) for names in zip(*owners, strict=True))
    return max((bound for bound in bounds if bound <= episode.first_offset), default=None), (old, new)


def _describe_decrease(store: DeclaredStore, episode: Episode, context: Context) -> str:
    often = f" {episode.decreases:,} times" if episode.decreases > episode.keys else ""
    return (
        f"{store.changelog}[{episode.partition}]: {episode.keys:,} of "
        f"{count(max(episode.live_keys, episode.keys), 'key')} decreased{often}, by {episode.total:,} in total, "
        f"from offset {episode.first_offset:,} on, {_describe_time(episode, context)}."
    )


def _describe_time(episode: Episode, context: Context) -> str:
    """Describe when they were written; if the journal does not say, by the timestamps of their input."""
    day = day_of(context.started_at(episode))
    if context.first == UNKNOWN:
        return f"record timestamps {instant(episode.first_at, day)} to {instant(episode.last_at, day)} UTC"
    since, at = context.first
    begin = "" if since is None else f" after {instant(since, day)}"
    known = "" if at is None else f" by {instant(at, day)}"
    last = context.last.at
    end = "" if last is None or last == at else f", the last by {instant(last, day)}"
    return f"written{begin}{' and' if begin and known else ''}{known} UTC{end}"


def _describe_worst(store: DeclaredStore, episode: Episode) -> Iterator[str]:
    kind = "Worst" if episode.keys > len(episode.worst) else "Keys"
    yield f"{kind}: {', '.join(map(_describe_key, episode.worst))}."
    if episode.restarted:
        who = "All of them" if episode.restarted == episode.keys else f"{episode.restarted:,} of them"
        yield f"{who} restarted at or below their first value."
    if episode.decreases > _OFTEN * episode.keys:
        yield f"They decrease repeatedly: check that {store.store} really never decreases."


def _describe_key(decrease: KeyDecrease) -> str:
    return f"{key_text(decrease.key)} {decrease.before:,} -> {decrease.after:,}"


def _describe_cause(store: DeclaredStore, episode: Episode, context: Context) -> Iterator[str]:
    """Describe the reassignment and rebalance before it, and the log lines about restoring."""
    at = context.started_at(episode)
    day = day_of(at)
    moved, rebalance = context.owners.before(episode.partition, at)
    if moved:
        owners = join_names(f"{move.topic}[{move.partition}] moved from {move.old} to {move.new}" for move in moved)
        yield f"Before, {owners}, {_between(moved[0].since, moved[0].at, day)}."
    if rebalance is not None and (not moved or rebalance.since > moved[0].at):
        stayed = "with the same owner before and after" if moved else "without a reassignment of this partition"
        yield f"{store.application} rebalanced {_between(rebalance.since, rebalance.at, day)}, {stayed}."
    if not moved and rebalance is None:
        yield f"No earlier rebalance of {store.application} in the journal."
    begin = min([change.since for change in (*moved, rebalance) if change is not None], default=at)
    until = at if context.last.at is None else context.last.at
    lines = [line for line in context.lines if begin - CLOCK_SLACK_MS <= line.at <= until + CLOCK_SLACK_MS]
    for line in lines[-_LINES:]:
        yield _describe_line(line, episode.first_offset, day)


def _between(since: int, at: int, day: str) -> str:
    return f"by {instant(at, day)}" if since == at else f"between {instant(since, day)} and {instant(at, day)}"


def _describe_line(line: LogLine, offset: int, day: str) -> str:
    log = f"{line.host}:{line.log}" if line.host else line.log
    if line.pattern == RESTORED:
        records = count(int(line.values.get("records", 0)), "record")
        text = f"{records} restored, while the changelog was at offset {offset:,}"
    else:
        text = "no checkpoint found; the store is restored from the beginning of the changelog"
    return f"{log} at {instant(line.at, day)}: {text}."


def _describe_rest(episode: Episode, keys: Path | None) -> Iterator[str]:
    if episode.unwritten:
        which = "key has" if episode.unwritten == 1 else "keys have"
        yield f"{episode.unwritten:,} more {which} not been written since and may decrease with the next write."
    if keys is not None:
        yield f"All keys with values and offsets: {keys}."
