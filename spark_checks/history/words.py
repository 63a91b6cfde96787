"""Falls, leaps and gaps in sentences for an operator, as they stand in an incident's thread. Nothing is judged here."""

from typing import NamedTuple

from agent.model.observations import clock
from agent.model.text import count, day_of, instant, span
from agent.rules.queries.partitions import leader_of
from spark_checks.history.events import Spell
from spark_checks.history.verdicts import Event, Verdict

_SOON_MS = 10_000
"""What happened within so long is told by its end alone."""


class Usual(NamedTuple):
    """How a group moves on a partition when nothing is wrong: the medians of an hour. step: records; every: ms."""

    step: int
    every: int


class Past(NamedTuple):
    """The same group's and partition's rewinds before. covered: how long the journal had watched it, ms."""

    rewinds: int
    last: int | None
    covered: int


def sentence(verdict: Verdict, past: Past, usual: Usual | None) -> str:
    """A rewind or a jump: what, when, how unusual, and what happened around it."""
    parts = [_what(verdict), _unusual(verdict, past)]
    if usual is not None and usual.step > 0:
        parts.append(f"it usually advances {count(usual.step, 'record')} every {span(usual.every)}")
    if verdict.hidden:
        parts.append(f"nobody saw when: {_gap(verdict.hidden[0], day_of(verdict.event.at))}")
    if "clock_set_back" in verdict.labels:
        parts.append("the agent's clock was set back meanwhile, so its time is uncertain")
    *first, last = _causes(verdict) or [""]
    parts.append(" and ".join([*([", ".join(first)] if first else []), last]))
    return "; ".join(part for part in parts if part)


def gap(spell: Spell) -> str:
    """A stretch of time of which the journal tells nothing."""
    return f"Not compared: {_gap(spell, '')}"


def _what(verdict: Verdict) -> str:
    event = verdict.event
    old, new = event.hit.before_offset, event.hit.offset
    who = f"{event.key.group} on {event.key.topic}[{event.key.partition}]"
    day = day_of(event.at)
    when = f"at {day} {clock(event.at)} UTC"
    if event.began < event.at - _SOON_MS or verdict.hidden:
        begun = day_of(event.began)
        when = f"between {begun} {clock(event.began)} and {instant(event.at, begun)} UTC"
    if event.back:
        # A poll sees where the group was by then: it had gone back further and read some of it again.
        least = "at least " if event.hit.since is not None else ""
        where = ", to the log's start" if "to_earliest" in verdict.labels else ""
        expired = ", after its offset had expired" if "after_expiry" in verdict.labels else ""
        return f"{who} went back {old:,} -> {new:,} ({least}{count(old - new, 'record')}{where}){expired} {when}"
    where = " (the log's end)" if "to_latest" in verdict.labels else ""
    lost, skipped = verdict.records.lost, verdict.records.skipped
    means = [f"{count(skipped, 'record')} skipped unread"] if skipped else []
    means += [f"{count(lost, 'record')} had been deleted by retention"] if lost else []
    expired = ", after its offset had expired" if "after_expiry" in verdict.labels else ""
    return f"{who} leapt {old:,} -> {new:,}{where}{expired} {when}: {' and '.join(means)}"


def _unusual(verdict: Verdict, past: Past) -> str:
    covered = f"{span(past.covered)} of its journal"
    if not verdict.event.back:
        return ""
    if past.rewinds == 0 or past.last is None:
        return f"the only rewind in {covered}"
    return (
        f"{count(past.rewinds, 'rewind')} before it in {covered}, the last {span(verdict.event.at - past.last)} earlier"
    )


def _causes(verdict: Verdict) -> list[str]:
    event = verdict.event
    where = f"{event.key.topic}[{event.key.partition}]"
    told = [f"broker {one.broker} lost its session {_apart(one.at, event)}" for one in verdict.losses]
    moves = [f"{leader_of(old)} -> {leader_of(new)} {_apart(new.at, event)}" for old, new in verdict.moves]
    if moves:
        told.append(f"{where} changed leader {', '.join(moves)}")
    told += [f"its log was cut off {one.old:,} -> {one.new:,} {_apart(one.at, event)}" for one in verdict.truncations]
    return told


def _apart(at: int, event: Event) -> str:
    if at == event.at:
        return "at the same time"
    if at < event.at:
        return f"{span(event.at - at)} before"
    return f"{span(at - event.at)} after"


def _gap(spell: Spell, day: str) -> str:
    begin = instant(spell.begin, day)
    end = instant(spell.end, day or day_of(spell.begin))
    about = {name: value for name, value in spell.subject.items() if name != "source"}
    what = " ".join(f"{name} {value}" for name, value in about.items())
    seen = f"nothing was seen of {what}" if what else "the journal holds nothing"
    why = f" ({spell.reason})" if spell.reason else ""
    return f"{seen} between {begin} and {end} UTC, {span(spell.end - spell.begin)}{why}"
