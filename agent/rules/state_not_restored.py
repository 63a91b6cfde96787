"""state_not_restored: a Kafka Streams task runs with less state than its changelog holds (KAFKA-7672)."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Annotated, Any, ClassVar

import msgspec
from pydantic import AfterValidator, Field

from agent.engine.facts import FLOOR, LATENESS_MS, Facts
from agent.engine.rule import Advice, GroupRule, Scope, recovered
from agent.model.config_types import PositiveDuration
from agent.model.declared_stores import DeclaredStore, declared_once
from agent.model.findings import Finding, Severity
from agent.model.observations import (
    ChangelogDecreases,
    GroupState,
    LogLine,
    LogOffsets,
    Observation,
    PartitionState,
    StreamsApplication,
    Subject,
    clock,
    whole_number,
)
from agent.rules.queries.lost_counts import missing
from agent.rules.queries.partitions import find_deletion, is_recreated
from agent.rules.queries.restored_stores import restored
from agent.rules.queries.store_text import fallen, held_by, owners, task_of, told
from agent.rules.queries.streams import (
    Held,
    Holding,
    applications,
    holdings,
    may_be_of,
    moves,
    owner,
    store_changelog,
    store_lines,
    thread,
)

_WAITED_MS = 10_000
"""How long a move that explains a fall is waited for: the group is polled, the changelog is followed."""

_TOGETHER_MS = 60_000
"""How long before its end a restore may have said that it found no checkpoint."""

_SHARE = 10


class StateNotRestored(GroupRule):
    """A task of a Kafka Streams application went to another thread, and its store was not restored from its changelog:
    it goes on with less, or with nothing, and overwrites good values (KAFKA-7672 in 1.1 to 2.1).

    Labels: `values_fell` (critical: values of a store declared non-decreasing went back after the partition of their
    number had gone to another thread, or through a rebalance back to the same, within `within` before the first fall),
    `no_move_seen` (they went back and nothing of the kind is known: a warning, or critical where the second proof says
    that records are missing from the counts), `short_restore` (2.6+, from a log: without a checkpoint a store was
    restored from less than a tenth of what its changelog holds, that being at least `min_records`, and from nothing or
    from less than half of what had just been written to it: a compacted changelog holds fewer records than offsets),
    `precursor` (1.1 to 2.1, from a log, of stores that are not declared: a task found no checkpoint on a thread that
    had held it before. From 2.2 on that is harmless, and logs up to 2.5 do not say which version wrote them: switch it
    off there).
    Where the application's log or its metrics ([streams.*]) tell how much was restored after the move, `values_fell`
    says so; that alone is no alarm, for nothing is restored either where the checkpoint had it all.
    Not: a changelog created again (an application reset), tombstones, aborted transactions (changelogs are read
    committed), restores from a checkpoint.
    Recovers only when the changelog is created again or deleted: the state stays wrong by itself.
    """

    title = "{group} runs with a state that was not restored: {topic}[{partition}]"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "values_fell": Advice(
            now="stop every instance of {reader}: each further record builds on lost state and overwrites more of {topic}; raise min.compaction.lag.ms of {topic}, for compaction erases the good values. Then list the keys anew with `backflow check changelog_restore --out keys.parquet` and repair the store (docs/spark.md); those known by now, with their values before: {listed}.{undeclared}",
            prevent="Kafka Streams 2.2 or later (KAFKA-7672).",
        ),
        "no_move_seen": Advice(
            now="see what has written to {topic} since {start}: an instance that came back without its state, an operator's tool, or another writer. What fell is listed by `backflow check changelog_restore`.{undeclared}"
        ),
        "short_restore": Advice(now="compare the store behind {place} with its input before you trust it."),
        "precursor": Advice(
            now="declare the store behind {place} in rules.toml if its values never fall; compare it with its input.",
            prevent="Kafka Streams 2.2 or later (KAFKA-7672).",
        ),
    }
    observes = (ChangelogDecreases, LogLine, GroupState, LogOffsets, PartitionState)

    stores: Annotated[tuple[DeclaredStore, ...], AfterValidator(declared_once)] = ()
    """The stores that never decrease while all is well: their changelogs are followed. Where a plain count names what
    it `counts`, it is told how many records are surely missing, by what has been committed of that topic.
    """

    within: PositiveDuration = 600_000
    """How long before the first fall a task may have moved, and how long ago the thread may have held it."""

    min_records: int = Field(1000, ge=1)
    """Fewest records (offsets) that a changelog must hold for a restore to be called short."""

    precursor: bool = True
    """Whether `precursor` is told; `false` for applications on 2.2 and later."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        """Each fall, and each line that tells of a store restored or without a checkpoint."""
        match observation:
            case ChangelogDecreases(cluster=cluster, application=application, topic=topic, partition=partition):
                return (Scope(cluster, application, topic, partition),) if self.applies_to(application, topic) else ()
            case LogLine(pattern="store_restored") | LogLine(pattern="store_without_checkpoint", values={"task": _}):
                place = store_changelog(observation)
            case _:
                return ()
        if place is None:
            return ()
        groups = applications(place[0], observation.values.get("store", ""))
        return [
            Scope(observation.cluster, group, *place, log=observation.log)
            for group in groups
            if self.applies_to(group, place[0])
        ]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Each stretch of falls; of a log, each restore and each store without a checkpoint."""
        if scope.log is None:
            yield from self._falls(scope, facts)
        else:
            yield from self._short_restores(scope, facts)
            yield from self._precursors(scope, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Falls grow while their stretch lasts; over when the changelog is another."""
        falls = [one for one in facts.history(ChangelogDecreases, *scope.in_partition) if one.began_at == finding.at]
        if scope.log is None and falls:
            current = {**finding.current, **fallen(falls[-1]), **missing(facts, falls[-1], self._counts(scope))}
            detail = told(finding.subject, finding.previous, current, finding.at)
            severity = Severity.CRITICAL if "missing" in current else finding.severity
            finding = msgspec.structs.replace(finding, severity=severity, current=current, detail=detail)
        return recovered(finding, find_deletion(facts, scope.in_partition, finding.at))

    def _counts(self, scope: Scope) -> str | None:
        """The topic whose records the case's store counts, where it is declared."""
        return next((one.counts for one in self.stores if one.changelog == scope.topic), None)

    def _falls(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = facts.history(ChangelogDecreases, *scope.in_partition)
        for began_at, stretch in groupby(history, key=lambda one: one.began_at):
            first = next(stretch)
            # What is left in the history of a stretch that goes on for long was told when it began.
            if first.application != scope.group or not 0 <= first.at - began_at <= LATENESS_MS:
                continue
            if is_recreated(facts, scope.in_partition, first.start - _WAITED_MS, first.at):
                continue
            held = self._held(scope, first.store, began_at, facts)
            # Nothing in a changelog that an application's reset has made anew comes from a rebalance before that.
            all_moves = [
                move
                for one in held
                for move in moves(one.holdings, began_at, self.within)
                if not is_recreated(facts, scope.in_partition, move.left.start, first.at)
            ]
            move = max(all_moves, key=lambda one: (one.changed, one.new.begin.at), default=None)
            subject = {"application": first.application, "store": first.store, **task_of(held)}
            previous, current = owners(move, held, began_at)
            current |= fallen(first) | self._undeclared(scope, began_at, facts) | restored(facts, first, move)
            yield self.make_finding(
                scope,
                first,
                at=began_at,
                known_at=first.seen + _WAITED_MS if move is None else max(first.seen, move.new.begin.seen),
                severity=Severity.WARNING if move is None else Severity.CRITICAL,
                labels=("no_move_seen",) if move is None else ("values_fell",),
                detail=told({**scope.subject, **subject}, previous, current, began_at),
                subject=subject,
                previous=previous,
                current=current,
            )

    def _short_restores(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for line in facts.history(LogLine, *_line_key(scope, "store_restored")):
            if _others(scope, line, facts):
                continue
            records = whole_number(line.values.get("records"))
            begin = facts.history(LogLine, *_line_key(scope, "store_without_checkpoint")).as_of(line.at)
            if records is None or begin is None or begin.at < line.at - _TOGETHER_MS:
                continue
            readings = facts.history(LogOffsets, *scope.in_partition).before(begin.at + 1, FLOOR // 2)
            if not readings or is_recreated(facts, scope.in_partition, readings[0].at, line.at):
                continue
            there = readings[-1].log_end - readings[-1].log_start
            written = readings[-1].log_end - readings[0].log_end
            if there < self.min_records or records * _SHARE >= there or (records and 2 * records >= written):
                continue
            store = line.values.get("store", "")
            task = task_of(self._held(scope, store, line.at, facts))
            what = f"store {store}{' of task ' + task['task'] if task else ''}"
            yield self.make_finding(
                scope,
                line,
                known_at=max(line.seen, begin.seen, readings[-1].seen),
                labels=("short_restore",),
                detail=f"{scope.group}{_on(line)} restored {what} from {records:,} records of "
                f"{scope.topic}[{scope.partition}], which spans {there:,} offsets, though it had found no checkpoint "
                f"({scope.log}, {clock(line.at)} UTC): the store may lack what was in it",
                subject={"application": scope.group, "store": store, **task},
                previous={"log_start": readings[-1].log_start, "log_end": readings[-1].log_end},
                current={"records": records},
            )

    def _precursors(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        if not self.precursor or scope.topic in {one.changelog for one in self.stores}:
            return
        for line in _without_checkpoint(scope, facts):
            store = line.values.get("store", "")
            back = self._returned(scope, line, facts)
            if back is None or _others(scope, line, facts):
                continue
            before, now = back
            left = before.left or now.begin
            yield self.make_finding(
                scope,
                line,
                known_at=max(line.seen, now.begin.seen),
                labels=("precursor",),
                detail=f"task {line.values['task']} of {scope.group} came back to {thread(now.member)}{_on(line)}, "
                f"which had held it until {clock(left.at)} UTC, and found no checkpoint for store {store} ({scope.log}, "
                f"{clock(line.at)} UTC): on Kafka Streams 1.1 to 2.1 it may go on with an empty store (KAFKA-7672)",
                subject={"application": scope.group, "store": store, "task": line.values["task"]},
                previous=held_by(before, "until", left.at),
                current=held_by(now, "since", now.begin.at),
            )

    def _returned(self, scope: Scope, line: LogLine, facts: Facts) -> tuple[Holding, Holding] | None:
        """The holding that the line's thread had before, and the one that it had come to at the line."""
        for _, held in self._held(scope, line.values.get("store", ""), line.at, facts, line.values["task"]):
            for move in reversed(list(moves(held, line.at, self.within))):
                now = move.new
                earlier = [one for one in held if one.begin.at < now.begin.at and one.member.id == now.member.id]
                recent = [one for one in earlier if one.left is not None and one.left.at >= line.at - self.within]
                if recent and may_be_of(line, now.member):
                    return recent[-1], now
        return None

    def _held(self, scope: Scope, store: str, at: int, facts: Facts, task: str | None = None) -> list[Held]:
        repartition = f"{scope.group}-{store}-repartition"
        return holdings(
            facts.history(GroupState, scope.cluster, scope.group or ""), scope.partition or 0, repartition, at, task
        )

    def _undeclared(self, scope: Scope, at: int, facts: Facts) -> dict[str, Any]:
        """The application's stores that nobody watches, where there are any."""
        found = facts.history(StreamsApplication, scope.cluster, scope.group or "").as_of(at + LATENESS_MS)
        declared = {one.changelog for one in self.stores}
        stores = [] if found is None else [one for one, _ in found.stores if found.changelog(one) not in declared]
        return {"undeclared": stores} if stores else {}


def _without_checkpoint(scope: Scope, facts: Facts) -> list[LogLine]:
    """The lines up to 2.5 that name the case's changelog partition, oldest first."""
    lines = store_lines(facts, scope.cluster, scope.in_partition[1:], "store_without_checkpoint")
    return [one for one in lines if one.log == scope.log and "task" in one.values]


def _others(scope: Scope, line: LogLine, facts: Facts) -> bool:
    """Whether the changelog is known to be another application's, whose id begins with this one's or the reverse."""
    return owner(facts, scope.cluster, scope.topic or "", line.at) not in (None, scope.group)


def _line_key(scope: Scope, pattern: str) -> Subject:
    return (scope.cluster, scope.log, pattern, scope.topic, scope.partition, None, None)


def _on(line: LogLine) -> str:
    return f" on {line.host}" if line.host else ""
