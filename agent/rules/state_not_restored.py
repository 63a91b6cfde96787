"""state_not_restored: a Kafka Streams task runs with less state than its changelog holds (KAFKA-7672)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import msgspec
from pydantic import Field

from agent.declared_stores import DeclaredStore
from agent.evidence import end_of, recreated
from agent.facts import FLOOR, LATENESS_MS, Facts
from agent.findings import Finding, Severity
from agent.observations import (
    ChangelogFalls,
    GroupState,
    LogLine,
    LogOffsets,
    Observation,
    PartitionState,
    Subject,
    clock,
    whole_number,
)
from agent.options import Wait
from agent.rule import Case, GroupRule, recovered
from agent.streams_evidence import Holding, Move, applications, holdings, moves, store_changelog, thread

_WAITED_MS = 10_000
"""How long a move that explains a fall is waited for: the group is polled, the changelog is followed."""

_TOGETHER_MS = 60_000
"""How long before its end a restore may have said that it found no checkpoint."""

_SHARE = 10
_THREAD = re.compile(r"stream-thread \[([^\]]+)\]")


class StateNotRestored(GroupRule):
    """A task of a Kafka Streams application went to another thread, and its store was not restored from its changelog:
    it goes on with less, or with nothing, and overwrites good values (KAFKA-7672 in 1.1 to 2.1).

    Labels: `values_fell` (critical: values of a store declared non-decreasing went back after the partition of their
    number had gone to another thread, or through a rebalance back to the same, within `within` before the first fall),
    `no_move_seen` (they went back and nothing of the kind is known), `short_restore` (2.6+, from a log: without a
    checkpoint a store was restored from less than a tenth of what its changelog holds, that being at least
    `min_records`, and from nothing or from less than half of what had just been written to it: a compacted changelog
    holds fewer records than offsets), `precursor` (1.1 to 2.1, from a log, of stores that are not declared: a task
    found no checkpoint on a thread that had held it before. From 2.2 on that is harmless, and logs up to 2.5 do not say
    which version wrote them: switch it off there).
    Not: a changelog created again (an application reset), tombstones, aborted transactions (changelogs are read
    committed), restores from a checkpoint.
    Recovers only when the changelog is created again or deleted: the state stays wrong by itself.
    """

    title = "{group} runs with a state that was not restored: {topic}[{partition}]"
    sees = (ChangelogFalls, LogLine, GroupState, LogOffsets, PartitionState)

    stores: tuple[DeclaredStore, ...] = ()
    """The stores that never decrease while all is well: their changelogs are followed."""

    within: Wait = 600_000
    """How long before the first fall a task may have moved, and how long ago the thread may have held it."""

    min_records: int = Field(1000, ge=1)
    """Fewest records (offsets) that a changelog must hold for a restore to be called short."""

    precursor: bool = True
    """Whether `precursor` is told; `false` for applications on 2.2 and later."""

    def cases(self, observation: Observation, facts: Facts) -> Iterable[Case]:  # noqa: ARG002 - the base's signature
        """Each fall, and each line that tells of a store restored or without a checkpoint."""
        match observation:
            case ChangelogFalls(cluster=cluster, application=application, topic=topic, partition=partition):
                return (Case(cluster, application, topic, partition),) if self.judged(application, topic) else ()
            case LogLine(pattern="store_restored") | LogLine(pattern="store_without_checkpoint", values={"task": _}):
                place = store_changelog(observation)
            case _:
                return ()
        if place is None:
            return ()
        groups = applications(place[0], observation.values.get("store", ""))
        return [
            Case(observation.cluster, group, *place, log=observation.log)
            for group in groups
            if self.judged(group, place[0])
        ]

    def detect(self, case: Case, facts: Facts) -> Iterator[Finding]:
        """Each stretch of falls; of a log, each restore and each store without a checkpoint."""
        if case.log is None:
            yield from self._falls(case, facts)
        else:
            yield from self._short_restores(case, facts)
            yield from self._precursors(case, facts)

    def follow(self, finding: Finding, case: Case, facts: Facts) -> Finding:
        """Falls grow while their stretch lasts; over when the changelog is another."""
        falls = [one for one in facts.changelog_falls(*case.in_partition) if one.began_at == finding.at]
        if case.log is None and falls:
            current = {**finding.current, **_fallen(falls[-1])}
            detail = _told(finding.subject, finding.previous, current, finding.at)
            finding = msgspec.structs.replace(finding, current=current, detail=detail)
        return recovered(finding, end_of(facts, case.in_partition, finding.at))

    def _falls(self, case: Case, facts: Facts) -> Iterator[Finding]:
        history = facts.changelog_falls(*case.in_partition)
        for began_at, stretch in groupby(history, key=lambda one: one.began_at):
            first = next(stretch)
            # What is left in the history of a stretch that goes on for long was told when it began.
            if first.application != case.group or not 0 <= first.at - began_at <= LATENESS_MS:
                continue
            held = self._held(case, first.store, began_at, facts)
            all_moves = [move for one in held for move in moves(one, began_at, self.within)]
            move = max(all_moves, key=lambda one: (one.changed, one.new.begin.at), default=None)
            before = first.start if move is None else move.left.start
            if recreated(facts, case.in_partition, before, first.at):
                continue
            subject = {"application": first.application, "store": first.store}
            previous, current = _owners(move, held, began_at)
            current |= _fallen(first)
            yield self.find(
                case,
                first,
                at=began_at,
                known_at=first.seen + _WAITED_MS if move is None else max(first.seen, move.new.begin.seen),
                severity=Severity.WARNING if move is None else Severity.CRITICAL,
                labels=("no_move_seen",) if move is None else ("values_fell",),
                detail=_told({**case.subject, **subject}, previous, current, began_at),
                subject=subject,
                previous=previous,
                current=current,
            )

    def _short_restores(self, case: Case, facts: Facts) -> Iterator[Finding]:
        for line in facts.log_lines(_subject(case, "store_restored")):
            records = whole_number(line.values.get("records"))
            begin = facts.log_lines(_subject(case, "store_without_checkpoint")).as_of(line.at)
            if records is None or begin is None or begin.at < line.at - _TOGETHER_MS:
                continue
            readings = facts.log_offsets(*case.in_partition).before(begin.at + 1, FLOOR // 2)
            if not readings or recreated(facts, case.in_partition, readings[0].at, line.at):
                continue
            there = readings[-1].log_end - readings[-1].log_start
            written = readings[-1].log_end - readings[0].log_end
            if there < self.min_records or records * _SHARE >= there or (records and 2 * records >= written):
                continue
            store = line.values.get("store", "")
            yield self.find(
                case,
                line,
                known_at=max(line.seen, begin.seen, readings[-1].seen),
                labels=("short_restore",),
                detail=f"{case.group}{_on(line)} restored store {store} from {records:,} records of "
                f"{case.topic}[{case.partition}], which spans {there:,} offsets, though it had found no checkpoint "
                f"({case.log}, {clock(line.at)} UTC): the store may lack what was in it",
                subject={"application": case.group, "store": store},
                previous={"log_start": readings[-1].log_start, "log_end": readings[-1].log_end},
                current={"records": records},
            )

    def _precursors(self, case: Case, facts: Facts) -> Iterator[Finding]:
        if not self.precursor or case.topic in {one.changelog for one in self.stores}:
            return
        for line in _without_checkpoint(case, facts):
            store = line.values.get("store", "")
            back = self._returned(case, line, facts)
            if back is None:
                continue
            before, now = back
            left = before.left or now.begin
            yield self.find(
                case,
                line,
                known_at=max(line.seen, now.begin.seen),
                labels=("precursor",),
                detail=f"task {line.values['task']} of {case.group} came back to {thread(now.member)}{_on(line)}, "
                f"which had held it until {clock(left.at)} UTC, and found no checkpoint for store {store} ({case.log}, "
                f"{clock(line.at)} UTC): on Kafka Streams 1.1 to 2.1 it may go on with an empty store (KAFKA-7672)",
                subject={"application": case.group, "store": store, "task": line.values["task"]},
                previous=_owner(before, "until", left.at),
                current=_owner(now, "since", now.begin.at),
            )

    def _returned(self, case: Case, line: LogLine, facts: Facts) -> tuple[Holding, Holding] | None:
        """The holding that the line's thread had before, and the one that it had come to at the line."""
        named = _THREAD.search(line.text)
        for held in self._held(case, line.values.get("store", ""), line.at, facts):
            for move in reversed(list(moves(held, line.at, self.within))):
                now = move.new
                earlier = [one for one in held if one.begin.at < now.begin.at and one.member.id == now.member.id]
                recent = [one for one in earlier if one.left is not None and one.left.at >= line.at - self.within]
                if recent and (named is None or named[1] == thread(now.member)):
                    return recent[-1], now
        return None

    def _held(self, case: Case, store: str, at: int, facts: Facts) -> list[list[Holding]]:
        repartition = f"{case.group}-{store}-repartition"
        return holdings(facts.group(case.cluster, case.group or ""), case.partition or 0, repartition, at)


def _without_checkpoint(case: Case, facts: Facts) -> list[LogLine]:
    """The lines up to 2.5 that name the case's changelog partition, oldest first."""
    pattern = "store_without_checkpoint"
    nameless = ("log_line", case.cluster, case.log, pattern, None, None, None, None)
    lines = [*facts.log_lines(_subject(case, pattern)), *facts.log_lines(nameless)]
    return [one for one in lines if "task" in one.values and store_changelog(one) == (case.topic, case.partition)]


def _subject(case: Case, pattern: str) -> Subject:
    return ("log_line", case.cluster, case.log, pattern, case.topic, case.partition, None, None)


def _on(line: LogLine) -> str:
    return f" on {line.host}" if line.host else ""


def _owner(holding: Holding, name: str, at: int) -> dict[str, Any]:
    return {"owner": thread(holding.member), "host": holding.member.host.removeprefix("/"), name: at}


def _owners(move: Move | None, held: list[list[Holding]], at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What to say of the owners before and after; without a move, of the one that there was at that moment."""
    if move is not None:
        new = move.new
        return _owner(move.old, "until", move.left.at), _owner(new, "since", new.begin.at)
    known = [one for each in held for one in each if one.begin.at <= at]
    return {}, _owner(known[-1], "since", known[-1].begin.at) if known else {}


def _fallen(falls: ChangelogFalls) -> dict[str, Any]:
    return {
        "keys": falls.keys,
        "total": falls.total,
        "first_offset": falls.first_offset,
        "worst": [msgspec.to_builtins(one) for one in falls.worst],
    }


def _told(subject: Mapping[str, Any], previous: Mapping[str, Any], current: Mapping[str, Any], began_at: int) -> str:
    place = f"{subject['topic']}[{subject['partition']}]"
    keys = f"{current['keys']:,} key{'' if current['keys'] == 1 else 's'}"
    worst = "".join(f"; worst: {one['key']} {one['before']:,} -> {one['after']:,}" for one in current["worst"][:1])
    what = "was not restored" if previous else "went back"
    return (
        f"store {subject['store']} of {subject['application']} {what}: since {clock(began_at)} UTC {keys} of "
        f"{place} fell by {current['total']:,} in all (from offset {current['first_offset']:,} on{worst}), "
        f"{_moved(subject['partition'], previous, current)}"
    )


def _moved(partition: int, previous: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    if not current.get("owner"):
        return "and nothing is known of who holds its task"
    new = _named(current)
    if not previous:
        return f"though partition {partition} has been with {new} since {clock(current['since'])} UTC"
    old, until, since = _named(previous), clock(previous["until"]), clock(current["since"])
    if old == new:
        return f"after partition {partition} came back to {new} at {since} UTC through a rebalance begun by {until} UTC"
    return f"after partition {partition} went from {old} (until {until}) to {new} (since {since} UTC)"


def _named(one: Mapping[str, Any]) -> str:
    return f"{one['owner']} on {one['host']}" if one["host"] else str(one["owner"])
