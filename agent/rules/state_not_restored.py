"""state_not_restored: a Kafka Streams task runs with less state than its changelog holds (KAFKA-7672)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar

import msgspec
from pydantic import AfterValidator, Field

from agent.engine.facts import Facts
from agent.engine.history import FLOOR, LATENESS_MS, LONG_AFTER
from agent.engine.rule import Advice, GroupRule, Scope, recovered, without_covered
from agent.model.config_types import PositiveDuration
from agent.model.declared_stores import DeclaredStore, declared_once
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Observation
from agent.model.observations.kafka import GroupState, LogOffsets, PartitionState
from agent.model.observations.logs import LogLine, whole_number
from agent.model.observations.streams import ChangelogDecreases, StreamsApplication
from agent.model.text import place
from agent.rules.queries.decreases import ADVICE, PREVENTION, decrease_row, keys_suffix
from agent.rules.queries.partitions import find_deletion, is_recreated
from agent.rules.queries.restored_stores import (
    add_episode,
    decrease_fields,
    describe_decrease,
    find_missing_records,
    find_restore,
    owner_change,
    owner_fields,
    task_subject,
)
from agent.rules.queries.streams import (
    Assignment,
    Reassignment,
    TaskHistory,
    find_application,
    find_reassignments,
    find_store_lines,
    find_task_histories,
    may_be_from,
    possible_applications,
    store_changelog,
    thread,
)

_WAIT_MS = 10_000
"""How long to wait for a move that explains a decrease: groups are polled, changelogs are followed."""

_RESTORE_MS = 60_000
"""The longest time between a store found without a checkpoint and the end of its restore."""

_SHORT_SHARE = 10


class StateNotRestored(GroupRule):
    """A Kafka Streams task moved to another thread and its store was not restored from its changelog.

    The task goes on with less state, or none, and overwrites good values (KAFKA-7672 in 1.1 to 2.1).

    Labels:

    - `values_fell`: values of a store declared non-decreasing decreased after the task, or the partition of their
      number, had moved to another thread, or through a rebalance back to the same, within `within` before the first
      decrease. Critical. If the application's log or its metrics ([streams.*]) report how much was restored after the
      move, the finding includes it. That alone is no alarm: nothing is restored either if the checkpoint was up to
      date.

    - `no_move_seen`: they decreased and no such move is known. A warning, or critical if records are proven to be
      missing from the counts.

    - `short_restore` (2.6+, from a log): a store without a checkpoint was restored from less than a tenth of what its
      changelog holds, that being at least `min_records`, and from nothing or from less than half of what had just been
      written to it. A compacted changelog holds fewer records than offsets.

    - `precursor` (1.1 to 2.1, from a log, of stores that are not declared): a task found no checkpoint on a thread that
      had owned it before. From 2.2 on that is harmless, and logs up to 2.5 do not show the version: switch it off
      there.

    Not:

    - a changelog created again (an application reset)

    - tombstones, aborted transactions (changelogs are read committed)

    - restores from a checkpoint

    Recovers only when the changelog is created again or deleted: the state does not repair itself. Until then keys that
    decrease later belong to the same finding, unless their task moved again.
    """

    title = "{group} runs with a state that was not restored: {topic}[{partition}]"
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        **ADVICE,
        "short_restore": Advice(now="Compare the store behind {place} with its input before you trust it."),
        "precursor": Advice(
            now="Compare the store behind {place} with its input; declare it if its values never decrease.",
            prevent=PREVENTION,
        ),
    }
    observes = (ChangelogDecreases, LogLine, GroupState, LogOffsets, PartitionState)
    ignores_growth = True

    stores: Annotated[tuple[DeclaredStore, ...], AfterValidator(declared_once)] = ()
    """The stores whose values never decrease in normal operation: their changelogs are followed. If a plain count names
    what it `counts`, the committed offsets of that topic prove how many records are missing.
    """

    within: PositiveDuration = 600_000
    """How long before the first decrease a task may have moved, and how long ago the thread may have owned it."""

    min_records: int = Field(1000, ge=1)
    """Fewest records (offsets) that a changelog must hold for a restore to be called short."""

    precursor: bool = True
    """Whether `precursor` is reported; `false` for applications on 2.2 and later."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:  # noqa: ARG002 - the base's signature
        match observation:
            case ChangelogDecreases(cluster=cluster, application=application, topic=topic, partition=partition):
                return (Scope(cluster, application, topic, partition),) if self.applies_to(application, topic) else ()
            case LogLine(pattern="store_restored") | LogLine(pattern="store_without_checkpoint", values={"task": _}):
                changelog = store_changelog(observation)
            case _:
                return ()
        if changelog is None:
            return ()
        return [
            Scope(observation.cluster, application, *changelog, log=observation.log)
            for application in possible_applications(changelog[0], observation.values.get("store", ""))
            if self.applies_to(application, changelog[0])
        ]

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        if scope.log is None:
            yield from self._decreases(scope, facts)
        else:
            yield from self._short_restores(scope, facts)
            yield from self._precursors(scope, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Update the figures while values keep decreasing; recovered when the changelog is created again."""
        deleted_at = find_deletion(facts, scope.in_partition, finding.at)
        if scope.log is None:
            until = LONG_AFTER if deleted_at is None else deleted_at
            current = self._add_episodes(finding, until, scope, facts)
            detail = describe_decrease(finding.subject, finding.previous, current, finding.at)
            severity = self.effective_severity(Severity.CRITICAL) if "missing" in current else finding.severity
            finding = msgspec.structs.replace(finding, severity=severity, current=current, detail=detail)
        return recovered(finding, deleted_at)

    def reconcile(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings without those about what `follow` adds to an earlier one.

        Keys of a lost state decrease when they are next written, some of them hours later.
        """
        return without_covered(findings, _covers)

    @classmethod
    def title_suffix(cls, findings: Iterable[Finding]) -> str:
        return keys_suffix(findings)

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        subject = finding.subject
        if "keys" in finding.current:
            return decrease_row(finding)
        return f"store {subject.get('store')} of {subject.get('application')} may not be restored ({place(subject)})"

    def _add_episodes(self, finding: Finding, until: int, scope: Scope, facts: Facts) -> Mapping[str, Any]:
        """Return the finding's `current` with the figures of its episodes before `until`: up to the next loss."""
        current, latest = finding.current, finding.current.get("earlier", {}).get("latest", finding.at)
        for began_at, changes in _episodes(scope, facts):
            if not latest <= began_at < until:
                continue
            if began_at > latest:
                move = self._last_move(
                    scope, _task_histories(scope, changes[0].store, began_at, facts), changes[0], facts
                )
                if move is not None and move.new.begin.at > finding.at:
                    break
            missing = find_missing_records(facts, changes[-1], self._input_topic(scope))
            current, latest = add_episode(current, latest, changes[-1], missing), began_at
        return current

    def _input_topic(self, scope: Scope) -> str | None:
        return next((store.counts for store in self._declared(scope) if store.changelog == scope.topic), None)

    def _declared(self, scope: Scope) -> list[DeclaredStore]:
        return [store for store in self.stores if store.is_on(scope.cluster)]

    def _decreases(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for began_at, (first, *_) in _episodes(scope, facts):
            if first.application != scope.group or is_recreated(
                facts, scope.in_partition, first.start - _WAIT_MS, first.at
            ):
                continue
            histories = _task_histories(scope, first.store, began_at, facts)
            move = self._last_move(scope, histories, first, facts)
            subject = {"application": first.application, "store": first.store, **task_subject(histories)}
            previous, current = owner_change(move, histories, began_at)
            current |= decrease_fields(first) | self._undeclared(scope, began_at, facts)
            current |= find_restore(facts, first, move)
            yield self.make_finding(
                scope,
                first,
                at=began_at,
                known_at=first.seen + _WAIT_MS if move is None else max(first.seen, move.new.begin.seen),
                severity=Severity.WARNING if move is None else Severity.CRITICAL,
                labels=("no_move_seen",) if move is None else ("values_fell",),
                detail=describe_decrease({**scope.subject, **subject}, previous, current, began_at),
                subject=subject,
                previous=previous,
                current=current,
            )

    def _last_move(
        self, scope: Scope, histories: Iterable[TaskHistory], first: ChangelogDecreases, facts: Facts
    ) -> Reassignment | None:
        """Return the move that explains the decrease: the last to another thread, else the last through a rebalance.

        A rebalance before an application reset does not explain what happened to the new changelog.
        """
        moves = [
            move
            for history in histories
            for move in find_reassignments(history.assignments, first.began_at, self.within)
            if not is_recreated(facts, scope.in_partition, move.left.start, first.at)
        ]
        return max(moves, key=lambda move: (move.is_to_other_thread, move.new.begin.at), default=None)

    def _short_restores(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for line in facts.history(LogLine, *_line_key(scope, "store_restored")):
            if _is_of_other_application(scope, line, facts):
                continue
            records = whole_number(line.values.get("records"))
            begin = facts.history(LogLine, *_line_key(scope, "store_without_checkpoint")).as_of(line.at)
            if records is None or begin is None or begin.at < line.at - _RESTORE_MS:
                continue
            readings = facts.history(LogOffsets, *scope.in_partition).before(begin.at + 1, FLOOR // 2)
            if not readings or is_recreated(facts, scope.in_partition, readings[0].at, line.at):
                continue
            spanned = readings[-1].log_end - readings[-1].log_start
            written = readings[-1].log_end - readings[0].log_end
            if spanned < self.min_records or records * _SHORT_SHARE >= spanned or (records and 2 * records >= written):
                continue
            store = line.values.get("store", "")
            task = task_subject(_task_histories(scope, store, line.at, facts))
            yield self.make_finding(
                scope,
                line,
                known_at=max(line.seen, begin.seen, readings[-1].seen),
                labels=("short_restore",),
                detail=f"store {store} of {scope.group} restored from {records:,} of {spanned:,} offsets of "
                f"{scope.topic}[{scope.partition}] without a checkpoint{_on_host(line)}: it may be incomplete",
                subject={"application": scope.group, "store": store, **task},
                previous={"log_start": readings[-1].log_start, "log_end": readings[-1].log_end},
                current={"records": records},
            )

    def _precursors(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        if not self.precursor or scope.topic in {store.changelog for store in self._declared(scope)}:
            return
        lines = find_store_lines(facts, scope.cluster, scope.in_partition[1:], "store_without_checkpoint")
        for line in lines:
            if line.log != scope.log or "task" not in line.values:
                continue
            assignments = self._return_to_thread(scope, line, facts)
            if assignments is None or _is_of_other_application(scope, line, facts):
                continue
            before, now = assignments
            left = before.end or now.begin
            store, task = line.values.get("store", ""), line.values["task"]
            yield self.make_finding(
                scope,
                line,
                known_at=max(line.seen, now.begin.seen),
                labels=("precursor",),
                detail=f"task {task} of {scope.group} returned to {thread(now.member)}{_on_host(line)} and found no "
                f"checkpoint for store {store}: on Kafka Streams 1.1 to 2.1 the store may be empty (KAFKA-7672)",
                subject={"application": scope.group, "store": store, "task": task},
                previous=owner_fields(before, "until", left.at),
                current=owner_fields(now, "since", now.begin.at),
            )

    def _return_to_thread(self, scope: Scope, line: LogLine, facts: Facts) -> tuple[Assignment, Assignment] | None:
        """Return the earlier assignment to the line's thread and the one it had at the line, or None."""
        histories = _task_histories(scope, line.values.get("store", ""), line.at, facts, line.values["task"])
        for _, assignments in histories:
            for move in reversed(list(find_reassignments(assignments, line.at, self.within))):
                now = move.new
                recent = [
                    owned
                    for owned in assignments
                    if owned.begin.at < now.begin.at and owned.member.id == now.member.id
                    if owned.end is not None and owned.end.at >= line.at - self.within
                ]
                if recent and may_be_from(line, now.member):
                    return recent[-1], now
        return None

    def _undeclared(self, scope: Scope, at: int, facts: Facts) -> dict[str, Any]:
        """Return the application's stores that are not declared, if there are any."""
        state = facts.history(StreamsApplication, scope.cluster, scope.group or "").as_of(at + LATENESS_MS)
        declared = {store.changelog for store in self._declared(scope)}
        stores = [] if state is None else [store for store, _ in state.stores if state.changelog(store) not in declared]
        return {"undeclared": stores} if stores else {}


def _episodes(scope: Scope, facts: Facts) -> Iterator[tuple[int, list[ChangelogDecreases]]]:
    """Yield when each episode of decreases began, and what is known of it."""
    history = facts.history(ChangelogDecreases, *scope.in_partition)
    for began_at, changes in groupby(history, key=lambda change: change.began_at):
        yield began_at, list(changes)


def _covers(earlier: Finding, later: Finding) -> bool:
    """Return whether the later decreases are explained by an open finding: no task has moved since."""
    are_decreases = "keys" in earlier.current and "keys" in later.current
    has_moved = "values_fell" in later.labels and later.current["since"] > earlier.at
    return are_decreases and earlier.is_open_at(later.at) and not has_moved


def _task_histories(scope: Scope, store: str, at: int, facts: Facts, task: str | None = None) -> list[TaskHistory]:
    repartition = f"{scope.group}-{store}-repartition"
    return find_task_histories(
        facts.history(GroupState, scope.cluster, scope.group or ""), scope.partition or 0, repartition, at, task
    )


def _is_of_other_application(scope: Scope, line: LogLine, facts: Facts) -> bool:
    """Return whether the changelog belongs to another application, whose id is a prefix of this one's or vice versa.

    A line that names the store leaves only one.
    """
    if len(possible_applications(scope.topic or "", line.values.get("store", ""))) == 1:
        return False
    return find_application(facts, scope.cluster, scope.topic or "", line.at) not in (None, scope.group)


def _line_key(scope: Scope, pattern: str) -> tuple[str | int | None, ...]:
    return (scope.cluster, scope.log, pattern, scope.topic, scope.partition, None, None)


def _on_host(line: LogLine) -> str:
    return f" on {line.host}" if line.host else ""
